//! The console changes policies by keys alone while clients stream: from the list and from files, in shadow, on
//! trial, promoted, rolled back, refused. A real console in a real terminal (tmux), at the size that every
//! terminal has and at one that most have.
//!
//! Where tmux or a program is missing there is nothing to run; the reason is printed.

#[path = "../../tui/tests/support/tmux.rs"]
mod tmux;

use std::path::Path;

use infer_tests::FAULTY_SCHEDULER;
use tmux::{Host, Terminal, console, missing};

/// What the console is given: the components, and two that have to be refused.
fn components(folder: &Path) {
    let bundled = |kind, name| infer_bundle::find(kind, name).expect("a shipped policy").component;
    let files = [
        ("fair.wasm", bundled("scheduler", "fair")),
        ("cache.wasm", bundled("prefix-cache", "lru")),
        ("faulty.wasm", FAULTY_SCHEDULER),
        ("broken.wasm", b"this is no component".as_slice()),
    ];
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).expect("writable");
    }
}

/// The screen as one line: what is broken into lines there is found whole. Of panes side by side the left ones
/// come first.
fn joined(screen: &str) -> String {
    let (left, right): (Vec<_>, Vec<_>) =
        screen.lines().map(|line| line.split_once("││").unwrap_or((line, ""))).unzip();
    let words =
        left.iter().chain(&right).flat_map(|part| part.split(|c: char| c.is_whitespace() || c == '│'));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

struct Operator {
    terminal: Terminal,
    folder: String,
}

impl Operator {
    fn sees(&self, words: &str) -> String {
        self.terminal.until(words, |screen| joined(screen).contains(words))
    }

    fn presses(&self, keys: &[&str]) {
        self.terminal.press(keys);
    }

    fn types(&self, text: &str) {
        self.terminal.press(&["-l", text]);
    }

    /// From the list: walks to a policy and chooses it.
    fn picks(&self, name: &str) {
        self.presses(&["s"]);
        self.sees("from a .wasm file ...");
        let list = self.terminal.screen();
        let mut options = list.lines().skip_while(|line| !line.contains("Swap scheduler")).skip(1);
        let place = options.position(|line| line.contains(name)).expect("it is in the list");
        self.presses(&vec!["j"; place]);
        self.presses(&["Enter"]);
        self.sees(&format!("to {name}?"));
    }

    /// Through the file dialog, with the path completed by tab.
    fn chooses_file(&self, name: &str) {
        self.presses(&["f"]);
        self.sees("Path of a .wasm component");
        let (beginning, _) = name.split_at(3);
        self.types(&format!("{}/{beginning}", self.folder));
        self.presses(&["Tab"]);
        self.sees(name);
        self.presses(&["Enter"]);
        self.sees("with its default configuration");
    }
}

#[test]
fn policies_are_swapped_tried_and_brought_back_by_keys_under_load() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    for size in [(80, 24), (120, 34)] {
        changes_by_keys(size);
    }
}

fn changes_by_keys(size: (u16, u16)) {
    let runtime = tempfile::tempdir().expect("writable");
    components(runtime.path());
    let host = Host::start(runtime.path(), "0", "127.0.0.1:0");
    let terminal = Terminal::open(&format!("load-{}", size.0), size, runtime.path(), &console(&host));
    let operator = Operator { terminal, folder: runtime.path().display().to_string() };
    operator.sees("● LIVE");
    let mut load = host.load(6);
    operator.terminal.until("four run, two wait", |s| s.contains("running 4  waiting 2"));
    operator.presses(&["4"]);
    operator.sees("● scheduler continuous");

    // In shadow, from the list; then live; then back.
    operator.picks("static-batch");
    operator.presses(&["Tab"]);
    operator.sees("without effect");
    operator.presses(&["y"]);
    operator.sees("policy continuous 0.1.0 shadow static-batch agrees in");
    operator.presses(&["p"]);
    operator.sees("Make static-batch live, in place of continuous?");
    operator.presses(&["y"]);
    operator.sees("● scheduler static-batch");
    operator.presses(&["r"]);
    operator.sees("Roll scheduler back from static-batch to continuous?");
    operator.presses(&["y"]);
    operator.sees("● scheduler continuous");

    // On trial, from a file; the trial is ended well; then back.
    operator.chooses_file("fair.wasm");
    operator.presses(&["Tab", "Tab"]);
    operator.sees("rolled back by itself");
    operator.presses(&["y"]);
    operator.sees("fair on trial");
    operator.presses(&["p"]);
    operator.sees("End the trial of fair well");
    operator.presses(&["y"]);
    operator.sees("● scheduler fair");
    operator.presses(&["r"]);
    operator.presses(&["y"]);
    operator.sees("● scheduler continuous");

    // What is no component and what is one of another kind stays out, and the reason can be read.
    operator.chooses_file("broken.wasm");
    operator.presses(&["y"]);
    operator.sees("this is not a WebAssembly file; give a component built from one of the worlds in wit/");
    operator.presses(&["Escape"]);
    operator.chooses_file("cache.wasm");
    operator.presses(&["y"]);
    operator.sees("the component is a prefix-cache policy, the scheduler slot was asked for");
    operator.presses(&["Escape"]);
    operator.sees("● scheduler continuous");

    // A configuration that the schema refuses never leaves; a good one does, and rollback undoes it.
    operator.presses(&["e"]);
    operator.sees("Configuration of continuous");
    operator.presses(&["C-u"]);
    operator.types("7");
    operator.presses(&["Enter"]);
    operator.sees("must be at most");
    operator.presses(&["C-u"]);
    operator.types("0.02");
    operator.presses(&["Enter"]);
    operator.sees("Configure continuous of scheduler anew?");
    operator.presses(&["y"]);
    operator.sees("watermark 0.02");
    operator.presses(&["r"]);
    operator.sees("as it was configured");
    operator.presses(&["y"]);
    operator.sees("config watermark 0.01 (default)");

    // A canary that fails is out by itself; asked for again, it needs force.
    let canary =
        format!(r#":swap scheduler {}/faulty.wasm canary {{"fault": "trap", "after": 50}}"#, operator.folder);
    operator.types(&canary);
    operator.presses(&["Enter"]);
    operator.sees("\"fault\":\"trap\"");
    operator.presses(&["y"]);
    operator.sees("trap of faulty-scheduler");
    operator.sees("● scheduler continuous");
    operator.types(&canary);
    operator.presses(&["Enter", "y"]);
    operator.sees("was taken out of the scheduler slot");

    for stream in &mut load {
        assert!(stream.try_wait().expect("a process").is_none(), "a client's stream ended");
        let _ = stream.kill();
        let _ = stream.wait();
    }
    assert_eq!(host.metric("infer_requests_failed_total"), 0, "a swap costs nobody a request");
    operator.presses(&["q"]);
    operator.sees("ended with 0");
}
