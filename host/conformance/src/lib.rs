//! Checks a policy component against everything that a host requires, before a host runs it.
//!
//! [`check()`] loads a component as a host does, shows it consistent and hostile views, and lets it decide in
//! whole runs of the real engine: a scripted executor in virtual time, so everything follows from the
//! component, its configuration and a seed. [`cost`] measures what its calls cost beside the native built-in.
//! Deliberately absent: whether a policy is any good. That depends on the workload; use a simulator.
#![forbid(unsafe_code)]

mod admission;
mod candidate;
pub mod cost;
mod determinism;
mod prefix_cache;
mod report;
mod run;
mod scenario;
mod scheduler;
mod sheet;
mod transcript;
mod views;

pub use candidate::{FUEL_PER_CALL, MAX_MEMORY_BYTES};
pub use report::{Line, Outcome, Report};

use infer_core::policy::{AnyPolicy, PolicyKind};

use candidate::Candidate;
use sheet::{Check, Sheet};

/// How a component is checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policy's configuration as JSON.
    pub config: String,
    /// What all views and loads follow from.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { config: "{}".to_owned(), seed: 1 }
    }
}

/// Checks a component. Its failures are in the report; an error means that nothing could be checked, because
/// this machine can't run WebAssembly or has no room for temporary files.
pub fn check(component: &[u8], options: &Options) -> Result<Report, String> {
    let mut sheet = Sheet::default();
    let candidate = match Candidate::new(component, &options.config)? {
        Ok(candidate) => candidate,
        Err(refusal) => {
            let why = format!("{} ({})", refusal, refusal.check());
            sheet.fail(Check::Load, || why);
            return Ok(Report::new(None, component, options, sheet));
        }
    };
    sheet.done(Check::Load, "format, imports, world, configuration and self-test are in order");
    let runs = run::play_all(&candidate, options.seed);
    run::judge(&runs, candidate.kind, &mut sheet);
    match candidate.kind {
        PolicyKind::Scheduler => {
            let AnyPolicy::Scheduler(mut policy) = candidate.load() else {
                unreachable!("its kind is known")
            };
            scheduler::judge_views(policy.as_mut(), options.seed, &mut sheet);
            scheduler::judge_runs(&runs, &mut sheet);
        }
        PolicyKind::Admission => {
            let AnyPolicy::Admission(mut policy) = candidate.load() else {
                unreachable!("its kind is known")
            };
            admission::judge_views(policy.as_mut(), options, &mut sheet);
            admission::judge_runs(&runs, &mut sheet);
        }
        PolicyKind::PrefixCache => {
            let AnyPolicy::PrefixCache(mut policy) = candidate.load() else {
                unreachable!("its kind is known")
            };
            prefix_cache::judge_views(policy.as_mut(), options.seed, &mut sheet);
            prefix_cache::judge_runs(&runs, &mut sheet);
        }
    }
    determinism::judge(&candidate, &runs, &mut sheet);
    candidate.judge_usage(&runs, &mut sheet);
    Ok(Report::new(Some(&candidate), component, options, sheet))
}
