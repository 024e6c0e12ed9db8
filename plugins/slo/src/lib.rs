//! `slo`: refuses on arrival what would miss the deadline of its first token, and says when to retry.
//!
//! The idea of early rejection in Mooncake (Qin et al. 2024): a request that can't be served in time only
//! delays others, so it is refused before it costs anything. The estimate is a fluid one, from measured
//! rates: all prompt tokens ahead and the request's own uncached ones at the prefill rate and, if every slot
//! is taken, the time until enough sequences have ended, at the output rate, if their expected output is
//! spread evenly.
//!
//! It ignores what no number tells: the scheduler's order. All waiting requests are taken to be ahead, which
//! errs towards refusing. While a rate is unknown, everything passes. It never says `wait`, so it can come
//! before or behind a policy that manages memory.

use infer_policy_sdk::{
    Admission, Load, Micros, Policy, Pressure, Reason, Refusal, Request, SequenceId, Verdict, export_policy,
    gauge,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// When the first token is due after the request's arrival, if the request names no deadline; 0 for none.
    pub default_ttft_ms: u32,
    /// What estimates are multiplied with: more than 1 refuses earlier.
    pub slack: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { default_ttft_ms: 0, slack: 1.0 }
    }
}

/// Admission by time to first token.
pub struct Slo {
    config: Config,
    /// The latest request that it was called for. Ids ascend, so any later one is new.
    latest: Option<SequenceId>,
}

/// What comes before a request's first token.
struct Ahead {
    prompt_tokens: u64,
    own_tokens: u64,
    output_tokens: u64,
    /// Sequences that run or wait for a slot, and how many of them must end first.
    sequences: u64,
    to_end: u64,
}

impl Policy for Slo {
    type Config = Config;
    const NAME: &'static str = "slo";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Refuses requests that would miss the deadline of their first token at the \
         measured rates, and says when to retry.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "default_ttft_ms": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "When the first token is due if a request names no deadline; 0 for none"
            },
            "slack": {
                "type": "number", "minimum": 0.1, "maximum": 10, "default": 1.0,
                "description": "Factor on estimated times; more than 1 refuses earlier"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(0.1..=10.0).contains(&config.slack) {
            return Err(format!("`slack` must be from 0.1 to 10, not {}", config.slack));
        }
        Ok(Self { config, latest: None })
    }
}

impl Admission for Slo {
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict {
        let ahead = Ahead::of(request, load, self.is_queued(request, load));
        self.latest = self.latest.max(Some(request.id));
        let due = match (request.deadline, self.config.default_ttft_ms) {
            (Micros::NEVER, 0) => return Verdict::Admit,
            (Micros::NEVER, millis) => request.arrived.plus(Micros::from_millis(u64::from(millis))),
            (deadline, _) => deadline,
        };
        let Some(estimate) = self.estimate(&ahead, load) else { return Verdict::Admit };
        if load.now.plus(estimate) <= due {
            return Verdict::Admit;
        }
        // A later request is given as much time as this one was given when it arrived.
        let budget = due.since(request.arrived);
        let alone = Ahead { prompt_tokens: 0, to_end: 0, ..ahead };
        let hopeless = self.estimate(&alone, load).is_some_and(|alone| alone > budget);
        let retry_after_ms = if hopeless { 0 } else { millis(estimate.since(budget)).max(1) };
        let message = format!(
            "the first token would take {} ms, {} ms are left of the {} ms promised",
            millis(estimate),
            due.since(load.now).0 / 1_000,
            budget.0 / 1_000
        );
        Verdict::Refuse(Refusal { reason: Reason::Backpressure, message, retry_after_ms })
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        let pressure = Pressure::of_pool(load);
        let nothing = Request { arrived: load.now, ..Request::default() };
        let estimate = self.estimate(&Ahead::of(&nothing, load, false), load);
        gauge("estimated_ttft_ms", estimate.map_or(f64::NAN, |estimate| estimate.0 as f64 / 1e3));
        let promised = Micros::from_millis(u64::from(self.config.default_ttft_ms));
        let late = self.config.default_ttft_ms > 0 && estimate.is_some_and(|estimate| estimate > promised);
        Pressure { backpressure: pressure.backpressure || late, ..pressure }
    }
}

impl Slo {
    /// Whether the request is in the queue: it was asked about before, or is one of several that were asked
    /// about together. The clock also tells it, for requests from before this policy was swapped in, but
    /// stands still within an instant.
    fn is_queued(&self, request: &Request, load: &Load) -> bool {
        (Some(request.id) <= self.latest || load.now > request.arrived) && load.waiting > 0
    }

    /// Time to the first token; `None` while a rate that it needs is unknown.
    fn estimate(&self, ahead: &Ahead, load: &Load) -> Option<Micros> {
        let prefill = micros(
            u128::from(ahead.prompt_tokens) + u128::from(ahead.own_tokens),
            load.prefill_tokens_per_second,
        )?;
        let places = match ahead.to_end {
            0 => 0,
            ends => micros(
                (u128::from(ahead.output_tokens) * u128::from(ends)).div_ceil(u128::from(ahead.sequences)),
                load.output_tokens_per_second,
            )?,
        };
        Some(Micros((prefill.saturating_add(places) as f64 * self.config.slack) as u64))
    }
}

impl Ahead {
    fn of(request: &Request, load: &Load, queued: bool) -> Self {
        let own_tokens = u64::from(request.prompt_tokens.saturating_sub(request.cached_tokens));
        let own = |tokens: u32| if queued { u64::from(tokens) } else { 0 };
        let waiting = u64::from(load.waiting) - u64::from(queued);
        let sequences = u64::from(load.running) + waiting;
        Self {
            prompt_tokens: load
                .waiting_prompt_tokens
                .saturating_sub(own(request.prompt_tokens))
                .saturating_add(load.started_prompt_tokens),
            own_tokens,
            output_tokens: load.expected_output_tokens.saturating_sub(own(request.expected_tokens)),
            sequences,
            to_end: (sequences + 1).saturating_sub(u64::from(load.max_running)).min(sequences),
        }
    }
}

/// Microseconds that this many tokens take; `None` if the rate is unknown.
fn micros(tokens: u128, per_second: u32) -> Option<u64> {
    let micros = (tokens * 1_000_000).div_ceil(u128::from((per_second > 0).then_some(per_second)?));
    Some(u64::try_from(micros).unwrap_or(u64::MAX))
}

fn millis(time: Micros) -> u32 {
    u32::try_from(time.0.div_ceil(1_000)).unwrap_or(u32::MAX)
}

export_policy!(admission: Slo);

#[cfg(test)]
mod tests;
