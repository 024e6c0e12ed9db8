//! The results of a run, as reports show them.

use std::collections::BTreeMap;

use infer_core::event::PrefixEvent;
use serde::{Serialize, Serializer};

use super::{Durations, count};

/// Latency targets; goodput counts requests that meet both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slo {
    /// Milliseconds from arrival to the first token.
    pub ttft_ms: f64,
    /// Mean milliseconds between the tokens of a request, which is its TPOT.
    pub itl_ms: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Self { ttft_ms: 2_000.0, itl_ms: 50.0 }
    }
}

impl Slo {
    /// A request with these times, by whether it met the targets.
    pub(super) fn judge(&self, ttft_ms: f64, itl_ms: f64) -> Attainment {
        match (ttft_ms <= self.ttft_ms, itl_ms <= self.itl_ms) {
            (true, true) => Attainment { met: 1, ..Attainment::default() },
            (true, false) => Attainment { slow: 1, ..Attainment::default() },
            (false, _) => Attainment { late: 1, ..Attainment::default() },
        }
    }
}

/// How many requests met the latency targets, and what the others missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Attainment {
    /// Both targets were met.
    pub met: u64,
    /// The first token came too late.
    pub late: u64,
    /// The first token came in time, but the others too slowly.
    pub slow: u64,
    /// They were refused or failed.
    pub unserved: u64,
}

impl Attainment {
    pub(super) fn add(&mut self, more: Self) {
        self.met += more.met;
        self.late += more.late;
        self.slow += more.slow;
        self.unserved += more.unserved;
    }

    /// The fraction that met both; 0 without requests.
    pub fn share(&self) -> f64 {
        let Self { met, late, slow, unserved } = *self;
        count(met) / count(met + late + slow + unserved).max(1.0)
    }

    /// What most of those that missed the targets missed; `None` if all met them.
    pub fn limit(&self) -> Option<&'static str> {
        let missed = [(self.slow, "ITL"), (self.late, "TTFT"), (self.unserved, "refusals")];
        missed
            .into_iter()
            .max_by_key(|(number, _)| *number)
            .filter(|(number, _)| *number > 0)
            .map(|(_, name)| name)
    }
}

/// Results of the prefix cache. A hit is a request whose prompt has a full block and was found in part or as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CacheOutcome {
    /// Fraction of hits, of the requests whose prompt has a full block. Times `mean_cached`, it is the number of tokens
    /// that the cache saved per such request.
    pub hit_rate: f64,
    /// Fraction of these requests that hit an earlier turn of their conversation.
    pub conversational_rate: f64,
    /// Fraction of these requests that hit blocks of other requests.
    pub cross_request_rate: f64,
    /// Fraction of these requests that found their whole prompt, with its last logits.
    pub full_rate: f64,
    /// Fraction of these requests whose conversation diverged; those with cached tokens are hits.
    pub diverged_rate: f64,
    /// Mean cached prompt tokens of a hit; `None` without hits.
    pub mean_cached: Option<f64>,
    /// Mean prefilled prompt tokens of a request; `None` if none started.
    pub mean_prefilled: Option<f64>,
    /// Prefilled fraction of all prompt tokens; `None` if none started.
    pub prefilled_ratio: Option<f64>,
    /// Mean TTFT of hits in milliseconds; `None` without hits.
    pub hit_ttft_ms: Option<f64>,
    /// Mean TTFT in milliseconds of the other requests whose prompt has a full block; `None` if there are none.
    pub miss_ttft_ms: Option<f64>,
    /// Requests by prefix event, in the order of `PrefixEvent::ALL`; by name in JSON.
    #[serde(serialize_with = "by_name")]
    pub events: [u64; 5],
    /// Cached prompt tokens of these requests.
    #[serde(serialize_with = "by_name")]
    pub cached_tokens: [u64; 5],
    /// Prefilled prompt tokens of these requests.
    #[serde(serialize_with = "by_name")]
    pub prefilled_tokens: [u64; 5],
}

fn by_name<S: Serializer>(counts: &[u64; 5], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(PrefixEvent::ALL.map(PrefixEvent::name).into_iter().zip(counts))
}

/// Occupancy of the block pool as shares of its blocks, from the first arrival that is reported on to the last end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PoolOutcome {
    /// Blocks that sequences use, mean over time.
    pub used_mean: f64,
    /// The most at any time.
    pub used_peak: f64,
    /// Blocks that only the prefix cache keeps, mean over time.
    pub cached_mean: f64,
    /// The most at any time.
    pub cached_peak: f64,
}

/// The first fault of a policy in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstFault {
    /// Kind of the policy, such as `scheduler`.
    pub kind: &'static str,
    /// Name of the policy.
    pub policy: String,
    /// What happened.
    pub message: String,
    /// When, in virtual seconds like those of the samples.
    pub at_s: f64,
}

