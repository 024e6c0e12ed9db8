//! Checks of the source tree: file headers, folder layout, leftovers, crate dependencies, names of tests in documents.
//!
//! They cover the files that git tracks. Without git, or outside a checkout, they check nothing; `cargo xtask test`
//! reports a missing git.

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
    assert!(listed || !root().join(".git").exists(), "git lists no files in its checkout: {said}");
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
            assert!(TOP_LEVEL_FOLDERS.contains(&folder), "{path}: `{folder}` is not a folder of the layout");
        }
    }
}

#[test]
fn every_source_file_has_a_module_header() {
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

/// Crates of this workspace that a crate may depend on, by folder. Tests and build scripts may use more.
const IMPORTS: [(&str, &[&str]); 23] = [
    ("host/api", &[]),
    ("host/chat", &["infer-model", "infer-sandbox"]),
    ("host/chat/guest", &["infer-sandbox-guest"]),
    ("host/conformance", &["infer-core", "infer-policy-sdk", "infer-wasm"]),
    ("host/core", &[]),
    ("host/demo", &["infer-chat", "infer-core", "infer-model"]),
    ("host/grammar", &["infer-sandbox"]),
    ("host/grammar/clockless", &[]),
    ("host/grammar/guest", &["infer-sandbox-guest"]),
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
            "infer-grammar",
            "infer-kernels",
            "infer-model",
            "infer-policy-build",
            "infer-sim",
            "infer-wasm",
        ],
    ),
    ("host/sandbox", &["infer-wasm"]),
    ("host/sandbox/guest", &[]),
    ("host/sim", &["infer-core"]),
    ("host/wasm", &["infer-core"]),
    ("host/xtask", &[]),
    ("kernels", &[]),
    ("kernels/emulator", &["infer-kernels", "infer-ptx"]),
    ("kernels/emulator/blas", &[]),
    ("kernels/emulator/driver", &["infer-cuda-emulator", "infer-kernels"]),
    ("kernels/emulator/ptx", &[]),
    // A comparison benchmark in a workspace of its own.
    ("kernels/benches/candle", &["infer-model"]),
    ("tui", &["infer-api"]),
];

/// What a manifest depends on, on any platform.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut dependencies = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside =
                line == "[dependencies]" || line.starts_with("[target.") && line.ends_with(".dependencies]");
            let of_target = || Some(line.strip_prefix("[target.")?.split_once(".dependencies.")?.1);
            let alone = line.strip_prefix("[dependencies.").or_else(of_target);
            let alone = alone.and_then(|rest| rest.strip_suffix(']'));
            dependencies.extend(alone.map(str::to_owned));
        } else if inside && line.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            dependencies.extend(line.split(['.', ' ', '=']).next().map(str::to_owned));
        }
    }
    dependencies
}

#[test]
fn dependencies_are_found_however_they_are_written() {
    let manifest = "[package]\nname = \"p\"\n[dependencies]\na.workspace = true\nb = { path = \"b\" }\n\
                    [dependencies.c]\npath = \"c\"\n[target.'cfg(unix)'.dependencies]\nd = \"1\"\n\
                    [target.'cfg(unix)'.dependencies.e]\nversion = \"1\"\n[dev-dependencies]\nf = \"1\"\n\
                    [target.'cfg(unix)'.dev-dependencies.g]\nversion = \"1\"\n";
    assert_eq!(dependencies(manifest), ["a", "b", "c", "d", "e"]);
}

/// Crates of this workspace among them.
fn imports(manifest: &str) -> Vec<String> {
    let ours = ["infer-", "policy-", "template-", "first-come-"];
    let mut imports = dependencies(manifest);
    imports.retain(|name| ours.iter().any(|ours| name.starts_with(ours)));
    imports
}

#[test]
fn crates_import_in_the_directions_of_the_architecture() {
    for path in tracked_files() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        let (_, may) = match IMPORTS.iter().find(|(of, _)| *of == folder) {
            Some(known) => *known,
            None if folder.starts_with("plugins/") || folder.starts_with("tests") => continue,
            None => panic!("{path}: add the crate to IMPORTS and to ARCHITECTURE.md"),
        };
        let manifest = std::fs::read_to_string(root().join(&path)).expect("a manifest");
        for import in imports(&manifest) {
            assert!(may.contains(&import.as_str()), "{path} depends on {import}, which {folder} may not");
        }
    }
}

/// All that the engine depends on: no crate with a clock, threads, a runtime, Wasm or serialization.
const ENGINE: [&str; 1] = ["siphasher"];

