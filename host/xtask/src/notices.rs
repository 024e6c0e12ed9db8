//! Names the crates of others that a release links, with the texts of their licences, which most of these demand of
//! whoever hands on a program.
//!
//! `cargo tree` says what is linked: unlike `cargo metadata` it resolves features for the packages of the build alone,
//! and leaves out what runs only while they are compiled (build scripts, procedural macros). Both are read as text,
//! because this program has no dependency.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::cargo::{cargo, output, string};
use crate::licence;

/// Packages that a build links for a target.
pub struct Linked<'a> {
    /// Its triple.
    pub target: &'a str,
    /// With their default features.
    pub packages: Vec<String>,
}

/// By name and version, the expression that states a crate's licence: empty if it states none.
type Crates = BTreeMap<(String, String), String>;

/// A crate of others.
struct Crate {
    /// Name and version.
    title: String,
    licence: String,
    texts: Vec<Text>,
}

/// A file about a licence.
struct Text {
    /// Its path in the package.
    file: String,
    text: String,
}

/// The whole file of notices. Fails if a crate's licence isn't one of those that are allowed.
pub fn notices(linked: &[Linked<'_>]) -> Result<String, String> {
    let crates = crates(linked)?;
    check(&crates)?;
    let mut metadata = cargo(&["metadata", "--locked", "--format-version", "1"]);
    for linked in linked {
        metadata.args(["--filter-platform", linked.target]);
    }
    let metadata = output(&mut metadata)?;
    let mut described = Vec::new();
    for ((name, version), licence) in crates {
        let folder = folder(&metadata, &name, &version)
            .ok_or_else(|| format!("`cargo metadata` doesn't say where {name} {version} is"))?;
        let texts = texts(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        described.push(Crate { title: format!("{name} {version}"), licence, texts });
    }
    Ok(render(&described))
}

/// The crates of others that these builds link.
fn crates(linked: &[Linked<'_>]) -> Result<Crates, String> {
    let mut crates = Crates::new();
    for Linked { target, packages } in linked {
        let mut tree = cargo(&["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none"]);
        tree.args(["--format", "{p}\t{l}", "--target", *target]);
        for package in packages {
            tree.args(["--package", package]);
        }
        crates.extend(output(&mut tree)?.lines().filter_map(of_others));
    }
    Ok(crates)
}

/// The crate of a line of `cargo tree`, unless it is of this workspace, which has a path in parentheses.
fn of_others(line: &str) -> Option<((String, String), String)> {
    let (package, licence) = line.split_once('\t')?;
    // What the tree has shown before ends with a star.
    let licence = licence.strip_suffix("(*)").unwrap_or(licence).trim();
    let (name, version) = package.split_once(" v")?;
    let (version, from) = version.split_once(' ').unwrap_or((version, ""));
    (!from.starts_with("(/")).then(|| ((name.to_owned(), version.to_owned()), licence.to_owned()))
}

fn check(crates: &Crates) -> Result<(), String> {
    let refused = crates.iter().filter(|(_, licence)| !licence::allowed(licence));
    let named = refused.map(|((name, version), licence)| match licence.as_str() {
        "" => format!("{name} {version} (none stated)"),
        licence => format!("{name} {version} ({licence})"),
    });
    let refused = named.collect::<Vec<_>>().join(", ");
    if refused.is_empty() {
        return Ok(());
    }
    Err(format!(
        "a release may not link crates with these licences: {refused}. Do without the crate, or, if its licence asks \
         for no more than a notice, add it to ALLOWED in host/xtask/src/licence.rs"
    ))
}

/// Where a package is, by what `cargo metadata` prints. Cargo writes a package's name, version and id first, and its
/// manifest before the next package.
fn folder(metadata: &str, name: &str, version: &str) -> Option<PathBuf> {
    let (_, package) = metadata.split_once(&format!(r#"{{"name":"{name}","version":"{version}","id":"#))?;
    let mut manifest = PathBuf::from(string(package, "manifest_path")?);
    manifest.pop().then_some(manifest)
}

/// The files about licences in a package, by path. Also those below its root, which are about code of others in it.
fn texts(package: &Path) -> std::io::Result<Vec<Text>> {
    let mut texts = Vec::new();
    let mut folders = vec![package.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && is_about_licences(&path) {
                let text = String::from_utf8_lossy(&std::fs::read(&path)?).replace("\r\n", "\n");
                let file = path.strip_prefix(package).unwrap_or(&path).display().to_string();
                texts.push(Text { file, text });
            }
        }
    }
    texts.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(texts)
}

fn is_about_licences(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_ascii_uppercase();
    let starts = ["LICENSE", "LICENCE", "UNLICENSE", "COPYING", "COPYRIGHT", "NOTICE"];
    starts.iter().any(|start| name.starts_with(start)) && !name.ends_with(".RS")
}

const HEAD: &str = "\
Third-party notices

infer, infer-tui and the bundled policies contain code of the crates below. Each is listed with its licence as its
authors state it, in an SPDX expression. After the list follow the files about licences that are in the crates'
packages, each text once, below the crates that have it. Sources of all crates are at https://crates.io.

";

fn render(crates: &[Crate]) -> String {
    let mut notices = HEAD.to_owned();
    for Crate { title, licence, texts } in crates {
        let line = match texts.is_empty() {
            false => format!("{title}: {licence}\n"),
            true => {
                let texts = licence::texts(licence).join(", ");
                format!("{title}: {licence}; its package has no text of it, which is at {texts}\n")
            }
        };
        notices.push_str(&line);
    }
    let rule = "=".repeat(80);
    for (text, having) in distinct(crates) {
        let _ = write!(notices, "\n{rule}\n{}\n{rule}\n\n{text}\n", having.join("\n"));
    }
    notices
}

/// Each text in the order of the first crate that has it, and who has it. White space makes no difference.
fn distinct(crates: &[Crate]) -> Vec<(&str, Vec<String>)> {
    let mut distinct: Vec<(&str, Vec<String>)> = Vec::new();
    let mut places = HashMap::new();
    for Crate { title, texts, .. } in crates {
        for Text { file, text } in texts {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let place = *places.entry(words).or_insert(distinct.len());
            if place == distinct.len() {
                distinct.push((text.trim_end(), Vec::new()));
            }
            distinct[place].1.push(format!("{title}, {file}"));
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(crates: &[(&str, &str)]) -> Crates {
        let version = || "1.0.0".to_owned();
        crates
            .iter()
            .map(|(name, licence)| (((*name).to_owned(), version()), (*licence).to_owned()))
            .collect()
    }

    #[test]
    fn crates_of_others_are_told_from_those_of_the_workspace() {
        let of = |name: &str, version: &str, licence: &str| {
            Some(((name.to_owned(), version.to_owned()), licence.to_owned()))
        };
        for (line, is) in [
            ("ring v0.17.14\tApache-2.0 AND ISC", of("ring", "0.17.14", "Apache-2.0 AND ISC")),
            ("half v2.7.1\tMIT OR Apache-2.0 (*)", of("half", "2.7.1", "MIT OR Apache-2.0")),
            ("silent v1.0.0+x\t", of("silent", "1.0.0+x", "")),
            ("silent v1.0.0\t (*)", of("silent", "1.0.0", "")),
            ("fork v1.0.0 (https://example.org/fork#0123)\tMIT", of("fork", "1.0.0", "MIT")),
            ("infer-core v0.1.0 (/a/host/core)\tMIT OR Apache-2.0 (*)", None),
            ("", None),
        ] {
            assert_eq!(of_others(line), is, "{line}");
        }
    }

    #[test]
    fn licence_that_is_not_allowed_or_not_stated_is_refused_by_the_crates_name() {
        assert_eq!(check(&stated(&[("a", "MIT"), ("b", "ISC OR GPL-3.0-only")])), Ok(()));
        let refused = check(&stated(&[("a", "MIT"), ("copyleft", "GPL-3.0-only"), ("silent", "")]));
        let why = refused.expect_err("two of them");
        assert!(why.contains("copyleft 1.0.0 (GPL-3.0-only), silent 1.0.0 (none stated)."), "{why}");
    }

    #[test]
    fn packages_are_where_cargo_has_their_manifests() {
        let package = |name: &str, version: &str| {
            format!(
                r#"{{"name":"{name}","version":"{version}","id":"registry+x#{name}@{version}","license":null,"dependencies":[{{"name":"b","source":"x"}}],"manifest_path":"/registry/{name}-{version}/Cargo.toml"}}"#
            )
        };
        let packages = [package("a", "1.0.0"), package("b", "1.0.0"), package("b", "2.0.0")].join(",");
        let metadata = format!(r#"{{"packages":[{packages}]}}"#);
        assert_eq!(folder(&metadata, "b", "2.0.0"), Some("/registry/b-2.0.0".into()));
        assert_eq!(folder(&metadata, "b", "3.0.0"), None);
    }

    #[test]
    fn texts_are_files_about_licences_in_the_package_and_below() {
        let name = format!("infer-xtask-notices-{}", std::process::id());
        let package = std::env::temp_dir().join(name);
        for file in ["README.md", "NOTICE", "LICENSE-MIT", "src/license.rs", "src/vendor/COPYING.txt"] {
            let path = package.join(file);
            std::fs::create_dir_all(path.parent().expect("it is in the package")).expect("a folder");
            std::fs::write(path, "first\r\nsecond\r\n").expect("a file");
        }
        let texts = texts(&package);
        let _ = std::fs::remove_dir_all(&package);
        let texts = texts.expect("a folder that can be read");
        let files = texts.iter().map(|text| text.file.as_str()).collect::<Vec<_>>();
        assert_eq!(files, ["LICENSE-MIT", "NOTICE", "src/vendor/COPYING.txt"]);
        assert!(texts.iter().all(|text| text.text == "first\nsecond\n"));
    }

    #[test]
    fn equal_texts_are_there_once_below_the_crates_that_have_them() {
        let has = |name: &str, licence: &str, texts: &[(&str, &str)]| Crate {
            title: format!("{name} 1.0.0"),
            licence: licence.to_owned(),
            texts: texts
                .iter()
                .map(|(file, text)| Text { file: (*file).into(), text: (*text).into() })
                .collect(),
        };
        let notices = render(&[
            has("a", "MIT", &[("LICENSE", "Permission\nis granted.\n")]),
            has("b", "MIT OR ISC", &[("COPYING", "Another.\n"), ("LICENSE-MIT", "Permission is\n granted.")]),
            has("c", "MIT/ISC", &[]),
        ]);
        let rule = "=".repeat(80);
        let body = format!(
            "a 1.0.0: MIT\nb 1.0.0: MIT OR ISC\n\
             c 1.0.0: MIT/ISC; its package has no text of it, which is at https://spdx.org/licenses/MIT.html, \
             https://spdx.org/licenses/ISC.html\n\
             \n{rule}\na 1.0.0, LICENSE\nb 1.0.0, LICENSE-MIT\n{rule}\n\nPermission\nis granted.\n\
             \n{rule}\nb 1.0.0, COPYING\n{rule}\n\nAnother.\n"
        );
        assert_eq!(notices, format!("{HEAD}{body}"));
    }

    #[test]
    fn licences_of_what_the_programs_link_are_allowed() {
        let packages = ["infer-server", "infer-tui"].map(str::to_owned).to_vec();
        let target = crate::dist::host_target().expect("rustc says for what it compiles");
        let crates = crates(&[Linked { target: &target, packages }]).expect("cargo tells what it links");
        assert!(crates.keys().any(|(name, _)| name == "wasmtime"), "it names none of the known crates");
        assert_eq!(check(&crates), Ok(()));
    }
}
