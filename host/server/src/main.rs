//! The binary `infer`.

fn main() -> std::process::ExitCode {
    infer_server::cli::main()
}
