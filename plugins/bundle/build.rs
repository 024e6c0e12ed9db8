//! Builds the shipped policies to components and writes the table that `src/lib.rs` includes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Kind, name, package. The folder in `plugins/` has the policy's name.
const POLICIES: [(&str, &str, &str); 18] = [
    ("scheduler", "continuous", "policy-continuous"),
    ("scheduler", "static-batch", "policy-static-batch"),
    ("scheduler", "cache-aware", "policy-cache-aware"),
    ("scheduler", "deadline", "policy-deadline"),
    ("scheduler", "fair", "policy-fair"),
    ("scheduler", "mlfq", "policy-mlfq"),
    ("scheduler", "priority", "policy-priority"),
    ("scheduler", "srpt", "policy-srpt"),
    ("admission", "memory-aware", "policy-memory-aware"),
    ("admission", "slo", "policy-slo"),
    ("admission", "tenant-cap", "policy-tenant-cap"),
    ("admission", "token-bucket", "policy-token-bucket"),
    ("prefix-cache", "lru", "policy-lru"),
    ("prefix-cache", "cost-aware", "policy-cost-aware"),
    ("prefix-cache", "s3-fifo", "policy-s3-fifo"),
    ("prefix-cache", "session", "policy-session"),
    ("prefix-cache", "tenant-quota", "policy-tenant-quota"),
    ("prefix-cache", "ttl-lru", "policy-ttl-lru"),
];

fn main() -> Result<()> {
    let builder = infer_policy_build::Builder::for_build_script()?;
    let folders = POLICIES.map(|(_, name, _)| format!("plugins/{name}"));
    builder.watch(&folders.each_ref().map(String::as_str));
    println!("cargo::rerun-if-changed=build.rs");

    let components = builder.build(&POLICIES.map(|(_, _, package)| package))?;
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR isn't set")?);
    let mut table = String::from("&[\n");
    for ((kind, name, _), component) in POLICIES.iter().zip(&components) {
        let file = out_dir.join(format!("{kind}-{name}.wasm"));
        write_if_changed(&file, component)?;
        let sha256 = hex(&Sha256::digest(component));
        writeln!(
            table,
            "    Bundled {{ kind: {kind:?}, name: {name:?}, component: include_bytes!({file:?}), sha256: {sha256:?} }},"
        )?;
    }
    table.push_str("]\n");
    write_if_changed(&out_dir.join("policies.rs"), table.as_bytes())
}

/// Unchanged files keep their modification time, so that nothing that includes them is compiled again.
fn write_if_changed(file: &Path, content: &[u8]) -> Result<()> {
    if std::fs::read(file).is_ok_and(|old| old == content) {
        return Ok(());
    }
    std::fs::write(file, content).with_context(|| format!("can't write {}", file.display()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
