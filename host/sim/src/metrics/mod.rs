//! What a run came to. Distributions are histograms with three digits, so that a run of a million
//! requests takes no more memory than one of a thousand.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use infer_core::event::PrefixEvent;
use infer_core::ids::Micros;
use infer_core::request::Usage;
use serde::Serialize;

/// Samples of the pool kept per run; beyond twice as many, every other one is dropped.
const SAMPLES: usize = 240;
/// What an output token counts beside a prompt token where service is compared between tenants, as in the
/// virtual token counter (Sheng et al., OSDI 2024).
const OUTPUT_WEIGHT: f64 = 2.0;

/// A distribution of durations in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "named by what they are")]
pub struct Durations {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// What counts as served well: goodput counts requests that kept both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slo {
    /// Milliseconds from arrival to the first token.
    pub ttft_ms: f64,
    /// Milliseconds between tokens, on average over an answer.
    pub itl_ms: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Self { ttft_ms: 2_000.0, itl_ms: 50.0 }
    }
}

/// What the prefix cache did, as REQUIREMENTS name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CacheOutcome {
    /// Hits of any kind, of the requests whose prompt has a full block.
    pub hit_rate: f64,
    /// Of these requests, those that found what an earlier turn of their conversation left.
    pub conversational_rate: f64,
    /// Of these requests, those that found what others left.
    pub cross_request_rate: f64,
    /// Mean prompt tokens that a hit found.
    pub mean_cached: f64,
    /// Mean prompt tokens computed for a request.
    pub mean_prefilled: f64,
    /// Prompt tokens computed, of all.
    pub prefilled_ratio: f64,
    /// Mean time to the first token of hits and of misses, in milliseconds.
    pub hit_ttft_ms: f64,
    /// See `hit_ttft_ms`.
    pub miss_ttft_ms: f64,
    /// Requests by what they found, in `PrefixEvent::ALL` order.
    pub events: [u64; 5],
}

/// One tenant's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantOutcome {
    /// Which.
    pub tenant: u32,
    /// Requests that it finished.
    pub finished: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Prompt tokens of those that started, cached ones included, and output tokens.
    pub tokens: u64,
    /// Time to the first token.
    pub ttft_ms: Durations,
    /// Prompts' tokens found cached, of all.
    pub cached_ratio: f64,
}

/// The pool and the queue at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Sample {
    pub at_s: f64,
    pub used: u32,
    pub cached: u32,
    pub free: u32,
    pub running: u32,
    pub waiting: u32,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Requests that arrived.
    pub requests: u64,
    /// Those that ended well.
    pub finished: u64,
    /// Those that were turned away.
    pub refused: u64,
    /// Those that failed.
    pub failed: u64,
    /// Virtual seconds from the first arrival to the last end.
    pub seconds: f64,
    /// Engine steps.
    pub steps: u64,
    /// Output tokens a second.
    pub output_per_second: f64,
    /// Prompt and output tokens a second, cached ones included.
    pub tokens_per_second: f64,
    /// Requests a second that were served well, see `Slo`.
    pub goodput_per_second: f64,
    /// Part of the requests with a promise whose first token came in time; refused ones count as late.
    pub in_time: f64,
    /// From arrival to the first token.
    pub ttft_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests.
    pub ttft_quantiles_ms: Vec<f64>,
    /// Between the tokens of one answer.
    pub itl_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the gaps.
    pub itl_quantiles_ms: Vec<f64>,
    /// From arrival to the last token.
    pub latency_ms: Durations,
    /// The same at 0, 1, .. 100 percent of the requests.
    pub latency_quantiles_ms: Vec<f64>,
    /// From arrival to the start.
    pub queue_ms: Durations,
    /// What the prefix cache did.
    pub cache: CacheOutcome,
    /// By tenant.
    pub tenants: Vec<TenantOutcome>,
    /// Largest difference of weighted service (prompt token 1, output token 2) between two tenants while
    /// both had requests waiting.
    pub service_gap: f64,
    /// Sequences that gave their blocks back before their end.
    pub preemptions: u64,
    /// Cached blocks that were dropped.
    pub evicted_blocks: u64,
    /// Faults of policies.
    pub policy_faults: u64,
    /// The pool over time.
    pub samples: Vec<Sample>,
    /// Names everything that was decided: equal runs have equal ones.
    pub fingerprint: String,
}

