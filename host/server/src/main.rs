//! The binary `infer`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    infer_server::cli::main()
}
