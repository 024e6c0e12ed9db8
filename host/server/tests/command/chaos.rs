//! The process under bad conditions: killed at any moment, out of disk, out of memory, given unreadable files
//! and addresses in use. Errors name the cause, the exit code tells bad usage from failure, and nothing is
//! left behind that prevents the next start.

use crate::commands::KEPT;
use crate::port::Port;
use crate::process::{COMPLETION, Home, Host, complaint};
use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// A stream that has begun and is far from its end.
fn streaming(host: &Host) -> TcpStream {
    let mut stream = host.ask(&COMPLETION.replace("false", "true").replace(": 5", ": 2000"));
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    stream
}

fn swapping(home: &Home, host: &Host, policy: &str) -> Command {
    home.command("", &["policy", "swap", "scheduler", policy, "--admin", &host.admin])
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

/// Waits for something that another process does.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
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

/// Builds a scheduler that traps after fifty calls. Returns its file in this home.
pub fn trapping_scheduler(home: &Home) -> &'static str {
    // As in the tests for authors of policies.
    let kept = concat!(
        "export CARGO_NET_OFFLINE=true CARGO_TARGET_DIR='",
        env!("CARGO_TARGET_TMPDIR"),
        "/author-target'"
    );
    let run = |arguments: &[&str]| {
        let output = home.command(kept, arguments).output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
    };
    run(&["policy", "new", "trapping", "--kind", "scheduler"]);
    let source = home.path("trapping/src/lib.rs");
    let text = fs::read_to_string(&source).unwrap();
    let first = "let mut planner = Planner::new(step);";
    assert!(text.contains(first), "{text}");
    let counting = "static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        assert!(CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 50);";
    fs::write(&source, text.replacen(first, &format!("{counting}\n        {first}"), 1)).unwrap();
    run(&["policy", "build", "trapping"]);
    "trapping/trapping.wasm"
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

#[test]
fn full_disk_is_named_and_leaves_nothing_behind() {
    let home = Home::new();
    // Every write to a file fails, as if no byte were free.
    let full = "ulimit -f 0";
    home.fails(1, full, &[], &["admin token", "INFER_ADMIN_TOKEN"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "no partial token is left");
    // With a given token it needs no file; compiled policies are not cached, because none fits into 64 KiB. A
    // limit of zero would also prevent the memory images of instances, which count as files.
    let crowded = "ulimit -f 128; export INFER_ADMIN_TOKEN=0123456789abcdef";
    let host = Host::start(home.serve(crowded, &[]));
    host.serves();
    host.ends();
    assert_eq!(home.left("cache"), Vec::<PathBuf>::new(), "no partial compiled policy is left");
    let host = Host::start(home.serve("", &[]));
    host.serves();
    host.ends();
}

#[test]
fn second_host_with_a_cache_file_warns() {
    let home = Home::new();
    let keeps = ["--cache-file", "a.cache"];
    let warns = || {
        Host::start(home.serve(&format!("{KEPT}; exec 2>log.txt"), &keeps)).ends();
        let log = fs::read_to_string(home.path("log.txt")).unwrap();
        log.contains("another host uses a.cache now")
    };
    assert!(!warns());
    let first = Host::start(home.serve(KEPT, &keeps));
    assert!(warns());
    first.ends();
    assert!(!warns());
    assert!(!home.path("a.cache.lock").exists());
}

#[test]
fn cache_that_is_larger_than_files_may_be_leaves_the_file_as_it_was() {
    let home = Home::new();
    let keeps = ["--cache-file", "a.cache"];
    let host = Host::start(home.serve(KEPT, &keeps));
    // A dozen blocks, which are more than 128 KiB.
    let long = COMPLETION.replace("\"max_tokens\": 5", "\"max_tokens\": 200");
    host.completes(&long);
    host.ends();
    let saved = fs::read(home.path("a.cache")).unwrap();
    assert!(saved.len() > 128 << 10, "{}", saved.len());

    let host = Host::start(home.serve(&format!("{KEPT}; exec 2>log.txt; ulimit -f 128"), &keeps));
    host.completes(&long);
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    assert!(log.contains("the prefix cache is not saved: "), "{log}");
    assert!(fs::read(home.path("a.cache")).unwrap() == saved, "{log}");
    assert!(!home.path("a.cache.partial").exists());
}

#[test]
fn full_output_device_ends_a_command_with_an_error() {
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

/// A model that can't be downloaded, because there is no hub.
const UNREACHABLE: [&str; 2] = ["--model", "org/none"];
const NO_HUB: &str = "export HF_ENDPOINT=http://127.0.0.1:1 HF_HUB_CACHE=hub HF_TOKEN= HF_HUB_OFFLINE=";

#[test]
fn errors_that_need_no_model_come_before_a_download() {
    let home = Home::new();
    let with = |more: &[&'static str]| [&UNREACHABLE[..], more].concat();
    home.fails(1, NO_HUB, &UNREACHABLE, &["org/none", "can't be reached"]);
    home.fails(2, &format!("{NO_HUB}1"), &UNREACHABLE, &["HF_HUB_OFFLINE"]);
    home.fails(2, NO_HUB, &with(&["--scheduler", "contiuous"]), &["--scheduler", "contiuous"]);
    home.fails(2, NO_HUB, &with(&["--admission", "./none.wasm"]), &["--admission", "none.wasm"]);
    fs::write(home.path("policies.json"), r#"{"scheduler": {"nonsense": 1}}"#).unwrap();
    home.fails(2, NO_HUB, &with(&["--policy-config", "policies.json"]), &["--scheduler", "nonsense"]);
    fs::write(home.path("damaged.wasm"), "not a component").unwrap();
    home.fails(
        2,
        NO_HUB,
        &with(&["--scheduler", "./damaged.wasm"]),
        &["--scheduler", "not a WebAssembly file"],
    );
    fs::write(home.path("broken.jinja"), "{% for m in messages %}").unwrap();
    let broken = ["--chat-template", "broken.jinja"];
    home.fails(2, NO_HUB, &with(&broken), &["--chat-template: broken.jinja", "syntax error"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    home.fails(
        1,
        NO_HUB,
        &[&UNREACHABLE[..], &["--kv-events", &endpoint]].concat(),
        &["--kv-events", &endpoint],
    );
    let replay = ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", &endpoint];
    home.fails(
        1,
        NO_HUB,
        &[&UNREACHABLE[..], &replay].concat(),
        &["--kv-events-replay:", &endpoint, "in use"],
    );
    let readable = ["--fault-dir", "readable"];
    fs::create_dir(home.path("readable")).unwrap();
    fs::set_permissions(home.path("readable"), fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["--fault-dir: readable: it must be", "mode 0700"];
    home.fails(2, NO_HUB, &with(&readable), &words);
    for wrong in [["--scheduler", "contiuous"], broken, readable] {
        let output = home.command("", &[&["config", "check"], &wrong[..]].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(wrong[1]), "{said}");
    }
}

#[test]
fn wrong_settings_of_a_file_are_named_with_their_line() {
    let home = Home::new();
    for (settings, words) in [
        (
            "port = 0\nscheduler = 'contiuous'\n",
            "infer.toml:2: scheduler: there is no scheduler policy `contiuous`",
        ),
        ("host = '192.0.2.1'\nport = 0\n", "infer.toml:1: host: can't listen on 192.0.2.1:0"),
        ("tls_cert = 'none.pem'\ntls-key = 'none.pem'\n", "infer.toml:1: tls_cert: "),
    ] {
        fs::write(home.path("infer.toml"), settings).unwrap();
        let serve = ["serve", "--threads", "1", "--admin", "127.0.0.1:0"];
        for command in [&serve[..], &["config", "check", "--admin", "127.0.0.1:0"]] {
            let output = home.command("", command).output().unwrap();
            let said = complaint(&output);
            assert!(!output.status.success() && said.contains(words), "{command:?}: {said}");
        }
    }
}

#[test]
fn misspelt_variables_are_named() {
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
fn host_without_a_runtime_directory_keeps_its_token_in_the_temporary_one() {
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
fn private_sockets_of_kv_events_are_removed_and_a_missing_place_is_named() {
    let home = Home::new();
    let publish = ["--kv-events", "tcp://127.0.0.1:0"];
    let elsewhere = "mkdir -p tmp; export TMPDIR=$PWD/tmp";
    let host = Host::start(home.serve(elsewhere, &publish));
    assert_eq!(home.left("tmp").len(), 1, "{:?}", home.left("tmp"));
    host.ends();
    assert_eq!(home.left("tmp"), Vec::<PathBuf>::new());
    home.fails(1, "export TMPDIR=/nonexistent/tmp", &publish, &["--kv-events", "/nonexistent/tmp", "TMPDIR"]);
}

#[test]
fn address_in_use_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    home.fails(1, "", &["--admin", &address], &["--admin", &address, "in use"]);
    home.fails(1, "", &["--port", &port], &["--port", &port, "in use"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new());
}

#[test]
fn lack_of_memory_is_named() {
    let home = Home::new();
    // Enough for the program and its model, but not for the address space of policy instances.
    home.fails(1, "ulimit -v 3000000", &[], &["memory"]);
    let said = home.fails(2, "", &["--kv-memory", "1000000GiB"], &["--kv-memory"]);
    assert!(!said.contains("overflow"), "{said}");
}

/// The host keeps what it has and works on; what it can't have now is refused for now.
#[cfg(target_os = "linux")]
#[test]
fn lack_of_memory_at_run_time_is_no_fault_of_a_request_and_passes() {
    let home = Home::new();
    let host = Host::start(home.serve("exec 2>log.txt", &[]));
    let listed = || {
        let list = ["policy", "list", "--all", "--admin", &host.admin];
        let output = home.command("", &list).output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let asked = |schema: &str| {
        let body = format!(
            r#"{{"model": "demo", "messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": 4, "response_format":
            {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}}}"#
        );
        let mut answer = String::new();
        host.send("POST /v1/chat/completions", "", &body).read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = asked(r#"{"type": "integer"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    // Half of what an instance reserves.
    limit_address_space(&host, Some(address_space(&host) + (2 << 30)));
    let answer = asked(r#"{"type": "boolean"}"#);
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
    assert!(answer.contains(r#""code":"memory""#) && answer.contains("4 GiB of address space"), "{answer}");
    let swapped = swapping(&home, &host, "static-batch").output().unwrap();
    let said = complaint(&swapped);
    assert_eq!(swapped.status.code(), Some(1), "{said}");
    assert!(said.contains("4 GiB of address space") && !said.contains("check:"), "{said}");
    let list = listed();
    assert!(list.contains("continuous") && !list.contains("s3-fifo"), "live and native ones: {list}");
    host.serves();

    limit_address_space(&host, None);
    let list = listed();
    assert!(list.contains("s3-fifo"), "{list}");
    let answer = asked(r#"{"type": "boolean"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let swapped = swapping(&home, &host, "static-batch").output().unwrap();
    assert!(swapped.status.success(), "{}", complaint(&swapped));
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    assert_eq!(log.matches("bundled polic").count(), 1, "{log}");
}

/// Bytes of address space that a host has in use.
#[cfg(target_os = "linux")]
fn address_space(host: &Host) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.child.id())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("Linux tells it");
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

#[cfg(target_os = "linux")]
fn limit_address_space(host: &Host, bytes: Option<u64>) {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let maximum = getrlimit(Resource::As).maximum;
    let limit = Rlimit { current: bytes.or(maximum), maximum };
    prlimit(Some(Pid::from_child(&host.child)), Resource::As, limit).unwrap();
}

#[test]
fn connections_fit_the_limit_of_open_files() {
    let home = Home::new();
    for (before, places) in [("ulimit -n 2000", 912), ("ulimit -S -n 256", 3_000)] {
        let host = Host::start(home.serve(before, &["--max-connections", "3000"]));
        let mut metrics = String::new();
        host.send("GET /metrics", "", "").read_to_string(&mut metrics).unwrap();
        let limit = format!("\ninfer_http_connections_limit {places}.0\n");
        assert!(metrics.contains(&limit), "{before}: {metrics}");
        host.ends();
    }
}

#[test]
fn connections_of_one_plane_leave_descriptors_for_the_other() {
    let home = Home::new();
    home.fails(1, "ulimit -n 40", &[], &["open files are limited to 40", "64"]);
    let host = Host::start(home.serve(&format!("{KEPT}; exec 2>log.txt; ulimit -n 64"), &[]));
    let admin = host.admin.trim_start_matches("http://");
    let _silent: Vec<TcpStream> = (0..120).map(|_| TcpStream::connect(admin).unwrap()).collect();
    let mut metrics = String::new();
    host.send("GET /metrics", "", "").read_to_string(&mut metrics).unwrap();
    assert!(metrics.contains("\ninfer_http_connections_limit 14.0\n"), "{metrics}");
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    assert!(log.contains("--max-connections is 14 instead of 4096"), "{log}");
    assert!(!log.contains("can't accept connections"), "{log}");
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
fn unreadable_checkpoint_is_named() {
    let home = Home::new();
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &[&str]); 10] = [
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
        ("half-shard", halve_a_shard, &["model-00002-of-00002.safetensors", "truncated"]),
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
fn unsupported_type_is_refused_with_the_supported_ones() {
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

/// Leaves one of two shards that the index names.
fn lose_a_shard(dir: &Path) {
    fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors")).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

/// Leaves one of two shards whole, and half of the other.
fn halve_a_shard(dir: &Path) {
    lose_a_shard(dir);
    let second = dir.join("model-00002-of-00002.safetensors");
    fs::copy(dir.join("model-00001-of-00002.safetensors"), &second).unwrap();
    halve(&second);
}
