//! Copies the sources of the engine and of the fault machine, plants bugs in them, and lists the modules.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

mod edits;

use edits::{EDITS, Edit, MENDS};

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=edits.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").context("no manifest")?);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("no OUT_DIR")?);
    let host = here.join("../../host");
    let (core, fuzz, copy) = (host.join("core/src"), host.join("sim/src/fuzz"), out.join("src"));
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    copy_folder(&core, &copy)?;
    copy_folder(&fuzz, &copy.join("fuzz"))?;
    for (bug, file, from, to) in EDITS.iter().chain(MENDS) {
        plant(&copy, file, from, to).with_context(|| format!("the bug `{bug}`"))?;
    }
    fs::write(out.join("modules.rs"), modules(&core, &copy)?)?;
    let lists = format!(
        "/// Bugs that seeds find.\npub const ALL: &[&str] = &{:?};\n\
         /// Bugs that a minimized case each finds, by its name.\npub const MENDED: &[&str] = &{:?};\n",
        names(EDITS),
        names(MENDS)
    );
    fs::write(out.join("names.rs"), lists)?;
    Ok(())
}

fn names(edits: &[Edit]) -> Vec<&str> {
    let names: BTreeSet<_> = edits.iter().map(|(bug, ..)| *bug).filter(|bug| !bug.is_empty()).collect();
    names.into_iter().collect()
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    println!("cargo::rerun-if-changed={}", from.display());
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().context("a name")?;
        if path.is_dir() {
            copy_folder(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// Replaces a text that must occur exactly once.
fn plant(copy: &Path, file: &str, from: &str, to: &str) -> Result<()> {
    let path = copy.join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("host/core/src/{file}"))?;
    let count = text.matches(from).count();
    ensure!(count == 1, "`{from}` occurs {count} times in host/core/src/{file}: the edit no longer fits");
    let mut text = text.replacen(from, to, 1);
    if to.contains("on(\"") && !text.contains("use crate::bugs::on;") {
        // After the file's own documentation, before its first item.
        let at = text.find("\nuse ").context("a file begins with imports")? + 1;
        text.insert_str(at, "use crate::bugs::on;\n");
    }
    Ok(fs::write(path, text)?)
}

/// The module list of the engine's root, with paths to the copies.
fn modules(core: &Path, copy: &Path) -> Result<String> {
    let root = fs::read_to_string(core.join("lib.rs"))?;
    let mut list = String::new();
    for line in root.lines().filter(|line| !line.starts_with("//!") && !line.starts_with("#!")) {
        let name =
            line.trim_start_matches("pub ").strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
        if let Some(name) = name {
            let folder = copy.join(name).join("mod.rs");
            let file = if folder.exists() { folder } else { copy.join(name).with_extension("rs") };
            writeln!(list, "#[path = {file:?}]")?;
        }
        writeln!(list, "{line}")?;
    }
    writeln!(list, "#[path = {:?}]\npub mod fuzz;", copy.join("fuzz/mod.rs"))?;
    Ok(list)
}
