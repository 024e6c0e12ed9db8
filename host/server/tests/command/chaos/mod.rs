//! The process under bad conditions: killed at any moment, out of disk, out of memory, given unreadable files
//! and addresses in use. Errors name the cause, the exit code tells bad usage from failure, and nothing is
//! left behind that prevents the next start.

mod checkpoints;
mod disk;
mod kills;
mod limits;
mod settings;

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{COMPLETION, Home, Host, complaint};

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

/// Waits for something that another process does.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
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
