//! The program `wasi-runner`: runs a test compiled to wasm32-wasip2. Everything is in `infer_wasm::wasi`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use infer_wasm::wasi;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    ExitCode::from(wasi::run(&arguments, wasi::LIMIT))
}
