//! A policy crate on disk, as `cargo metadata` describes it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use infer_policy_build::target_is_installed;
use serde::Deserialize;

use crate::cli::Failure;

/// A crate that can become a component.
pub(super) struct Package {
    pub name: String,
    pub folder: PathBuf,
    pub workspace: PathBuf,
    pub target_dir: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Described>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Described {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    /// The crate types, if this is a library.
    kind: Vec<String>,
}

impl Package {
    /// Reads the metadata of the crate in a directory.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        let manifest = folder.join("Cargo.toml");
        let manifest = manifest.canonicalize().map_err(|_| {
            let folder = folder.display();
            Failure::Usage(format!(
                "there is no Cargo.toml in {folder}; give the directory of a policy crate, or create one with `infer \
                 policy new NAME --kind scheduler`"
            ))
        })?;
        let output = cargo()
            .current_dir(folder)
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(&manifest)
            .output()
            .map_err(no_cargo)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Failed(format!("cargo can't read {}:\n{said}", manifest.display())));
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout).map_err(Failure::failed)?;
        let is_it =
            |package: &Described| package.manifest_path.canonicalize().is_ok_and(|path| path == manifest);
        let Some(package) = metadata.packages.into_iter().find(is_it) else {
            return Err(Failure::Usage(format!(
                "{} is the manifest of a workspace, not of a crate; give the directory of one of its crates",
                manifest.display()
            )));
        };
        let wrong = |what: String| {
            Failure::Failed(format!("{} can't become a component: {what}", manifest.display()))
        };
        let is_component = |target: &&Target| target.kind.iter().any(|kind| kind == "cdylib");
        let Some(library) = package.targets.iter().find(is_component) else {
            return Err(wrong("add `[lib]` with `crate-type = [\"rlib\", \"cdylib\"]`".to_owned()));
        };
        if library.name.replace('-', "_") != package.name.replace('-', "_") {
            let Target { name, .. } = library;
            return Err(wrong(format!(
                "its library is named `{name}` instead of like the crate: remove `name` from `[lib]`"
            )));
        }
        Ok(Self {
            name: package.name,
            folder: manifest.parent().unwrap_or(folder).to_owned(),
            workspace: metadata.workspace_root,
            target_dir: metadata.target_directory,
        })
    }
}

/// The cargo that started this process, else the one in `PATH`.
pub(super) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

pub(super) fn no_cargo(error: std::io::Error) -> Failure {
    Failure::Failed(format!(
        "can't run cargo: {error}; building a policy needs a Rust toolchain, see https://rustup.rs"
    ))
}

/// Fails, with the command that installs it, if the toolchain of a directory lacks a target.
pub(super) fn require_target(target: &str, folder: &Path) -> Result<(), Failure> {
    if target_is_installed(target, folder) {
        return Ok(());
    }
    let folder = folder.display();
    Err(Failure::Failed(format!(
        "the Rust toolchain of {folder} lacks {target}: run `rustup target add {target}` there"
    )))
}
