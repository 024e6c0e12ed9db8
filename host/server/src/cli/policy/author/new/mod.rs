//! `infer policy new`: creates a crate that contains everything it needs to build.
//!
//! The new crate is the root of a workspace with the embedded SDK as a member, so the SDK's manifests need no
//! change. Its sources come from `plugins/templates`, which this project tests like any other policy, or from a shipped
//! policy (`origin`), with the policies that its tests compare it with.

mod origin;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use infer_policy_build::target_is_installed;

use crate::cli::Failure;
use crate::cli::policy::Kind;
use origin::{Baseline, Origin};

/// The SDK and the interface: paths below `vendor`, and contents.
const VENDORED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/vendored.rs"));
/// The workspace settings that the SDK's manifests inherit.
const WORKSPACE: &str = include_str!(concat!(env!("OUT_DIR"), "/workspace.toml"));
/// The guide for authors, as it is in this repository.
const GUIDE: &str = include_str!("../../../../../../../plugins/README.md");
/// What of it is elsewhere in a new crate, or isn't there.
const MOVED: [(&str, &str); 11] = [
    (
        "# Policies\n",
        "# Policies\n\nThis is `plugins/README.md` of the host's sources; paths that begin with `../` are there.\n",
    ),
    ("`../wit`", "`vendor/wit`"),
    ("](../wit/", "](vendor/wit/"),
    ("[ARCHITECTURE](../ARCHITECTURE.md#the-idea)", "`../ARCHITECTURE.md`"),
    ("[Words](../README.md#words)", "`../README.md`"),
    (
        "[`infer sim compare --predictions`](../host/sim/README.md#predicted-lengths---predictions)",
        "`infer sim compare --predictions`",
    ),
    ("[limits](../host/wasm/README.md#limits)", "limits"),
    ("[quarantine](../host/server/ADMIN.md#quarantine)", "quarantine (`../host/server/ADMIN.md`)"),
    ("[canary](../host/server/ADMIN.md#canary)", "canary"),
    ("[with `--policy-state`](../host/server/ADMIN.md#after-a-restart)", "with `--policy-state`"),
    ("[`first-come-c`](first-come-c)", "`../plugins/first-come-c`"),
];
/// The dependencies, in the versions that the shipped policies are built with.
const PACKAGES: &str = include_str!(concat!(env!("OUT_DIR"), "/packages.lock"));

const TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip2"];
const MAX_NAME: usize = 64;
/// Keywords of Rust, in any edition; no crate can be named like one.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "static", "struct", "trait",
    "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// What to create.
#[derive(Args)]
pub struct NewArgs {
    /// Name of the policy and its crate: lower-case letters, digits and hyphens
    name: String,
    /// The slot it is for; the crate begins as a short example
    #[arg(long, required_unless_present = "from")]
    kind: Option<Kind>,
    /// A shipped policy to begin as
    #[arg(long, value_name = "POLICY", conflicts_with = "kind", value_parser = shipped())]
    from: Option<String>,
    /// Directory to create [default: NAME in the current directory]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
}

fn shipped() -> PossibleValuesParser {
    PossibleValuesParser::new(infer_bundle::POLICIES.iter().map(|policy| policy.name))
}

pub(super) fn run(args: &NewArgs) -> Result<(), Failure> {
    check_name(&args.name).map_err(Failure::Usage)?;
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    check_folder(&folder)?;
    let name = args.name.as_str();
    let origin = match (&args.from, args.kind) {
        (Some(from), _) => Origin::copy(from, name),
        (None, Some(kind)) => Origin::template(kind, name),
        (None, None) => return Err(Failure::Usage("give --kind or --from".to_owned())),
    };
    if origin.baselines.iter().any(|baseline| baseline.package == name) {
        return Err(Failure::Usage(is_taken(name)));
    }
    let files = [
        ("Cargo.toml", manifest(name, &origin)),
        ("Cargo.lock", lock(name, &origin)),
        ("README.md", readme(name, &origin)),
        ("GUIDE.md", guide()),
        (".gitignore", format!("/target\n/{name}.wasm\n")),
    ];
    for (path, content) in files.iter().chain(&origin.sources) {
        write(&folder.join(path), content)?;
    }
    let vendor = folder.join("vendor");
    for (path, content) in VENDORED {
        write(&vendor.join(path), content)?;
    }
    for baseline in &origin.baselines {
        for (path, content) in baseline.files {
            write(&vendor.join("plugins").join(baseline.folder).join(path), content)?;
        }
    }
    let (shown, kind) = (folder.display(), origin.kind.name());
    println!("{shown}: {} policy that {}. Try", with_article(kind), origin.does);
    for command in ["test", "build", "check"] {
        println!("  infer policy {command} {shown}");
    }
    println!("  infer policy swap {kind} {}", folder.join(format!("{name}.wasm")).display());
    let missing: Vec<_> =
        TARGETS.into_iter().filter(|target| !target_is_installed(target, &folder)).collect();
    if !missing.is_empty() {
        println!(
            "The Rust toolchain lacks targets for these: run `rustup target add {}` first.",
            missing.join(" ")
        );
    }
    Ok(())
}

