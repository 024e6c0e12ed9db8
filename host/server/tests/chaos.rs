//! The process as the machine treats it: killed at any moment, out of disk, out of memory, given files that
//! can't be read and addresses that can't be had. What goes wrong is named, the exit code says whose fault it
//! was, and nothing is left that hinders the next start.

mod common;

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::process::{COMPLETION, Home, Host, complaint};

/// A port that is free now, for hosts that need the same one twice.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_host_that_is_killed_at_any_moment_starts_again() {
    let home = Home::new();
    let admin = format!("127.0.0.1:{}", free_port());
    let serve = || home.serve("", &["--admin", &admin]);
    // Before it has said anything, each time a little later: while it makes its token, compiles, loads.
    for _ in 0..3 {
        let mut child = serve().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 1];
        // Its first word on standard error comes in the middle of its start.
        let _ = child.stderr.take().unwrap().read(&mut said);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // While somebody is served.
    let mut host = Host::start(serve());
    let mut stream = host.ask(&COMPLETION.replace("false", "true").replace(": 5", ": 2000"));
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    host.child.kill().unwrap();
    drop(host);
    // What a kill in the middle of a write leaves behind.
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
    assert_eq!(token.len(), 64, "a token of its own");
    host.ends();
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "the token goes with the host");
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_behind() {
    let home = Home::new();
    // Every write to a file fails, as where no byte is free.
    let full = "trap '' XFSZ; ulimit -f 0";
    home.fails(1, full, &[], &["admin token", "INFER_ADMIN_TOKEN"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "no half of a token is left");
    // With a token given it needs no file: what it would have kept it makes again. No compiled policy fits into
    // 64 KiB; nothing at all would keep instances from their memory, whose images count as files.
    let crowded = "trap '' XFSZ; ulimit -f 128; export INFER_ADMIN_TOKEN=0123456789abcdef";
    let host = Host::start(home.serve(crowded, &[]));
    host.serves();
    host.ends();
    assert_eq!(home.left("cache"), Vec::<PathBuf>::new(), "no half of a compiled policy is left");
    let host = Host::start(home.serve("", &[]));
    host.serves();
    host.ends();
}

#[test]
fn a_terminal_that_takes_nothing_stops_nobody() {
    let home = Home::new();
    for arguments in [&["sim", "run", "--requests", "20", "--scheduler", "builtin"][..], &["policy", "list"]]
    {
        let output = home.command("exec >/dev/full", arguments).output().unwrap();
        complaint(&output);
    }
    let generate = ["generate", "--prompt", "What is a block?", "--max-tokens", "3", "--seed", "1"];
    for json in [&[][..], &["--json"]] {
        let output = home.command("exec >/dev/full", &[&generate[..], json].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(1) && said.contains("output"), "{said}");
    }
}

/// A model that nobody can fetch: the hub isn't there.
const UNREACHABLE: [&str; 2] = ["--model", "org/none"];
const NO_HUB: &str = "export HF_ENDPOINT=http://127.0.0.1:1 HF_HUB_CACHE=hub HF_TOKEN= HF_HUB_OFFLINE=";

#[test]
fn what_needs_no_model_to_be_seen_is_said_before_one_is_fetched() {
    let home = Home::new();
    let with = |more: &[&'static str]| [&UNREACHABLE[..], more].concat();
    home.fails(1, NO_HUB, &UNREACHABLE, &["org/none", "can't be reached"]);
    home.fails(2, &format!("{NO_HUB}1"), &UNREACHABLE, &["HF_HUB_OFFLINE"]);
    home.fails(2, NO_HUB, &with(&["--scheduler", "contiuous"]), &["--scheduler", "contiuous"]);
    home.fails(2, NO_HUB, &with(&["--admission", "./none.wasm"]), &["--admission", "none.wasm"]);
    fs::write(home.path("policies.json"), r#"{"scheduler": {"nonsense": 1}}"#).unwrap();
    home.fails(1, NO_HUB, &with(&["--policy-config", "policies.json"]), &["--scheduler", "nonsense"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    home.fails(
        1,
        NO_HUB,
        &[&UNREACHABLE[..], &["--kv-events", &endpoint]].concat(),
        &["--kv-events", &endpoint],
    );
    let output = home.command("", &["config", "check", "--scheduler", "contiuous"]).output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(2) && said.contains("contiuous"), "{said}");
}

#[test]
fn variables_that_can_not_be_meant_are_named() {
    let home = Home::new();
    for (variable, words) in [
        ("INFER_MAX_BATCH_SISE=3", &["INFER_MAX_BATCH_SISE", "INFER_MAX_BATCH_SIZE"][..]),
        ("INFER_LOG=debgu", &["INFER_LOG", "debgu"]),
        ("INFER_LOG_FORMAT=yaml", &["INFER_LOG_FORMAT", "`json`"]),
    ] {
        home.fails(2, &format!("export {variable}"), &UNREACHABLE, words);
    }
}

#[test]
fn a_host_without_a_runtime_directory_of_its_own_keeps_its_token_elsewhere() {
    let home = Home::new();
    let elsewhere =
        "mkdir -p tmp; export TMPDIR=$PWD/tmp XDG_RUNTIME_DIR=/nonexistent/run INFER_ADMIN_TOKEN= INFER_LOG=";
    let host = Host::start(home.serve(elsewhere, &[]));
    assert_eq!(home.left("tmp").len(), 1, "{:?}", home.left("tmp"));
    let list = home.command(elsewhere, &["policy", "list", "--admin", &host.admin]).output().unwrap();
    assert!(list.status.success(), "{}", complaint(&list));
    host.ends();
    assert_eq!(home.left("tmp"), Vec::<PathBuf>::new());
    let nowhere = "export TMPDIR=/nonexistent/tmp XDG_RUNTIME_DIR=/nonexistent/run";
    home.fails(1, nowhere, &[], &["/nonexistent/tmp/infer-", "INFER_ADMIN_TOKEN"]);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    home.fails(1, "", &["--admin", &address], &["--admin", &address, "in use"]);
    home.fails(1, "", &["--port", &port], &["--port", &port, "in use"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new());
}

#[test]
fn too_little_memory_is_named() {
    let home = Home::new();
    // Enough for the program and its model, not for what instances of policies reserve.
    home.fails(1, "ulimit -v 3000000", &[], &["memory"]);
    let said = home.fails(2, "", &["--kv-memory", "1000000GiB"], &["--kv-memory"]);
    assert!(!said.contains("overflow"), "{said}");
}

/// A copy of the demo model's checkpoint.
fn checkpoint(home: &Home, name: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/checkpoint");
    let to = home.path(name);
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    to
}

#[test]
fn a_checkpoint_that_can_not_be_read_is_named() {
    let home = Home::new();
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &[&str]); 9] = [
        ("no-weights", |dir| fs::remove_file(dir.join("model.safetensors")).unwrap(), &["model.safetensors"]),
        ("truncated", |dir| halve(&dir.join("model.safetensors")), &["model.safetensors"]),
        (
            "no-header",
            |dir| fs::write(dir.join("model.safetensors"), [255; 16]).unwrap(),
            &["model.safetensors"],
        ),
        (
            "empty-weights",
            |dir| fs::write(dir.join("model.safetensors"), []).unwrap(),
            &["model.safetensors"],
        ),
        ("folder", |dir| in_place_of(&dir.join("model.safetensors")), &["model.safetensors"]),
        ("config", |dir| halve(&dir.join("config.json")), &["config.json"]),
        ("no-config", |dir| fs::remove_file(dir.join("config.json")).unwrap(), &["config.json"]),
        ("tokenizer", |dir| halve(&dir.join("tokenizer.json")), &["tokenizer.json"]),
        ("shard", lose_a_shard, &["model-00002-of-00002.safetensors"]),
    ];
    for (name, spoil, words) in cases {
        let dir = checkpoint(&home, name);
        spoil(&dir);
        let dir = dir.to_str().unwrap();
        let output = home.serve("", &["--model", dir]).output().unwrap();
        let said = complaint(&output);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{name}: {code:?} {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{name}: {words:?} aren't in: {said}");
    }
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "hosts that never served leave no token");
}

#[test]
fn a_type_that_the_processor_does_not_compute_is_refused_with_those_that_it_does() {
    let output = Home::new().serve("", &["--dtype", "f16", "--device", "cpu"]).output().unwrap();
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(["--dtype", "GPUs", "`bf16`"].iter().all(|word| said.contains(word)), "{said}");
}

fn halve(file: &Path) {
    let content = fs::read(file).unwrap();
    fs::write(file, &content[..content.len() / 2]).unwrap();
}

fn in_place_of(file: &Path) {
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
}

/// An index of two shards, of which one is there.
fn lose_a_shard(dir: &Path) {
    fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors")).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}
