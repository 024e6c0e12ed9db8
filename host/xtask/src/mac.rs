//! The crates that build without a C compiler, type-checked for macOS on another system.

use crate::cargo::{cargo, ensure_targets, run};

const TARGET: &str = "aarch64-apple-darwin";
/// The others need a C compiler for macOS: wasmtime and ring contain C.
const PACKAGES: [&str; 3] = ["infer-kernels", "infer-model", "infer-tui"];

/// Type-checks them.
pub fn check() -> Result<(), String> {
    ensure_targets(&[TARGET])?;
    let mut check = cargo(&["check", "--target", TARGET]);
    for package in PACKAGES {
        check.args(["--package", package]);
    }
    run(&mut check)
}
