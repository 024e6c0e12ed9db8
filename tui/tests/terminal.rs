//! The real console in a real terminal (tmux) beside a real host: every screen, a swap and a way back by
//! key, a restart of the host, other sizes, no colours, and numbers that are those of `/metrics`.
//!
//! Where tmux or the host's binary is missing there is nothing to run; the reason is printed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a machine that is busy; nothing waits so long otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

fn infer() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_infer-tui")).with_file_name("infer");
    std::env::var_os("INFER_BIN").map(PathBuf::from).or_else(|| beside.exists().then_some(beside))
}

fn missing() -> Option<String> {
    if Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_err() {
        return Some("tmux is not installed".to_owned());
    }
    infer()
        .is_none()
        .then(|| "there is no `infer` beside `infer-tui`; build it with `cargo build --bin infer`".to_owned())
}

/// A host as a process of its own.
struct Host {
    child: Child,
    data: String,
    admin: String,
}

impl Host {
    fn start(runtime: &Path, data_port: &str, admin: &str) -> Self {
        let mut child = Command::new(infer().expect("looked for before"))
            .args(["serve", "--port", data_port, "--admin", admin, "--kv-memory", "32MiB", "--threads", "2"])
            .args(["--max-batch-size", "4"])
            .env("XDG_RUNTIME_DIR", runtime)
            .env_remove("INFER_ADMIN_TOKEN")
            .current_dir(runtime)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the host starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a ready line");
        let address = |after: &str| {
            let rest = line.split(after).nth(1).unwrap_or_else(|| panic!("no ready line: {line}"));
            rest.split([' ', ')', '\n']).next().unwrap_or_default().to_owned()
        };
        Self { data: address("listening on "), admin: address("(admin "), child }
    }

    fn port(url: &str) -> String {
        url.rsplit(':').next().expect("a port").to_owned()
    }

    fn kill(mut self) -> (String, String) {
        let ports = (Self::port(&self.data), Self::port(&self.admin));
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
        ports
    }

    /// Clients that ask one long question after the other until the test ends them, as many as asked for.
    fn load(&self, clients: usize) -> Vec<Child> {
        let body = r#"{"model":"demo","prompt":"What does a scheduler do?","max_tokens":3000,"temperature":0,
                       "ignore_eos":true,"session_id":"terminal-test"}"#;
        let url = format!("{}/v1/completions", self.data);
        let curl = |_| {
            let mut curl = Command::new("curl");
            curl.args(["-sN", "-d", body]).args(vec![url.as_str(); 200]).stdout(Stdio::null());
            curl.spawn().expect("curl")
        };
        (0..clients).map(curl).collect()
    }

    fn metric(&self, name: &str) -> u64 {
        let url = format!("{}/metrics", self.data);
        let output = Command::new("curl").args(["-s", &url]).output().expect("curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().expect("a number") as u64
    }
}

/// A terminal with a console in it. The server of tmux is this one's own.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn open(name: &str, size: (u16, u16), runtime: &Path, command: &str) -> Self {
        let terminal = Self { socket: format!("infer-{}-{name}", std::process::id()) };
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let runtime = runtime.display();
        // What is left on the screen when the console has gone shows how it went.
        let script = format!(
            "export XDG_RUNTIME_DIR='{runtime}' LANG=C.UTF-8; unset INFER_ADMIN_TOKEN NO_COLOR; {command}; echo ended with $?; exec cat"
        );
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "sh",
            "-c",
            &script,
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output =
            Command::new("tmux").args(["-u", "-L", &self.socket]).args(arguments).output().expect("tmux");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits for a screen, and shows the last one where it never comes.
    fn until(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if fits(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}\n{screen}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

/// The number after a word on the screen, `1,024` say.
fn number(screen: &str, after: &str) -> u64 {
    let at = screen.find(after).unwrap_or_else(|| panic!("no `{after}` in\n{screen}")) + after.len();
    let digits: String = screen[at..]
        .chars()
        .skip_while(|c| *c == ' ')
        .take_while(|c| c.is_ascii_digit() || *c == ',')
        .collect();
    digits.replace(',', "").parse().unwrap_or_else(|_| panic!("no number after `{after}` in\n{screen}"))
}

fn console(host: &Host) -> String {
    format!("{} --admin {}", env!("CARGO_BIN_EXE_infer-tui"), host.admin)
}

#[test]
fn an_operator_watches_swaps_goes_back_and_survives_a_restart() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let runtime = tempfile::tempdir().expect("writable");
    let host = Host::start(runtime.path(), "0", "127.0.0.1:0");
    let terminal = Terminal::open("watch", (110, 32), runtime.path(), &console(&host));
    terminal.shows("● LIVE");

    let mut load = host.load(6);
    terminal.until("four run, two wait", |s| s.contains("running 4") && s.contains("waiting 2"));
    terminal.press(&["2"]);
    let blocks = terminal.until("the map and its legend", |s| s.contains("KV blocks") && s.contains("used "));
    assert_eq!(number(&blocks, "KV blocks "), host.metric("infer_kv_blocks"), "{blocks}");
    terminal.shows("block 0: ");
    terminal.press(&["3"]);
    let requests = terminal.until("why two wait", |s| s.contains("4 of 4 batch places taken; next in line"));
    assert!(requests.contains("━"), "progress of those that run: {requests}");
    terminal.press(&["Enter"]);
    terminal.until("a request in full", |s| {
        s.contains("timeline") || (s.contains("prefill") && s.contains("others can find"))
    });
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
    let (data_port, admin_port) = host.kill();
    terminal.shows("▲ STALE");
    let host = Host::start(runtime.path(), &data_port, &format!("127.0.0.1:{admin_port}"));
    terminal.shows("● LIVE");
    terminal.press(&["6"]);
    terminal.shows("the host was restarted");
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
    let pid = plain.tmux(&["display-message", "-p", "#{pane_pid}"]);
    let console = Command::new("pgrep").args(["-P", pid.trim()]).output().expect("pgrep");
    let console = String::from_utf8_lossy(&console.stdout).trim().to_owned();
    assert!(Command::new("kill").args(["-TERM", &console]).status().expect("kill").success());
    let after = plain.shows("ended with 0");
    assert!(!after.contains("Help"), "the terminal is given back: {after}");
    host.kill();
}
