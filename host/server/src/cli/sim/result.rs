//! What a command of the simulator ends with: `--format` and `--out`, which mean the same in every one that has them all,
//! and the failure if some of its simulations failed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Failure;

/// What a result is written as, and where to.
#[derive(Args)]
pub struct ResultArgs {
    /// Format of the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// File for the result [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A format.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    Text,
    Json,
    Csv,
    /// A page that loads nothing from elsewhere
    Html,
}

/// Fails with the first of the failures among `all` simulations, which are named `what`.
pub fn check(failures: &[String], all: usize, what: &str) -> Result<(), Failure> {
    match failures {
        [] => Ok(()),
        [only] if all == 1 => Err(Failure::Failed(only.clone())),
        [first, ..] => {
            let failed = failures.len();
            Err(Failure::Failed(format!("{failed} of {all} {what} failed, the first: {first}")))
        }
    }
}
