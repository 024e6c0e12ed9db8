//! Entry point of `infer-tui`: arguments in, exit code out.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use infer_tui::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    match infer_tui::run::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("infer-tui: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
