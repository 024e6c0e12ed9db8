//! Policies across the ends of processes (`--policy-state`): hosts that are killed, that share a directory, and whose
//! disk is full.

use std::fs;

use serde_json::Value;

use crate::commands::KEPT;
use crate::process::{Home, Host, complaint};

const STATE: [&str; 2] = ["--policy-state", "policies"];

/// What `infer policy` prints of a host, which has the token that `before` gives it.
fn policy(home: &Home, host: &Host, before: &str, arguments: &[&str]) -> Value {
    let all = [&["policy"][..], arguments, &["--json", "--admin", &host.admin]].concat();
    let output = home.command(before, &all).output().expect("sh starts");
    assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn live(home: &Home, host: &Host, kind: &str) -> Value {
    policy(home, host, "", &["describe", kind])["name"].clone()
}

/// A component that behaves as `of` and has so many bytes more.
fn padded(of: &[u8], bytes: u32) -> Vec<u8> {
    let mut padded = of.to_vec();
    // A custom section, named `p`; sizes have seven bits a byte, the lowest first.
    padded.push(0);
    let size = bytes + 2;
    padded.extend([size as u8 | 0x80, (size >> 7) as u8 | 0x80, (size >> 14) as u8]);
    padded.extend([1, b'p']);
    padded.resize(padded.len() + bytes as usize, 0);
    padded
}

#[test]
fn killed_host_starts_again_with_the_policies_that_were_live() {
    let home = Home::new();
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    fs::write(home.path("mine.wasm"), padded(component, 20_000)).unwrap();
    let host = Host::start(home.serve(KEPT, &STATE));
    let swapped = policy(&home, &host, "", &["swap", "scheduler", "mine.wasm"]);
    assert_eq!(swapped["to"], "srpt");
    policy(&home, &host, "", &["swap", "admission", "memory-aware,token-bucket"]);
    // As an operator's copy is not the host's.
    fs::remove_file(home.path("mine.wasm")).unwrap();
    drop(host);

    let host = Host::start(home.serve(KEPT, &STATE));
    let restored = policy(&home, &host, "", &["describe", "scheduler"]);
    assert_eq!((&restored["name"], &restored["sha256"]), (&swapped["to"], &swapped["sha256"]));
    assert_eq!(live(&home, &host, "admission"), "memory-aware+token-bucket");
    let history =
        home.command("", &["policy", "history", "scheduler", "--admin", &host.admin]).output().unwrap();
    let history = String::from_utf8(history.stdout).unwrap();
    let restart = history.find("the host was restarted").unwrap_or_else(|| panic!("{history}"));
    assert!(history.find("continuous -> srpt").unwrap() < restart, "{history}");
    host.serves();
    policy(&home, &host, "", &["rollback", "scheduler"]);
    drop(host);
    let host = Host::start(home.serve(KEPT, &STATE));
    assert_eq!(live(&home, &host, "scheduler"), "continuous");
    host.ends();
    assert!(!home.path("policies/policies.json.lock").exists());
}

#[test]
fn second_host_with_the_same_directory_does_not_start() {
    let home = Home::new();
    let first = Host::start(home.serve(KEPT, &STATE));
    home.fails(1, KEPT, &STATE, &["--policy-state", "another host uses policies"]);
    // Looking takes nothing.
    let check = ["config", "check", "--port", "0", "--admin", "127.0.0.1:0", STATE[0], STATE[1]];
    let checked = home.command(KEPT, &check).output().unwrap();
    assert!(checked.status.success(), "{}", complaint(&checked));
    policy(&home, &first, "", &["swap", "scheduler", "fair"]);
    first.ends();
    let next = Host::start(home.serve(KEPT, &STATE));
    assert_eq!(live(&home, &next, "scheduler"), "fair");
    next.ends();
}

#[test]
fn directory_with_something_else_in_it_is_refused_by_the_check_and_by_the_start() {
    let home = Home::new();
    fs::write(home.path("policies"), "precious").unwrap();
    home.fails(2, KEPT, &STATE, &["--policy-state: policies: "]);
    let check = ["config", "check", "--port", "0", "--admin", "127.0.0.1:0", STATE[0], STATE[1]];
    let output = home.command(KEPT, &check).output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(2) && said.contains("it is no directory"), "{said}");
    assert_eq!(fs::read_to_string(home.path("policies")).unwrap(), "precious");
}

#[test]
fn state_that_a_start_would_set_aside_is_found_by_the_check() {
    let home = Home::new();
    let host = Host::start(home.serve(KEPT, &STATE));
    host.serves();
    host.ends();
    let file = home.path("policies/policies.json");
    let saved = fs::read_to_string(&file).unwrap();
    let check = ["config", "check", "--port", "0", "--admin", "127.0.0.1:0", STATE[0], STATE[1]];
    let whole = home.command(KEPT, &check).output().unwrap();
    assert!(whole.status.success(), "{}", complaint(&whole));
    let newer = saved.replace("\"version\": 1", "\"version\": 2");
    for (text, says) in [(newer.as_str(), "it has version 2"), ("", "it is damaged")] {
        fs::write(&file, text).unwrap();
        let output = home.command(KEPT, &check).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(says), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    fs::write(&file, &saved).unwrap();
    let file = home.path("policies/exported.state");
    let known = fs::read(&file).unwrap();
    for (bytes, says) in [
        (&known[..known.len() - 1], "it doesn't have the SHA-256 that it says"),
        (b"", "its first line has no end"),
    ] {
        fs::write(&file, bytes).unwrap();
        let output = home.command(KEPT, &check).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(says), "{said}");
        assert!(said.contains("policies would begin without what they knew"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    assert!(!home.path("policies/unread").exists(), "nothing is moved");
    fs::write(&file, &known).unwrap();
    let whole = home.command(KEPT, &check).output().unwrap();
    assert!(whole.status.success(), "{}", complaint(&whole));
}

#[test]
fn full_disk_leaves_what_was_saved_and_the_operator_is_told() {
    let home = Home::new();
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    fs::write(home.path("large.wasm"), padded(component, 200_000)).unwrap();
    let token = "export INFER_ADMIN_TOKEN=0123456789abcdef";
    let host = Host::start(home.serve(&format!("{KEPT}; {token}"), &STATE));
    policy(&home, &host, token, &["swap", "scheduler", "fair"]);
    host.ends();

    // No file may have more than 64 KiB.
    let host = Host::start(home.serve(&format!("{KEPT}; {token}; ulimit -f 128"), &STATE));
    let swapped = policy(&home, &host, token, &["swap", "scheduler", "large.wasm"]);
    assert_eq!(swapped["to"], "srpt");
    assert!(swapped["not_saved"].is_string(), "{swapped}");
    let all = policy(&home, &host, token, &["list"]);
    assert_eq!(all["not_saved"], swapped["not_saved"]);
    host.serves();
    drop(host);
    let names = home.left("policies").into_iter().map(|path| path.file_name().unwrap().to_owned());
    let names: Vec<_> =
        names.filter(|name| name != "policies.json.lock" && name != "exported.state").collect();
    assert_eq!(names, ["policies.json"], "no partial file is left");

    let host = Host::start(home.serve(&format!("{KEPT}; {token}"), &STATE));
    assert_eq!(policy(&home, &host, token, &["describe", "scheduler"])["name"], "fair");
    host.ends();
}