/// Gathers what becomes an `Outcome`.
pub(crate) struct Recorder {
    itl: Histogram<u64>,
    latency: Histogram<u64>,
    queue: Histogram<u64>,
    ttft: Histogram<u64>,
    hits: Mean,
    misses: Mean,
    cached: Mean,
    prefilled: Mean,
    events: [u64; 5],
    with_block: u64,
    tenants: BTreeMap<u32, Tenant>,
    service: Service,
    slo: Slo,
    good: u64,
    promised: u64,
    kept: u64,
    samples: Vec<Sample>,
    every: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

struct Tenant {
    ttft: Histogram<u64>,
    finished: u64,
    refused: u64,
    prompt: u64,
    cached: u64,
    output: u64,
}

/// What a request found when it first started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub tenant: u32,
    pub prefix: PrefixEvent,
    pub cached: u32,
    pub prefill: u32,
    /// Whether its prompt fills a block at all.
    pub has_block: bool,
}

impl Recorder {
    pub fn new(slo: Slo) -> Self {
        Self {
            slo,
            good: 0,
            itl: histogram(),
            latency: histogram(),
            queue: histogram(),
            ttft: histogram(),
            hits: Mean::default(),
            misses: Mean::default(),
            cached: Mean::default(),
            prefilled: Mean::default(),
            events: [0; 5],
            with_block: 0,
            tenants: BTreeMap::new(),
            service: Service::default(),
            promised: 0,
            kept: 0,
            samples: Vec::new(),
            every: 1,
            outcome: Outcome::default(),
        }
    }

    pub fn arrived(&mut self, tenant: u32) {
        self.outcome.requests += 1;
        self.service.waits(tenant, 1);
    }

    pub fn refused(&mut self, tenant: u32, promised: bool) {
        self.outcome.refused += 1;
        self.promised += u64::from(promised);
        self.tenant(tenant).refused += 1;
        self.service.waits(tenant, -1);
    }

    pub fn failed(&mut self, tenant: u32, started: bool) {
        self.outcome.failed += 1;
        if !started {
            self.service.waits(tenant, -1);
        }
    }

    pub fn started(&mut self, start: Start) {
        self.service.waits(start.tenant, -1);
        self.service.serve(start.tenant, f64::from(start.prefill));
        let at = PrefixEvent::ALL.iter().position(|&event| event == start.prefix).expect("ALL holds all");
        self.events[at] += 1;
        self.with_block += u64::from(start.has_block);
        if start.cached > 0 {
            self.cached.add(f64::from(start.cached));
        }
        self.prefilled.add(f64::from(start.prefill));
        let tenant = self.tenant(start.tenant);
        tenant.prompt += u64::from(start.cached) + u64::from(start.prefill);
        tenant.cached += u64::from(start.cached);
    }

    pub fn token(&mut self, tenant: u32, gap: Option<Micros>) {
        self.service.serve(tenant, OUTPUT_WEIGHT);
        self.tenant(tenant).output += 1;
        if let Some(gap) = gap {
            record(&mut self.itl, gap);
        }
    }

    pub fn finished(&mut self, tenant: u32, arrived: Micros, deadline: Micros, usage: &Usage) {
        self.outcome.finished += 1;
        let ttft = usage.first_token.since(arrived);
        record(&mut self.ttft, ttft);
        record(&mut self.latency, usage.ended.since(arrived));
        record(&mut self.queue, usage.started.since(arrived));
        let gaps = usage.generated_tokens.saturating_sub(1).max(1);
        let itl_ms = millis(usage.ended.since(usage.first_token)) / f64::from(gaps);
        self.good += u64::from(millis(ttft) <= self.slo.ttft_ms && itl_ms <= self.slo.itl_ms);
        let by_hit = if usage.cached_tokens > 0 { &mut self.hits } else { &mut self.misses };
        by_hit.add(millis(ttft));
        if deadline != Micros::NEVER {
            self.promised += 1;
            self.kept += u64::from(usage.first_token <= deadline);
        }
        let tenant = self.tenant(tenant);
        tenant.finished += 1;
        record(&mut tenant.ttft, ttft);
    }

