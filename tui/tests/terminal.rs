//! The real console in a real terminal (tmux) with a real host: every screen, a swap and a rollback by key, a
//! restart of the host, other sizes, no colours, and numbers that match `/metrics`.
//!
//! Skipped if tmux, curl, pgrep or one of the two programs is missing; the reason is printed.

#[path = "../../host/server/tests/common/port.rs"]
mod port;
#[path = "support/tmux.rs"]
mod tmux;

use std::process::Command;

use port::Port;
use tmux::{Host, Terminal, console, missing, number};

#[test]
fn an_operator_watches_swaps_rolls_back_and_survives_a_restart() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let runtime = tempfile::tempdir().expect("writable");
    let ports = [Port::new(), Port::new()];
    let [data, admin] = [&ports[0], &ports[1]].map(|port| port.number.to_string());
    let host = Host::start(runtime.path(), &data, &format!("127.0.0.1:{admin}"));
    let terminal = Terminal::open("watch", (110, 32), runtime.path(), &console(&host));
    terminal.shows("● LIVE");

    let mut load = host.load(6);
    terminal.until("four run, two wait", |s| s.contains("running 4") && s.contains("waiting 2"));
    terminal.press(&["2"]);
    let blocks = terminal.until("the map and its legend", |s| s.contains("KV blocks") && s.contains("used "));
    assert_eq!(number(&blocks, "KV blocks "), host.metric("infer_kv_blocks"), "{blocks}");
    terminal.shows("block 0: ");
    terminal.press(&["3"]);
    terminal.until("why two wait, and the progress of the others", |s| {
        s.contains("4 of 4 batch slots taken; next in line") && s.contains('━')
    });
    terminal.press(&["Enter"]);
    terminal.until("a request's details", |s| s.contains("prefill") && s.contains("reusable by others"));
    terminal.press(&["Escape"]);
    terminal.press(&["5"]);
    terminal.until("what the cache holds", |s| s.contains("Top prefixes") && s.contains("terminal-test"));
    terminal.press(&["6"]);
    terminal.shows("Log");

    terminal.press(&["4"]);
    terminal.shows("● scheduler    continuous");
    terminal.press(&["s"]);
    let list = terminal.shows("from a .wasm file");
    let mut options = list.lines().skip_while(|line| !line.contains("Swap scheduler")).skip(1);
    let place = options.position(|line| line.contains("static-batch")).expect("it is in the list");
    terminal.press(&vec!["j"; place]);
    terminal.press(&["Enter"]);
    terminal.shows("Swap scheduler from continuous to static-batch?");
    terminal.press(&["y"]);
    terminal.shows("● scheduler    static-batch");
    terminal.press(&["r"]);
    terminal.shows("Roll scheduler back from static-batch to continuous?");
    terminal.press(&["y"]);
    terminal.shows("● scheduler    continuous");
    terminal.until("both are in the history", |s| s.contains("(rollback)") || s.contains("rolled back"));

    for stream in &mut load {
        let _ = stream.kill();
        let _ = stream.wait();
    }
    terminal.press(&["1"]);
    terminal.until("idle", |s| s.contains("running 0") && s.contains("waiting 0"));
    let overview = terminal.until("the bar shows the idle pool", |s| s.contains("used 0 "));
    for (shown, metric) in [("cached", "infer_kv_blocks_cached"), ("free", "infer_kv_blocks_free")] {
        assert_eq!(number(&overview, &format!("{shown} ")), host.metric(metric), "{shown}: {overview}");
    }

    for (size, words) in
        [((40, 12), "tok/s"), ((200, 60), "Throughput"), ((30, 8), "too small"), ((80, 24), "Throughput")]
    {
        let (width, height) = (size.0.to_string(), size.1.to_string());
        terminal.tmux(&["resize-window", "-x", &width, "-y", &height]);
        terminal.shows(words);
    }
    host.kill();
    terminal.shows("▲ STALE");
    let host = Host::start(runtime.path(), &data, &format!("127.0.0.1:{admin}"));
    terminal.shows("● LIVE");
    terminal.press(&["6"]);
    terminal.shows("the host restarted");
    terminal.press(&["q"]);
    terminal.shows("ended with 0");

    let plain = Terminal::open("plain", (100, 30), runtime.path(), &format!("NO_COLOR=1 {}", console(&host)));
    plain.shows("● LIVE");
    for digit in ["1", "2", "3", "4", "5", "6", "?"] {
        plain.press(&[digit]);
    }
    plain.shows("Help");
    let styled = plain.tmux(&["capture-pane", "-p", "-e"]);
    for codes in
        styled.split("\u{1b}[").skip(1).filter_map(|rest| rest.split_once('m')).map(|(codes, _)| codes)
    {
        let colour = |code: u32| matches!(code, 30..=38 | 40..=48 | 90..=107);
        let coloured = codes.split(';').filter_map(|code| code.parse().ok()).any(colour);
        assert!(!coloured, "{codes}: {styled:?}");
    }
    plain.press(&["Escape"]);
    plain.press(&["q"]);
    plain.shows("ended with 0");
    plain.is_restored();
}

