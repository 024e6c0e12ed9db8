//! Embeds what a policy author needs: the SDK, its bindings, the interface, the sources of the templates and of the
//! shipped policies, and the parts of this workspace's manifest and lock file that they build with. `infer policy new`
//! writes them out, so nothing of it may differ from what the shipped policies are built with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Folders that are embedded, at the same places relative to each other.
const FOLDERS: [&str; 2] = ["plugins/sdk", "wit"];
/// What a new policy depends on.
const ROOTS: [&str; 2] = ["infer-policy-sdk", "serde"];

fn main() -> Result<()> {
    let manifest_dir = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir.ancestors().nth(2).context("host/server lies two folders below the root")?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR")?);

    let mut files = BTreeMap::new();
    for folder in FOLDERS {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        collect(root, &root.join(folder), &mut files)?;
    }
    let mut table = String::from("&[\n");
    for (name, path) in &files {
        writeln!(table, "    ({name:?}, include_str!({path:?})),")?;
    }
    table.push_str("]\n");
    write(&out.join("vendored.rs"), &table)?;
    write(&out.join("sources.rs"), &sources(&root.join("plugins"))?)?;

    let manifest = read(&root.join("Cargo.toml"))?;
    let manifests = files.values().filter(|path| path.ends_with("Cargo.toml")).map(|path| read(path));
    let inherited = inherited_names(&manifests.collect::<Result<Vec<_>>>()?);
    write(&out.join("workspace.toml"), &workspace(&manifest, &inherited)?)?;
    write(&out.join("packages.lock"), &packages(&read(&root.join("Cargo.lock"))?)?)
}

fn read(path: &Path) -> Result<String> {
    println!("cargo::rerun-if-changed={}", path.display());
    std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))
}

fn write(path: &Path, content: &str) -> Result<()> {
    std::fs::write(path, content).with_context(|| format!("can't write {}", path.display()))
}

/// Folders of the shipped policies and of the templates, each with its files.
fn sources(plugins: &Path) -> Result<String> {
    println!("cargo::rerun-if-changed={}", plugins.display());
    let mut crates = BTreeSet::new();
    for parent in [plugins, &plugins.join("templates")] {
        for entry in std::fs::read_dir(parent).with_context(|| format!("can't read {}", parent.display()))? {
            crates.insert(entry?.path());
        }
    }
    let mut table = String::from("&[\n");
    for folder in crates {
        let named = |prefix: &str| {
            std::fs::read_to_string(folder.join("Cargo.toml"))
                .is_ok_and(|manifest| manifest.contains(&format!("\nname = \"{prefix}-")))
        };
        if !(named("policy") || named("template")) {
            continue;
        }
        let mut files = BTreeMap::new();
        collect(&folder, &folder, &mut files)?;
        let name = folder.strip_prefix(plugins)?.to_string_lossy().replace('\\', "/");
        writeln!(table, "    ({name:?}, &[")?;
        for (name, path) in &files {
            writeln!(table, "        ({name:?}, include_str!({path:?})),")?;
        }
        table.push_str("    ]),\n");
    }
    table.push_str("]\n");
    Ok(table)
}

/// Every file of a folder by its path from the root, with `/` on every system.
fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
            continue;
        }
        let name: Vec<_> =
            path.strip_prefix(root)?.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        files.insert(name.join("/"), path);
    }
    Ok(())
}

/// Names that the embedded manifests inherit from their workspace as dependencies.
fn inherited_names(manifests: &[String]) -> BTreeSet<String> {
    let dependencies = |manifest: &String| {
        let mut inside = false;
        let mut names = Vec::new();
        for line in manifest.lines() {
            if line.starts_with('[') {
                inside = line.ends_with("dependencies]");
            } else if let Some(name) = line.strip_suffix(".workspace = true").filter(|_| inside) {
                names.push(name.to_owned());
            }
        }
        names
    };
    let own = ROOTS.map(str::to_owned);
    manifests.iter().flat_map(dependencies).chain(own).collect()
}

