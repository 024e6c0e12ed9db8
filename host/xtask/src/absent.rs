//! Programs without which tests leave themselves out. Nobody hears what a test says that passes, so it is said here.

use std::process::{Command, Stdio};

use crate::cargo::root;

/// What the tests leave out on this machine, and for want of what.
pub fn left_out() -> Vec<&'static str> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let programs = [
        (&*compiler, "--version", "CUDA kernels and the decoder on an emulated device: no C++ compiler"),
        ("tmux", "-V", "the console in a terminal: no tmux"),
        ("curl", "--version", "curl as a client, the console in a terminal: no curl"),
        ("pgrep", "--version", "the console in a terminal: no pgrep"),
        ("git", "--version", "checks of the tree itself: no git"),
    ];
    let absent = programs.into_iter().filter(|(program, version, _)| !starts(program, version));
    let mut left_out: Vec<_> = absent.map(|(_, _, said)| said).collect();
    if !root().join(".git").exists() {
        left_out.push("checks of the tree itself: it is no git checkout");
    }
    left_out
}

/// Whether there is such a program. Words behind it are its arguments, as in `CXX="ccache g++"`.
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
    fn a_program_is_there_if_it_can_be_started() {
        for (command, there) in
            [("cargo", true), ("cargo --quiet", true), ("no-such-program", false), ("", false), (" ", false)]
        {
            assert_eq!(starts(command, "--version"), there, "{command:?}");
        }
    }
}
