//! Collects the results of a run while it runs.

use std::collections::BTreeMap;

use infer_core::TenantTerms;
use infer_core::event::PrefixEvent;
use infer_core::ids::{Micros, TenantId};
use infer_core::request::Usage;
use infer_core::snapshot::Counters;

use super::durations::{Few, Measured, millis};
use super::faults::Faults;
use super::occupancy::Occupancy;
use super::samples::Samples;
use super::service::Service;
use super::{Attainment, CacheOutcome, Fairness, Outcome, Sample, Slo, TenantOutcome, count, present};

/// Weight of an output token relative to a prompt token in the service of a tenant, as in the virtual token counter
/// (Sheng et al., OSDI 2024).
const OUTPUT_WEIGHT: f64 = 2.0;

/// Collects an `Outcome`.
pub(crate) struct Recorder {
    itl: Measured,
    latency: Measured,
    queue: Measured,
    ttft: Measured,
    hit_ttft: Mean,
    miss_ttft: Mean,
    /// Cached tokens of hits.
    cached: Mean,
    prefilled: Mean,
    events: [u64; 5],
    with_block: [u64; 5],
    cached_tokens: [u64; 5],
    prefilled_tokens: [u64; 5],
    tenants: BTreeMap<u32, Tenant>,
    service: Service,
    slo: Slo,
    /// Prompt tokens of requests that have started since the report has begun.
    prompt: u64,
    /// Since when and until when its single requests and conversations began. Requests that pace the traffic by their
    /// ends count until then.
    offered: Option<(Micros, Micros)>,
    promised: u64,
    kept: u64,
    pub faults: Faults,
    pub occupancy: Occupancy,
    pub samples: Samples,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

/// Tenants whose latencies, times between tokens and times in the queue have percentiles; further ones have means and
/// extremes. Histograms of all would take too much memory.
const DETAILED: usize = 256;

#[derive(Default)]
struct Tenant {
    /// It is one of the first.
    is_detailed: bool,
    ttft: Few,
    latency: Few,
    itl: Few,
    queue: Few,
    latency_per_token_ms: Mean,
    targets: Attainment,
    promised: u64,
    kept: u64,
    preemptions: u64,
    /// Output tokens since the report has begun.
    drawn: u64,
    requests: u64,
    finished: u64,
    refused: u64,
    failed: u64,
    prompt: u64,
    cached: u64,
    output: u64,
}

/// Whose request it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub tenant: u32,
    /// It comes before or after the requests that are reported on.
    pub background: bool,
}

/// Prefix hit of a request when it first started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub origin: Origin,
    pub prefix: PrefixEvent,
    pub cached: u32,
    pub prefill: u32,
    /// Whether its prompt fills at least one block.
    pub has_block: bool,
}

impl Start {
    /// Whether the request is a hit; `None` if its prompt has no full block, which only the prompt cache can serve.
    pub fn is_hit(&self) -> Option<bool> {
        self.has_block.then_some(self.cached > 0)
    }
}

/// A request that has finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub origin: Origin,
    pub arrived: Micros,
    pub deadline: Micros,
    /// See `Start::is_hit`.
    pub is_hit: Option<bool>,
}

impl Recorder {
    /// `tenants`: what they are granted, of which their weights count; those of others are 1.
    pub fn new(slo: Slo, tenants: &[(TenantId, TenantTerms)]) -> Self {
        Self {
            slo,
            prompt: 0,
            offered: None,
            itl: Measured::default(),
            latency: Measured::default(),
            queue: Measured::default(),
            ttft: Measured::default(),
            hit_ttft: Mean::default(),
            miss_ttft: Mean::default(),
            cached: Mean::default(),
            prefilled: Mean::default(),
            events: [0; 5],
            with_block: [0; 5],
            cached_tokens: [0; 5],
            prefilled_tokens: [0; 5],
            tenants: BTreeMap::new(),
            service: Service::of(tenants),
            promised: 0,
            kept: 0,
            faults: Faults::default(),
            occupancy: Occupancy::default(),
            samples: Samples::default(),
            outcome: Outcome::default(),
        }
    }

