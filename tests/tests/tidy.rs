//! Checks of the tree itself: headers, the fixed layout, leftovers, crate directions.
//!
//! They read what git tracks; where the sources were unpacked without git there is nothing to check, and neither is
//! where there is no git, which `cargo xtask test` says.

use std::path::{Path, PathBuf};
use std::process::Command;

const TOP_LEVEL_FOLDERS: [&str; 8] = [".cargo", ".ci", "host", "kernels", "plugins", "tests", "tui", "wit"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies below the root").to_owned()
}

fn tracked_files() -> Vec<String> {
    let output = Command::new("git").current_dir(root()).args(["ls-files"]).output();
    let Ok(output) = output else { return Vec::new() };
    let files: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    let listed = output.status.success() && !files.is_empty();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(listed || !root().join(".git").exists(), "git lists no files of its checkout: {said}");
    files
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

/// What a crate may import of ours, by its folder. Tests and build scripts may import more.
const IMPORTS: [(&str, &[&str]); 15] = [
    ("host/api", &[]),
    ("host/chat", &["infer-model", "infer-wasm"]),
    ("host/chat/guest", &[]),
    ("host/conformance", &["infer-core", "infer-policy-sdk", "infer-wasm"]),
    ("host/core", &[]),
    ("host/demo", &["infer-chat", "infer-core", "infer-model"]),
    ("host/model", &["infer-core", "infer-kernels"]),
    (
        "host/server",
        &[
            "infer-api",
            "infer-bundle",
            "infer-chat",
            "infer-conformance",
            "infer-core",
            "infer-demo",
            "infer-kernels",
            "infer-model",
            "infer-policy-build",
            "infer-sim",
            "infer-wasm",
        ],
    ),
    ("host/sim", &["infer-core"]),
    ("host/wasm", &["infer-core"]),
    ("host/xtask", &[]),
    ("kernels", &[]),
    // A device for tests.
    ("kernels/emulator", &["infer-kernels"]),
    // Compares with an engine, in a workspace of its own.
    ("kernels/benches/candle", &["infer-model"]),
    ("tui", &["infer-api"]),
];

/// Crates of ours that a manifest imports, on any platform.
fn imports(manifest: &str) -> Vec<String> {
    let mut imports = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside =
                line == "[dependencies]" || line.starts_with("[target.") && line.ends_with(".dependencies]");
        } else if inside {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let ours =
                ["infer-", "policy-", "template-", "first-come-"].iter().any(|ours| name.starts_with(ours));
            imports.extend(ours.then(|| name.to_owned()));
        }
    }
    imports
}

#[test]
fn crates_import_in_the_directions_of_the_architecture() {
    for path in tracked_files() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        let (_, may) = match IMPORTS.iter().find(|(of, _)| *of == folder) {
            Some(known) => *known,
            None if folder.starts_with("plugins/") || folder.starts_with("tests") => continue,
            None => panic!("{path}: what may it import? ARCHITECTURE.md and this test say so"),
        };
        let manifest = std::fs::read_to_string(root().join(&path)).expect("a manifest");
        for import in imports(&manifest) {
            assert!(may.contains(&import.as_str()), "{path} imports {import}, which {folder} may not");
        }
    }
}

/// Nor do their tests know the engine.
#[test]
fn policies_import_the_sdk_alone() {
    let of_policies = |path: &String| path.starts_with("plugins/") && path.ends_with("/Cargo.toml");
    for path in tracked_files().into_iter().filter(of_policies) {
        let manifest = std::fs::read_to_string(root().join(&path)).expect("a manifest");
        if !["policy-", "template-"].iter().any(|kind| manifest.contains(&format!("\nname = \"{kind}"))) {
            continue;
        }
        assert_eq!(imports(&manifest), ["infer-policy-sdk"], "{path}");
        for line in manifest.lines().filter(|line| line.starts_with("infer-")) {
            assert!(line.starts_with("infer-policy-sdk"), "{path}: {line}");
        }
    }
}

/// Kernels and device code, maps of files, our own precompiled code, what a Wasm module exports.
const UNSAFE: [&str; 4] =
    ["kernels/", "host/model/", "host/wasm/src/precompiled.rs", "host/chat/guest/src/exports.rs"];
/// Crates whose roots forbid nothing: those with such code; policies, whose macros write what a component exports; and
/// threads that loom runs, whose sources are other crates'.
const NOT_FORBIDDEN: [&str; 7] = [
    "kernels/",
    "host/model/",
    "host/wasm/src/lib.rs",
    "host/chat/guest/",
    "plugins/",
    "tests/policies/",
    "tests/interleave/",
];

#[test]
fn unsafe_code_is_where_it_must_be_and_forbidden_elsewhere() {
    let among = |path: &str, folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    let marks = ["{", "fn ", "impl", "extern", "trait"].map(|what| format!("{} {what}", "unsafe"));
    for (path, text) in rust_sources() {
        assert!(
            among(&path, &UNSAFE) || !marks.iter().any(|mark| text.contains(mark)),
            "{path} has unsafe code"
        );
        let is_root =
            path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || path.contains("/src/bin/");
        assert!(
            !is_root || among(&path, &NOT_FORBIDDEN) || text.contains("#![forbid(unsafe_code)]"),
            "{path} doesn't forbid unsafe code"
        );
    }
}
