//! The process as the machine treats it: killed at any moment, out of disk, out of memory, given files that
//! can't be read and addresses that can't be had. What goes wrong is named, the exit code says whose fault it
//! was, and nothing is left that hinders the next start.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

const INFER: &str = env!("CARGO_BIN_EXE_infer");
const COMPLETION: &str = r#"{"model": "demo", "prompt": "What is a block?", "temperature": 0, "stream": false,
    "max_tokens": 5, "ignore_eos": true}"#;

/// Everything that a host keeps stands in here.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["run", "cache", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command of this home, after `before` in a shell.
    fn command(&self, before: &str, arguments: &[&str]) -> Command {
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

    fn serve(&self, before: &str, more: &[&str]) -> Command {
        let mut arguments = vec!["serve", "--threads", "1"];
        for usual in [["--port", "0"], ["--admin", "127.0.0.1:0"], ["--kv-memory", "32MiB"]] {
            if !more.contains(&usual[0]) {
                arguments.extend(usual);
            }
        }
        arguments.extend(more);
        self.command(before, &arguments)
    }

    /// A host that fails to start; what it said.
    fn fails(&self, code: i32, before: &str, more: &[&str], words: &[&str]) -> String {
        let output = self.serve(before, more).output().expect("sh starts");
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{more:?}: `{word}` isn't in: {said}");
        }
        said
    }

    /// Files below it, but for those that are meant to stay.
    fn left(&self, folder: &str) -> Vec<PathBuf> {
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

/// What a command said on its way out, which is words and no trace of the program's own trouble.
fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for trouble in ["panicked", "RUST_BACKTRACE", "stack backtrace", "unwrap()"] {
        assert!(!said.contains(trouble), "{said}");
    }
    said
}

/// A host that serves.
struct Host {
    child: Child,
    data: String,
    _said: BufReader<std::process::ChildStdout>,
}

impl Host {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("sh starts");
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let data = line.strip_prefix("listening on http://").unwrap_or_else(|| panic!("it said: {line:?}"));
        let data = data.split_whitespace().next().unwrap().to_owned();
        Self { child, data, _said: said }
    }

    /// Posts a completion; its connection, with nothing of the answer read.
    fn ask(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.data).unwrap();
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }

    fn serves(&self) {
        let mut answer = String::new();
        self.ask(COMPLETION).read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":5"), "{answer}");
    }

    fn ends(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "it ends in peace");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that is free now, for hosts that need the same one twice.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_host_that_is_killed_at_any_moment_starts_again() {
    let home = Home::new();
    let admin = format!("127.0.0.1:{}", free_port());
    let serve = || home.serve("", &["--admin", &admin]);
    // Before it has said anything, each time a little later: while it makes its token, compiles, loads.
    for _ in 0..3 {
        let mut child = serve().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 1];
        // Its first word on standard error comes in the middle of its start.
        let _ = child.stderr.take().unwrap().read(&mut said);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // While somebody is served.
    let mut host = Host::start(serve());
    let mut stream = host.ask(&COMPLETION.replace("false", "true").replace(": 5", ": 2000"));
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    host.child.kill().unwrap();
    drop(host);
    // What a kill in the middle of a write leaves behind.
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
    assert_eq!(token.len(), 64, "a token of its own");
    host.ends();
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "the token goes with the host");
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_behind() {
    let home = Home::new();
    // Every write to a file fails, as where no byte is free.
    let full = "trap '' XFSZ; ulimit -f 0";
    home.fails(1, full, &[], &["admin token", "INFER_ADMIN_TOKEN"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "no half of a token is left");
    // With a token given it needs no file: what it would have kept it makes again. No compiled policy fits into
    // 64 KiB; nothing at all would keep instances from their memory, whose images count as files.
    let crowded = "trap '' XFSZ; ulimit -f 128; export INFER_ADMIN_TOKEN=0123456789abcdef";
    let host = Host::start(home.serve(crowded, &[]));
    host.serves();
    host.ends();
    assert_eq!(home.left("cache"), Vec::<PathBuf>::new(), "no half of a compiled policy is left");
    let host = Host::start(home.serve("", &[]));
    host.serves();
    host.ends();
}

#[test]
fn a_terminal_that_takes_nothing_stops_nobody() {
    let home = Home::new();
    for arguments in [&["sim", "run", "--requests", "20", "--scheduler", "builtin"][..], &["policy", "list"]]
    {
        let output = home.command("exec >/dev/full", arguments).output().unwrap();
        complaint(&output);
    }
}

#[test]
fn an_address_that_is_taken_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    home.fails(1, "", &["--admin", &address], &["--admin", &address, "in use"]);
    home.fails(1, "", &["--port", &port], &["--port", &port, "in use"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new());
}

#[test]
fn too_little_memory_is_named() {
    let home = Home::new();
    // Enough for the program and its model, not for what instances of policies reserve.
    home.fails(1, "ulimit -v 3000000", &[], &["memory"]);
    let said = home.fails(2, "", &["--kv-memory", "1000000GiB"], &["--kv-memory"]);
    assert!(!said.contains("overflow"), "{said}");
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
fn a_checkpoint_that_can_not_be_read_is_named() {
    let home = Home::new();
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &[&str]); 9] = [
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

fn halve(file: &Path) {
    let content = fs::read(file).unwrap();
    fs::write(file, &content[..content.len() / 2]).unwrap();
}

fn in_place_of(file: &Path) {
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
}

/// An index of two shards, of which one is there.
fn lose_a_shard(dir: &Path) {
    fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors")).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}
