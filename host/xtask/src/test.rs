//! All checks of the project: the cheapest first, so that failures show early, and those that may download something
//! last.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{Built, built, cargo, ensure_wasm_targets, root, run, target_dir};

/// Folders that are workspaces of their own.
const APART: [&str; 3] = [INTERLEAVE, "tests/fuzz", "kernels/benches/candle"];
const INTERLEAVE: &str = "tests/interleave";

/// Formatting and lints.
pub fn check() -> Result<(), String> {
    ensure_wasm_targets()?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    for workspace in APART {
        run(cargo(&["fmt", "--check", "--manifest-path"]).arg(manifest(workspace)))?;
    }
    lint(&mut cargo(&["clippy", "--workspace", "--all-targets", "--all-features"]))?;
    // The feature sets that users build: other code is compiled if a feature is off.
    let host = ["clippy", "--package", "infer-server", "--package", "infer-tui", "--lib", "--bins"];
    let unify = ["--package", "infer-unify"];
    lint(cargo(&host).args(unify))?;
    lint(cargo(&host).args(unify).arg("--no-default-features"))?;
    lint(&mut interleave(&["clippy", "--all-targets"])?)
}

fn lint(clippy: &mut Command) -> Result<(), String> {
    run(clippy.args(["--", "-D", "warnings"]))
}

/// Runs everything: lints, native tests, the policies' tests compiled to Wasm, and the CUDA compiler.
pub fn test() -> Result<(), String> {
    crate::room::warn_if_little(&target_dir()?);
    check()?;
    let mut left_out = crate::absent::left_out();
    let mut tests = cargo(&["test", "--workspace", "--all-features", "--no-run"]);
    match crate::zig::ensure() {
        Some(zig) => _ = tests.env("INFER_ZIG", zig),
        None => left_out.push("the policy in C: no C compiler for WebAssembly (zig)"),
    }
    let built = built(&mut tests)?;
    crate::binaries::run(&built.messages, &tests, &target_dir()?.join("test-logs"))?;
    run(&mut cargo(&["test", "--workspace", "--all-features", "--doc"]))?;
    run(&mut interleave(&["test"])?)?;
    wasm_tests(&built)?;
    left_out.extend(crate::cuda::compile(&built)?);
    left_out.extend(crate::arm::lint()?);
    match left_out.is_empty() {
        true => eprintln!("All checks passed."),
        false => {
            eprintln!("All checks passed, except these, which were skipped:\n  {}", left_out.join("\n  "));
        }
    }
    eprintln!(
        "Not included, because they download or need more: clients, scale-out, fuzz, arm, mac, gpu-check."
    );
    eprintln!("Not built: tests/fuzz (see `fuzz`), kernels/benches/candle (see kernels/README.md).");
    Ok(())
}

/// A cargo command in the workspace of the loom tests.
fn interleave(what: &[&str]) -> Result<Command, String> {
    let mut command = cargo(what);
    command.arg("--manifest-path").arg(manifest(INTERLEAVE));
    command.arg("--target-dir").arg(target_dir()?.join("interleave"));
    Ok(command)
}

fn manifest(workspace: &str) -> PathBuf {
    root().join(workspace).join("Cargo.toml")
}

/// Runs the policies' unit tests compiled to wasm32-wasip2 under wasmtime.
fn wasm_tests(built: &Built) -> Result<(), String> {
    // The native tests have built it. Building it alone would select other features, and so build wasmtime again.
    let runner = built.executable("wasi-runner")?;
    let mut tests = cargo(&["test", "--target", "wasm32-wasip2", "--package", "infer-policy-sdk"]);
    for policy in policies()? {
        tests.args(["--package", &policy]);
    }
    run(tests.env("CARGO_TARGET_WASM32_WASIP2_RUNNER", runner))
}

/// The policy packages: `policy-*` in `plugins/`, and the templates `template-*`.
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