    /// From the first request that is reported on, throughput counts the tokens of all requests.
    fn has_begun(&self) -> bool {
        self.outcome.requests > 0
    }

    /// `began`: its time of arrival, unless it continues a conversation beside which others begin.
    pub fn arrived(&mut self, origin: Origin, began: Option<Micros>) {
        self.service.waits(origin.tenant, 1);
        if origin.background {
            return;
        }
        if !self.has_begun() {
            self.service.begin();
        }
        if let Some(at) = began {
            self.lasts(at);
        }
        self.outcome.requests += 1;
        self.tenant(origin.tenant).requests += 1;
    }

    /// The traffic of the report is offered until `at` or longer.
    pub fn lasts(&mut self, at: Micros) {
        let (first, last) = self.offered.unwrap_or((at, at));
        self.offered = Some((first, last.max(at)));
    }

    pub fn refused(&mut self, origin: Origin, promised: bool) {
        self.service.waits(origin.tenant, -1);
        if origin.background {
            return;
        }
        self.outcome.refused += 1;
        self.promise(origin.tenant, promised.then_some(false));
        self.tenant(origin.tenant).refused += 1;
    }

    /// `in_time`: whether its first token came by the deadline, if it had one.
    pub fn failed(&mut self, origin: Origin, started: bool, in_time: Option<bool>) {
        if !started {
            self.service.waits(origin.tenant, -1);
        }
        if origin.background {
            return;
        }
        self.outcome.failed += 1;
        self.promise(origin.tenant, in_time);
        self.tenant(origin.tenant).failed += 1;
    }

    pub fn started(&mut self, start: Start) {
        let Origin { tenant, background } = start.origin;
        self.service.waits(tenant, -1);
        self.service.serve(tenant, f64::from(start.prefill));
        if self.has_begun() {
            self.prompt += u64::from(start.cached) + u64::from(start.prefill);
        }
        if background {
            return;
        }
        let at = Counters::prefix_index(start.prefix);
        self.events[at] += 1;
        self.with_block[at] += u64::from(start.has_block);
        self.cached_tokens[at] += u64::from(start.cached);
        self.prefilled_tokens[at] += u64::from(start.prefill);
        if start.is_hit() == Some(true) {
            self.cached.add(f64::from(start.cached));
        }
        self.prefilled.add(f64::from(start.prefill));
        let tenant = self.tenant(tenant);
        tenant.prompt += u64::from(start.cached) + u64::from(start.prefill);
        tenant.cached += u64::from(start.cached);
    }

    pub fn token(&mut self, origin: Origin, gap: Option<Micros>) {
        self.service.serve(origin.tenant, OUTPUT_WEIGHT);
        if !self.has_begun() {
            return;
        }
        let tenant = self.tenant(origin.tenant);
        tenant.drawn += 1;
        if origin.background {
            return;
        }
        tenant.output += 1;
        if let Some(gap) = gap {
            tenant.itl.take(gap, tenant.is_detailed);
            self.itl.add(gap);
        }
    }

    /// `origin`: whose request it was.
    pub fn preempted(&mut self, origin: Option<Origin>) {
        if !self.has_begun() {
            return;
        }
        self.outcome.preemptions += 1;
        if let Some(Origin { tenant, .. }) = origin {
            self.tenant(tenant).preemptions += 1;
        }
    }

