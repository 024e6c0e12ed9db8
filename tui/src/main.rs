//! Entry point of `infer-tui`: arguments in, exit code out.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use infer_tui::args::Args;

fn main() -> ExitCode {
    let args = Args::read();
    match infer_tui::run::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The message may quote the host.
            eprintln!("infer-tui: {}", infer_tui::text::clean(&error.to_string()));
            ExitCode::from(error.exit_code())
        }
    }
}
