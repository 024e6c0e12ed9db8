//! What a policy's tests need, natively and as Wasm: rules to hold a plan against, random views, and a
//! small host that runs whole scenarios. No model, no real clock; everything follows from a seed.
//!
//! Panics are how a test fails, so this module panics where the rest of the SDK never does.

mod config;
mod host;
mod pool;
mod rng;
mod rules;
mod views;

pub use config::check_config;
pub use host::{Finished, Host, Report, Spec};
pub use rng::Rng;
pub use rules::{check_fit, check_plan};
pub use views::{hostile_step, limits, random_spec, random_step};

/// Runs a property for many seeds and says which one failed: `for_seeds(0..200, |rng| ...)`.
pub fn for_seeds(seeds: core::ops::Range<u64>, mut property: impl FnMut(&mut Rng)) {
    for seed in seeds {
        let guard = Announce(seed);
        property(&mut Rng::new(seed));
        core::mem::forget(guard);
    }
}

/// Printed while a panic unwinds, and so only for the seed that failed.
struct Announce(u64);

impl Drop for Announce {
    fn drop(&mut self) {
        eprintln!("the property failed with seed {}", self.0);
    }
}
