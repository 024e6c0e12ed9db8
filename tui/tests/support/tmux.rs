//! Runs a host as a process, and a program in a terminal (tmux).
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine; normally it takes far less.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Returns a program of this build: tests are built into a folder next to it.
fn built(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.parent()?.parent()?.join(name);
    program.exists().then_some(program)
}

/// Returns the program that hosts run as.
pub fn infer() -> Option<PathBuf> {
    std::env::var_os("INFER_BIN").map(PathBuf::from).or_else(|| built("infer"))
}

/// Returns the console to test.
pub fn infer_tui() -> Option<PathBuf> {
    option_env!("CARGO_BIN_EXE_infer-tui").map(PathBuf::from).or_else(|| built("infer-tui"))
}

/// Returns why these tests can't run here, if they can't.
pub fn missing() -> Option<String> {
    let programs = [("tmux", "-V"), ("curl", "--version"), ("pgrep", "--version")];
    let starts = |&(program, version): &(&str, &str)| {
        let mut command = Command::new(program);
        command.arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    if let Some((program, _)) = programs.iter().find(|program| !starts(program)) {
        return Some(format!("{program} is not installed"));
    }
    let absent = [("infer", infer().is_none()), ("infer-tui", infer_tui().is_none())];
    let (name, _) = absent.into_iter().find(|(_, absent)| *absent)?;
    Some(format!("`{name}` is not built; `cargo build --bin {name}` does"))
}

/// A host as a process of its own.
pub struct Host {
    child: Child,
    pub data: String,
    pub admin: String,
}

impl Host {
    pub fn start(runtime: &Path, data_port: &str, admin: &str) -> Self {
        let mut child = Command::new(infer().expect("looked for before"))
            .args(["serve", "--port", data_port, "--admin", admin, "--kv-memory", "32MiB", "--threads", "2"])
            .args(["--max-batch-size", "4"])
            // The longest: a policy is charged for what a busy system does in its calls.
            .args(["--policy-deadline", "1s"])
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

    pub fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }

    /// Starts clients that send one long request after another until the test kills them.
    pub fn load(&self, clients: usize) -> Vec<Child> {
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

    pub fn metric(&self, name: &str) -> u64 {
        let url = format!("{}/metrics", self.data);
        let output = Command::new("curl").args(["-s", &url]).output().expect("curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().expect("a number") as u64
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A terminal with a program in it, on a tmux server of its own.
pub struct Terminal {
    socket: String,
}

impl Terminal {
    pub fn open(name: &str, size: (u16, u16), runtime: &Path, command: &str) -> Self {
        let terminal = Self { socket: format!("infer-{}-{name}", std::process::id()) };
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let runtime = runtime.display();
        // The exit code stays on the screen after the console has ended.
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

    pub fn tmux(&self, arguments: &[&str]) -> String {
        let output =
            Command::new("tmux").args(["-u", "-L", &self.socket]).args(arguments).output().expect("tmux");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits for a screen that fits; panics with the last one if none comes.
    pub fn until(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
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

    /// Returns a tmux variable of the terminal, for example `#{mouse_any_flag}`.
    pub fn knows(&self, variable: &str) -> String {
        self.tmux(&["display-message", "-p", variable]).trim().to_owned()
    }

    /// Returns the id of the process that the terminal's shell runs.
    pub fn program(&self) -> String {
        let output = Command::new("pgrep").args(["-P", &self.knows("#{pane_pid}")]).output().expect("pgrep");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Asserts that the terminal is in the modes that a shell expects.
    pub fn is_restored(&self) {
        let flags = self.knows("#{alternate_on}#{mouse_any_flag}#{cursor_flag}");
        assert_eq!(flags, "001", "the main screen, no mouse, a cursor: {}", self.screen());
        let tty = self.knows("#{pane_tty}");
        let output = Command::new("stty").args(["-a", "-F", &tty]).output().expect("stty");
        let modes = String::from_utf8_lossy(&output.stdout).into_owned();
        for mode in ["icanon", "echo", "isig", "opost"] {
            assert!(modes.split_whitespace().any(|word| word == mode), "{mode} is on: {modes}");
        }
    }

    pub fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

/// Returns the number after a word on the screen, for example `1,024`.
pub fn number(screen: &str, after: &str) -> u64 {
    let at = screen.find(after).unwrap_or_else(|| panic!("no `{after}` in\n{screen}")) + after.len();
    let digits: String = screen[at..]
        .chars()
        .skip_while(|c| *c == ' ')
        .take_while(|c| c.is_ascii_digit() || *c == ',')
        .collect();
    digits.replace(',', "").parse().unwrap_or_else(|_| panic!("no number after `{after}` in\n{screen}"))
}

/// Returns the command that runs the console for a host.
pub fn console(host: &Host) -> String {
    let program = infer_tui().expect("looked for before");
    format!("'{}' --admin {}", program.display(), host.admin)
}
