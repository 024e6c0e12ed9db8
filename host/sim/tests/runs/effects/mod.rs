//! Effects that prefix caching and load must have, on the real engine with its built-in policies.

mod conversations;
mod load;
mod pool;
mod shared;

use infer_core::engine::Policies;
use infer_sim::{Outcome, Settings, Workload, simulate};

use crate::{named, settings};

fn served(settings: &Settings, workload: &Workload) -> Outcome {
    simulate(settings, Policies::builtin(), workload, |_| {})
}

fn run(workload: &str, load: f64) -> Outcome {
    served(&settings(load, 1), &named(workload, 600))
}

fn run_without_cache(workload: &str, load: f64) -> Outcome {
    let mut settings = settings(load, 1);
    settings.engine.prefix_caching = false;
    settings.engine.prompt_cache_entries = 0;
    served(&settings, &named(workload, 600))
}
