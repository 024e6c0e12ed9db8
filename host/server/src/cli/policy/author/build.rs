//! `infer policy build`: builds a crate into a component beside its manifest.

use std::path::{Path, PathBuf};

use infer_policy_build::{Builder, TARGET};

use super::package::{Package, require_target};
use super::title;
use crate::cli::Failure;

pub(super) fn run(folder: &Path) -> Result<(), Failure> {
    let package = Package::open(folder)?;
    let (file, component) = component(&package)?;
    let loader = crate::policies::loader().map_err(Failure::failed)?;
    let (kind, info) = loader.describe(&component).map_err(Failure::failed)?;
    println!("{}", file.display());
    println!("{}", title(kind, &info, component.len()));
    Ok(())
}

/// Builds the component and writes it to NAME.wasm in the crate's directory.
pub(super) fn component(package: &Package) -> Result<(PathBuf, Vec<u8>), Failure> {
    require_target(TARGET, &package.workspace)?;
    // Who gave a directory to check or to measure learns why cargo runs.
    eprintln!("building the crate in {}", package.folder.display());
    // In a subdirectory: the settings differ from those of the author's own builds.
    let builder = Builder::new(&package.workspace, package.target_dir.join("policy")).showing_progress();
    let mut components =
        builder.build(&[&package.name]).map_err(|error| Failure::Failed(format!("{error:#}")))?;
    let component = components.pop().ok_or_else(|| Failure::Failed("cargo built nothing".to_owned()))?;
    let file = package.folder.join(format!("{}.wasm", package.name));
    std::fs::write(&file, &component)
        .map_err(|e| Failure::Failed(format!("can't write {}: {e}", file.display())))?;
    Ok((file, component))
}
