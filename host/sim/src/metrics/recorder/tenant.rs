//! One tenant's part of a run.

use infer_core::ids::Micros;
use infer_core::request::Usage;

use super::super::durations::{Few, millis};
use super::super::mean::Mean;
use super::super::{Attainment, TenantOutcome, count};
use super::{Promises, Start, time_per_output_token};

/// Collects a `TenantOutcome`.
#[derive(Default)]
pub(super) struct Tenant {
    is_detailed: bool,
    pub requests: u64,
    pub refused: u64,
    pub failed: u64,
    pub promises: Promises,
    pub preemptions: u64,
    /// Output tokens since the report has begun.
    pub drawn: u64,
    finished: u64,
    targets: Attainment,
    ttft: Few,
    latency: Few,
    itl: Few,
    tpot: Few,
    queue: Few,
    latency_per_token_ms: Mean,
    prompt: u64,
    cached: u64,
    output: u64,
}

/// What all tenants' rates are relative to.
#[derive(Clone, Copy)]
pub(super) struct Spans {
    pub seconds: f64,
    pub offered_seconds: f64,
}

impl Tenant {
    /// `is_detailed`: it is one of the first, whose times all have percentiles.
    pub fn new(is_detailed: bool) -> Self {
        Self { is_detailed, ..Self::default() }
    }

    pub fn started(&mut self, start: &Start) {
        self.prompt += u64::from(start.cached) + u64::from(start.prefill);
        self.cached += u64::from(start.cached);
    }

    pub fn token(&mut self, gap: Option<Micros>) {
        self.output += 1;
        if let Some(gap) = gap {
            self.itl.take(gap, self.is_detailed);
        }
    }

    /// `met`: its request, by whether it met the targets.
    pub fn finished(&mut self, arrived: Micros, usage: &Usage, met: Attainment) {
        let (latency, queue) = (usage.ended.since(arrived), usage.started.since(arrived));
        self.finished += 1;
        self.targets.add(met);
        self.ttft.add(usage.first_token.since(arrived));
        self.latency.take(latency, self.is_detailed);
        self.queue.take(queue, self.is_detailed);
        if let Some(tpot) = time_per_output_token(usage) {
            self.tpot.take(tpot, self.is_detailed);
        }
        self.latency_per_token_ms.add(millis(latency) / f64::from(usage.generated_tokens.max(1)));
    }

    /// `service`: weighted, see `TenantOutcome`.
    pub fn outcome(&self, tenant: u32, spans: Spans, service: f64) -> TenantOutcome {
        let targets = Attainment { unserved: self.refused + self.failed, ..self.targets };
        TenantOutcome {
            tenant,
            requests: self.requests,
            finished: self.finished,
            refused: self.refused,
            failed: self.failed,
            tokens: self.prompt + self.output,
            output_per_second: count(self.drawn) / spans.seconds,
            ttft_ms: self.ttft.durations(),
            cached_ratio: (self.prompt > 0).then(|| count(self.cached) / count(self.prompt)),
            name: None,
            latency_ms: self.latency.durations(),
            itl_ms: self.itl.durations(),
            tpot_ms: self.tpot.durations(),
            queue_ms: self.queue.durations(),
            latency_per_token_ms: self.latency_per_token_ms.get(),
            targets,
            goodput_per_second: count(targets.met) / spans.offered_seconds,
            goodput_share: targets.share(),
            in_time: self.promises.kept_share(),
            preemptions: self.preemptions,
            service,
        }
    }
}
