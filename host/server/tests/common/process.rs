//! Runs `infer` as a process in a home of its own: commands, and hosts that are reached over their sockets.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const INFER: &str = env!("CARGO_BIN_EXE_infer");
/// Five tokens of the demo model.
pub const COMPLETION: &str = r#"{"model": "demo", "prompt": "What is a block?", "temperature": 0, "stream": false,
    "max_tokens": 5, "ignore_eos": true}"#;

/// A directory for everything that a host stores.
pub struct Home {
    dir: TempDir,
}

impl Home {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["run", "cache", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command in this home. `before` is run in its shell first.
    pub fn command(&self, before: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let script = format!("{before}\nexec \"$@\"");
        command.args(["-c", &script, "sh", INFER]).args(arguments);
        command
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env_remove("INFER_ADMIN_TOKEN")
            .env_remove("RUST_BACKTRACE")
            .current_dir(self.dir.path());
        command
    }

    pub fn serve(&self, before: &str, more: &[&str]) -> Command {
        let mut arguments = vec!["serve", "--threads", "1"];
        for usual in [["--port", "0"], ["--admin", "127.0.0.1:0"], ["--kv-memory", "32MiB"]] {
            if !more.contains(&usual[0]) {
                arguments.extend(usual);
            }
        }
        arguments.extend(more);
        self.command(before, &arguments)
    }

    /// Checks that a host fails to start with an exit code and words of its message. Returns the message.
    pub fn fails(&self, code: i32, before: &str, more: &[&str], words: &[&str]) -> String {
        let output = self.serve(before, more).output().expect("sh starts");
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{more:?}: `{word}` isn't in: {said}");
        }
        said
    }

    /// All files below a folder.
    pub fn left(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found
    }
}

/// A command's error output, which must not contain a panic or a backtrace.
pub fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for trouble in ["panicked", "RUST_BACKTRACE", "stack backtrace", "unwrap()"] {
        assert!(!said.contains(trouble), "{said}");
    }
    said
}

/// A running host.
pub struct Host {
    pub child: Child,
    /// HOST:PORT of its data plane.
    pub data: String,
    /// URL of its admin plane.
    pub admin: String,
    _said: BufReader<std::process::ChildStdout>,
}

impl Host {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("sh starts");
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let (_, data) = line
            .strip_prefix("listening on ")
            .and_then(|urls| urls.split_once("://"))
            .unwrap_or_else(|| panic!("unexpected first line: {line:?}"));
        let (data, admin) = data.trim_end().split_once(" (admin ").expect("both planes");
        let (data, admin) = (data.to_owned(), admin.trim_end_matches(')').to_owned());
        Self { child, data, admin, _said: said }
    }

    /// Posts a completion. Returns the connection before the response is read.
    pub fn ask(&self, body: &str) -> TcpStream {
        self.send("POST /v1/completions", "", body)
    }

    /// Sends a request, with further header lines. Returns the connection before the response is read.
    pub fn send(&self, line: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.data).unwrap();
        let length = body.len();
        write!(
            stream,
            "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        stream
    }

    /// The response to a completion that isn't streamed.
    pub fn completes(&self, body: &str) -> Value {
        let mut answer = String::new();
        self.ask(body).read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    pub fn serves(&self) {
        let answer = self.completes(COMPLETION);
        assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
    }

    pub fn ends(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "the host shuts down cleanly");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
