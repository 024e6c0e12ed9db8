//! Every check of the project, cheapest first, so that a fault is seen early.

use std::ffi::OsString;

use crate::cargo::{cargo, ensure_wasm_targets, root, run, target_dir};

/// Formatting and lints.
pub fn check() -> Result<(), String> {
    ensure_wasm_targets()?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]))
}

/// Everything: lints, the CUDA kernels, native tests, and the policies' tests compiled to Wasm.
pub fn test() -> Result<(), String> {
    check()?;
    let mut left_out = crate::absent::left_out();
    if !crate::cuda::compile()? {
        left_out.push("whether nvcc compiles the kernels: no CUDA toolkit");
    }
    let mut tests = cargo(&["test", "--workspace", "--all-features"]);
    match crate::zig::ensure() {
        Some(zig) => _ = tests.env("INFER_ZIG", zig),
        None => left_out.push("the policy in C: no C compiler for WebAssembly (zig)"),
    }
    run(&mut tests)?;
    interleave()?;
    wasm_tests()?;
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
    Ok(())
}

/// How threads meet, checked by loom: a workspace of its own.
fn interleave() -> Result<(), String> {
    let manifest = root().join("tests").join("interleave").join("Cargo.toml");
    let mut tests = cargo(&["test", "--manifest-path"]);
    run(tests.arg(manifest).arg("--target-dir").arg(target_dir().join("interleave")))
}

/// The policies' own unit tests, compiled to wasm32-wasip2 and run under wasmtime. Comes after the
/// native tests, which build the runner.
fn wasm_tests() -> Result<(), String> {
    // The workspace's tests have built it; a build of its own would choose other features and with
    // them build wasmtime a second time.
    let runner: OsString = target_dir().join("debug").join("wasi-runner").into();
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
