//! The kernels for AArch64 on another machine: linted, and tested by an emulator.

use crate::absent::starts;
use crate::cargo::{cargo, ensure_targets, run};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// As Debian and Ubuntu name them.
const COMPILERS: [&str; 2] = ["aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"];
const EMULATORS: [&str; 2] = ["qemu-aarch64", "qemu-aarch64-static"];
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// What differs by processor, and what shows that whole models compute the same.
const PACKAGES: [&str; 2] = ["infer-kernels", "infer-model"];
/// Looks for the C library's file, which isn't where the emulator says.
const SKIPPED: &str = "functions_are_located_by_file";

/// Lints the kernels. Returns why that was skipped, if it was.
pub fn lint() -> Result<Option<&'static str>, String> {
    if cfg!(target_arch = "aarch64") {
        return Ok(None);
    }
    if ensure_targets(&[TARGET]).is_err() {
        return Ok(Some("kernels for AArch64: the toolchain lacks the target"));
    }
    let clippy = ["clippy", "--package", "infer-kernels", "--target", TARGET, "--", "-D", "warnings"];
    run(&mut cargo(&clippy)).map(|()| None)
}

/// Runs the tests.
pub fn test() -> Result<(), String> {
    let emulator = EMULATORS.into_iter().find(|emulator| starts(emulator, "--version"));
    let [c, cpp] = COMPILERS;
    let (Some(emulator), true) = (emulator, COMPILERS.iter().all(|compiler| starts(compiler, "--version")))
    else {
        return Err(format!(
            "this needs {} or {}, {c} and {cpp} (on Debian and Ubuntu: apt install qemu-user-static \
             g++-aarch64-linux-gnu); on AArch64 itself, `cargo xtask test` does it",
            EMULATORS[0], EMULATORS[1]
        ));
    };
    ensure_targets(&[TARGET])?;
    let mut tests = cargo(&["test", "--target", TARGET]);
    for package in PACKAGES {
        tests.args(["--package", package]);
    }
    tests.args(["--", "--skip", SKIPPED]);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", c);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{emulator} -cpu max -L {LIBRARIES}"));
    run(tests.env("CC_aarch64_unknown_linux_gnu", c).env("CXX_aarch64_unknown_linux_gnu", cpp))
}
