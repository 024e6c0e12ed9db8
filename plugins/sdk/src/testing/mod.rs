//! Tools for a policy's tests, natively and as Wasm: rules to check a plan against, random views, and a small
//! host that runs whole scenarios. No model, no real clock; everything follows from a seed.
//!
//! Panics are how a test fails, so this module panics, and the rest of the SDK never does.

mod admission;
mod cache;
mod config;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
mod gauges;
mod host;
mod outputs;
mod pool;
mod rng;
mod rules;
mod scheduler;
mod views;

use std::cell::Cell;
use std::sync::Once;

pub use admission::check_admission;
pub use cache::{CacheHost, Started, Tally, Turn, check_prefix_cache};
pub use config::check_config;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub use gauges::gauge;
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub(crate) use gauges::set_gauge;
pub use host::{Finished, Host, Report, Spec};
pub use rng::Rng;
pub use rules::{check_fit, check_plan};
pub use scheduler::check_scheduler;
pub use views::{hostile_step, limits, random_spec, random_step, step_of};

/// Runs a property for many seeds and reports the one that failed: `for_seeds(0..200, |rng| ...)`.
pub fn for_seeds(seeds: core::ops::Range<u64>, mut property: impl FnMut(&mut Rng)) {
    announce_seeds();
    for seed in seeds {
        SEED.set(Some(seed));
        property(&mut Rng::new(seed));
    }
    SEED.set(None);
}

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes a panic report its seed. A hook, because a panic doesn't unwind in Wasm.
fn announce_seeds() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some(seed) = SEED.get() {
                eprintln!("failed with seed {seed}");
            }
            report(panic);
        }));
    });
}