/// How evenly tenants were treated: Jain's index (Jain, Chiu and Hawe 1984) of a value of each, which is 1 if all are
/// equal, and 1 / n if one of n has everything. `None` with fewer than two tenants that have a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fairness {
    /// Of weighted service, see `service_gap`. A tenant that asks for less gets less.
    pub service: Option<f64>,
    /// Of mean latency.
    pub latency: Option<f64>,
    /// Of mean latency per output token, which doesn't depend as much on how much they ask for.
    pub latency_per_token: Option<f64>,
}

/// Results of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantOutcome {
    /// Its number.
    pub tenant: u32,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Prompt tokens of started requests, cached ones included, and output tokens.
    pub tokens: u64,
    /// Output tokens per second of the run.
    pub output_per_second: f64,
    /// Time to the first token.
    pub ttft_ms: Durations,
    /// Cached fraction of its prompt tokens; `None` if no request started.
    pub cached_ratio: Option<f64>,
    /// What a trace calls it: BurstGPT's models. `None` if it has no other name than its number.
    pub name: Option<String>,
    /// From arrival to the last token.
    pub latency_ms: Durations,
    /// Between the tokens of a request.
    pub itl_ms: Durations,
    /// As that of the run, of its requests.
    pub tpot_ms: Durations,
    /// From arrival to the first start.
    pub queue_ms: Durations,
    /// Mean of latency divided by output tokens, in milliseconds; `None` if none finished.
    pub latency_per_token_ms: Option<f64>,
    /// Its requests by whether they met the targets.
    pub targets: Attainment,
    /// As that of the run, of its requests.
    pub goodput_per_second: f64,
    /// As that of the run, of its requests.
    pub goodput_share: f64,
    /// As that of the run, of its requests.
    pub in_time: Option<f64>,
    /// Preemptions of its requests.
    pub preemptions: u64,
    /// Weighted service, see `service_gap`.
    pub service: f64,
}

/// The pool, the queue and what the policies publish about themselves, at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Sample {
    pub at_s: f64,
    pub used: u32,
    pub cached: u32,
    pub free: u32,
    pub running: u32,
    pub waiting: u32,
    /// By `POLICY.GAUGE`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, f64>,
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Virtual seconds from the first arrival that is reported on to the last end.
    pub seconds: f64,
    /// Engine steps.
    pub steps: u64,
    /// Output tokens per second.
    pub output_per_second: f64,
    /// Prompt and output tokens per second, cached ones included.
    pub tokens_per_second: f64,
    /// Requests that met the targets, see `Slo`, per second in which requests began, which are `offered_seconds`.
    pub goodput_per_second: f64,
    /// The requests by whether they met the targets.
    pub targets: Attainment,
    /// Fraction of the requests with a deadline whose first token came in time, also of those that failed; refused
    /// ones count as late. `None` if no request had a deadline.
    pub in_time: Option<f64>,
    /// From arrival to the first token.
    pub ttft_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests; empty if none finished.
    pub ttft_quantiles_ms: Vec<f64>,
    /// Between the tokens of a request.
    pub itl_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the gaps; empty if there are none.
    pub itl_quantiles_ms: Vec<f64>,
    /// Time per output token of a request: from its first token to its last one, divided by the tokens after the first,
    /// and rounded to microseconds. Requests with a single token have none.
    pub tpot_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests; empty if none has one.
    pub tpot_quantiles_ms: Vec<f64>,
    /// From arrival to the last token.
    pub latency_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests; empty if none finished.
    pub latency_quantiles_ms: Vec<f64>,
    /// From arrival to the first start.
    pub queue_ms: Durations,
    /// The prefix cache.
    pub cache: CacheOutcome,
    /// The block pool.
    pub pool: PoolOutcome,
    /// Results by tenant.
    pub tenants: Vec<TenantOutcome>,
    /// Largest difference of weighted service (prompt token 1, output token 2, divided by the tenant's weight) between
    /// two tenants while both had waiting requests; compares at most 256 waiting tenants at a time.
    pub service_gap: f64,
    /// Preemptions.
    pub preemptions: u64,
    /// Cached blocks that were evicted.
    pub evicted_blocks: u64,
    /// Blocks that came back from the second level of the prefix cache.
    pub onloaded_blocks: u64,
    /// Faults of policies.
    pub policy_faults: u64,
    /// The first of them; `None` if there was none.
    pub fault: Option<FirstFault>,
    /// Fraction of the steps in which the built-in decided in place of a policy that failed: those in which one
    /// faulted, and all after one was removed.
    pub builtin_share: f64,
    /// The pool and the queue over time.
    pub samples: Vec<Sample>,
    /// Hash of all batches and tokens; equal runs have equal fingerprints.
    pub fingerprint: String,
    /// Seconds in which requests and conversations began, by which goodput is counted; in a trace, those that waited for
    /// others count until they end. `seconds` if all began at once.
    pub offered_seconds: f64,
    /// Fraction of all requests that met the targets; those that were refused or failed did not.
    pub goodput_share: f64,
    /// How evenly tenants were treated.
    pub fairness: Fairness,
}
