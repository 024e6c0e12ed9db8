//! Packs a release for machines like this one: the programs, what deploys a host, its documents, the bundled policies
//! as files of their own, and the notices that licences of others demand.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{Built, WASM_TARGETS, built, cargo, ensure_wasm_targets, output, root, target_dir};
use crate::notices::{Linked, notices};
use crate::pack;

/// What is packed as it lies in the repository: every document, so that links between them lead somewhere.
const FILES: [&str; 5] = ["*.md", "LICENSE-APACHE", "LICENSE-MIT", "host/server/deploy", "wit"];
const PROGRAMS: [&str; 2] = ["infer", "infer-tui"];
/// What the programs are built from.
const PACKAGES: [&str; 2] = ["infer-server", "infer-tui"];
/// What the sandbox in `infer` runs, beside the policies: packages that build scripts compile to Wasm.
const GUESTS: [&str; 2] = ["infer-chat-guest", "infer-grammar-guest"];

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
    let triple = triple(&programs[0], &target)?;
    let name = format!("infer-{}-{triple}", env!("CARGO_PKG_VERSION"));
    let folder = target.join("dist").join(&name);
    let policies = table(&built)?;
    let embedded = Linked { target: WASM_TARGETS[0], packages: embedded(&policies) };
    let programs_link = Linked { target: &triple, packages: PACKAGES.map(str::to_owned).to_vec() };
    let notices = notices(&[programs_link, embedded])?;
    pack::checkout("HEAD", &FILES, &folder)?;
    for (from, program) in programs.iter().zip(PROGRAMS) {
        pack::program(from, &folder.join(program))?;
    }
    copy_policies(&policies, &folder.join("policies"))?;
    let file = folder.join("THIRD-PARTY-NOTICES.txt");
    std::fs::write(&file, notices).map_err(|e| format!("{}: {e}", file.display()))?;
    library_notices(&folder.join("THIRD-PARTY-NOTICES-RUST.html"));
    completions(&programs[0], &folder.join("completions"))?;
    let archive = folder.with_file_name(format!("{name}.tar.gz"));
    pack::pack(&folder, &archive, time, pack::Compressor::Gzip)?;
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
    host_target()
}

/// The target that programs are built for unless another one is configured.
pub fn host_target() -> Result<String, String> {
    print("host-tuple")
}

/// What rustc prints of itself.
fn print(what: &str) -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = output(Command::new(rustc).current_dir(root()).args(["--print", what]))?;
    Ok(printed.trim().to_owned())
}

/// The bundle's table of policies, as the host includes it.
fn table(built: &Built) -> Result<String, String> {
    let table = built.out_dir("infer-bundle")?.join("policies.rs");
    let text = std::fs::read_to_string(&table).map_err(|e| format!("{}: {e}", table.display()))?;
    match components(&text).is_empty() {
        false => Ok(text),
        true => Err(format!("{} names no component", table.display())),
    }
}

/// Packages that are compiled to Wasm and in `infer`: the policies of the table, and what the sandbox runs.
fn embedded(table: &str) -> Vec<String> {
    let names = table.split("name: \"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0));
    names.map(|name| format!("policy-{name}")).chain(GUESTS.map(str::to_owned)).collect()
}

/// Copies what the toolchain says of Rust's standard library, which programs and policies contain.
fn library_notices(to: &Path) {
    let from = print("sysroot").map(|root| Path::new(&root).join("share/doc/rust/COPYRIGHT-library.html"));
    let copied =
        from.and_then(|from| std::fs::copy(&from, to).map_err(|e| format!("{}: {e}", from.display())));
    if let Err(why) = copied {
        eprintln!("{why}; the archive has no notices of Rust's standard library");
    }
}

/// Copies the components that the host embeds, and writes their digests beside them.
fn copy_policies(table: &str, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names = Vec::new();
    for component in components(table) {
        let name = component.file_name().unwrap_or_default();
        std::fs::copy(&component, folder.join(name)).map_err(|e| format!("{}: {e}", component.display()))?;
        names.push(name.to_string_lossy().into_owned());
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
        let packages = ["policy-srpt", "policy-lru", "infer-chat-guest", "infer-grammar-guest"];
        assert_eq!(embedded(table), packages);
    }

    #[test]
    fn guests_are_the_packages_that_build_scripts_embed() {
        let folders = std::fs::read_dir(root().join("host")).expect("a folder");
        let scripts = folders.map(|folder| folder.expect("an entry").path().join("build.rs"));
        let embeds = |script: PathBuf| {
            let text = std::fs::read_to_string(script).ok()?;
            Some(text.split_once("include_module(\"")?.1.split_once('"')?.0.to_owned())
        };
        let mut embedded = scripts.filter_map(embeds).collect::<Vec<_>>();
        embedded.sort();
        assert_eq!(embedded, GUESTS);
    }

    #[test]
    fn links_of_packed_documents_lead_to_what_is_packed() {
        let listed = Command::new("git").current_dir(root()).arg("ls-files").args(FILES).output();
        let Ok(listed) = listed else { return };
        let listed = String::from_utf8_lossy(&listed.stdout);
        let packed = listed.lines().map(Path::new).collect::<Vec<_>>();
        for document in packed.iter().filter(|file| file.extension().is_some_and(|is| is == "md")) {
            let text = std::fs::read_to_string(root().join(document)).expect("a document");
            let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
                let mut to = document.parent().expect("it is in a folder").to_owned();
                for part in link.split('/') {
                    match part {
                        ".." => _ = to.pop(),
                        part => to.push(part),
                    }
                }
                assert!(packed.iter().any(|file| file.starts_with(&to)), "{}: {link}", document.display());
            }
        }
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
