//! Builds `policy.c` to a component: C bindings from `wit/`, a C compiler for WebAssembly, the encoder.
//!
//! The README's command-line steps as code, so that the project's tests can run them. The host treats the
//! result like any other component.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use wit_bindgen_core::{Files, wit_parser::Resolve};

/// Names the compiler if it isn't `zig` on the path: a command line, such as `python3 -m ziglang`.
pub const ZIG_VARIABLE: &str = "INFER_ZIG";

/// The C compiler: `zig cc`, which brings a C library for WebAssembly along.
#[derive(Clone, Debug)]
pub struct Zig {
    command: Vec<String>,
}

impl Zig {
    /// The compiler that `INFER_ZIG` names, else `zig` on the path, else the one in Python's package
    /// `ziglang`; `None` if none of them runs.
    pub fn find() -> Option<Self> {
        let named = std::env::var(ZIG_VARIABLE).ok();
        let commands = match &named {
            Some(command) => vec![command.as_str()],
            None => vec!["zig", "python3 -m ziglang"],
        };
        commands.into_iter().find_map(|command| {
            let zig = Self { command: command.split_whitespace().map(str::to_owned).collect() };
            let answers = zig.run(&["version"]).output().is_ok_and(|output| output.status.success());
            answers.then_some(zig)
        })
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.command.first().map_or("zig", String::as_str));
        command.args(self.command.iter().skip(1)).args(arguments);
        command
    }
}

/// Builds the policy in `out_dir` and returns the component.
///
/// # Errors
/// What the compiler or the encoder reports.
pub fn build(zig: &Zig, out_dir: &Path) -> Result<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bindings = bindings(&here.join("../../wit"), out_dir)?;
    let module = out_dir.join("policy.wasm");
    let mut compile = zig.run(&["cc", "-target", "wasm32-wasi", "-mexec-model=reactor", "-O2", "-s"]);
    compile.arg("-Wall").arg("-Werror").arg("-I").arg(out_dir).arg("-o").arg(&module);
    let output = compile.arg(here.join("policy.c")).args(&bindings).output().context("can't run zig cc")?;
    ensure!(output.status.success(), "zig cc failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let module = std::fs::read(&module)?;
    wit_component::ComponentEncoder::default().module(&module)?.validate(true).encode()
}

/// Writes the C bindings of the scheduler's world and returns what is to be compiled with the policy.
fn bindings(wit: &Path, out_dir: &Path) -> Result<Vec<PathBuf>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit)?;
    let world = resolve.select_world(&[package], Some("scheduler-policy"))?;
    let mut files = Files::default();
    wit_bindgen_c::Opts::default().build().generate(&mut resolve, world, &mut files)?;
    let mut sources = Vec::new();
    for (name, content) in files.iter() {
        let path = out_dir.join(name);
        std::fs::write(&path, content).with_context(|| format!("can't write {}", path.display()))?;
        if path.extension().is_some_and(|extension| extension == "c" || extension == "o") {
            sources.push(path);
        }
    }
    Ok(sources)
}
