//! Hosts that are killed start again.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{streaming, swapping, trapping_scheduler, until};
use crate::commands::KEPT;
use crate::port::Port;
use crate::process::{Home, Host, complaint};

/// When starts are killed, in 32nds of the time that a whole one takes: those that find compiled policies, and
/// those that compile them.
const WARM: [u32; 8] = [1, 4, 8, 12, 16, 20, 24, 32];
const COLD: [u32; 4] = [8, 16, 24, 32];
/// Policies to swap in, each of which is compiled for it.
const SWAPPED: [&str; 4] = ["srpt", "fair", "priority", "deadline"];

/// Each round kills a host in the middle of its start, then another one that serves.
#[test]
fn host_killed_at_any_point_starts_again() {
    let home = Home::new();
    let (host, cold) = started(&home);
    drop(host);
    let (host, warm) = started(&home);
    let begun = Instant::now();
    let swapped = swapping(&home, &host, "static-batch").output().unwrap();
    let swap = begun.elapsed();
    assert!(swapped.status.success(), "{}", complaint(&swapped));
    drop(host);
    let moments = WARM.map(|part| (warm, part)).into_iter().chain(COLD.map(|part| (cold, part)));
    for (round, (whole, part)) in moments.enumerate() {
        if round >= WARM.len() {
            fs::remove_dir_all(home.path("cache/infer")).unwrap();
        }
        let mut starting =
            home.serve("", &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sh starts");
        std::thread::sleep(whole * part / 32);
        starting.kill().unwrap();
        starting.wait().unwrap();
        let (host, _) = started(&home);
        host.serves();
        let turn = round / 3;
        match round % 3 {
            0 => {
                let stream = streaming(&host);
                // The host first.
                drop((host, stream));
            }
            1 => killed_in_a_swap(&home, host, SWAPPED[turn], swap * (turn as u32 + 1) / 4),
            _ => killed_in_a_recording(&home, host, turn),
        }
    }
    let (host, _) = started(&home);
    host.serves();
    host.ends();
}

/// Starts a host, and measures how long that takes.
fn started(home: &Home) -> (Host, Duration) {
    let begun = Instant::now();
    let host = Host::start(home.serve("", &[]));
    (host, begun.elapsed())
}

fn killed_in_a_swap(home: &Home, mut host: Host, policy: &str, after: Duration) {
    let mut swap = swapping(home, &host, policy);
    let swap = swap.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(after);
    host.child.kill().unwrap();
    // It succeeds if it was faster.
    complaint(&swap.wait_with_output().unwrap());
}

/// Kills the host or the recorder. Either way the recording can be replayed.
fn killed_in_a_recording(home: &Home, mut host: Host, turn: usize) {
    let name = format!("{turn}.jsonl");
    let mut recorder = home.command("", &["sim", "record", "--out", &name, "--admin", &host.admin]);
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().unwrap();
    let file = home.path(&name);
    let holds = |start: &str| fs::read_to_string(&file).is_ok_and(|text| text.contains(start));
    until("the recording begins", || holds("{\"head\""));
    host.serves();
    until("a request is recorded to its end", || holds("{\"end\""));
    let stream = streaming(&host);
    if turn.is_multiple_of(2) {
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        host.serves();
    } else {
        host.child.kill().unwrap();
        let output = recorder.wait_with_output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(1) && said.contains("can't be reached"), "{said}");
    }
    drop((stream, host));
    let mut replay = home.command("", &["sim", "run", "--trace", &name]);
    replay.args(["--device", "cpu", "--model", "demo"]);
    for slot in ["--scheduler", "--admission", "--prefix-cache"] {
        replay.args([slot, "builtin"]);
    }
    let output = replay.output().unwrap();
    let said = complaint(&output);
    assert!(output.status.success() && said.contains("the recording was cut off"), "{said}");
}

#[test]
fn host_killed_while_it_writes_a_fault_starts_again() {
    let home = Home::new();
    let component = trapping_scheduler(&home);
    let folder = home.path("faults");
    let trapped = || {
        let host = Host::start(home.serve(KEPT, &["--fault-dir", folder.to_str().unwrap()]));
        let swapped = swapping(&home, &host, component).output().unwrap();
        assert!(swapped.status.success(), "{}", complaint(&swapped));
        let stream = streaming(&host);
        (host, stream)
    };
    let (mut host, stream) = trapped();
    until("the first file is begun", || !home.left("faults").is_empty());
    host.child.kill().unwrap();
    drop((host, stream));

    let (host, stream) = trapped();
    let is_whole = |file: &PathBuf| {
        file.extension().is_some_and(|e| e == "json")
            && serde_json::from_slice::<serde_json::Value>(&fs::read(file).unwrap_or_default()).is_ok()
    };
    until("the same fault is written", || home.left("faults").iter().any(is_whole));
    drop(stream);
    host.serves();
    host.ends();
}

#[test]
fn killed_host_starts_again() {
    let home = Home::new();
    let port = Port::new();
    let admin = format!("127.0.0.1:{}", port.number);
    let serve = || home.serve("", &["--admin", &admin]);
    let host = Host::start(serve());
    let stream = streaming(&host);
    drop((host, stream));
    // Imitate a kill in the middle of a write.
    let mut halved = 0;
    for file in home.left("cache") {
        if file.extension().is_some_and(|e| e == "cwasm") {
            let content = fs::read(&file).unwrap();
            fs::write(&file, &content[..content.len() / 2]).unwrap();
            fs::copy(&file, file.with_file_name(format!("{halved}-0.tmp"))).unwrap();
            halved += 1;
        }
    }
    assert!(halved > 0, "compiled policies are kept");
    let tokens = home.left("run");
    assert_eq!(tokens.len(), 1, "the killed host's token: {tokens:?}");
    fs::write(&tokens[0], "ab").unwrap();

    let host = Host::start(serve());
    host.serves();
    let token = fs::read_to_string(&tokens[0]).unwrap();
    assert_eq!(token.len(), 64, "a new token");
    host.ends();
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "the token is removed at the end");
}
