//! Fuzzing with libFuzzer: builds the targets of `tests/fuzz` with the project's toolchain and runs them in turn.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, ensure_wasm_targets, root, run, target_dir};

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [TARGET]...  (all targets, a minute each)";

/// Runs `[--seconds N] [TARGET]...`.
pub fn fuzz(args: &[String]) -> Result<(), String> {
    let fuzz = root().join("tests/fuzz");
    let known = targets(&fuzz.join("fuzz_targets"))?;
    let (seconds, wanted) = parse(args, &known)?;
    ensure_wasm_targets()?;
    // Fuzz the shipped versions of the dependencies.
    let (from, to) = (root().join("Cargo.lock"), fuzz.join("Cargo.lock"));
    std::fs::copy(&from, &to).map_err(|e| format!("can't copy {}: {e}", from.display()))?;
    // A separate folder, so that other builds don't reuse instrumented crates.
    let built = target_dir()?.join("fuzz");
    let host = host()?;
    let build = ["build", "--release", "--bins", "--target", &host];
    let mut build = cargo(&build);
    build.current_dir(&fuzz).env("CARGO_TARGET_DIR", &built).env("RUSTC_WRAPPER", fuzz.join("instrument.sh"));
    run(build.env("CARGO_INCREMENTAL", "0"))?;

    let mut failed = Vec::new();
    for target in &wanted {
        let (grown, artifacts) = (built.join("corpus").join(target), fuzz.join("artifacts").join(target));
        for folder in [&grown, &artifacts] {
            std::fs::create_dir_all(folder).map_err(|e| format!("can't make {}: {e}", folder.display()))?;
        }
        let program = built.join(&host).join("release").join(target);
        let mut fuzzer = Command::new(program);
        // libFuzzer writes new inputs to the first folder.
        fuzzer.arg(&grown).arg(fuzz.join("corpus").join(target));
        fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
        fuzzer.args([&format!("-max_total_time={seconds}"), "-timeout=60", "-rss_limit_mb=4096"]);
        // Hides the messages of panics that the host catches; an uncaught panic still ends the run.
        fuzzer.args(["-close_fd_mask=2", "-print_final_stats=1"]);
        if let Err(message) = run(&mut fuzzer) {
            eprintln!("{message}");
            failed.push(format!("{target} (see {})", artifacts.display()));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("findings: {}", failed.join(", "))) }
}

fn parse(args: &[String], known: &[String]) -> Result<(u64, Vec<String>), String> {
    let (mut seconds, mut wanted) = (60, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let value = args.next().and_then(|value| value.parse().ok()).filter(|&value| value > 0);
            seconds = value.ok_or_else(|| format!("--seconds must be at least 1\n{USAGE}"))?;
        } else if known.contains(arg) {
            wanted.push(arg.clone());
        } else {
            return Err(format!("unknown target `{arg}`; use some of {}\n{USAGE}", known.join(", ")));
        }
    }
    Ok((seconds, if wanted.is_empty() { known.to_vec() } else { wanted }))
}

fn targets(folder: &PathBuf) -> Result<Vec<String>, String> {
    let wrong = |error: std::io::Error| format!("can't list {}: {error}", folder.display());
    let mut targets = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        targets.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    targets.sort();
    Ok(targets)
}

/// The machine's own target. Cargo must get it explicitly, or it would instrument build scripts, too.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).current_dir(root()).arg("-vV").output();
    let output = output.map_err(|e| format!("can't start rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV reports no host".to_owned())
}