    pub fn finished(&mut self, ended: &Ended, usage: &Usage) {
        let Ended { origin: Origin { tenant, background }, arrived, deadline, is_hit } = *ended;
        if background {
            return;
        }
        self.outcome.finished += 1;
        let ttft = usage.first_token.since(arrived);
        let (latency, queue) = (usage.ended.since(arrived), usage.started.since(arrived));
        self.ttft.add(ttft);
        self.latency.add(latency);
        self.queue.add(queue);
        let gaps = usage.generated_tokens.saturating_sub(1).max(1);
        let itl_ms = millis(usage.ended.since(usage.first_token)) / f64::from(gaps);
        let is_met = (millis(ttft) <= self.slo.ttft_ms, itl_ms <= self.slo.itl_ms);
        let judge = |targets: &mut Attainment| {
            *match is_met {
                (true, true) => &mut targets.met,
                (true, false) => &mut targets.slow,
                (false, _) => &mut targets.late,
            } += 1;
        };
        judge(&mut self.outcome.targets);
        match is_hit {
            Some(true) => self.hit_ttft.add(millis(ttft)),
            Some(false) => self.miss_ttft.add(millis(ttft)),
            None => {}
        }
        self.promise(tenant, in_time(usage, deadline));
        let tenant = self.tenant(tenant);
        tenant.finished += 1;
        judge(&mut tenant.targets);
        tenant.ttft.add(ttft);
        tenant.latency.take(latency, tenant.is_detailed);
        tenant.queue.take(queue, tenant.is_detailed);
        tenant.latency_per_token_ms.add(millis(latency) / f64::from(usage.generated_tokens.max(1)));
    }

    /// The results; `last` is the state at the end of the run.
    pub fn finish(mut self, last: Sample) -> Outcome {
        let mut outcome = self.outcome;
        let seconds = outcome.seconds.max(1e-9);
        let drawn: u64 = self.tenants.values().map(|tenant| tenant.drawn).sum();
        let prompt: u64 = self.tenants.values().map(|tenant| tenant.prompt).sum();
        outcome.output_per_second = count(drawn) / seconds;
        outcome.tokens_per_second = count(drawn + self.prompt) / seconds;
        // Traffic is offered at the rate at which it begins, however long the last requests take. A closed loop is
        // offered as fast as it is served.
        let offering = self.offered.map_or(0.0, |(first, last)| count(last.since(first).0) / 1e6);
        outcome.offered_seconds = if offering > 0.0 { offering } else { seconds };
        outcome.goodput_per_second = count(outcome.targets.met) / outcome.offered_seconds;
        outcome.targets.unserved = outcome.refused + outcome.failed;
        outcome.goodput_share = outcome.targets.share();
        outcome.in_time = (self.promised > 0).then(|| count(self.kept) / count(self.promised));
        outcome.ttft_ms = self.ttft.durations();
        outcome.ttft_quantiles_ms = self.ttft.quantiles();
        outcome.itl_ms = self.itl.durations();
        outcome.itl_quantiles_ms = self.itl.quantiles();
        outcome.latency_ms = self.latency.durations();
        outcome.latency_quantiles_ms = self.latency.quantiles();
        outcome.queue_ms = self.queue.durations();
        let with_block = count(self.with_block.iter().sum()).max(1.0);
        let rate = |kind| count(self.with_block[Counters::prefix_index(kind)]) / with_block;
        outcome.cache = CacheOutcome {
            hit_rate: count(self.cached.count) / with_block,
            conversational_rate: rate(PrefixEvent::ConversationalHit),
            cross_request_rate: rate(PrefixEvent::CrossRequestHit),
            full_rate: rate(PrefixEvent::FullHitNoPrefillNeeded),
            diverged_rate: rate(PrefixEvent::ConversationalMissUnexpectedPrompt),
            mean_cached: self.cached.get(),
            mean_prefilled: self.prefilled.get(),
            prefilled_ratio: (prompt > 0).then(|| self.prefilled.sum / count(prompt)),
            hit_ttft_ms: self.hit_ttft.get(),
            miss_ttft_ms: self.miss_ttft.get(),
            events: self.events,
            cached_tokens: self.cached_tokens,
            prefilled_tokens: self.prefilled_tokens,
        };
        outcome.pool = self.occupancy.shares();
        (outcome.policy_faults, outcome.fault) = (self.faults.number, self.faults.first);
        outcome.tenants = std::mem::take(&mut self.tenants)
            .into_iter()
            .map(|(tenant, state)| {
                let targets = Attainment { unserved: state.refused + state.failed, ..state.targets };
                TenantOutcome {
                    tenant,
                    requests: state.requests,
                    finished: state.finished,
                    refused: state.refused,
                    failed: state.failed,
                    tokens: state.prompt + state.output,
                    output_per_second: count(state.drawn) / seconds,
                    ttft_ms: state.ttft.durations(),
                    cached_ratio: (state.prompt > 0).then(|| count(state.cached) / count(state.prompt)),
                    name: None,
                    latency_ms: state.latency.durations(),
                    itl_ms: state.itl.durations(),
                    queue_ms: state.queue.durations(),
                    latency_per_token_ms: state.latency_per_token_ms.get(),
                    targets,
                    goodput_per_second: count(targets.met) / outcome.offered_seconds,
                    goodput_share: targets.share(),
                    in_time: (state.promised > 0).then(|| count(state.kept) / count(state.promised)),
                    preemptions: state.preemptions,
                    service: self.service.of_tenant(tenant),
                }
            })
            .collect();
        outcome.fairness = fairness(&outcome.tenants);
        outcome.service_gap = self.service.gap;
        outcome.samples = self.samples.end(last);
        outcome
    }

