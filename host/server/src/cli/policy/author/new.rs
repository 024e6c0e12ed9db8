//! `infer policy new`: creates a crate that contains everything it needs to build.
//!
//! The new crate is the root of a workspace with the embedded SDK as a member, so the SDK's manifests need no
//! change. Its sources come from `plugins/templates`, which this project tests like any other policy.

use std::path::{Path, PathBuf};

use clap::Args;
use infer_policy_build::target_is_installed;

use crate::cli::Failure;
use crate::cli::policy::Kind;

/// The SDK and the interface: paths below `vendor`, and contents.
const VENDORED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/vendored.rs"));
/// The workspace settings that the SDK's manifests inherit.
const WORKSPACE: &str = include_str!(concat!(env!("OUT_DIR"), "/workspace.toml"));
/// The guide for authors, as it is in this repository.
const GUIDE: &str = include_str!("../../../../../../plugins/README.md");
/// What of it is elsewhere in a new crate, or isn't there.
const MOVED: [(&str, &str); 5] = [
    (
        "# Policies\n",
        "# Policies\n\nThis is `plugins/README.md` of the host's sources; paths that begin with `../` are there.\n",
    ),
    ("`../wit`", "`vendor/wit`"),
    ("](../wit/", "](vendor/wit/"),
    ("[limits](../host/wasm/README.md#limits)", "limits"),
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
    /// The slot it is for
    #[arg(long)]
    kind: Kind,
    /// Directory to create [default: NAME in the current directory]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
}

/// The parts that differ between the kinds.
struct Template {
    library: &'static str,
    tests: &'static str,
    /// What the initial policy does.
    begins_as: &'static str,
    /// The flags of `infer sim compare` for the policy that it would replace.
    beside: &'static str,
    uses_serde: bool,
}

macro_rules! template {
    ($folder:literal, $begins_as:literal, $beside:literal, $uses_serde:literal) => {
        Template {
            library: include_str!(concat!("../../../../../../plugins/templates/", $folder, "/src/lib.rs")),
            tests: include_str!(concat!("../../../../../../plugins/templates/", $folder, "/src/tests.rs")),
            begins_as: $begins_as,
            beside: $beside,
            uses_serde: $uses_serde,
        }
    };
}

impl Template {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Scheduler => {
                template!(
                    "scheduler",
                    "starts the shortest prompt first, and lets no request wait for too long",
                    "--scheduler continuous",
                    true
                )
            }
            Kind::Admission => {
                template!(
                    "admission",
                    "defers long prompts while the KV pool is full",
                    "--scheduler continuous --admission memory-aware",
                    true
                )
            }
            Kind::PrefixCache => {
                template!(
                    "prefix-cache",
                    "evicts the least recently used prefixes",
                    "--scheduler continuous --prefix-cache lru",
                    false
                )
            }
        }
    }

    fn dependencies(&self) -> &'static [&'static str] {
        if self.uses_serde { &["infer-policy-sdk", "serde"] } else { &["infer-policy-sdk"] }
    }
}

pub(super) fn run(args: &NewArgs) -> Result<(), Failure> {
    check_name(&args.name).map_err(Failure::Usage)?;
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    check_folder(&folder)?;
    let template = Template::of(args.kind);
    let kind = args.kind.name();
    let name = args.name.as_str();
    let files = [
        ("Cargo.toml", manifest(name, kind, &template)),
        ("Cargo.lock", lock(name, &template)),
        ("README.md", readme(name, kind, &template)),
        ("GUIDE.md", guide()),
        (".gitignore", format!("/target\n/{name}.wasm\n")),
        ("src/lib.rs", template.library.to_owned()),
        ("src/tests.rs", template.tests.to_owned()),
    ];
    for (path, content) in &files {
        write(&folder.join(path), content)?;
    }
    for (path, content) in VENDORED {
        write(&folder.join("vendor").join(path), content)?;
    }
    let shown = folder.display();
    println!("{shown}: {} policy that {}. Try", with_article(kind), template.begins_as);
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
        return Err(format!(
            "`{name}` is taken by Rust or by a crate that a policy depends on; choose another name"
        ));
    }
    Ok(())
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

fn manifest(name: &str, kind: &str, template: &Template) -> String {
    let dependencies: String =
        template.dependencies().iter().map(|dependency| format!("{dependency}.workspace = true\n")).collect();
    let description = format!("{} policy", with_article(kind).replacen('a', "A", 1));
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
members = ["vendor/plugins/sdk", "vendor/plugins/sdk/bindings/*"]

# Tests try many seeds. Without any optimization, the linker of Rust 1.95 crashes on some crates, too.
[profile.dev]
opt-level = 1

# From here on: settings that the SDK in vendor/ inherits, such as the SDK's version.
{WORKSPACE}"#
    )
}

/// The SDK's lock file with the new crate added.
fn lock(name: &str, template: &Template) -> String {
    let dependencies: String =
        template.dependencies().iter().map(|dependency| format!(" \"{dependency}\",\n")).collect();
    let own =
        format!("[[package]]\nname = \"{name}\"\nversion = \"0.1.0\"\ndependencies = [\n{dependencies}]\n\n");
    let mut packages: Vec<&str> = PACKAGES.split_inclusive("\n\n").collect();
    packages.push(&own);
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

fn readme(name: &str, kind: &str, template: &Template) -> String {
    format!(
        r#"# {name}

{article_kind} policy for `infer` that {begins_as}.

    infer policy test            # its tests, as WebAssembly; `cargo test` runs them natively
    infer policy build           # writes {name}.wasm
    infer policy check           # checks it against everything that a host requires
    infer policy bench           # measures what its calls cost
    infer sim compare {beside} --{kind} ./{name}.wasm    # beside the default, on simulated hardware

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
        begins_as = template.begins_as,
        beside = template.beside
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
        let lock = lock("mine", &Template::of(Kind::Scheduler));
        let names: Vec<_> = lock.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
        assert!(names.is_sorted() && names.contains(&"\"mine\""), "{names:?}");
        assert!(!names.contains(&"\"wasmtime\"") && !names.contains(&"\"tokio\""), "{names:?}");
    }
}
