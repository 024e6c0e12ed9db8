//! Builds policy crates to components: one nested cargo call, then the component encoder. What the sandbox runs (the
//! chat renderer, the compiler of grammars) is built the same way and stays a core module ([`include_module`]).
//!
//! For build scripts (the bundle's, and those of tests that need policies of their own):
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let builder = infer_policy_build::Builder::for_build_script()?;
//! builder.watch(&["tests/policies/faulty-scheduler"]);
//! let components = builder.build(&["faulty-scheduler"])?; // package names; the bytes in the same order
//! let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
//! std::fs::write(out.join("faulty-scheduler.wasm"), &components[0])?;
//! # Ok(())
//! # }
//! ```
//!
//! The nested build has a target directory of its own, so it never waits for the lock of the cargo that runs
//! the build script. All profiles and build scripts of a workspace share it. `wasm32-wasip2` is deliberately
//! not used: it would let a policy import a clock, files and randomness.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use wit_component::DecodedWasm;

/// The target that policies are compiled for.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// Release profile settings for a policy. A policy is small and called in every step, so speed comes first;
/// names are kept because they make traps readable.
const PROFILE: [(&str, &str); 6] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_STRIP", "debuginfo"),
];

/// Variables that an outer cargo, clippy or coverage run sets for itself and that must not reach the nested
/// one.
const OUTER_ONLY: [&str; 15] = [
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "LLVM_PROFILE_FILE",
    "RUSTC_LINKER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

/// Builds policies of one workspace.
#[derive(Clone, Debug)]
pub struct Builder {
    workspace: PathBuf,
    target_dir: PathBuf,
    shows_progress: bool,
}

impl Builder {
    /// Builds packages of the workspace at `workspace` in `target_dir`.
    pub fn new(workspace: impl Into<PathBuf>, target_dir: impl Into<PathBuf>) -> Self {
        Self { workspace: workspace.into(), target_dir: target_dir.into(), shows_progress: false }
    }

    /// Lets cargo write to standard error while it builds, for interactive use; otherwise its output is part
    /// of the error.
    #[must_use]
    pub fn showing_progress(self) -> Self {
        Self { shows_progress: true, ..self }
    }

    /// For a build script: the workspace that it belongs to, and `policies` beside the profiles in cargo's
    /// target directory. Several checkouts may share that directory, so each has its own part of it.
    pub fn for_build_script() -> Result<Self> {
        let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let workspace = manifest_dir
            .ancestors()
            .find(|dir| dir.join("Cargo.lock").is_file())
            .with_context(|| format!("no Cargo.lock in {} or above it", manifest_dir.display()))?;
        let out_dir = PathBuf::from(variable("OUT_DIR")?);
        // <target>/<profile>/build/<package>/out
        let target = out_dir
            .ancestors()
            .nth(4)
            .with_context(|| format!("OUT_DIR {} isn't inside a target directory", out_dir.display()))?;
        Ok(Self::new(workspace, target.join("policies").join(checkout(workspace))))
    }

    /// Tells cargo to rerun the build script if one of these paths (relative to the workspace), the
    /// interface, the SDK or the lock file changes.
    pub fn watch(&self, paths: &[&str]) {
        for path in ["wit", "plugins/sdk", "Cargo.lock"].iter().chain(paths) {
            println!("cargo::rerun-if-changed={}", self.workspace.join(path).display());
        }
    }

    /// Builds packages to components and returns their bytes in the same order. A package's library has
    /// the package's name.
    pub fn build(&self, packages: &[&str]) -> Result<Vec<Vec<u8>>> {
        self.compile(packages)?;
        packages.iter().map(|package| self.encode(package)).collect()
    }

    fn compile(&self, packages: &[&str]) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(&cargo);
        command.current_dir(&self.workspace).args(["build", "--release", "--lib", "--target", TARGET]);
        command.arg("--target-dir").arg(&self.target_dir);
        for package in packages {
            command.args(["--package", package]);
        }
        for name in OUTER_ONLY {
            command.env_remove(name);
        }
        command.envs(PROFILE).env("CARGO_ENCODED_RUSTFLAGS", self.flags());
        if self.shows_progress {
            command.stderr(std::process::Stdio::inherit());
        }
        let output =
            command.output().with_context(|| format!("can't run {}", Path::new(&cargo).display()))?;
        if output.status.success() {
            return Ok(());
        }
        ensure!(
            target_is_installed(TARGET, &self.workspace),
            "{} is compiled for {TARGET}, which this toolchain lacks: run `rustup target add {TARGET}`",
            packages.join(", ")
        );
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("building {} failed{}{said}", packages.join(", "), if said.is_empty() { "" } else { ":\n" })
    }

    /// Keeps this machine's paths out of panic messages, so that equal sources give equal digests.
    fn flags(&self) -> OsString {
        let mut flags = OsString::from("--remap-path-prefix=");
        flags.push(&self.workspace);
        flags.push("=.");
        let home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
        if let Some(home) = home {
            flags.push("\u{1f}--remap-path-prefix=");
            flags.push(home);
            flags.push("=cargo");
        }
        flags
    }

    fn module(&self, package: &str) -> Result<Vec<u8>> {
        let file = self.target_dir.join(TARGET).join("release").join(package.replace('-', "_") + ".wasm");
        std::fs::read(&file)
            .with_context(|| format!("{package} built no {}: has it crate-type cdylib?", file.display()))
    }

    fn encode(&self, package: &str) -> Result<Vec<u8>> {
        component(&self.module(package)?).with_context(|| format!("{package} is no policy"))
    }
}

