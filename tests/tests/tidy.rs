//! Checks of the tree itself: headers, the fixed layout, leftovers, crate directions.
//!
//! They read what git tracks; where the sources were unpacked without git there is nothing to check.

use std::path::{Path, PathBuf};
use std::process::Command;

const TOP_LEVEL_FOLDERS: [&str; 8] = [".cargo", ".ci", "host", "kernels", "plugins", "tests", "tui", "wit"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies below the root").to_owned()
}

fn tracked_files() -> Vec<String> {
    let output = Command::new("git").current_dir(root()).args(["ls-files"]).output();
    let Ok(output) = output else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn rust_sources() -> impl Iterator<Item = (String, String)> {
    tracked_files().into_iter().filter(|path| path.ends_with(".rs")).filter_map(|path| {
        let text = std::fs::read_to_string(root().join(&path)).ok()?;
        Some((path, text))
    })
}

#[test]
fn top_level_folders_are_the_fixed_ones() {
    for path in tracked_files() {
        if let Some((folder, _)) = path.split_once('/') {
            assert!(TOP_LEVEL_FOLDERS.contains(&folder), "{path} lies in a folder outside the layout");
        }
    }
}

#[test]
fn every_source_file_says_what_it_is_for() {
    let silent: Vec<String> =
        rust_sources().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert!(silent.is_empty(), "no `//!` header on the first line: {silent:?}");
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
        concat!("#[ig", "nore"),
    ];
    for (path, text) in rust_sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{path} contains {mark}");
        }
    }
}

#[test]
fn core_kernels_and_api_import_nothing_of_ours() {
    for folder in ["host/core", "kernels", "host/api"] {
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        assert!(!dependencies.contains("infer-"), "{folder} depends on a crate of ours");
    }
}

#[test]
fn policies_depend_on_the_sdk_alone() {
    for path in tracked_files().iter().filter(|p| p.starts_with("plugins/") && p.ends_with("/Cargo.toml")) {
        let manifest = std::fs::read_to_string(root().join(path)).expect("a manifest");
        if !manifest.contains("name = \"policy-") {
            continue;
        }
        for line in manifest.lines().filter(|line| line.starts_with("infer-")) {
            assert!(line.starts_with("infer-policy-sdk"), "{path}: {line}");
        }
    }
}
