//! Programs that some tests need. Tests without them are skipped, and because the output of a passing test is hidden,
//! `cargo xtask test` reports it.

use std::process::{Command, Stdio};

use crate::cargo::root;

/// What is skipped on this machine, and why.
pub fn left_out() -> Vec<&'static str> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let programs = [
        (&*compiler, "--version", "CUDA kernels and the decoder on an emulated device: no C++ compiler"),
        ("tmux", "-V", "console and chat in a terminal: no tmux"),
        ("curl", "--version", "curl as a client, console and chat in a terminal: no curl"),
        ("pgrep", "--version", "console and chat in a terminal: no pgrep"),
        ("git", "--version", "checks of the source tree: no git"),
    ];
    let absent = programs.into_iter().filter(|(program, version, _)| !starts(program, version));
    let mut left_out: Vec<_> = absent.map(|(_, _, said)| said).collect();
    if !root().join(".git").exists() {
        left_out.push("checks of the source tree: not a git checkout");
    }
    left_out
}

/// Whether a program can be started; `command` may include arguments, as in `CXX="ccache g++"`.
pub fn starts(command: &str, version: &str) -> bool {
    let mut words = command.split_whitespace();
    let Some(program) = words.next() else { return false };
    let mut command = Command::new(program);
    command.args(words).arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

#[cfg(test)]
mod tests {
    use super::starts;

    #[test]
    fn programs_are_detected_by_starting_them() {
        for (command, there) in
            [("cargo", true), ("cargo --quiet", true), ("no-such-program", false), ("", false), (" ", false)]
        {
            assert_eq!(starts(command, "--version"), there, "{command:?}");
        }
    }
}
