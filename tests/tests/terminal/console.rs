//! Changes policies from the console, by keys only, while clients stream: from the list and from files, in
//! shadow, as a canary, promoted, rolled back, refused. A real console in a real terminal (tmux), at 80x24
//! and at a common larger size.

use std::path::Path;
use std::process::Child;

use crate::tmux::{Host, Terminal, console, missing};
use infer_tests::FAULTY_SCHEDULER;

/// Writes the components that the console swaps in, and two files that the host must refuse.
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

/// Joins the screen to one line, so that wrapped text is found whole. Of panes side by side the left ones
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

    /// Leaves the policies until the requests are these.
    fn waits_for(&self, requests: &str) {
        self.presses(&["1"]);
        self.terminal.until(requests, |screen| screen.contains(requests));
        self.presses(&["4"]);
        self.sees("SLOT POLICY");
    }

    fn types(&self, text: &str) {
        self.terminal.press(&["-l", text]);
    }

    /// Chooses a policy from the list.
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

    /// Chooses a file, with its path completed by tab.
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

/// Ends clients, whose streams must not have ended before.
fn stop(load: Vec<Child>) {
    for mut stream in load {
        assert!(stream.try_wait().expect("a process").is_none(), "a client's stream ended");
        let _ = stream.kill();
        let _ = stream.wait();
    }
}

#[test]
fn policies_are_swapped_tried_and_rolled_back_by_keys_under_load() {
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
    let load = host.load(6);
    operator.terminal.until("four run, two wait", |s| s.contains("running 4  waiting 2"));
    operator.presses(&["4"]);
    operator.sees("● scheduler continuous");

    // From the list into shadow, then promoted, then rolled back.
    operator.picks("static-batch");
    operator.presses(&["Tab"]);
    operator.sees("its answers have no effect");
    operator.presses(&["y"]);
    operator.sees("policy continuous 0.1.0 shadow static-batch agrees in");
    operator.presses(&["p"]);
    operator.sees("Promote static-batch from shadow to live");
    operator.presses(&["y"]);
    operator.sees("● scheduler static-batch");
    // The canary after it is compared with what comes from here on, and this machine may be slower by then for reasons of
    // its own. So nothing runs until it is on trial.
    stop(load);
    operator.waits_for("running 0  waiting 0");
    operator.presses(&["r"]);
    operator.sees("Roll scheduler back from static-batch to continuous?");
    operator.presses(&["y"]);
    operator.sees("● scheduler continuous");

    // From a file as a canary, then promoted, then rolled back.
    operator.chooses_file("fair.wasm");
    operator.presses(&["Tab", "Tab"]);
    operator.sees("rolled back automatically");
    operator.presses(&["y"]);
    operator.sees("fair on trial");
    let load = host.load(6);
    operator.waits_for("running 4  waiting");
    operator.presses(&["p"]);
    operator.sees("Promote the canary fair before its window is over?");
    operator.presses(&["y"]);
    operator.sees("● scheduler fair");
    operator.presses(&["r"]);
    operator.sees("Roll scheduler back from fair to continuous?");
    operator.presses(&["y"]);
    operator.sees("● scheduler continuous");

    // A file that is no component and a component of another kind are refused, with the whole reason on the
    // screen.
    operator.chooses_file("broken.wasm");
    operator.presses(&["y"]);
    operator.sees("this is not a WebAssembly file; pass a component built from one of the worlds in wit/");
    operator.presses(&["Escape"]);
    operator.chooses_file("cache.wasm");
    operator.presses(&["y"]);
    operator.sees("the component is a prefix-cache policy and does not fit the scheduler slot");
    operator.presses(&["Escape"]);
    operator.sees("● scheduler continuous");

    // A configuration that violates the schema is not sent; a valid one is, and rollback undoes it.
    operator.presses(&["e"]);
    operator.sees("Configuration of continuous");
    operator.presses(&["C-u"]);
    operator.types("7");
    operator.presses(&["Enter"]);
    operator.sees("must be at most");
    operator.presses(&["C-u"]);
    operator.types("0.02");
    operator.presses(&["Enter"]);
    operator.sees("Reconfigure continuous (scheduler)?");
    operator.presses(&["y"]);
    operator.sees("watermark 0.02");
    // For the next canary, as before.
    stop(load);
    operator.waits_for("running 0  waiting 0");
    operator.presses(&["r"]);
    operator.sees("Roll scheduler back to continuous with its previous");
    operator.presses(&["y"]);
    operator.sees("config watermark 0.01 (default)");

    // A canary that faults is rolled back automatically; swapping it in again needs force.
    let canary =
        format!(r#":swap scheduler {}/faulty.wasm canary {{"fault": "trap", "after": 50}}"#, operator.folder);
    operator.types(&canary);
    operator.presses(&["Enter"]);
    operator.sees("\"fault\":\"trap\"");
    operator.presses(&["y"]);
    operator.sees("faulty-scheduler on trial");
    let load = host.load(6);
    operator.sees("trap of faulty-scheduler");
    operator.sees("● scheduler continuous");
    operator.types(&canary);
    operator.presses(&["Enter", "y"]);
    operator.sees("is quarantined in the scheduler slot");

    stop(load);
    assert_eq!(host.metric("infer_requests_failed_total"), 0, "a swap fails no request");
    operator.presses(&["q"]);
    operator.sees("ended with 0");
}
