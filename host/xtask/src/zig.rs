//! The C compiler for the policy that is written in C: `zig cc`, from PyPI where there is none.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::{run, target_dir};

/// A version that is known to build it.
const PACKAGE: &str = "ziglang==0.15.2";

/// Where the compiler is: a command line for `INFER_ZIG`. Where it can't be had, says so and leaves the
/// tests that need it out.
pub fn ensure() -> Option<String> {
    if let Ok(named) = std::env::var("INFER_ZIG") {
        return Some(named);
    }
    let unknown = |why| eprintln!("No C compiler for the policy in C can be looked for: {why}");
    let python = target_dir().map_err(unknown).ok()?.join("tools").join("zig").join("bin").join("python");
    let installed = format!("{} -m ziglang", python.display());
    let known = ["zig".to_owned(), "python3 -m ziglang".to_owned(), installed.clone()];
    if let Some(found) = known.into_iter().find(|command| answers(command)) {
        return Some(found);
    }
    match install(&python) {
        Ok(()) => Some(installed),
        Err(message) => {
            eprintln!("No C compiler for the policy in C can be had: {message}");
            None
        }
    }
}

fn answers(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let mut zig = Command::new(words.next().unwrap_or("zig"));
    zig.args(words).arg("version").stdout(Stdio::null()).stderr(Stdio::null());
    zig.status().is_ok_and(|status| status.success())
}

fn install(python: &Path) -> Result<(), String> {
    let environment = python.ancestors().nth(2).expect("it lies in a folder of ours");
    run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    run(Command::new(python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        PACKAGE,
    ]))
}