    /// A request has ended: whether its first token came by its deadline, if it had one.
    fn promise(&mut self, tenant: u32, in_time: Option<bool>) {
        let (promised, kept) = (u64::from(in_time.is_some()), u64::from(in_time == Some(true)));
        self.promised += promised;
        self.kept += kept;
        let tenant = self.tenant(tenant);
        tenant.promised += promised;
        tenant.kept += kept;
    }

    fn tenant(&mut self, tenant: u32) -> &mut Tenant {
        let is_detailed = self.tenants.len() < DETAILED;
        self.tenants.entry(tenant).or_insert_with(|| Tenant { is_detailed, ..Tenant::default() })
    }
}

/// How evenly the tenants with requests were treated.
fn fairness(tenants: &[TenantOutcome]) -> Fairness {
    let tenants = || tenants.iter().filter(|tenant| tenant.requests > 0);
    Fairness {
        service: jain(tenants().map(|tenant| tenant.service)),
        latency: jain(tenants().filter_map(|tenant| present(tenant.latency_ms.mean))),
        latency_per_token: jain(tenants().filter_map(|tenant| tenant.latency_per_token_ms)),
    }
}

/// Jain's index of several values; `None` if all are zero.
fn jain(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut number, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        number += 1.0;
        sum += value;
        squares += value * value;
    }
    (number > 1.0 && squares > 0.0).then(|| sum * sum / (number * squares))
}

