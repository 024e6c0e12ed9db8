//! Builds the misbehaving policies and the policy templates to components, and embeds them in the tests.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};

const POLICIES: [&str; 6] = [
    "faulty-scheduler",
    "faulty-admission",
    "faulty-prefix-cache",
    "template-scheduler",
    "template-admission",
    "template-prefix-cache",
];

fn main() -> Result<()> {
    let builder = infer_policy_build::Builder::for_build_script()?;
    builder.watch(&["tests/policies", "plugins/templates"]);
    println!("cargo::rerun-if-changed=build.rs");

    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR isn't set")?);
    let mut table = String::new();
    for (name, component) in POLICIES.iter().zip(builder.build(&POLICIES)?) {
        let file = out_dir.join(format!("{name}.wasm"));
        std::fs::write(&file, component).with_context(|| format!("can't write {}", file.display()))?;
        let constant = name.replace('-', "_").to_uppercase();
        writeln!(
            table,
            "/// The component of `{name}`.\npub const {constant}: &[u8] = include_bytes!({file:?});"
        )?;
    }
    std::fs::write(out_dir.join("faulty.rs"), table).context("can't write faulty.rs")
}