    /// Keeps every so many samples, so that a run of any length is drawn with about as many points.
    pub fn sample(&mut self, step: u64, sample: impl FnOnce() -> Sample) {
        if !step.is_multiple_of(self.every) {
            return;
        }
        self.samples.push(sample());
        if self.samples.len() >= 2 * SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.every *= 2;
        }
    }

    pub fn finish(mut self) -> Outcome {
        let mut outcome = self.outcome;
        let seconds = outcome.seconds.max(1e-9);
        let output: u64 = self.tenants.values().map(|tenant| tenant.output).sum();
        let prompt: u64 = self.tenants.values().map(|tenant| tenant.prompt).sum();
        outcome.output_per_second = count(output) / seconds;
        outcome.tokens_per_second = count(output + prompt) / seconds;
        outcome.goodput_per_second = count(self.good) / seconds;
        outcome.in_time = if self.promised == 0 { 1.0 } else { count(self.kept) / count(self.promised) };
        outcome.ttft_ms = durations(&self.ttft);
        outcome.ttft_quantiles_ms = quantiles(&self.ttft);
        outcome.itl_ms = durations(&self.itl);
        outcome.itl_quantiles_ms = quantiles(&self.itl);
        outcome.latency_ms = durations(&self.latency);
        outcome.latency_quantiles_ms = quantiles(&self.latency);
        outcome.queue_ms = durations(&self.queue);
        let rate = |kinds: &[PrefixEvent]| {
            let of = PrefixEvent::ALL.iter().zip(self.events).filter(|(event, _)| kinds.contains(event));
            of.map(|(_, requests)| count(requests)).sum::<f64>() / count(self.with_block).max(1.0)
        };
        use PrefixEvent::{ConversationalHit, CrossRequestHit, FullHitNoPrefillNeeded};
        outcome.cache = CacheOutcome {
            hit_rate: rate(&[ConversationalHit, CrossRequestHit, FullHitNoPrefillNeeded]),
            conversational_rate: rate(&[ConversationalHit]),
            cross_request_rate: rate(&[CrossRequestHit]),
            mean_cached: self.cached.get(),
            mean_prefilled: self.prefilled.get(),
            prefilled_ratio: self.prefilled.sum / count(prompt).max(1.0),
            hit_ttft_ms: self.hits.get(),
            miss_ttft_ms: self.misses.get(),
            events: self.events,
        };
        outcome.tenants = std::mem::take(&mut self.tenants)
            .into_iter()
            .map(|(tenant, state)| TenantOutcome {
                tenant,
                finished: state.finished,
                refused: state.refused,
                tokens: state.prompt + state.output,
                ttft_ms: durations(&state.ttft),
                cached_ratio: count(state.cached) / count(state.prompt).max(1.0),
            })
            .collect();
        outcome.service_gap = self.service.gap;
        outcome.samples = self.samples;
        outcome
    }

    fn tenant(&mut self, tenant: u32) -> &mut Tenant {
        self.tenants.entry(tenant).or_insert_with(|| Tenant {
            ttft: histogram(),
            finished: 0,
            refused: 0,
            prompt: 0,
            cached: 0,
            output: 0,
        })
    }
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(self) -> f64 {
        self.sum / count(self.count).max(1.0)
    }
}

/// How far apart the service of two tenants gets while both have something waiting.
#[derive(Debug, Default)]
struct Service {
    tenants: BTreeMap<u32, Served>,
    gap: f64,
}

#[derive(Debug, Default)]
struct Served {
    waiting: i64,
    total: f64,
    /// Per other tenant: the difference of totals when both began to wait.
    since: BTreeMap<u32, f64>,
}

