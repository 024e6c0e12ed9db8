//! `infer completions`: scripts with which shells complete this program's commands and flags.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Failure};

pub(super) const AFTER_HELP: &str = "\
Examples:
  infer completions bash > ~/.local/share/bash-completion/completions/infer
  infer completions zsh > ~/.zfunc/_infer                    with ~/.zfunc in fpath
  infer completions fish > ~/.config/fish/completions/infer.fish";

/// Arguments of `infer completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// Shell that the script is for
    shell: Shell,
}

/// Prints the script.
pub(super) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "infer", &mut script);
    print!("{}", String::from_utf8(script).map_err(Failure::failed)?);
    Ok(())
}
