//! `infer policy test`: a crate's own tests, compiled to Wasm and run by this very program.

use std::path::PathBuf;

use clap::Args;

use super::package::{Package, cargo, no_cargo, require_target};
use crate::cli::Failure;

/// Tests need standard output and a process, so they are built for WASI; the component is not.
const TARGET: &str = "wasm32-wasip2";

/// Which tests.
#[derive(Args)]
pub struct TestArgs {
    /// Folder of the crate
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Handed on to `cargo test`
    #[arg(last = true, value_name = "CARGO ARGS")]
    rest: Vec<String>,
}

pub(super) fn run(args: &TestArgs) -> Result<(), Failure> {
    let package = Package::open(&args.folder)?;
    require_target(TARGET, &package.folder)?;
    let this =
        std::env::current_exe().map_err(|e| Failure::Failed(format!("can't find this program: {e}")))?;
    let this = this.to_str().ok_or_else(|| {
        let this = this.display();
        Failure::Failed(format!("cargo can't be told to run {this}, whose path is not UTF-8: move it"))
    })?;
    // A list in TOML, which JSON's strings are part of: a path may hold blanks.
    let runner = serde_json::json!([this, "policy", "run-wasi"]);
    let status = cargo()
        .current_dir(&package.folder)
        .args(["test", "--target", TARGET, "--config"])
        .arg(format!("target.{TARGET}.runner = {runner}"))
        .args(&args.rest)
        .status()
        .map_err(no_cargo)?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Failed(format!("the tests of {} failed as WebAssembly", package.name)))
    }
}