fn with_article(kind: &str) -> String {
    format!("{} {kind}", if kind.starts_with('a') { "an" } else { "a" })
}

/// A name must be valid for a crate and a file, and readable in the host's logs.
fn check_name(name: &str) -> Result<(), String> {
    let fits = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.ends_with('-')
        && name.len() <= MAX_NAME;
    if !fits {
        return Err(format!(
            "`{name}` is not a valid policy name: use 1 to {MAX_NAME} lower-case letters, digits and hyphens, begin with \
             a letter and don't end with a hyphen, as in `shortest-first`"
        ));
    }
    if infer_wasm::is_reserved(name) {
        return Err(format!("`{name}` is reserved for the host's own policies; choose another name"));
    }
    let taken = PACKAGES.lines().any(|line| line == format!("name = \"{name}\""));
    let reserved = ["core", "std", "alloc", "test", "proc-macro", "self", "super", "crate", "build", "deps"];
    if taken || reserved.contains(&name) || KEYWORDS.contains(&name) {
        return Err(is_taken(name));
    }
    Ok(())
}

fn is_taken(name: &str) -> String {
    format!("`{name}` is taken by Rust or by a crate that a policy depends on; choose another name")
}

fn check_folder(folder: &Path) -> Result<(), Failure> {
    let shown = folder.display();
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(Failure::Usage(format!(
            "{shown} exists and is not empty; choose another directory with --path"
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(Failure::Usage(format!("{shown} is a file; choose a directory with --path")))
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    let parent = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    parent
        .and_then(|()| std::fs::write(path, content))
        .map_err(|e| Failure::Failed(format!("can't write {}: {e}", path.display())))
}

fn manifest(name: &str, origin: &Origin) -> String {
    let inherited = |package: &&str| format!("{package}.workspace = true\n");
    let mut dependencies: String = origin.dependencies.iter().map(inherited).collect();
    let (mut members, mut paths) = (String::new(), String::new());
    if !origin.baselines.is_empty() {
        dependencies += "\n# What its tests compare it with.\n[dev-dependencies]\n";
    }
    for Baseline { folder, package, .. } in &origin.baselines {
        dependencies += &inherited(package);
        members += &format!(", \"vendor/plugins/{folder}\"");
        paths += &format!("{package} = {{ path = \"vendor/plugins/{folder}\" }}\n");
    }
    let description = format!("{} policy", with_article(origin.kind.name()).replacen('a', "A", 1));
    format!(
        r#"[package]
name = "{name}"
description = "{description}"
version = "0.1.0"
edition.workspace = true
rust-version.workspace = true
publish = false

[lib]
# A library for the tests, and the module that becomes the component.
crate-type = ["rlib", "cdylib"]

[dependencies]
{dependencies}
[workspace]
resolver = "3"
members = ["vendor/plugins/sdk", "vendor/plugins/sdk/bindings/*"{members}]

# Tests try many seeds. Without any optimization, the linker of Rust 1.95 crashes on some crates, too.
[profile.dev]
opt-level = 1

# From here on: settings that the SDK in vendor/ inherits, such as the SDK's version.
{WORKSPACE}{paths}"#
    )
}

/// The SDK's lock file with the new crate and what its tests compare it with.
fn lock(name: &str, origin: &Origin) -> String {
    let package = |name: &str, version: &str, mut dependencies: Vec<&str>| {
        dependencies.sort_unstable();
        let dependencies: String = dependencies.iter().map(|of| format!(" \"{of}\",\n")).collect();
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [\n{dependencies}]\n\n"
        )
    };
    let baselines = || origin.baselines.iter();
    let used = origin.dependencies.iter().copied().chain(baselines().map(|baseline| baseline.package));
    let mut own = vec![package(name, "0.1.0", used.collect())];
    let version = env!("CARGO_PKG_VERSION");
    own.extend(baselines().map(|of| package(of.package, version, of.dependencies.clone())));
    let mut packages: Vec<&str> =
        PACKAGES.split_inclusive("\n\n").chain(own.iter().map(String::as_str)).collect();
    packages.sort_by_key(|package| package.lines().nth(1).map(str::to_owned));
    format!(
        "# This file is automatically @generated by Cargo.\n# It is not intended for manual editing.\nversion = 4\n\n{}\n",
        packages.concat().trim_end()
    )
}

/// The guide with links that hold in a new crate.
fn guide() -> String {
    MOVED.iter().fold(GUIDE.to_owned(), |guide, (from, to)| guide.replace(from, to))
}

fn readme(name: &str, origin: &Origin) -> String {
    let kind = origin.kind.name();
    format!(
        r#"# {name}

{article_kind} policy for `infer` that {does}.

    infer policy test            # its tests, as WebAssembly; `cargo test` runs them natively
    infer policy build           # writes {name}.wasm
    infer policy check           # checks it against everything that a host requires
    infer policy bench           # measures what its calls cost
    infer sim compare {beside} --{kind} ./{name}.wasm    # beside `{rival}`, on simulated hardware

On a running host, while requests stream:

    infer policy swap {kind} {name}.wasm --mode shadow   # asked beside the live policy, without effect
    infer policy shadow {kind}                           # how its decisions differ, and what they cost
    infer policy swap {kind} {name}.wasm --mode canary   # live, until it does worse than its predecessor
    infer policy list
    infer policy rollback {kind}

The policy is in `src/lib.rs`, its tests are in `src/tests.rs`. It sees only what the host shows it: it has no clock, no
randomness and no files. `vendor/wit` specifies that interface and `vendor/plugins/sdk` is its Rust side, which
`cargo doc -p infer-policy-sdk --open` shows; both come from the `infer` that created this directory.

The host gives each call 20 ms of processor time and 64 MiB of memory. Its watchdog removes a scheduler that lets
nothing progress, or leaves a sequence behind for longer than the bound that each view holds (`step.starvation_bound`,
5 s).
[GUIDE.md](GUIDE.md) has all of the rules, explains a policy line by line, and says what the shipped ones do.

Building needs a Rust toolchain with two targets: `rustup target add wasm32-unknown-unknown wasm32-wasip2`.
"#,
        article_kind = with_article(kind).replacen('a', "A", 1),
        does = origin.does,
        beside = origin.beside(),
        rival = origin.rival
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused_with_a_valid_example() {
        for name in ["shortest-first", "a", "lru2", "builtins"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", "Upper", "9lives", "a_b", "a b", "../a", "a-", "ü", &"a".repeat(65)] {
            assert!(check_name(name).unwrap_err().contains("shortest-first"), "{name}");
        }
        for name in ["serde", "infer-policy-sdk", "core", "match"] {
            assert!(check_name(name).unwrap_err().contains("taken"), "{name}");
        }
        for name in ["builtin", "builtin-x"] {
            assert!(check_name(name).unwrap_err().contains("reserved"), "{name}");
        }
    }

    #[test]
    fn embedded_sdk_is_complete() {
        let vendored: Vec<_> = VENDORED.iter().map(|(path, _)| *path).collect();
        for path in
            ["wit/scheduler.wit", "plugins/sdk/Cargo.toml", "plugins/sdk/bindings/admission/src/lib.rs"]
        {
            assert!(vendored.contains(&path), "{path} in {vendored:?}");
        }
        let comments: Vec<_> = WORKSPACE.lines().filter(|line| line.starts_with('#')).collect();
        assert!(comments.is_empty(), "of other sections of the workspace's manifest: {comments:?}");
        for (_, content) in VENDORED.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
            let inherited = content.lines().filter_map(|line| line.strip_suffix(".workspace = true"));
            for name in inherited {
                assert!(WORKSPACE.lines().any(|line| line.starts_with(&format!("{name} = "))), "{name}");
            }
        }
    }

    #[test]
    fn guide_links_only_to_files_of_a_new_crate() {
        for (from, _) in MOVED {
            assert!(GUIDE.contains(from), "the guide has no `{from}`");
        }
        let guide = guide();
        let targets = guide.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with('#')) {
            let path = target.strip_prefix("vendor/").unwrap_or(target);
            assert!(VENDORED.iter().any(|(vendored, _)| *vendored == path), "{target}");
        }
    }

    #[test]
    fn lock_file_has_the_new_crate_in_order_and_no_unneeded_package() {
        let lock = lock("mine", &Origin::template(Kind::Scheduler, "mine"));
        let names: Vec<_> = lock.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
        assert!(names.is_sorted() && names.contains(&"\"mine\""), "{names:?}");
        assert!(!names.contains(&"\"wasmtime\"") && !names.contains(&"\"tokio\""), "{names:?}");
    }
}
