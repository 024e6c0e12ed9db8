//! Results of a run. Their memory doesn't grow with the number of requests, only with the number of tenants.

mod durations;
mod outcome;
mod recorder;
mod service;

pub use durations::{Durations, Measured};
pub use outcome::{CacheOutcome, Outcome, Sample, Slo, TenantOutcome};
pub(crate) use recorder::{Recorder, Start};

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}