/// The whole build script of a crate that includes a package as a core module (`sources` are its folders, relative to
/// the workspace): builds the package and writes the module to `file` in OUT_DIR. A module that is the same as before is
/// not written, so what includes it is not compiled again.
pub fn include_module(package: &str, sources: &[&str], file: &str) -> Result<()> {
    let builder = Builder::for_build_script()?;
    builder.watch(sources);
    println!("cargo::rerun-if-changed=build.rs");
    builder.compile(&[package])?;
    let module = builder.module(package)?;
    let file = PathBuf::from(variable("OUT_DIR")?).join(file);
    if std::fs::read(&file).is_ok_and(|old| old == module) {
        return Ok(());
    }
    std::fs::write(&file, module).with_context(|| format!("can't write {}", file.display()))
}

/// Turns a core module that carries its interface into a component and checks that it is a policy. Every
/// crate with `export_policy!` carries one.
pub fn component(module: &[u8]) -> Result<Vec<u8>> {
    let component = wit_component::ComponentEncoder::default().module(module)?.validate(true).encode()?;
    check(&component)?;
    Ok(component)
}

/// What a component imports and exports, as interface names with versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// Sorted.
    pub imports: Vec<String>,
    /// Sorted.
    pub exports: Vec<String>,
}

/// Reads a component's outline.
pub fn outline(component: &[u8]) -> Result<Outline> {
    let DecodedWasm::Component(resolve, world) = wit_component::decode(component)? else {
        bail!("it holds an interface, but no code");
    };
    let world = &resolve.worlds[world];
    let mut outline = Outline {
        imports: world.imports.keys().map(|key| resolve.name_world_key(key)).collect(),
        exports: world.exports.keys().map(|key| resolve.name_world_key(key)).collect(),
    };
    outline.imports.sort();
    outline.exports.sort();
    Ok(outline)
}

/// A policy exports one of the three kinds and imports nothing but the host's log and gauges. The host checks the
/// same; this way the author learns of it first.
fn check(component: &[u8]) -> Result<()> {
    let Outline { imports, exports } = outline(component)?;
    let allowed = ["infer:policy/host@", "infer:policy/types@"];
    for import in imports {
        if !allowed.iter().any(|allowed| import.starts_with(allowed)) {
            bail!("it imports {import}; a policy may import infer:policy/host alone");
        }
    }
    let kinds = ["scheduler", "admission", "prefix-cache"].map(|kind| format!("infer:policy/{kind}@"));
    let found = kinds.iter().filter(|kind| exports.iter().any(|name| name.starts_with(*kind))).count();
    ensure!(found == 1, "it exports {found} kinds of policy, not one: does it call export_policy! once?");
    Ok(())
}

fn variable(name: &str) -> Result<OsString> {
    std::env::var_os(name).with_context(|| format!("{name} isn't set: this is meant for build scripts"))
}

/// A short name for a checkout: FNV-1a of its path. Not a secret, only different.
fn checkout(workspace: &Path) -> String {
    let path = workspace.as_os_str().as_encoded_bytes();
    let hash =
        path.iter().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// Whether the toolchain for a folder, which may have its own, has a target's standard library.
pub fn target_is_installed(target: &str, folder: &Path) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let print = ["--print", "target-libdir", "--target", target];
    let libraries = Command::new(rustc).current_dir(folder).args(print).output();
    libraries.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_a_policy_is_refused_with_advice() {
        let message = format!("{:#}", component(b"\0asm\x01\0\0\0").unwrap_err());
        assert!(message.contains("export_policy!"), "{message}");
    }

    #[test]
    fn checkouts_have_parts_of_their_own() {
        assert_ne!(checkout(Path::new("/a/infer")), checkout(Path::new("/b/infer")));
        assert_eq!(checkout(Path::new("/a")).len(), 8);
    }
}
