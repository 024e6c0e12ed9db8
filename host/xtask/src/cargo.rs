//! Running child processes, and what a fresh machine lacks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Targets that policies are built and tested for.
pub const WASM_TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip2"];

/// The workspace root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("host/xtask lies two folders below the root").to_owned()
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// `cargo` in the workspace root.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

/// Runs a command, says what it runs, and turns a failure into a message.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    let status = command.status().map_err(|e| format!("can't start `{shown}`: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed ({status})")) }
}

/// As `run`, for at most so long.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    let mut child = command.spawn().map_err(|e| format!("can't start `{shown}`: {e}"))?;
    let until = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|e| format!("can't wait for `{shown}`: {e}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("`{shown}` failed ({status})")),
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(100)),
            None => break,
        }
    }
    let _ = child.kill().and_then(|()| child.wait());
    Err(format!("`{shown}` took longer than {} s", limit.as_secs()))
}

/// Adds the Wasm targets where the toolchain lacks them.
pub fn ensure_wasm_targets() -> Result<(), String> {
    let missing: Vec<&str> = WASM_TARGETS.into_iter().filter(|t| !has_target(t)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut add = Command::new("rustup");
    add.current_dir(root()).args(["target", "add"]).args(&missing);
    run(&mut add).map_err(|e| {
        format!(
            "{e}\nPolicies are WebAssembly, so the toolchain needs {}. Where rustup is not at hand, install \
             these targets' standard libraries with the system's package manager.",
            missing.join(" and ")
        )
    })
}

fn has_target(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .current_dir(root())
        .args(["--print", "target-libdir", "--target", target])
        .output();
    output.is_ok_and(|o| o.status.success() && Path::new(String::from_utf8_lossy(&o.stdout).trim()).is_dir())
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut shown = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        shown.push(' ');
        shown.push_str(&arg.to_string_lossy());
    }
    shown
}
