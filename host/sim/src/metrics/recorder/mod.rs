//! Collects the results of a run while it runs.

mod deadlines;
mod prefixes;
mod tenant;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use infer_core::TenantTerms;
use infer_core::event::PrefixEvent;
use infer_core::ids::{Micros, TenantId};
use infer_core::request::Usage;

use super::durations::{Measured, millis};
use super::fairness::fairness;
use super::faults::Faults;
use super::occupancy::Occupancy;
use super::samples::Samples;
use super::service::Service;
use super::{Outcome, Sample, Slo, count};
use deadlines::Promises;
pub(crate) use deadlines::in_time;
use prefixes::Prefixes;
use tenant::{Spans, Tenant};

/// Weight of an output token relative to a prompt token in the service of a tenant, as in the virtual token counter
/// (Sheng et al., OSDI 2024).
const OUTPUT_WEIGHT: f64 = 2.0;

/// Tenants whose times other than those to the first token have percentiles; further ones have means and extremes.
/// Histograms of all would take too much memory.
const DETAILED: usize = 256;

/// Collects an `Outcome`.
pub(crate) struct Recorder {
    itl: Measured,
    tpot: Measured,
    latency: Measured,
    queue: Measured,
    ttft: Measured,
    prefixes: Prefixes,
    tenants: BTreeMap<u32, Tenant>,
    service: Service,
    slo: Slo,
    /// Prompt tokens of requests that have started since the report has begun.
    prompt: u64,
    /// Since when and until when its single requests and conversations began. Requests that pace the traffic by their
    /// ends count until then.
    offered: Option<(Micros, Micros)>,
    promises: Promises,
    pub faults: Faults,
    pub occupancy: Occupancy,
    pub samples: Samples,
    pub outcome: Outcome,
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

/// A request's mean time per token after its first (TPOT), to the nearest microsecond; `None` of a single token.
pub(crate) fn time_per_output_token(usage: &Usage) -> Option<Micros> {
    let later = u64::from(usage.generated_tokens.checked_sub(1)?);
    let us = usage.ended.since(usage.first_token).0;
    (later > 0).then(|| Micros((us + later / 2) / later))
}

impl Recorder {
    /// `tenants`: what they are granted, of which their weights count; those of others are 1.
    pub fn new(slo: Slo, tenants: &[(TenantId, TenantTerms)]) -> Self {
        Self {
            itl: Measured::default(),
            tpot: Measured::default(),
            latency: Measured::default(),
            queue: Measured::default(),
            ttft: Measured::default(),
            prefixes: Prefixes::default(),
            tenants: BTreeMap::new(),
            service: Service::of(tenants),
            slo,
            prompt: 0,
            offered: None,
            promises: Promises::default(),
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
        self.prefixes.started(&start);
        self.tenant(tenant).started(&start);
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
        tenant.token(gap);
        if let Some(gap) = gap {
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
        self.ttft.add(ttft);
        self.latency.add(usage.ended.since(arrived));
        self.queue.add(usage.started.since(arrived));
        if let Some(tpot) = time_per_output_token(usage) {
            self.tpot.add(tpot);
        }
        let gaps = usage.generated_tokens.saturating_sub(1).max(1);
        let itl_ms = millis(usage.ended.since(usage.first_token)) / f64::from(gaps);
        let met = self.slo.judge(millis(ttft), itl_ms);
        self.outcome.targets.add(met);
        self.prefixes.finished(is_hit, ttft);
        self.promise(tenant, in_time(usage, deadline));
        self.tenant(tenant).finished(arrived, usage, met);
    }

    /// The results; `last` is the state at the end of the run.
    pub fn finish(self, last: Sample) -> Outcome {
        let mut outcome = self.outcome;
        let seconds = outcome.seconds.max(1e-9);
        let drawn: u64 = self.tenants.values().map(|tenant| tenant.drawn).sum();
        outcome.output_per_second = count(drawn) / seconds;
        outcome.tokens_per_second = count(drawn + self.prompt) / seconds;
        // Traffic is offered at the rate at which it begins, however long the last requests take. A closed loop is
        // offered as fast as it is served.
        let offering = self.offered.map_or(0.0, |(first, last)| count(last.since(first).0) / 1e6);
        outcome.offered_seconds = if offering > 0.0 { offering } else { seconds };
        outcome.goodput_per_second = count(outcome.targets.met) / outcome.offered_seconds;
        outcome.targets.unserved = outcome.refused + outcome.failed;
        outcome.goodput_share = outcome.targets.share();
        outcome.in_time = self.promises.kept_share();
        outcome.ttft_ms = self.ttft.durations();
        outcome.ttft_quantiles_ms = self.ttft.quantiles();
        outcome.itl_ms = self.itl.durations();
        outcome.itl_quantiles_ms = self.itl.quantiles();
        outcome.tpot_ms = self.tpot.durations();
        outcome.tpot_quantiles_ms = self.tpot.quantiles();
        outcome.latency_ms = self.latency.durations();
        outcome.latency_quantiles_ms = self.latency.quantiles();
        outcome.queue_ms = self.queue.durations();
        outcome.cache = self.prefixes.outcome();
        outcome.pool = self.occupancy.shares();
        (outcome.policy_faults, outcome.fault) = (self.faults.number, self.faults.first);
        let spans = Spans { seconds, offered_seconds: outcome.offered_seconds };
        let service = &self.service;
        let of = |(&tenant, state): (&u32, &Tenant)| state.outcome(tenant, spans, service.of_tenant(tenant));
        outcome.tenants = self.tenants.iter().map(of).collect();
        outcome.fairness = fairness(&outcome.tenants);
        outcome.service_gap = self.service.gap;
        outcome.samples = self.samples.end(last);
        outcome
    }

    /// A request has ended: whether its first token came by its deadline, if it had one.
    fn promise(&mut self, tenant: u32, in_time: Option<bool>) {
        self.promises.add(in_time);
        self.tenant(tenant).promises.add(in_time);
    }

    fn tenant(&mut self, tenant: u32) -> &mut Tenant {
        let is_detailed = self.tenants.len() < DETAILED;
        self.tenants.entry(tenant).or_insert_with(|| Tenant::new(is_detailed))
    }
}