#[test]
fn mouse_clicks_copies_reach_the_clipboard_and_tab_completes_files() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let runtime = tempfile::tempdir().expect("writable");
    std::fs::create_dir(runtime.path().join("mine")).expect("writable");
    std::fs::write(runtime.path().join("mine").join("broken.wasm"), "no component").expect("writable");
    let host = Host::start(runtime.path(), "0", "127.0.0.1:0");
    let terminal = Terminal::open("hands", (110, 32), runtime.path(), &console(&host));
    terminal.shows("● LIVE");

    assert_eq!(terminal.knows("#{mouse_any_flag}"), "0", "not captured by default");
    terminal.press(&["m"]);
    terminal.shows("mouse captured");
    assert_eq!(terminal.knows("#{mouse_any_flag}"), "1");
    let tabs = terminal.screen();
    let column = tabs.lines().nth(1).and_then(|line| line.find("4 Policies")).expect("the tabs") + 2;
    terminal.press(&["-l", &format!("\u{1b}[<0;{column};2M\u{1b}[<0;{column};2m")]);
    terminal.shows("● scheduler    continuous");
    terminal.press(&["-l", "\u{1b}[<65;20;10M"]);
    terminal.shows("memory-aware 0.1.0");
    terminal.press(&["m"]);
    terminal.until("the mouse is released", |_| terminal.knows("#{mouse_any_flag}") == "0");

    terminal.tmux(&["set-option", "-s", "set-clipboard", "on"]);
    terminal.press(&["y"]);
    terminal.shows("copied ");
    terminal.until("it is in the clipboard", |_| {
        let copied = terminal.tmux(&["list-buffers", "-F", "#{buffer_size}"]);
        copied.trim() == "64"
    });
    let digest = terminal.tmux(&["show-buffer"]);
    let own = Command::new(env!("CARGO_BIN_EXE_infer-tui"))
        .args(["--admin", &host.admin, "--json"])
        .env("XDG_RUNTIME_DIR", runtime.path())
        .env_remove("INFER_ADMIN_TOKEN")
        .output()
        .expect("the console");
    let state: serde_json::Value = serde_json::from_slice(&own.stdout).expect("a snapshot");
    assert_eq!(state["policies"][1]["sha256"], digest.trim(), "the digest of the selected slot, admission");

    // As keys, its first letter would change the theme and its second roll back.
    terminal.tmux(&["set-buffer", "-b", "slip", "try"]);
    terminal.tmux(&["paste-buffer", "-p", "-b", "slip"]);
    terminal.shows("there is no input line to paste into");

    terminal.press(&["f"]);
    terminal.shows("Path of a .wasm component");
    terminal.press(&["-l", &format!("{}/m", runtime.path().display())]);
    terminal.press(&["Tab"]);
    terminal.shows("/mine/");
    terminal.press(&["Tab"]);
    terminal.shows("broken.wasm");
    terminal.press(&["Enter"]);
    terminal.shows("Swap admission from memory-aware to");
    terminal.press(&["y"]);
    terminal.shows("admission not swapped");
    terminal.press(&["q"]);
    terminal.shows("ended with 0");
    terminal.is_restored();
}

#[test]
fn the_terminal_is_restored_on_signals() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let runtime = tempfile::tempdir().expect("writable");
    let host = Host::start(runtime.path(), "0", "127.0.0.1:0");
    for signal in ["TERM", "HUP", "INT"] {
        let terminal =
            Terminal::open(signal, (100, 30), runtime.path(), &format!("{} --mouse", console(&host)));
        terminal.shows("● LIVE");
        assert_eq!(terminal.knows("#{alternate_on}#{mouse_any_flag}#{cursor_flag}"), "110");
        let sent = Command::new("kill").args([format!("-{signal}"), terminal.program()]).status();
        assert!(sent.expect("kill").success());
        let after = terminal.shows("ended with 0");
        assert!(!after.contains("LIVE"), "{signal}: {after}");
        terminal.is_restored();
    }
}

/// Set when a test of this file runs again inside a terminal.
const IN_TERMINAL: &str = "INFER_TUI_TEST_IN_TERMINAL";

#[test]
fn the_terminal_is_restored_when_a_task_panics() {
    if std::env::var_os(IN_TERMINAL).is_some() {
        return panic_in_a_task();
    }
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let runtime = tempfile::tempdir().expect("writable");
    let own = std::env::current_exe().expect("this test");
    let name = "the_terminal_is_restored_when_a_task_panics";
    let command = format!("RUST_BACKTRACE=0 {IN_TERMINAL}=1 '{}' --exact {name} --nocapture", own.display());
    let terminal = Terminal::open("panic", (100, 30), runtime.path(), &command);
    let after = terminal.shows("ended with 0");
    assert!(after.contains("panicked at") && after.contains("on purpose"), "the panic is printed: {after}");
    assert!(!after.contains("covered"), "{after}");
    terminal.is_restored();
}

/// Sets the terminal up as `run` does, then panics in a task that nothing awaits yet.
fn panic_in_a_task() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut taken = infer_tui::terminal::Taken::take().expect("a terminal");
        crossterm::execute!(std::io::stdout(), crossterm::event::EnableMouseCapture).expect("written");
        let covered = |frame: &mut ratatui::Frame<'_>| frame.render_widget("covered", frame.area());
        taken.terminal.draw(covered).expect("drawn");
        let task = tokio::spawn(async { panic!("on purpose") });
        taken.panicked().await;
        assert!(task.await.is_err());
    });
}
