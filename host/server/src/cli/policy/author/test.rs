//! `infer policy test`: compiles a crate's tests to WebAssembly and runs them in this program.

use std::path::PathBuf;

use clap::Args;

use super::package::{Package, cargo, no_cargo, require_target};
use crate::cli::Failure;

/// Tests need a standard output and a process, so they are built for WASI, unlike the component.
const TARGET: &str = "wasm32-wasip2";

/// Which tests to run.
#[derive(Args)]
pub struct TestArgs {
    /// Directory of the crate
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Ends tests that have used this much processor time (all tests of a file together), and says where they were
    #[arg(long, value_name = "SECONDS", default_value_t = infer_wasm::wasi::LIMIT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Passed on to `cargo test`
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
        Failure::Failed(format!("cargo can't run {this}, because its path is not UTF-8; move it"))
    })?;
    // A TOML list, because the path may contain spaces; JSON strings are valid TOML.
    let runner = serde_json::json!([this, "policy", "run-wasi", "--limit", args.limit.to_string()]);
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