/// The parts of the manifest that the embedded ones inherit from.
fn workspace(manifest: &str, inherited: &BTreeSet<String>) -> Result<String> {
    let mut text = String::new();
    for section in ["[workspace.package]", "[workspace.lints.rust]", "[workspace.lints.clippy]"] {
        writeln!(text, "{section}\n{}\n", body(manifest, section)?.trim())?;
    }
    text.push_str("[workspace.dependencies]\n");
    let dependencies = body(manifest, "[workspace.dependencies]")?;
    for name in inherited {
        let line = dependencies
            .lines()
            .find(|line| line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(" = ")))
            .with_context(|| format!("no `{name}` in [workspace.dependencies]"))?;
        writeln!(text, "{}", line.replace("path = \"", "path = \"vendor/"))?;
    }
    Ok(text)
}

/// What stands in a section of a manifest, without comments at its end: they are about the next section.
fn body<'a>(manifest: &'a str, section: &str) -> Result<&'a str> {
    let (_, after) = manifest.split_once(section).with_context(|| format!("no {section} in Cargo.toml"))?;
    let mut body = after.split("\n[").next().unwrap_or(after).trim_end();
    while let Some((before, last)) = body.rsplit_once('\n')
        && last.starts_with('#')
    {
        body = before.trim_end();
    }
    Ok(body)
}

/// One package of a lock file.
struct Package<'a> {
    version: &'a str,
    /// The block up to its dependencies.
    head: String,
    dependencies: Vec<&'a str>,
}

/// The blocks of the lock file that a new policy needs, those of its dependencies in the same versions.
fn packages(lock: &str) -> Result<String> {
    let mut all: BTreeMap<&str, Vec<Package<'_>>> = BTreeMap::new();
    for block in lock.split("[[package]]\n").skip(1) {
        let field = |key: &str| block.lines().find_map(|line| line.strip_prefix(key)?.strip_suffix('"'));
        let name = field("name = \"").context("a package without a name")?;
        let version = field("version = \"").context("a package without a version")?;
        let head = block.lines().take_while(|line| !line.is_empty() && !line.starts_with("dependencies"));
        let dependencies = block.lines().filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\","));
        let package = Package {
            version,
            head: head.map(|line| format!("{line}\n")).collect(),
            dependencies: dependencies.collect(),
        };
        all.entry(name).or_default().push(package);
    }
    let mut needed: BTreeMap<(&str, &str), &Package<'_>> = BTreeMap::new();
    let mut open: Vec<&str> = ROOTS.to_vec();
    while let Some(wanted) = open.pop() {
        let (name, package) = find(&all, wanted)?;
        if needed.insert((name, package.version), package).is_none() {
            open.extend(&package.dependencies);
        }
    }
    let mut text = String::new();
    for package in needed.values() {
        write!(text, "[[package]]\n{}", package.head)?;
        if !package.dependencies.is_empty() {
            text.push_str("dependencies = [\n");
            for wanted in &package.dependencies {
                let (name, found) = find(&all, wanted)?;
                let unique = needed.keys().filter(|(other, _)| *other == name).count() == 1;
                let version = if unique { String::new() } else { format!(" {}", found.version) };
                writeln!(text, " \"{name}{version}\",")?;
            }
            text.push_str("]\n");
        }
        text.push('\n');
    }
    Ok(text)
}

/// The package that a dependency names, `name` or `name version`.
fn find<'p, 'a>(
    all: &'p BTreeMap<&'a str, Vec<Package<'a>>>,
    wanted: &str,
) -> Result<(&'a str, &'p Package<'a>)> {
    let mut words = wanted.split(' ');
    let (name, version) = (words.next().unwrap_or_default(), words.next());
    let (name, versions) =
        all.get_key_value(name).with_context(|| format!("no package {name} in Cargo.lock"))?;
    let mut fitting = versions.iter().filter(|package| version.is_none_or(|v| v == package.version));
    let package = fitting.next().with_context(|| format!("no package {wanted} in Cargo.lock"))?;
    ensure!(fitting.next().is_none(), "Cargo.lock has several packages {wanted}");
    Ok((name, package))
}
