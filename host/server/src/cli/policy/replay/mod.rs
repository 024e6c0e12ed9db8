//! `infer policy replay`: repeats the call at which a policy failed, or writes it as a test.

mod shown;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::read_config;
use crate::cli::Failure;
use crate::faults::{self, ReplayError, ReplayOptions, Replayed};
use crate::policies;

/// Arguments of `infer policy replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// A fault file, as named by the host's log and `infer policy list`
    fault: PathBuf,
    /// Call this component instead of the one that failed
    #[arg(long, value_name = "FILE.wasm")]
    policy: Option<PathBuf>,
    /// That component's configuration: a JSON object, or a file that contains one
    #[arg(long, value_name = "JSON|FILE", requires = "policy")]
    config: Option<String>,
    /// Repeat the call up to N times, until it fails: a policy may count its calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Also show what the policy was asked, and what it answers now
    #[arg(long, conflicts_with = "json")]
    show: bool,
    /// Print a Rust test that makes this call, for the policy's crate: append it to `src/tests.rs`. Calls nothing
    #[arg(long, conflicts_with_all = ["policy", "config", "times", "show", "json"])]
    as_test: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows what happens now beside what happened then. The command fails if the policy fails.
pub fn run(args: ReplayArgs) -> Result<(), Failure> {
    if args.as_test {
        print!("{}", faults::as_test(&args.fault).map_err(failure)?);
        return Ok(());
    }
    let component = args.policy.as_ref().map(std::fs::read).transpose();
    let component =
        component.map_err(|e| Failure::Usage(format!("--policy: can't read the component: {e}")))?;
    let loader = policies::loader().map_err(Failure::failed)?;
    let config = args.config.as_deref().map(read_config).transpose()?;
    let options = ReplayOptions { component, config, times: args.times };
    let replayed = faults::replay(&args.fault, &loader, &options).map_err(failure)?;
    if args.json {
        let json = json!({
            "policy": replayed.policy, "question": replayed.question, "then": replayed.then,
            "now": replayed.now, "answer": replayed.answer, "fails": replayed.fails, "same": replayed.same,
            "asked": replayed.asked,
        });
        println!("{}", serde_json::to_string_pretty(&json).map_err(Failure::failed)?);
    } else {
        println!("repeating {}() of {}", replayed.question, replayed.policy);
        println!("  then  {}", replayed.then);
        let calls = if replayed.asked == 1 { "call" } else { "calls" };
        println!("  now   {} ({} {calls})", replayed.now, replayed.asked);
        if args.show {
            show(&replayed);
        }
    }
    let calls = if replayed.asked == 1 { "this one call" } else { "these calls" };
    let verdict = match (replayed.fails, replayed.same) {
        (true, Some(true)) => {
            return Err(Failure::Failed("the policy still fails, in the same way".to_owned()));
        }
        (true, _) => return Err(Failure::Failed("the policy still fails, in another way".to_owned())),
        (false, Some(_)) => format!(
            "the policy does not fail in {calls}; a fault that depends on earlier calls may take more: --times N repeats \
             the call until it fails, up to N times"
        ),
        (false, None) => {
            "the policy does not fail, but one call can't show whether this fault would recur".to_owned()
        }
    };
    if !args.json {
        println!("{verdict}");
    }
    Ok(())
}

fn failure(error: ReplayError) -> Failure {
    match error {
        ReplayError::Policy(_) => Failure::Failed(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    }
}

/// The call and the last answer to it, however it was judged.
fn show(replayed: &Replayed) {
    println!("asked");
    shown::call(&replayed.view).iter().for_each(|line| println!("  {line}"));
    if let Some(answer) = &replayed.answer {
        println!("answered");
        let name = if replayed.question == "schedule" { "plan" } else { "answer" };
        shown::value(name, answer).iter().for_each(|line| println!("  {line}"));
    }
}
