//! The C compiler for the policy in C: `zig cc`, installed from PyPI if it is missing.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::{run, target_dir};

/// A version that builds the policy.
const PACKAGE: &str = "ziglang==0.15.2";

/// The compiler's command line, for `INFER_ZIG`. If it can't be installed, prints why and returns `None`; the tests
/// that need it are skipped.
pub fn ensure() -> Option<String> {
    if let Ok(named) = std::env::var("INFER_ZIG") {
        return Some(named);
    }
    let unknown = |why| eprintln!("can't look for a C compiler for the policy in C: {why}");
    let python = target_dir().map_err(unknown).ok()?.join("tools").join("zig").join("bin").join("python");
    let installed = format!("{} -m ziglang", python.display());
    let known = ["zig".to_owned(), "python3 -m ziglang".to_owned(), installed.clone()];
    if let Some(found) = known.into_iter().find(|command| answers(command)) {
        return Some(found);
    }
    match install(&python) {
        Ok(()) => Some(installed),
        Err(message) => {
            eprintln!("can't install a C compiler for the policy in C: {message}");
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
    let environment = python.ancestors().nth(2).expect("it is `bin/python` in the environment");
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
