//! From a fresh machine to a running server; benchmarks and training in release mode.

use std::process::Command;

use crate::cargo::{cargo, ensure_wasm_targets, run, target_dir};

const TRY: &str = r#"
Built. Once the line `listening on ...` appears, try in another terminal:

  curl -N localhost:8000/v1/completions -d '{"model":"demo","prompt":"What is a prefix cache?","max_tokens":64,"temperature":0}'
  TARGET/release/infer-tui
  TARGET/release/infer policy list
  TARGET/release/infer policy swap scheduler static-batch

Ctrl-C drains and stops.
"#;

/// Builds the server and the console, then serves the demo model in the foreground.
pub fn demo(args: &[String]) -> Result<(), String> {
    ensure_wasm_targets()?;
    eprintln!("Building `infer` and `infer-tui`; from cold this takes several minutes.");
    run(&mut cargo(&["build", "--release", "--bin", "infer", "--bin", "infer-tui"]))?;
    eprintln!("{}", TRY.replace("TARGET", &target_dir().display().to_string()));
    run(infer().arg("serve").args(args))
}

/// Runs the serving benchmark.
pub fn bench(args: &[String]) -> Result<(), String> {
    ensure_wasm_targets()?;
    run(&mut cargo(&["build", "--release", "--bin", "infer"]))?;
    run(infer().args(["bench", "serve"]).args(args))
}

/// Trains the demo model and writes its checkpoint into the repository.
pub fn train(args: &[String]) -> Result<(), String> {
    let train =
        ["run", "--release", "--package", "infer-demo", "--features", "train", "--bin", "train-demo", "--"];
    run(cargo(&train).args(args))
}

fn infer() -> Command {
    Command::new(target_dir().join("release").join(format!("infer{}", std::env::consts::EXE_SUFFIX)))
}
