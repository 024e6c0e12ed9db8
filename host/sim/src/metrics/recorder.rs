//! Collects the results of a run while it runs.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use infer_core::event::PrefixEvent;
use infer_core::ids::Micros;
use infer_core::request::Usage;

use super::durations::{Few, durations, histogram, millis, quantiles, record};
use super::service::Service;
use super::{CacheOutcome, Outcome, Sample, Slo, TenantOutcome, count};

/// Samples kept per run; at twice as many, every other one is dropped.
const SAMPLES: usize = 240;
/// Weight of an output token relative to a prompt token in the service of a tenant, as in the virtual token counter
/// (Sheng et al., OSDI 2024).
const OUTPUT_WEIGHT: f64 = 2.0;

/// Collects an `Outcome`.
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
    with_block: [u64; 5],
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

#[derive(Default)]
struct Tenant {
    ttft: Few,
    finished: u64,
    refused: u64,
    prompt: u64,
    cached: u64,
    output: u64,
}

/// Prefix hit of a request when it first started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub tenant: u32,
    pub prefix: PrefixEvent,
    pub cached: u32,
    pub prefill: u32,
    /// Whether its prompt fills at least one block.
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
            with_block: [0; 5],
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
        self.with_block[at] += u64::from(start.has_block);
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
        tenant.ttft.add(ttft);
    }

    /// Keeps samples at a growing interval, so that their number is bounded for a run of any length.
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
            // The prompt cache also serves prompts without a full block; rates only count prompts that have one.
            let of = PrefixEvent::ALL.iter().zip(self.with_block).filter(|(event, _)| kinds.contains(event));
            let all: u64 = self.with_block.iter().sum();
            of.map(|(_, requests)| count(requests)).sum::<f64>() / count(all).max(1.0)
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
                ttft_ms: state.ttft.durations(),
                cached_ratio: count(state.cached) / count(state.prompt).max(1.0),
            })
            .collect();
        outcome.service_gap = self.service.gap;
        outcome.samples = self.samples;
        outcome
    }

    fn tenant(&mut self, tenant: u32) -> &mut Tenant {
        self.tenants.entry(tenant).or_default()
    }
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// The mean, or `None` without values.
    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / count(self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_rates_only_count_prompts_with_a_full_block() {
        use PrefixEvent::{ConversationalHit, CrossRequestHit, FullHitNoPrefillNeeded, MissFull};
        let mut recorder = Recorder::new(Slo::default());
        for (prefix, cached, prefill) in [
            (MissFull, 0, 9),
            (FullHitNoPrefillNeeded, 9, 0),
            (FullHitNoPrefillNeeded, 9, 0),
            (MissFull, 0, 600),
            (CrossRequestHit, 320, 280),
            (ConversationalHit, 160, 40),
            (FullHitNoPrefillNeeded, 64, 0),
        ] {
            let has_block = cached + prefill >= 16;
            recorder.started(Start { tenant: 0, prefix, cached, prefill, has_block });
        }
        let outcome = recorder.finish();
        let cache = &outcome.cache;
        let rates = [cache.hit_rate, cache.conversational_rate, cache.cross_request_rate];
        assert_eq!(rates, [0.75, 0.25, 0.25]);
        assert_eq!(cache.events.iter().sum::<u64>(), 7);
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
