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
            // It may have words of the host in it.
            eprintln!("infer-tui: {}", infer_tui::view::format::clean(&error.to_string()));
            ExitCode::from(error.exit_code())
        }
    }
}