impl Service {
    fn waits(&mut self, tenant: u32, change: i64) {
        let entry = self.tenants.entry(tenant).or_default();
        let before = entry.waiting > 0;
        entry.waiting += change;
        let after = entry.waiting > 0;
        if before == after {
            return;
        }
        let own = entry.total;
        entry.since.clear();
        let others: Vec<(u32, f64)> = self
            .tenants
            .iter()
            .filter(|(id, o)| **id != tenant && o.waiting > 0)
            .map(|(id, o)| (*id, o.total))
            .collect();
        for (other, total) in others {
            let pair = (tenant.min(other), tenant.max(other));
            let difference = if pair.0 == tenant { own - total } else { total - own };
            let first = self.tenants.get_mut(&pair.0).expect("both are known");
            if after {
                first.since.insert(pair.1, difference);
            } else {
                first.since.remove(&pair.1);
            }
        }
    }

    fn serve(&mut self, tenant: u32, amount: f64) {
        self.tenants.entry(tenant).or_default().total += amount;
        if self.tenants.len() < 2 {
            return;
        }
        let totals: Vec<(u32, f64)> = self.tenants.iter().map(|(id, o)| (*id, o.total)).collect();
        let total_of =
            |id: u32| totals.iter().find(|(other, _)| *other == id).map_or(0.0, |(_, total)| *total);
        for (id, served) in &self.tenants {
            for (other, start) in &served.since {
                if *id == tenant || *other == tenant {
                    self.gap = self.gap.max((served.total - total_of(*other) - start).abs());
                }
            }
        }
    }
}

/// Durations as they were measured, summed up as a run's are.
#[derive(Debug)]
pub struct Measured(Histogram<u64>);

impl Default for Measured {
    fn default() -> Self {
        Self(histogram())
    }
}

impl Measured {
    /// One more.
    pub fn add(&mut self, duration: Micros) {
        record(&mut self.0, duration);
    }

    /// All of them.
    pub fn durations(&self) -> Durations {
        durations(&self.0)
    }
}

fn histogram() -> Histogram<u64> {
    // Up to a day of microseconds.
    Histogram::new_with_bounds(1, 86_400_000_000, 3).expect("the bounds are valid")
}

fn record(histogram: &mut Histogram<u64>, duration: Micros) {
    histogram.saturating_record(duration.0.max(1));
}

fn durations(histogram: &Histogram<u64>) -> Durations {
    if histogram.is_empty() {
        return Durations::default();
    }
    let at = |quantile| millis(Micros(histogram.value_at_quantile(quantile)));
    Durations {
        mean: histogram.mean() / 1_000.0,
        p50: at(0.5),
        p95: at(0.95),
        p99: at(0.99),
        max: millis(Micros(histogram.max())),
    }
}

/// At 0, 1, .. 100 percent.
fn quantiles(histogram: &Histogram<u64>) -> Vec<f64> {
    let at = |percent| millis(Micros(histogram.value_at_quantile(f64::from(percent) / 100.0)));
    (0..=100).map(at).collect()
}

fn millis(duration: Micros) -> f64 {
    count(duration.0) / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_gap_counts_only_while_both_wait() {
        let mut service = Service::default();
        service.serve(1, 500.0);
        service.waits(1, 1);
        service.serve(1, 500.0);
        service.waits(2, 1);
        assert!(service.gap < 0.1, "tenant 2 had nothing waiting: {}", service.gap);
        service.serve(1, 30.0);
        service.serve(2, 100.0);
        assert!((service.gap - 70.0).abs() < 1e-9, "{}", service.gap);
        service.waits(2, -1);
        service.serve(1, 5_000.0);
        assert!((service.gap - 70.0).abs() < 1e-9, "{}", service.gap);
    }

    #[test]
    fn samples_stay_bounded_and_cover_the_run() {
        let mut recorder = Recorder::new(Slo::default());
        for step in 0..100_000 {
            recorder.sample(step, || Sample {
                at_s: count(step),
                used: 0,
                cached: 0,
                free: 0,
                running: 0,
                waiting: 0,
            });
        }
        assert!((SAMPLES..2 * SAMPLES).contains(&recorder.samples.len()));
        assert!(recorder.samples.last().unwrap().at_s > 99_000.0);
    }
}
