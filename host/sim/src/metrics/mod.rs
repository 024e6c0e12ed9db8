//! Results of a run. Their memory doesn't grow with the number of requests, only with the number of tenants.

mod durations;
mod fairness;
mod faults;
mod mean;
mod occupancy;
mod outcome;
mod recorder;
mod request;
mod samples;
mod service;

use durations::millis;
pub(crate) use durations::present;
pub use durations::{Durations, Measured};
pub use outcome::{
    Attainment, CacheOutcome, Fairness, FirstFault, Outcome, PoolOutcome, Sample, Slo, TenantOutcome,
};
pub(crate) use recorder::{Ended, Origin, Recorder, Start, in_time, time_per_output_token};
pub(crate) use request::Known;
pub use request::{Ending, RequestOutcome, Watch};

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}
