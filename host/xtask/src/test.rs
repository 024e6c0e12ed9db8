//! Every check of the project, cheapest first, so that a fault is seen early; but what may have to be fetched comes last.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{build, cargo, ensure_wasm_targets, root, run, target_dir};

/// Workspaces of their own, whose crates other builds never see.
const APART: [&str; 3] = [INTERLEAVE, "tests/fuzz", "kernels/benches/candle"];
const INTERLEAVE: &str = "tests/interleave";

/// Formatting and lints.
pub fn check() -> Result<(), String> {
    ensure_wasm_targets()?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    for workspace in APART {
        run(cargo(&["fmt", "--check", "--manifest-path"]).arg(manifest(workspace)))?;
    }
    lint(cargo(&["clippy", "--workspace", "--all-targets", "--all-features"]))?;
    // What people build: other code stands in where a feature is off.
    lint(cargo(&["clippy", "--bin", "infer", "--bin", "infer-tui"]))?;
    lint(cargo(&["clippy", "--package", "infer-server", "--bin", "infer", "--no-default-features"]))?;
    lint(interleave(&["clippy", "--all-targets"])?)
}

fn lint(mut clippy: Command) -> Result<(), String> {
    run(clippy.args(["--", "-D", "warnings"]))
}

/// Everything: lints, native tests, the policies' tests compiled to Wasm, and the CUDA kernels.
pub fn test() -> Result<(), String> {
    check()?;
    let mut left_out = crate::absent::left_out();
    let mut tests = cargo(&["test", "--workspace", "--all-features"]);
    match crate::zig::ensure() {
        Some(zig) => _ = tests.env("INFER_ZIG", zig),
        None => left_out.push("the policy in C: no C compiler for WebAssembly (zig)"),
    }
    run(&mut tests)?;
    run(&mut interleave(&["test"])?)?;
    wasm_tests()?;
    left_out.extend(crate::cuda::compile()?);
    match left_out.is_empty() {
        true => eprintln!("All checks passed."),
        false => {
            eprintln!(
                "All checks passed, but for these, which can't be run here:\n  {}",
                left_out.join("\n  ")
            );
        }
    }
    eprintln!("Commands of their own, for what they fetch or need: clients, scale-out, fuzz, gpu-check.");
    eprintln!("Not built: tests/fuzz (`fuzz` does), kernels/benches/candle (kernels/README.md says how).");
    Ok(())
}

/// How threads meet, checked by loom: a workspace of its own.
fn interleave(what: &[&str]) -> Result<Command, String> {
    let mut command = cargo(what);
    command.arg("--manifest-path").arg(manifest(INTERLEAVE));
    command.arg("--target-dir").arg(target_dir()?.join("interleave"));
    Ok(command)
}

fn manifest(workspace: &str) -> PathBuf {
    root().join(workspace).join("Cargo.toml")
}

/// The policies' own unit tests, compiled to wasm32-wasip2 and run under wasmtime. Comes after the
/// native tests, which build the runner.
fn wasm_tests() -> Result<(), String> {
    // The workspace's tests have built it; a build of its own would choose other features and with
    // them build wasmtime a second time.
    let runner = build(&mut cargo(&["test", "--workspace", "--all-features", "--no-run"]), "wasi-runner")?;
    let mut tests = cargo(&["test", "--target", "wasm32-wasip2", "--package", "infer-policy-sdk"]);
    for policy in policies()? {
        tests.args(["--package", &policy]);
    }
    run(tests.env("CARGO_TARGET_WASM32_WASIP2_RUNNER", runner))
}

/// The policy packages: `policy-*` in `plugins/`, and `template-*`, which new policies begin as.
fn policies() -> Result<Vec<String>, String> {
    let plugins = root().join("plugins");
    let mut packages = Vec::new();
    for (folder, prefix) in [(plugins.clone(), "policy-"), (plugins.join("templates"), "template-")] {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let manifest = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path().join("Cargo.toml");
            let Ok(text) = std::fs::read_to_string(&manifest) else { continue };
            let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
            packages.extend(name.filter(|name| name.starts_with(prefix)).map(str::to_owned));
        }
    }
    packages.sort();
    if packages.is_empty() {
        return Err(format!("no policy packages found in {}", plugins.display()));
    }
    Ok(packages)
}
