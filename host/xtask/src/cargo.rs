//! Runs cargo and other child processes, and installs missing targets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Targets that policies are built and tested for.
pub const WASM_TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip2"];

/// The workspace root.
pub fn root() -> PathBuf {
    // As `cargo run` tells it: this program may have been built from another clone that shares the target folder.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.ancestors().nth(2).expect("host/xtask is two folders below the root").to_owned()
}

/// Cargo's target directory, which its configuration and the environment may change.
pub fn target_dir() -> Result<PathBuf, String> {
    let metadata =
        cargo(&["metadata", "--no-deps", "--format-version", "1"]).stderr(Stdio::inherit()).output();
    let metadata = metadata.map_err(|e| format!("can't start cargo: {e}"))?.stdout;
    let folder = string(&String::from_utf8_lossy(&metadata), "target_directory");
    folder.map(PathBuf::from).ok_or_else(|| "`cargo metadata` reports no target directory".to_owned())
}

/// Runs a cargo command that builds `program`, and returns the program's path as cargo reports it, because a configured
/// target changes the folder.
pub fn build(command: &mut Command, program: &str) -> Result<PathBuf, String> {
    built(command)?.executable(program)
}

/// Runs a cargo command that builds these files, and returns their paths.
pub fn build_files(command: &mut Command, names: &[&str]) -> Result<Vec<PathBuf>, String> {
    let built = built(command)?;
    // Paths are strings of their own; a backslash or a quote in one is escaped, which a mere name isn't.
    let found = |name: &&str| {
        let mut paths = built.messages.split('"').map(Path::new);
        paths.find(|path| path.file_name().is_some_and(|found| found == *name)).map(Path::to_owned)
    };
    let path = |name| found(name).ok_or_else(|| built.lacks(name));
    names.iter().map(path).collect()
}

/// What a cargo command built.
pub struct Built {
    /// Cargo's messages, a line of JSON each.
    pub messages: String,
    /// The command, as it was shown.
    shown: String,
}

impl Built {
    /// The path of a program.
    pub fn executable(&self, program: &str) -> Result<PathBuf, String> {
        let mut programs =
            self.messages.lines().filter_map(|line| string(line, "executable")).map(PathBuf::from);
        let found = programs.find(|path| path.file_stem().is_some_and(|stem| stem == program));
        found.ok_or_else(|| self.lacks(program))
    }

    /// Where the build script of a package wrote.
    pub fn out_dir(&self, package: &str) -> Result<PathBuf, String> {
        let of = format!("#{package}@");
        let mut scripts = self.messages.lines().filter(|line| line.contains("\"build-script-executed\""));
        let script = scripts.find(|line| line.contains(&of));
        let folder = script.and_then(|line| string(line, "out_dir")).map(PathBuf::from);
        folder.ok_or_else(|| self.lacks(package))
    }

    fn lacks(&self, name: &str) -> String {
        format!("`{}` built no {name}", self.shown)
    }
}

/// Runs a cargo command that builds.
pub fn built(command: &mut Command) -> Result<Built, String> {
    command.arg("--message-format=json-render-diagnostics");
    let shown = show(command);
    eprintln!("$ {shown}");
    Ok(Built { messages: output(command)?, shown })
}

/// The first string field `name` in cargo's JSON.
pub fn string(json: &str, name: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{name}\":\""))?;
    let mut text = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(chars.next()?),
            plain => text.push(plain),
        }
    }
}

/// A cargo command in the workspace root.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    // What cargo says of this program's package. To ring's build script, among others, it is a reason to run again, which
    // builds half the host anew whenever this and a bare cargo take turns.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Prints and runs a command.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    let status = command.status().map_err(|e| format!("can't start `{shown}`: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed ({status})")) }
}

/// What a command prints.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("can't start `{shown}`: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("`{shown}` failed ({})", output.status)),
    }
}

/// Prints and runs a command, and kills it after `limit`.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<(), String> {
    let shown = show(command);
    eprintln!("$ {shown}");
    let mut child = command.spawn().map_err(|e| format!("can't start `{shown}`: {e}"))?;
    let until = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|e| format!("can't wait for `{shown}`: {e}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("`{shown}` failed ({status})")),
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(100)),
            None => break,
        }
    }
    let _ = child.kill().and_then(|()| child.wait());
    Err(format!("`{shown}` took longer than {} s", limit.as_secs()))
}

/// Adds the Wasm targets if the toolchain lacks them.
pub fn ensure_wasm_targets() -> Result<(), String> {
    ensure_targets(&WASM_TARGETS).map_err(|e| {
        format!(
            "{e}\nPolicies are WebAssembly, so the toolchain needs {}. Without rustup, install the standard \
             libraries of these targets with the system's package manager.",
            WASM_TARGETS.join(" and ")
        )
    })
}

/// Adds targets that the toolchain lacks.
pub fn ensure_targets(targets: &[&str]) -> Result<(), String> {
    let missing: Vec<&str> = targets.iter().copied().filter(|target| !has_target(target)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut add = Command::new("rustup");
    run(add.current_dir(root()).args(["target", "add"]).args(&missing))
}

fn has_target(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .current_dir(root())
        .args(["--print", "target-libdir", "--target", target])
        .output();
    output.is_ok_and(|o| o.status.success() && Path::new(String::from_utf8_lossy(&o.stdout).trim()).is_dir())
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut shown = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        shown.push(' ');
        shown.push_str(&arg.to_string_lossy());
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Built, string};

    #[test]
    fn folder_of_a_build_script_is_that_of_its_package() {
        let line = |package: &str| {
            format!(
                r#"{{"reason":"build-script-executed","package_id":"path+file:///a/{package}#infer-{package}@0.1.0","linked_libs":[],"env":[["A","b"]],"out_dir":"/target/{package}-1/out"}}"#
            )
        };
        let artifact =
            r#"{"reason":"compiler-artifact","package_id":"path+file:///a/bundle#infer-bundle@0.1.0"}"#;
        let messages = [artifact.to_owned(), line("demo"), line("bundle")].join("\n");
        let built = Built { messages, shown: "cargo build".to_owned() };
        assert_eq!(built.out_dir("infer-bundle"), Ok(PathBuf::from("/target/bundle-1/out")));
        assert_eq!(built.out_dir("infer-bun"), Err("`cargo build` built no infer-bun".to_owned()));
    }

    #[test]
    fn string_fields_are_found_in_cargos_json() {
        for (json, found) in [
            (r#"{"executable":"/a/infer","fresh":true}"#, Some("/a/infer")),
            (r#"{"name":"executable","executable":"C:\\a \"b\"\\c"}"#, Some(r#"C:\a "b"\c"#)),
            (r#"{"executable":null}"#, None),
            (r#"{"executable":"/broken off"#, None),
            ("", None),
        ] {
            assert_eq!(string(json, "executable").as_deref(), found, "{json}");
        }
    }
}