#[test]
fn engine_has_no_clock_thread_runtime_or_files() {
    let manifest = std::fs::read_to_string(root().join("host/core/Cargo.toml")).expect("a manifest");
    assert_eq!(dependencies(&manifest), ENGINE, "host/core/Cargo.toml");
    let marks = [
        "std::thread",
        "std::fs",
        "std::net",
        "std::io",
        "std::process",
        "std::time",
        // Names several modules at once, which the others would miss.
        "std::{",
        "async fn",
        "async move",
    ];
    for (path, text) in rust_sources().filter(|(path, _)| path.starts_with("host/core/src/")) {
        for mark in marks {
            assert!(!text.contains(mark), "{path} contains `{mark}`");
        }
    }
}

/// The modules that exist only with the feature, and the choice of a device.
const CUDA: [&str; 3] =
    ["host/model/src/lib.rs", "host/server/src/startup/device/mod.rs", "kernels/src/lib.rs"];

#[test]
fn cuda_is_asked_for_in_few_places() {
    let mark = concat!("feature = ", "\"cuda\"");
    for (path, text) in rust_sources().filter(|(path, _)| !path.contains("/tests/")) {
        assert!(!text.contains(mark) || CUDA.contains(&path.as_str()), "{path} contains `{mark}`");
    }
}

/// What a part of the console may import of the others. Its tests draw screens and may import more.
const CONSOLE: [(&str, &[&str]); 4] = [
    ("conn", &["files", "order", "text"]),
    ("input", &[]),
    ("state", &["input", "order", "text"]),
    ("view", &["order", "state", "text"]),
];

#[test]
fn parts_of_the_console_import_in_one_direction() {
    for (path, text) in rust_sources().filter(|(path, _)| !path.contains("/tests/")) {
        let Some(module) = path.strip_prefix("tui/src/").and_then(|rest| rest.split(['/', '.']).next())
        else {
            continue;
        };
        let Some((part, may)) = CONSOLE.iter().find(|(part, _)| *part == module) else { continue };
        for import in text.split("crate::").skip(1).filter_map(|rest| rest.split([':', ';']).next()) {
            assert!(
                import == *part || may.contains(&import),
                "{path} imports {import}, which {part} may not"
            );
        }
    }
}

/// Holds for the tests of policies, too.
#[test]
fn policies_depend_only_on_the_sdk() {
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

/// Kernels and device code, memory maps, loading of our own precompiled code, exports of a Wasm module, and the
/// allocators of two tests.
const UNSAFE: [&str; 8] = [
    "kernels/",
    "host/model/",
    "host/core/tests/allocation.rs",
    "host/sim/tests/memory.rs",
    "host/wasm/src/precompiled.rs",
    "host/chat/guest/src/exports.rs",
    "host/grammar/guest/src/lib.rs",
    "host/sandbox/guest/src/lib.rs",
];
/// Crates without `forbid(unsafe_code)`: those with unsafe code; policies, because their macros generate a component's
/// exports; and `interleave`, because it compiles other crates' sources.
const NOT_FORBIDDEN: [&str; 9] = [
    "kernels/",
    "host/model/",
    "host/wasm/src/lib.rs",
    "host/chat/guest/",
    "host/grammar/guest/",
    "host/sandbox/guest/",
    "plugins/",
    "tests/policies/",
    "tests/interleave/",
];

#[test]
fn unsafe_code_is_confined_and_forbidden_elsewhere() {
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

#[test]
fn tests_compiled_to_wasm_have_a_runner() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("it is there");
    let (config, manifest) = (read(".cargo/config.toml"), read("host/wasm/Cargo.toml"));
    let (_, target) = config.split_once("[target.wasm32-wasip2]").expect("the target has settings");
    for name in ["\"infer-wasm\"", "\"wasi-runner\""] {
        assert!(target.contains(name) && manifest.contains(&format!("name = {name}")), "{name}");
    }
}

/// Backticked names with at least three underscores; `first_words_..` stands for a longer name.
#[test]
fn tests_named_in_regressions_exist() {
    let sources: String = rust_sources().map(|(_, text)| text).collect();
    let text = std::fs::read_to_string(root().join("tests/REGRESSIONS.md")).expect("REGRESSIONS.md");
    let names: Vec<&str> = text.split('`').filter(|name| name.matches('_').count() >= 3).collect();
    assert!(!names.is_empty(), "REGRESSIONS.md names no test");
    for name in names {
        let function = match name.strip_suffix("..") {
            Some(start) => format!("fn {start}"),
            None => format!("fn {name}("),
        };
        assert!(
            sources.is_empty() || sources.contains(&function),
            "REGRESSIONS.md names `{name}`, which is gone"
        );
    }
}
