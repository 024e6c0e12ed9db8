//! Packs a release for machines like this one: the programs, what deploys a host, its documents, and the bundled policies
//! as files of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{Built, built, cargo, ensure_wasm_targets, output, root, target_dir};
use crate::pack;

/// What is packed as it lies in the repository, so that links between documents lead somewhere.
const FILES: [&str; 15] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "host/server/ADMIN.md",
    "host/server/API.md",
    "host/server/OPERATE.md",
    "host/server/README.md",
    "host/server/TENANTS.md",
    "host/server/deploy",
    "plugins/README.md",
    "tui/README.md",
    "wit",
];
const PROGRAMS: [&str; 2] = ["infer", "infer-tui"];

/// Builds and packs all of it. The programs are of the working tree, the rest is of the commit.
pub fn dist() -> Result<(), String> {
    ensure_wasm_targets()?;
    let time = pack::time()?;
    let status = ["status", "--porcelain", "--untracked-files=no"];
    if !output(Command::new("git").current_dir(root()).args(status))?.is_empty() {
        eprintln!(
            "The working tree has changes that are not committed: the programs will have them, documents not."
        );
    }
    let built =
        built(&mut cargo(&["build", "--release", "--locked", "--bin", "infer", "--bin", "infer-tui"]))?;
    let [infer, console] = PROGRAMS.map(|program| built.executable(program));
    let programs = [infer?, console?];
    let target = target_dir()?;
    let name = format!("infer-{}-{}", env!("CARGO_PKG_VERSION"), triple(&programs[0], &target)?);
    let folder = target.join("dist").join(&name);
    pack::checkout("HEAD", &FILES, &folder)?;
    for (from, program) in programs.iter().zip(PROGRAMS) {
        pack::program(from, &folder.join(program))?;
    }
    policies(&built, &folder.join("policies"))?;
    completions(&programs[0], &folder.join("completions"))?;
    let archive = folder.with_file_name(format!("{name}.tar.gz"));
    pack::pack(&folder, &archive, time)?;
    let bytes = std::fs::metadata(&archive).map_err(|e| format!("{}: {e}", archive.display()))?.len();
    eprintln!("{}: {bytes} bytes", archive.display());
    match oldest_glibc(&programs) {
        Some(version) => eprintln!("Needs glibc {version} or newer."),
        None => eprintln!("Which glibc it needs is unknown: readelf tells nothing of it."),
    }
    print!("{}", sums(&target.join("dist"), &[format!("{name}.tar.gz")])?);
    Ok(())
}

/// The target that a program was built for. A configured one is a folder between the program's and cargo's.
fn triple(program: &Path, target: &Path) -> Result<String, String> {
    let folder = program.parent().and_then(Path::parent).expect("it is in a profile's folder");
    if folder != target
        && let Some(configured) = folder.file_name()
    {
        return Ok(configured.to_string_lossy().into_owned());
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let host = output(Command::new(rustc).current_dir(root()).args(["--print", "host-tuple"]))?;
    Ok(host.trim().to_owned())
}

/// Copies the components that the host embeds, and writes their digests beside them.
fn policies(built: &Built, folder: &Path) -> Result<(), String> {
    let table = built.out_dir("infer-bundle")?.join("policies.rs");
    let text = std::fs::read_to_string(&table).map_err(|e| format!("{}: {e}", table.display()))?;
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names = Vec::new();
    for component in components(&text) {
        let name = component.file_name().unwrap_or_default();
        std::fs::copy(&component, folder.join(name)).map_err(|e| format!("{}: {e}", component.display()))?;
        names.push(name.to_string_lossy().into_owned());
    }
    if names.is_empty() {
        return Err(format!("{} names no component", table.display()));
    }
    names.sort();
    let digests = folder.join("SHA256SUMS");
    std::fs::write(&digests, sums(folder, &names)?).map_err(|e| format!("{}: {e}", digests.display()))
}

/// Writes what shells complete. Only a program for this machine can tell.
fn completions(infer: &Path, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (shell, file) in [("bash", "infer"), ("zsh", "_infer"), ("fish", "infer.fish")] {
        match output(Command::new(infer).args(["completions", shell])) {
            Ok(script) => {
                let file = folder.join(file);
                std::fs::write(&file, script).map_err(|e| format!("{}: {e}", file.display()))?;
            }
            Err(why) => eprintln!("{why}; the archive has no completions for {shell}"),
        }
    }
    Ok(())
}

/// The components that the bundle's table includes. Others in its folder may be left from another build.
fn components(table: &str) -> Vec<PathBuf> {
    let included = table.split("include_bytes!(\"").skip(1);
    included.filter_map(|rest| Some(PathBuf::from(rest.split_once('"')?.0))).collect()
}

/// SHA-256 digests of files in a folder, as `sha256sum --check` reads them.
fn sums(folder: &Path, names: &[String]) -> Result<String, String> {
    output(Command::new("sha256sum").current_dir(folder).args(names))
}

/// The oldest glibc that has all that these programs ask of it.
fn oldest_glibc(programs: &[PathBuf]) -> Option<String> {
    let needs = output(Command::new("readelf").args(["--version-info", "--wide"]).args(programs)).ok()?;
    newest(&needs)
}

/// The newest of the versions of glibc in what `readelf` prints.
fn newest(needs: &str) -> Option<String> {
    let version = |rest: &str| -> Option<Vec<u32>> {
        let numbers = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        numbers.split('.').map(|number| number.parse().ok()).collect()
    };
    let newest = needs.split("GLIBC_").skip(1).filter_map(version).max()?;
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_those_of_the_table() {
        let table = "&[\n    Bundled { kind: \"scheduler\", name: \"srpt\", component: include_bytes!(\"/out/scheduler-srpt.wasm\"), \
                     sha256: \"00\" },\n    Bundled { kind: \"prefix-cache\", name: \"lru\", component: \
                     include_bytes!(\"/out/prefix-cache-lru.wasm\"), sha256: \"01\" },\n]\n";
        let paths = ["/out/scheduler-srpt.wasm", "/out/prefix-cache-lru.wasm"].map(PathBuf::from);
        assert_eq!(components(table), paths);
        assert!(components("&[\n]\n").is_empty());
    }

    #[test]
    fn configured_target_is_in_the_programs_path() {
        let program = Path::new("/target/aarch64-unknown-linux-gnu/release/infer");
        let triple = triple(program, Path::new("/target"));
        assert_eq!(triple.as_deref(), Ok("aarch64-unknown-linux-gnu"));
    }

    #[test]
    fn programs_need_the_newest_glibc_that_they_name() {
        let needs = "  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 7\n  0x0020:   Name: GLIBC_2.34  Flags: none\n  \
                     004:   3 (GLIBC_2.2.5)   4 (GLIBC_2.28)\n  0x0030:   Name: GLIBC_PRIVATE  Flags: none\n  \
                     0x0040:   Name: GCC_3.0  Flags: none\n";
        assert_eq!(newest(needs).as_deref(), Some("2.34"));
        assert_eq!(newest("No version information found in this file.\n"), None);
    }
}
