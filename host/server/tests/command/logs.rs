//! What a host writes to its log, and how signals end it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use infer_server::tenants::{KeyDigest, fresh};
use serde_json::{Value, json};

use crate::chaos::until;
use crate::commands::KEPT;
use crate::process::{COMPLETION, Home, Host};

/// Writes the log to a file, one JSON object a line.
const TO_FILE: &str = "exec 2>log.txt; export INFER_LOG_FORMAT=json INFER_LOG=";

fn log(home: &Home) -> String {
    fs::read_to_string(home.path("log.txt")).unwrap()
}

/// Each line with this message.
fn lines(log: &str, message: &str) -> Vec<Value> {
    let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|line| line["message"] == message).collect()
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn terminate(host: &Host) {
    let pid = host.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

/// Whether a host takes requests. One that has ended doesn't.
fn is_ready(host: &Host) -> bool {
    let Ok(mut stream) = TcpStream::connect(&host.data) else { return false };
    let mut answer = String::new();
    let _ = stream.write_all(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let _ = stream.read_to_string(&mut answer);
    answer.starts_with("HTTP/1.1 200 ")
}

/// Ends a host during a stream. Returns the stream's last event, and the host. On a busy machine the stream may be over
/// before the host hears of its end; then another one is ended.
fn cut(serve: impl Fn() -> Command, end: impl Fn(&Host)) -> (String, Host) {
    for _ in 0..10 {
        let host = Host::start(serve());
        let mut stream = host.ask(&COMPLETION.replace("false", "true").replace(": 5", ": 4000"));
        stream.read_exact(&mut [0; 64]).unwrap();
        end(&host);
        let rest = read(stream);
        let event = rest.rsplit("event: ").next().unwrap();
        if !event.starts_with("done\n") {
            return (event.to_owned(), host);
        }
    }
    panic!("all streams are over before their host ends");
}

#[test]
fn a_key_of_the_environment_is_needed_and_not_logged() {
    let home = Home::new();
    let host = Host::start(home.serve(&format!("{TO_FILE}; export INFER_API_KEY=token-abc123"), &[]));
    for (headers, status) in [
        ("", 401),
        ("authorization: Bearer token-abc12\r\n", 401),
        ("authorization: Bearer token-abc123\r\n", 200),
        ("x-api-key: token-abc123\r\n", 200),
    ] {
        let answer = read(host.send("POST /v1/completions", headers, COMPLETION));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
    }
    assert!(read(host.send("GET /health", "", "")).starts_with("HTTP/1.1 200 "));
    host.ends();
    let log = log(&home);
    assert_eq!(lines(&log, "requests need an API key")[0]["keys"], 1, "{log}");
    assert!(log.contains("INFER_API_KEY is short enough to be guessed"), "{log}");
    assert!(!log.contains("token-abc123"), "{log}");

    let words = ["INFER_API_KEY: a key may only contain visible ASCII characters"];
    let said = home.fails(2, "export INFER_API_KEY='two words'", &[], &words);
    assert!(!said.contains("two words"), "{said}");
}

#[test]
fn what_a_template_says_stays_in_its_line() {
    let home = Home::new();
    fs::write(home.path("own.jinja"), "{{ raise_exception('no\\n2026 ERROR faked') }}").unwrap();
    let as_text = "exec 2>log.txt; export INFER_LOG_FORMAT=text INFER_LOG=";
    let host = Host::start(home.serve(as_text, &["--chat-template", "own.jinja"]));
    // A chat waits until the template was tried.
    let chat = r#"{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}"#;
    let answer = read(host.send("POST /v1/chat/completions", "", chat));
    assert!(answer.starts_with("HTTP/1.1 422 ") && answer.contains("template_refused"), "{answer}");
    host.ends();
    let log = log(&home);
    let tried = "--chat-template: a conversation of one user message fails";
    assert_eq!(log.lines().filter(|line| line.contains(tried)).count(), 1, "{log}");
    let said: Vec<&str> = log.lines().filter(|line| line.contains("faked")).collect();
    assert!(!said.is_empty() && said.iter().all(|line| line.contains("no\\n2026 ERROR faked")), "{log}");
}

#[test]
fn log_says_who_was_served_and_who_was_refused() {
    let home = Home::new();
    let (alice, stranger) = (fresh().unwrap(), fresh().unwrap());
    fs::write(home.path("keys.toml"), format!("[tenants.alice]\nkeys = [\"{}\"]\n", KeyDigest::of(&alice)))
        .unwrap();
    let host = Host::start(home.serve(TO_FILE, &["--api-keys", "keys.toml"]));
    let bearer = |key: &str| format!("authorization: Bearer {key}\r\n");
    let colder = COMPLETION.replace("\"temperature\": 0", "\"temperature\": -1");
    let named = COMPLETION.replacen('{', r#"{"metadata": {"note": "\"a\" \n b"}, "#, 1);
    let post = "POST /v1/completions";
    let long = format!("GET /v1/{}", "x".repeat(30_000));
    let sent = [
        (post, String::new(), COMPLETION, 401, Some("missing_api_key"), Value::Null),
        (post, bearer(&stranger), COMPLETION, 401, Some("invalid_api_key"), Value::Null),
        (post, bearer(&alice), colder.as_str(), 422, Some("invalid_value"), json!("alice")),
        ("GET /v1/nothing", bearer(&alice), "", 404, Some("not_found"), Value::Null),
        (long.as_str(), String::new(), "", 404, Some("not_found"), Value::Null),
        (post, bearer(&alice), named.as_str(), 200, None, json!("alice")),
    ];
    let mut peers = Vec::new();
    for (line, headers, body, status, ..) in &sent {
        let stream = host.send(line, headers, body);
        peers.push(stream.local_addr().unwrap().to_string());
        let answer = read(stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    host.ends();

    let log = log(&home);
    let rejected = lines(&log, "request rejected");
    assert_eq!(rejected.len(), 5, "{log}");
    for ((line, _, _, status, code, tenant), (peer, fields)) in sent.iter().zip(peers.iter().zip(&rejected)) {
        let path = line.split(' ').nth(1).map(|path| &path[..path.len().min(256)]);
        assert_eq!(
            (&fields["peer"], &fields["status"], &fields["code"], &fields["tenant"], &fields["path"]),
            (&json!(peer), &json!(status), &json!(code), tenant, &json!(path)),
            "{fields}"
        );
        let key = (!tenant.is_null()).then(|| KeyDigest::of(&alice).short());
        assert_eq!(fields["key"], json!(key), "{fields}");
    }
    assert!(!rejected[3]["error"].as_str().unwrap().contains("/tokenize"), "the paths are not listed: {log}");
    let ended = lines(&log, "request ended").pop().expect("one");
    assert_eq!(
        (&ended["peer"], &ended["tenant"], &ended["path"]),
        (&json!(peers[5]), &json!("alice"), &json!("/v1/completions"))
    );
    assert_eq!(ended["key"], json!(KeyDigest::of(&alice).short()));
    let metadata: Value = serde_json::from_str(ended["metadata"].as_str().unwrap()).unwrap();
    assert_eq!(metadata, json!({"note": "\"a\" \n b"}));
    for secret in [&alice, &stranger] {
        assert!(!log.contains(secret.as_str()), "{log}");
    }
}

#[test]
fn every_change_by_an_operator_is_a_line_with_name_and_address() {
    let home = Home::new();
    let token = fresh().unwrap();
    fs::write(home.path("bo.token"), &token).unwrap();
    let table = format!("[operators.bo]\nrole = \"operator\"\ntokens = [\"{}\"]\n", KeyDigest::of(&token));
    fs::write(home.path("operators.toml"), table).unwrap();
    let host = Host::start(home.serve(&format!("{KEPT}; {TO_FILE}"), &["--operators", "operators.toml"]));
    for command in [
        &["policy", "swap", "scheduler", "static-batch"][..],
        &["policy", "rollback", "scheduler"],
        &["policy", "swap", "scheduler", "static-batch", "--mode", "shadow"],
        &["policy", "promote", "scheduler"],
        &["admin", "clear-queue"],
        &["admin", "empty-cache"],
        &["admin", "reload"],
        &["sim", "record", "--seconds", "1", "--out", "host.jsonl"],
        &["admin", "drain"],
        &["admin", "undrain"],
    ] {
        let whom = ["--admin", &host.admin, "--token-file", "bo.token"];
        let output = home.command("", &[command, &whom].concat()).output().expect("sh starts");
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    let history = home
        .command("", &["policy", "history", "scheduler", "--admin", &host.admin, "--token-file", "bo.token"])
        .output()
        .expect("sh starts");
    let history = String::from_utf8(history.stdout).unwrap();
    assert_eq!(history.matches("  by bo").count(), 5, "{history}");
    host.ends();
    let log = log(&home);
    for message in [
        "policy swap",
        "policy rollback",
        "policy shadow",
        "policy promote",
        "an operator cleared the queue",
        "an operator emptied the cache",
        "an operator asked for a reload",
        "a recording started",
        "a recording was stopped",
        "an operator drains the host",
        "an operator takes a drain back",
    ] {
        let lines = lines(&log, message);
        assert!(!lines.is_empty(), "{message}: {log}");
        for line in lines {
            assert_eq!(line["operator"], "bo", "{line}");
            assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        }
    }
    assert_eq!(lines(&log, "policy start")[0].get("operator"), None, "nobody asked for it");
    assert!(!log.contains(&token), "{log}");
}

#[test]
fn refused_orders_and_recordings_that_a_reload_ends_are_lines() {
    let home = Home::new();
    let [ana, bo] = [fresh().unwrap(), fresh().unwrap()];
    fs::write(home.path("ana.token"), &ana).unwrap();
    fs::write(home.path("bo.token"), &bo).unwrap();
    let table = |name: &str, role: &str, token: &str| {
        format!("[operators.{name}]\nrole = \"{role}\"\ntokens = [\"{}\"]\n", KeyDigest::of(token))
    };
    let viewer = table("ana", "viewer", &ana);
    fs::write(home.path("operators.toml"), format!("{viewer}{}", table("bo", "operator", &bo))).unwrap();
    let host = Host::start(home.serve(&format!("{KEPT}; {TO_FILE}"), &["--operators", "operators.toml"]));
    let with = |token: &str, command: &[&str]| {
        home.command("", &[command, &["--admin", &host.admin, "--token-file", token]].concat())
    };
    let refused = with("ana.token", &["admin", "empty-cache"]).output().expect("sh starts");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let recorder = with("bo.token", &["sim", "record", "--out", "host.jsonl"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh starts");
    until("it records", || !lines(&log(&home), "a recording started").is_empty());
    fs::write(home.path("operators.toml"), viewer).unwrap();
    let own = home.command("", &["admin", "reload", "--admin", &host.admin]).output().expect("sh starts");
    assert!(own.status.success(), "{own:?}");
    until("it ended", || !lines(&log(&home), "a recording ended").is_empty());
    // The recorder ends with its recording.
    recorder.wait_with_output().unwrap();
    host.ends();
    let log = log(&home);
    let refused = &lines(&log, "an operator's order was refused")[0];
    assert_eq!(
        (&refused["operator"], &refused["method"], &refused["path"]),
        (&json!("ana"), &json!("DELETE"), &json!("admin/cache")),
        "{refused}"
    );
    let ended = &lines(&log, "a recording ended")[0];
    assert_eq!((&ended["operator"], &ended["reason"]), (&json!("bo"), &json!("dismissed")), "{ended}");
    for line in [refused, ended] {
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    }
}

#[test]
fn log_is_json_from_the_start_to_the_end() {
    let home = Home::new();
    let host = Host::start(home.serve(TO_FILE, &[]));
    let admin = host.admin.clone();
    host.serves();
    host.ends();
    let log = log(&home);
    let messages: Vec<String> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .map(|line| line["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((messages[0].as_str(), messages.last().map(String::as_str)), ("starting", Some("stopped")));
    let listening = lines(&log, "listening").pop().expect("the ready line");
    assert!(listening["data"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{listening}");
    assert_eq!(listening["admin"], json!(admin));
    assert_eq!((&listening["level"], &listening["target"]), (&json!("INFO"), &json!("infer_server::serve")));
}

/// Otherwise the first request that asks for structured output waits for seconds where nothing is cached.
#[test]
fn structured_output_is_prepared_after_the_start() {
    let home = Home::new();
    let host = Host::start(home.serve(&format!("{TO_FILE}infer_server=debug; "), &[]));
    until("it is prepared", || !lines(&log(&home), "ready for structured output").is_empty());
    host.ends();
}

/// Where `auto` finds no GPU, whether or not the build could use one.
#[test]
fn start_without_a_gpu_is_logged_once_and_so_is_a_setting_that_needs_one() {
    let none = format!("export CUDA_VISIBLE_DEVICES=; {TO_FILE}");
    let cases: [(&[&str], usize, usize); 3] = [
        (&[], 1, 0),
        (&["--device", "auto", "--plan-ahead", "on"], 1, 1),
        (&["--device", "cpu", "--plan-ahead", "on", "--speculate", "4"], 0, 1),
    ];
    for (flags, missing, ignored) in cases {
        let home = Home::new();
        let host = Host::start(home.serve(&none, flags));
        host.serves();
        host.ends();
        let log = log(&home);
        let all: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |level: &str, start: &str| {
            let starts = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with(start));
            all.iter().filter(|line| line["level"] == level).filter(starts).collect::<Vec<_>>()
        };
        let without = of("INFO", "not using a GPU (");
        assert_eq!(without.len(), missing, "{flags:?}: {log}");
        for line in without {
            let text = line["message"].as_str().unwrap();
            assert!(text.ends_with("; computing on the CPU") && line["threads"] == 1, "{line}");
            assert!(cfg!(feature = "cuda") || text.contains("`--features cuda`"), "{line}");
        }
        assert_eq!(of("WARN", "--plan-ahead has no effect on the CPU").len(), ignored, "{flags:?}: {log}");
        assert!(of("WARN", "--speculate").is_empty(), "{log}");
    }
}

#[test]
fn service_manager_is_told_of_the_start_and_of_the_end() {
    let home = Home::new();
    let path = home.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut state = [0; 64];
        let length = manager.recv(&mut state).unwrap();
        String::from_utf8_lossy(&state[..length]).into_owned()
    };
    let environment = format!("export NOTIFY_SOCKET='{}'", path.display());
    let host = Host::start(home.serve(&environment, &["--drain-timeout", "30m"]));
    assert_eq!(told(), "READY=1");
    host.ends();
    // Half an hour, and a minute for the rest.
    assert_eq!(told(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1860000000");
}

/// Whether somebody reads it in the end or not.
#[test]
fn log_that_nobody_reads_holds_up_nothing_and_its_gap_is_reported() {
    for read_at_last in [false, true] {
        let home = Home::new();
        // Opened for both directions, it takes what fits in the kernel's buffer, and then nothing.
        let unread = "mkfifo log.fifo; exec 2<>log.fifo; export INFER_LOG=debug";
        let host = Host::start(home.serve(unread, &[]));
        // More lines than the host keeps for a slow reader: each refusal has one.
        let refused = "GET /x HTTP/1.1\r\nhost: x\r\n\r\n".repeat(99);
        for _ in 0..50 {
            let mut stream = TcpStream::connect(&host.data).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            write!(stream, "{refused}GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
            assert_eq!(read(stream).matches("HTTP/1.1 404 ").count(), 100);
        }
        host.serves();
        let reader = read_at_last.then(|| {
            let log = BufReader::new(fs::File::open(home.path("log.fifo")).unwrap());
            let (report, reported) = mpsc::channel();
            let reader = std::thread::spawn(move || {
                for line in log.lines() {
                    if line.unwrap().contains("WARN infer_server::log: log lines were dropped because") {
                        let _ = report.send(());
                    }
                }
            });
            reported.recv_timeout(Duration::from_secs(60)).expect("the gap is reported");
            reader
        });
        host.ends();
        if let Some(reader) = reader {
            reader.join().unwrap();
        }
    }
}

#[test]
fn second_signal_ends_streams_with_an_error_event() {
    let home = Home::new();
    let twice = |host: &Host| {
        terminate(host);
        until("it drains", || !is_ready(host));
        terminate(host);
    };
    let (event, mut host) = cut(|| home.serve(TO_FILE, &[]), twice);
    assert!(event.starts_with("error\n") && event.contains("\"code\":\"stopped\""), "{event}");
    assert_eq!(host.child.wait().unwrap().code(), Some(1));
    let log = log(&home);
    let cut = lines(&log, "cutting streams that did not finish");
    assert_eq!(cut.iter().map(|fields| &fields["streams"]).collect::<Vec<_>>(), [&json!(1)], "{log}");
    assert!(log.contains("error: running streams were cut by a second signal"), "{log}");
}

#[test]
fn reload_that_finds_nothing_is_logged() {
    let home = Home::new();
    fs::write(home.path("policies.json"), "{}").unwrap();
    for (flags, message) in [
        (&[][..], "there is nothing to reload"),
        (&["--policy-config", "policies.json"], "nothing in --policy-config has changed"),
    ] {
        let host = Host::start(home.serve(&format!("{KEPT}; {TO_FILE}"), flags));
        let pid = host.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        until(message, || !lines(&log(&home), message).is_empty());
        host.ends();
    }
}

#[test]
fn second_signal_that_comes_with_the_first_to_an_idle_host_changes_nothing() {
    let home = Home::new();
    for _ in 0..4 {
        let mut host = Host::start(home.serve(&format!("{KEPT}; {TO_FILE}"), &[]));
        let pid = host.child.id().to_string();
        for name in ["-STOP", "-TERM", "-INT", "-CONT"] {
            assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
        }
        assert_eq!(host.child.wait().unwrap().code(), Some(0), "{}", log(&home));
    }
}

#[test]
fn drain_that_its_timeout_cuts_ends_streams_with_an_error_event_and_succeeds() {
    let home = Home::new();
    let (event, mut host) = cut(|| home.serve(TO_FILE, &["--drain-timeout", "1ms"]), terminate);
    assert!(event.starts_with("error\n") && event.contains("\"code\":\"stopped\""), "{event}");
    assert_eq!(host.child.wait().unwrap().code(), Some(0));
    let log = log(&home);
    let cut = lines(&log, "cutting streams that did not finish");
    assert_eq!(cut.iter().map(|fields| &fields["streams"]).collect::<Vec<_>>(), [&json!(1)], "{log}");
    assert!(log.contains("(--drain-timeout)"), "{log}");
}

#[test]
fn failed_start_names_its_fault_and_no_token() {
    let home = Home::new();
    let said = home.fails(2, "", &["--model", "/nowhere"], &["/nowhere"]);
    assert!(!said.contains("admin token"), "{said}");
    // An address of the documentation (RFC 5737), which no machine has.
    home.fails(1, "", &["--host", "192.0.2.1"], &["--host", "192.0.2.1"]);
}
