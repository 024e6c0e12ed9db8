//! Runs the binaries of a `cargo test` side by side. Cargo starts one when the one before has ended, and as many of them
//! end with a single long test, half of two cores had nothing to do.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::cargo::{root, string};
use crate::failures::{Failed, report};

/// How long nothing is said of binaries that still run.
const SILENCE: Duration = Duration::from_secs(60);

/// A test binary, as cargo reports it.
#[derive(Debug, PartialEq)]
struct Binary {
    /// The source file, as seen from the workspace's root.
    source: String,
    path: PathBuf,
    /// The package's folder, where cargo runs it.
    package: PathBuf,
}

struct Running {
    binary: Binary,
    child: Child,
    since: Instant,
    /// What it prints.
    log: PathBuf,
}

/// Runs every test binary of these messages with the variables of `like`, and prints a line for each: and all that those
/// printed that failed. None is left out because another failed. The logs go to `folder`. The error says again why each
/// test failed.
pub fn run(messages: &str, like: &Command, folder: &Path) -> Result<(), String> {
    let mut waiting = messages.lines().filter_map(test_binary).collect::<Vec<_>>();
    let total = waiting.len();
    if total == 0 {
        return Err("cargo's messages name no test binary".to_owned());
    }
    // Cargo reports them as they are built. The last is taken first.
    waiting.sort_by(|a, b| b.source.cmp(&a.source));
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = (cores / 2).clamp(2, 4);
    // Together as many tests at once as there are cores: models compute on all of them, and more would be in each other's
    // way.
    let threads = (cores / at_once).max(1).to_string();
    let (mut running, mut failed): (Vec<Running>, Vec<Failed>) = (Vec::new(), Vec::new());
    let (mut done, mut said) = (0, Instant::now());
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < at_once
            && let Some(binary) = waiting.pop()
        {
            let log = folder.join(format!("{}.log", total - waiting.len()));
            running.push(start(binary, like, &threads, log)?);
        }
        let mut at = 0;
        while at < running.len() {
            let status = running[at].child.try_wait().map_err(|e| format!("can't wait for a test: {e}"))?;
            let Some(status) = status else {
                at += 1;
                continue;
            };
            let ended = running.swap_remove(at);
            (done, said) = (done + 1, Instant::now());
            let printed = std::fs::read(&ended.log).map_err(|e| format!("{}: {e}", ended.log.display()))?;
            let printed = String::from_utf8_lossy(&printed).into_owned();
            let (source, seconds) = (ended.binary.source, ended.since.elapsed().as_secs_f64());
            if !status.success() {
                eprint!("{printed}");
            }
            eprintln!("[{done}/{total}] {source}: {}, {seconds:.1} s", result(&printed));
            if !status.success() {
                failed.push(Failed { binary: format!("{source} ({status})"), printed });
            }
        }
        if said.elapsed() > SILENCE {
            let names: Vec<&str> = running.iter().map(|running| running.binary.source.as_str()).collect();
            eprintln!("[{done}/{total}] still running: {}", names.join(", "));
            said = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(report(&failed, total)),
    }
}

fn start(binary: Binary, like: &Command, threads: &str, log: PathBuf) -> Result<Running, String> {
    let mut command = Command::new(&binary.path);
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .current_dir(&binary.package)
        .env("CARGO_MANIFEST_DIR", &binary.package)
        .env("RUST_TEST_THREADS", threads);
    let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    command.stderr(file.try_clone().map_err(|e| format!("{}: {e}", log.display()))?).stdout(file);
    let child = command.spawn().map_err(|e| format!("can't start {}: {e}", binary.path.display()))?;
    Ok(Running { binary, child, since: Instant::now(), log })
}

/// The test binary of a line of cargo's JSON, if it is of one.
fn test_binary(line: &str) -> Option<Binary> {
    let (_, profile) = line.split_once(r#""profile":{"#)?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains(r#""test":true"#) {
        return None;
    }
    let path = PathBuf::from(string(line, "executable")?);
    let mut package = PathBuf::from(string(line, "manifest_path")?);
    package.pop();
    let source = PathBuf::from(string(line, "src_path")?);
    let source = source.strip_prefix(root()).unwrap_or(&source).display().to_string();
    Some(Binary { source, path, package })
}

/// What the last line says that sums up: `12 passed`, with what else isn't zero.
fn result(printed: &str) -> String {
    let Some(line) = printed.lines().rev().find_map(|line| line.strip_prefix("test result: ")) else {
        return "no result".to_owned();
    };
    let counts = line.split_once(". ").map_or(line, |(_, counts)| counts).split("; ");
    let tells = |count: &&str| {
        count.ends_with(" passed") || !count.starts_with("0 ") && !count.starts_with("finished ")
    };
    counts.filter(tells).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_told_from_the_rest_of_a_build() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/a/host/core/Cargo.toml","target":{{"kind":["test"],"name":"prefix","src_path":"/a/host/core/tests/prefix.rs","test":true}},"profile":{{"opt_level":"1","test":{test}}},"executable":{executable},"fresh":true}}"#
            )
        };
        let binary = Binary {
            source: "/a/host/core/tests/prefix.rs".to_owned(),
            path: "/a/target/debug/deps/prefix-1".into(),
            package: "/a/host/core".into(),
        };
        assert_eq!(test_binary(&line(true, r#""/a/target/debug/deps/prefix-1""#)), Some(binary));
        assert_eq!(test_binary(&line(false, r#""/a/target/debug/prefix""#)), None, "a program");
        assert_eq!(test_binary(&line(true, "null")), None, "checked, not built");
        assert_eq!(test_binary(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn build_without_tests_is_a_failure() {
        let messages = r#"{"reason":"build-finished","success":true}"#;
        let nothing = run(messages, &Command::new("cargo"), &std::env::temp_dir());
        assert_eq!(nothing, Err("cargo's messages name no test binary".to_owned()));
    }

    #[test]
    fn results_tell_what_is_not_zero() {
        let printed = "test a ... ok\n\ntest result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s\n\n";
        assert_eq!(result(printed), "12 passed, 1 ignored");
        let printed = "test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n";
        assert_eq!(result(printed), "0 passed, 2 failed");
        assert_eq!(result("thread 'main' has overflowed its stack"), "no result");
    }
}
