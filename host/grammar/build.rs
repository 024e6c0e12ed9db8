//! Builds the compiler of grammars to the module that `src/lib.rs` includes.

use std::path::PathBuf;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let builder = infer_policy_build::Builder::for_build_script()?;
    builder.watch(&["host/grammar/guest", "host/grammar/clockless", "host/sandbox/guest"]);
    println!("cargo::rerun-if-changed=build.rs");

    let file = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR isn't set")?).join("compiler.wasm");
    let module = builder.build_module("infer-grammar-guest")?;
    if std::fs::read(&file).is_ok_and(|old| old == module) {
        return Ok(());
    }
    std::fs::write(&file, module).with_context(|| format!("can't write {}", file.display()))
}
