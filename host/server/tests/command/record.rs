//! `infer sim record` as a process: what its file holds, however the recording ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::commands::serving;
use crate::process::{Home, Host, complaint};

fn record(home: &Home, host: &Host, out: &str, more: &[&str]) -> Command {
    let usual = ["sim", "record", "--out", out, "--admin", &host.admin];
    home.command("", &[&usual, more].concat())
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a line of the recording begins like this; returns the number of lines.
fn awaits(recorder: &mut Child, path: &Path, start: &str) -> usize {
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.lines().any(|line| line.starts_with(start)) {
            return text.lines().count();
        }
        assert!(recorder.try_wait().unwrap().is_none(), "the recorder ended before {start}: {text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn recording_is_written_as_it_comes_and_completed_on_a_signal() {
    let home = Home::new();
    let host = serving(&home);
    let path = home.path("trace.jsonl");
    for name in ["TERM", "INT"] {
        let mut recorder = record(&home, &host, "trace.jsonl", &[]).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(
            awaits(&mut recorder, &path, "{\"head\""),
            1,
            "an idle host's recording has its head at once"
        );
        host.serves();
        awaits(&mut recorder, &path, "{\"end\"");
        signal(&recorder, name);
        let output = recorder.wait_with_output().unwrap();
        let (said, text) = (complaint(&output), fs::read_to_string(&path).unwrap());
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.contains(&format!("{} bytes in trace.jsonl", text.len())), "{name}: {said}");
        assert!(text.lines().last().unwrap().starts_with("{\"foot\""), "{name}: {text}");
        fs::remove_file(&path).unwrap();
    }
    host.ends();
}

#[test]
fn recording_larger_than_files_may_be_ends_with_an_error_and_leaves_no_empty_file() {
    let home = Home::new();
    let host = serving(&home);
    let record = ["sim", "record", "--out", "trace.jsonl", "--admin", &host.admin];
    // Every write to a file fails, as if no byte were free.
    let output = home.command("ulimit -f 0", &record).output().unwrap();
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("can't write trace.jsonl: "), "{said}");
    assert!(!home.path("trace.jsonl").exists());
    host.ends();
}

#[test]
fn recording_goes_into_a_pipe() {
    let home = Home::new();
    let host = serving(&home);
    let output = record(&home, &host, "/dev/stdout", &["--seconds", "1"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", complaint(&output));
    assert!(text.starts_with("{\"head\"") && text.lines().last().unwrap().starts_with("{\"foot\""), "{text}");
    host.ends();
}

#[test]
fn recording_goes_where_the_shell_sends_the_output() {
    let home = Home::new();
    let host = serving(&home);
    let path = home.path("all.jsonl");
    fs::write(&path, "kept\n").unwrap();
    let appended = fs::File::options().append(true).open(&path).unwrap();
    let mut recorder = record(&home, &host, "/dev/stdout", &["--seconds", "1"]);
    let output = recorder.stdout(appended).stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("kept\n{\"head\""), "{text}");
    assert!(text.lines().last().unwrap().starts_with("{\"foot\""), "{text}");
    host.ends();
}

#[test]
fn recorder_can_be_ended_while_nobody_reads_its_pipe() {
    let home = Home::new();
    let host = serving(&home);
    let mut recorder = record(&home, &host, "/dev/stdout", &["--decisions"]);
    let mut recorder = recorder.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Keeps the pipe open and reads none of it.
    let _unread = recorder.stdout.take();
    let mut said = BufReader::new(recorder.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "recording to /dev/stdout\n");
    // Several times what a pipe holds.
    for _ in 0..40 {
        host.serves();
    }
    let begun = Instant::now();
    while recorder.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "signals don't end it");
        signal(&recorder, "TERM");
        std::thread::sleep(Duration::from_millis(200));
    }
    said.read_to_string(&mut line).unwrap();
    assert_eq!(recorder.wait().unwrap().code(), Some(1), "{line}");
    assert!(line.contains("interrupted before the recording ended"), "{line}");
    host.ends();
}
