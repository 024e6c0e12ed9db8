//! Builds and runs the demo, the serving benchmark and the training of the demo model, in release mode.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{build, cargo, ensure_wasm_targets, run};

const TRY: &str = r#"
Built. When the line `listening on ...` appears, try in another terminal:

  curl -N localhost:8000/v1/completions -d '{"model":"demo","prompt":"What is a prefix cache?","max_tokens":64,"temperature":0}'
  FOLDER/infer-tui
  FOLDER/infer policy list
  FOLDER/infer policy swap scheduler static-batch

Ctrl-C drains and stops.
"#;

/// Builds the server and the console, then serves the demo model in the foreground.
pub fn demo(args: &[String]) -> Result<(), String> {
    ensure_wasm_targets()?;
    eprintln!("Building `infer` and `infer-tui`; the first build takes several minutes.");
    let infer = infer(&["--bin", "infer-tui"])?;
    let folder = infer.parent().expect("a file has a folder");
    eprintln!("{}", TRY.replace("FOLDER", &folder.display().to_string()));
    run(Command::new(&infer).arg("serve").args(args))
}

/// Runs the serving benchmark.
pub fn bench(args: &[String]) -> Result<(), String> {
    ensure_wasm_targets()?;
    run(Command::new(infer(&[])?).args(["bench", "serve"]).args(args))
}

/// Trains the demo model and writes its checkpoint into the repository.
pub fn train(args: &[String]) -> Result<(), String> {
    let train =
        ["run", "--release", "--package", "infer-demo", "--features", "train", "--bin", "train-demo", "--"];
    run(cargo(&train).args(args))
}

/// Builds the server with further arguments, and returns its path.
fn infer(more: &[&str]) -> Result<PathBuf, String> {
    build(cargo(&["build", "--release", "--bin", "infer"]).args(more), "infer")
}
