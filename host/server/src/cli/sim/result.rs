//! What a command of the simulator ends with: `--format` and `--out`, which mean the same in every one that has them all,
//! what a result says of the command that made it, and the failure if some of its simulations failed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use infer_sim::report::MadeBy;

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

/// This program and the arguments of its process.
pub fn made_by() -> MadeBy {
    MadeBy { version: env!("CARGO_PKG_VERSION").to_owned(), args: args(std::env::args_os().skip(1)) }
}

/// Flags with a value that say how results are made and where they go, not what they are.
const ASIDE: [&str; 4] = ["--format", "--out", "--requests-out", "--threads"];
/// The same without a value.
const ASIDE_ALONE: [&str; 2] = ["--fail-on-fault", "--summary"];

/// The arguments that change results, so that equal results name equal arguments.
fn args(all: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut all = all.map(|arg| arg.to_string_lossy().into_owned());
    let mut kept = Vec::new();
    while let Some(arg) = all.next() {
        let (flag, value) = arg.split_once('=').map_or((&arg[..], None), |(flag, value)| (flag, Some(value)));
        match value {
            None if ASIDE.contains(&flag) => drop(all.next()),
            Some(_) if ASIDE.contains(&flag) => {}
            None if ASIDE_ALONE.contains(&flag) => {}
            _ => kept.push(arg),
        }
    }
    kept
}

/// With `--fail-on-fault`, fails with the first of the faults of policies in `all` simulations, which are named `what`.
pub fn check_faults(faults: &[String], all: usize, what: &str) -> Result<(), Failure> {
    match faults {
        [] => Ok(()),
        [first, ..] => {
            let failed = faults.len();
            Err(Failure::Failed(format!("policies failed in {failed} of {all} {what}, the first: {first}")))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_change_no_result_are_left_out() {
        let given = [
            "sim",
            "compare",
            "--threads",
            "7",
            "--scheduler",
            r#"srpt={"patience_ms": 1}"#,
            "--out=a.json",
            "--format",
            "json",
            "--seed=3",
            "--requests-out",
            "b.csv",
            "--summary",
            "--fail-on-fault",
            "--load",
            "1",
        ];
        let kept = ["sim", "compare", "--scheduler", r#"srpt={"patience_ms": 1}"#, "--seed=3", "--load", "1"];
        assert_eq!(args(given.into_iter().map(OsString::from)), kept);
    }
}
