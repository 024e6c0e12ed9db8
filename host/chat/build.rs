//! Builds the renderer to the module that `src/sandbox.rs` includes.

use std::path::PathBuf;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let builder = infer_policy_build::Builder::for_build_script()?;
    builder.watch(&["host/chat/guest", "host/sandbox/guest"]);
    println!("cargo::rerun-if-changed=build.rs");

    let file = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR isn't set")?).join("renderer.wasm");
    let module = builder.build_module("infer-chat-guest")?;
    if std::fs::read(&file).is_ok_and(|old| old == module) {
        return Ok(());
    }
    std::fs::write(&file, module).with_context(|| format!("can't write {}", file.display()))
}
