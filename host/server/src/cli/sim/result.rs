//! `--format` and `--out`, which mean the same in every command of the simulator that has them all.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