/// Whether the first token came by `deadline`; `None` if there was none to keep.
pub(crate) fn in_time(usage: &Usage, deadline: Micros) -> Option<bool> {
    (deadline != Micros::NEVER).then_some(usage.first_token <= deadline)
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

    const ORIGIN: Origin = Origin { tenant: 0, background: false };

    #[test]
    fn hit_rates_only_count_prompts_with_a_full_block() {
        use PrefixEvent::{ConversationalHit, CrossRequestHit, FullHitNoPrefillNeeded, MissFull};
        let mut recorder = Recorder::new(Slo::default(), &[]);
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
            recorder.started(Start { origin: ORIGIN, prefix, cached, prefill, has_block });
        }
        let outcome = recorder.finish(Sample::default());
        let cache = &outcome.cache;
        let rates = [cache.hit_rate, cache.conversational_rate, cache.cross_request_rate, cache.full_rate];
        assert_eq!(rates, [0.75, 0.25, 0.25, 0.25]);
        assert_eq!(cache.events.iter().sum::<u64>(), 7);
        assert_eq!(
            (cache.cached_tokens, cache.prefilled_tokens),
            ([160, 320, 0, 82, 0], [40, 280, 609, 0, 0])
        );
    }

    #[test]
    fn hits_and_their_length_multiply_to_the_tokens_saved() {
        use PrefixEvent::{
            ConversationalMissUnexpectedPrompt, CrossRequestHit, FullHitNoPrefillNeeded, MissFull,
        };
        let mut recorder = Recorder::new(Slo::default(), &[]);
        for (prefix, cached, prefill, ttft_ms) in [
            (MissFull, 0, 600, 400),
            (CrossRequestHit, 320, 280, 60),
            // The prompt diverges after the instructions that it shares with others.
            (ConversationalMissUnexpectedPrompt, 80, 520, 100),
            (ConversationalMissUnexpectedPrompt, 0, 600, 200),
            // No full block: neither a hit nor a miss.
            (FullHitNoPrefillNeeded, 9, 0, 1),
        ] {
            let start = Start { origin: ORIGIN, prefix, cached, prefill, has_block: cached + prefill >= 16 };
            recorder.started(start);
            let ended =
                Ended { origin: ORIGIN, arrived: Micros(5), deadline: Micros::NEVER, is_hit: start.is_hit() };
            let first_token = Micros(5 + 1_000 * ttft_ms);
            recorder.finished(&ended, &Usage { first_token, ended: first_token, ..Usage::default() });
        }
        let cache = recorder.finish(Sample::default()).cache;
        let saved = cache.hit_rate * cache.mean_cached.unwrap() * 4.0;
        assert!((saved - 400.0).abs() < 1e-9, "{cache:?}");
        assert_eq!((cache.hit_ttft_ms, cache.miss_ttft_ms), (Some(80.0), Some(300.0)));
        assert_eq!((cache.hit_rate, cache.diverged_rate), (0.5, 0.5), "one of those that diverged hit");
    }

    #[test]
    fn run_in_which_nothing_started_has_no_times_and_no_ratios() {
        let mut recorder = Recorder::new(Slo::default(), &[]);
        recorder.arrived(Origin { tenant: 7, ..ORIGIN }, Some(Micros(1)));
        recorder.refused(Origin { tenant: 7, ..ORIGIN }, false);
        let outcome = recorder.finish(Sample::default());
        assert_eq!((outcome.tenants[0].cached_ratio, outcome.cache.prefilled_ratio), (None, None));
        assert_eq!((outcome.itl_quantiles_ms.len(), outcome.ttft_quantiles_ms.len()), (0, 0));
        let json = serde_json::to_value(&outcome).expect("JSON");
        for times in [&json["ttft_ms"], &json["itl_ms"], &json["queue_ms"], &json["tenants"][0]["ttft_ms"]] {
            assert!(
                times.as_object().is_some_and(|all| all.values().all(serde_json::Value::is_null)),
                "{times}"
            );
        }
    }

    #[test]
    fn service_before_the_report_makes_no_gap() {
        let gap = |before: u32| {
            let mut recorder = Recorder::new(Slo::default(), &[]);
            let others = |tenant| Origin { tenant, background: true };
            (1..=2).for_each(|tenant| (0..2).for_each(|_| recorder.arrived(others(tenant), None)));
            (0..before).for_each(|_| recorder.token(others(1), None));
            recorder.arrived(Origin { tenant: 1, ..ORIGIN }, Some(Micros(9)));
            (0..3).for_each(|_| recorder.token(others(2), None));
            recorder.finish(Sample::default()).service_gap
        };
        assert_eq!((gap(0), gap(700)), (6.0, 6.0));
    }

    #[test]
    fn goodput_has_its_denominators_beside_it() {
        let second = |s: u64| Micros(1 + 1_000_000 * s);
        let outcome = |arrivals: [u64; 4]| {
            let mut recorder = Recorder::new(Slo::default(), &[]);
            arrivals.into_iter().for_each(|s| recorder.arrived(ORIGIN, Some(second(s))));
            // One in time, one too late, one that fails and one that is refused.
            for ttft_ms in [100, 5_000] {
                let ended =
                    Ended { origin: ORIGIN, arrived: second(0), deadline: Micros::NEVER, is_hit: None };
                let first_token = second(0).plus(Micros(1_000 * ttft_ms));
                recorder.finished(&ended, &Usage { first_token, ended: first_token, ..Usage::default() });
            }
            recorder.failed(ORIGIN, true, None);
            recorder.refused(ORIGIN, false);
            recorder.outcome.seconds = 20.0;
            recorder.finish(Sample::default())
        };
        for (arrivals, offered_seconds) in [([0, 2, 3, 8], 8.0), ([7; 4], 20.0)] {
            let outcome = outcome(arrivals);
            assert_eq!((outcome.offered_seconds, outcome.goodput_share), (offered_seconds, 0.25));
            assert_eq!(outcome.goodput_per_second * outcome.offered_seconds, 1.0, "{arrivals:?}");
        }
    }

    #[test]
    fn tenants_have_results_of_their_own() {
        let slo = Slo { ttft_ms: 50.0, itl_ms: 10.0 };
        let weight = |weight_permille| TenantTerms { weight_permille, ..TenantTerms::default() };
        let mut recorder = Recorder::new(slo, &[(TenantId(2), weight(2_000))]);
        let ms = |ms: u64| Micros(1_000 * ms);
        // Per request: tenant, time of the first token, gap between its eleven tokens, deadline.
        for (tenant, ttft_ms, gap_ms, deadline) in [
            (1, 10, 5, ms(20)),
            (1, 40, 20, ms(20)),
            (1, 90, 5, Micros::NEVER),
            (2, 30, 5, ms(60)),
            (2, 30, 7, Micros::NEVER),
        ] {
            let origin = Origin { tenant, ..ORIGIN };
            recorder.arrived(origin, Some(Micros::ZERO));
            let prefix = PrefixEvent::MissFull;
            recorder.started(Start { origin, prefix, cached: 0, prefill: 78, has_block: true });
            recorder.token(origin, None);
            (0..10).for_each(|_| recorder.token(origin, Some(ms(gap_ms))));
            let usage = Usage {
                generated_tokens: 11,
                started: ms(1),
                first_token: ms(ttft_ms),
                ended: ms(ttft_ms + 10 * gap_ms),
                ..Usage::default()
            };
            recorder.finished(&Ended { origin, arrived: Micros::ZERO, deadline, is_hit: None }, &usage);
        }
        let other = Origin { tenant: 2, ..ORIGIN };
        recorder.arrived(other, Some(ms(4_000)));
        recorder.refused(other, true);
        recorder.preempted(Some(other));
        recorder.preempted(None);
        let outcome = recorder.finish(Sample::default());
        let [one, two] = &outcome.tenants[..] else { panic!("{:?}", outcome.tenants) };
        assert_eq!((one.targets.met, one.targets.slow, one.targets.late, one.targets.unserved), (1, 1, 1, 0));
        assert_eq!((two.targets.met, two.targets.unserved), (2, 1));
        assert_eq!(outcome.targets, Attainment { met: 3, slow: 1, late: 1, unserved: 1 }, "of all");
        assert_eq!((one.goodput_per_second, two.goodput_per_second), (0.25, 0.5), "within four seconds");
        assert_eq!((one.goodput_share, two.goodput_share), (1.0 / 3.0, 2.0 / 3.0));
        assert_eq!((one.in_time, two.in_time, outcome.in_time), (Some(0.5), Some(0.5), Some(0.5)));
        assert_eq!((two.preemptions, outcome.preemptions), (1, 2));
        assert!((one.latency_ms.mean - 440.0 / 3.0).abs() < 1e-9, "{:?}", one.latency_ms);
        assert_eq!((two.latency_ms.min, two.latency_ms.mean, two.latency_ms.max), (80.0, 90.0, 100.0));
        assert_eq!((two.itl_ms.mean, two.itl_ms.max, two.queue_ms.max), (6.0, 7.0, 1.0));
        assert!((5.0..5.01).contains(&one.itl_ms.p50), "{:?}", one.itl_ms);
        // 78 prompt tokens and 11 of output, twice as heavy, a request; the second tenant has twice the weight.
        assert_eq!((one.service, two.service), (300.0, 100.0));
        assert_eq!(outcome.fairness.service, Some(400.0 * 400.0 / (2.0 * 100_000.0)));
        let [slow, quick] = [440.0 / 3.0, 90.0];
        let index = (slow + quick) * (slow + quick) / (2.0 * (slow * slow + quick * quick));
        let near = |value: Option<f64>| value.is_some_and(|value: f64| (value - index).abs() < 1e-12);
        assert!(near(outcome.fairness.latency), "{:?}", outcome.fairness);
        assert!(near(outcome.fairness.latency_per_token), "all have as many tokens: {:?}", outcome.fairness);
    }

    #[test]
    fn fairness_takes_two_and_percentiles_have_a_bound() {
        let mut recorder = Recorder::new(Slo::default(), &[]);
        let many = u32::try_from(DETAILED).expect("a few") + 1;
        for tenant in 0..many {
            let origin = Origin { tenant, ..ORIGIN };
            recorder.arrived(origin, Some(Micros::ZERO));
            recorder.token(origin, Some(Micros(3_000)));
            recorder.token(origin, Some(Micros(5_000)));
        }
        let outcome = recorder.finish(Sample::default());
        assert_eq!(outcome.fairness.service, Some(1.0));
        assert_eq!(outcome.fairness.latency, None, "none finished");
        let itl = |tenant: u32| outcome.tenants[tenant as usize].itl_ms;
        let (first, last) = (itl(0), itl(many - 1));
        assert_eq!((first.mean, first.max), (4.0, 5.0));
        assert!((3.0..3.01).contains(&first.p50), "{first:?}");
        assert_eq!((last.mean, last.max, last.p50, last.p99), (4.0, 5.0, 0.0, 0.0));
        let mut alone = Recorder::new(Slo::default(), &[]);
        alone.arrived(ORIGIN, Some(Micros::ZERO));
        alone.token(ORIGIN, None);
        assert_eq!(alone.finish(Sample::default()).fairness, Fairness::default());
    }

    #[test]
    fn deadlines_are_judged_only_if_there_are_any() {
        let in_time = |deadlines: &[Micros]| {
            let mut recorder = Recorder::new(Slo::default(), &[]);
            for &deadline in deadlines {
                let ended = Ended { origin: ORIGIN, arrived: Micros(1), deadline, is_hit: None };
                recorder.finished(&ended, &Usage { first_token: Micros(50), ..Usage::default() });
            }
            recorder.finish(Sample::default()).in_time
        };
        assert_eq!(in_time(&[Micros::NEVER]), None);
        assert_eq!(in_time(&[Micros::NEVER, Micros(60), Micros(40)]), Some(0.5));
    }

    #[test]
    fn failed_requests_have_kept_their_deadline_or_not_like_others() {
        let mut recorder = Recorder::new(Slo::default(), &[]);
        for (first_token, deadline) in [(50, Micros(60)), (50, Micros(40)), (50, Micros::NEVER)] {
            let usage = Usage { first_token: Micros(first_token), ..Usage::default() };
            recorder.failed(ORIGIN, true, in_time(&usage, deadline));
        }
        let silent = Usage { first_token: Micros::NEVER, ..Usage::default() };
        recorder.failed(ORIGIN, false, in_time(&silent, Micros(60)));
        recorder.refused(ORIGIN, true);
        assert_eq!(recorder.finish(Sample::default()).in_time, Some(0.25), "one of four");
    }
}
