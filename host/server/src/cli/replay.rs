//! `infer policy replay`: asks a policy again what it was asked when it failed.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Failure;
use super::policy::read_config;
use crate::faults::{self, ReplayError, ReplayOptions};
use crate::policies;

/// Arguments of `infer policy replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// A fault file; the host's log and `infer policy list` name it
    fault: PathBuf,
    /// Asks this component instead of the one that failed
    #[arg(long, value_name = "FILE.wasm")]
    policy: Option<PathBuf>,
    /// That component's configuration: a JSON object, or a file that holds one
    #[arg(long, value_name = "JSON|FILE", requires = "policy")]
    config: Option<String>,
    /// Asks up to so many times, until it fails: a policy may count its calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Shows what happens now beside what happened then. That it fails is the command's failure, too.
pub fn run(args: ReplayArgs) -> Result<(), Failure> {
    let component = args.policy.as_ref().map(std::fs::read).transpose();
    let component = component.map_err(|e| Failure::Usage(format!("--policy: can't read it: {e}")))?;
    let loader = policies::loader().map_err(Failure::failed)?;
    let config = args.config.as_deref().map(read_config).transpose()?;
    let options = ReplayOptions { component, config, times: args.times };
    let replayed = faults::replay(&args.fault, &loader, &options).map_err(|error| match error {
        ReplayError::Policy(_) => Failure::Failed(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    })?;
    if args.json {
        let json = json!({
            "policy": replayed.policy, "question": replayed.question, "then": replayed.then,
            "now": replayed.now, "fails": replayed.fails, "same": replayed.same, "asked": replayed.asked,
        });
        println!("{}", serde_json::to_string_pretty(&json).map_err(Failure::failed)?);
    } else {
        println!("{} is asked {}() again", replayed.policy, replayed.question);
        println!("  then  {}", replayed.then);
        println!("  now   {} (asked {} times)", replayed.now, replayed.asked);
    }
    let verdict = match (replayed.fails, replayed.same) {
        (true, Some(true)) => return Err(Failure::Failed("it fails as it did".to_owned())),
        (true, _) => return Err(Failure::Failed("it fails, but not as it did".to_owned())),
        (false, Some(_)) => "it does not fail any more",
        (false, None) => "it does not fail, but one question can't show whether it would have failed then",
    };
    if !args.json {
        println!("{verdict}");
    }
    Ok(())
}
