//! The columns of runs and of the tenants in them.

use Read::{Both, Every, Run, Tenant};
use infer_core::event::PrefixEvent;
use infer_core::snapshot::Counters;

use super::super::field::{known, milli, percentile, share, time};
use crate::compare::Cell;
use crate::metrics::{FirstFault, Outcome, TenantOutcome};

/// Where a column's value comes from; rows of other kinds leave it empty.
pub(super) enum Read {
    /// Of every row.
    Every(fn(&Cell) -> String),
    /// Of a run.
    Run(fn(&Outcome) -> String),
    /// Of a run, and of a tenant in it.
    Both(fn(&Outcome) -> String, fn(&TenantOutcome) -> String),
    /// Of a tenant.
    Tenant(fn(&TenantOutcome) -> String),
}

/// What has the same name in a run and in a tenant.
macro_rules! both {
    ($one:ident => $value:expr) => {
        Both(|$one| $value, |$one| $value)
    };
}

/// Names are part of the interface: new columns come last, before those of what made a run.
pub(super) const COLUMNS: [(&str, Read); 104] = [
    ("workload", Every(|c| c.workload.clone())),
    ("load", Every(|c| c.load.to_string())),
    ("contender", Every(|c| c.contender.clone())),
    ("requests", both!(o => o.requests.to_string())),
    ("finished", both!(o => o.finished.to_string())),
    ("refused", both!(o => o.refused.to_string())),
    ("failed", both!(o => o.failed.to_string())),
    ("seconds", Run(|o| milli(o.seconds))),
    ("output_tokens_per_second", both!(o => milli(o.output_per_second))),
    ("goodput_per_second", both!(o => milli(o.goodput_per_second))),
    ("ttft_mean", both!(o => time(o.ttft_ms.mean))),
    ("ttft_p50", both!(o => percentile(o.ttft_ms.p50))),
    ("ttft_p95", both!(o => percentile(o.ttft_ms.p95))),
    ("ttft_p99", both!(o => percentile(o.ttft_ms.p99))),
    ("itl_p50", both!(o => percentile(o.itl_ms.p50))),
    ("itl_p95", both!(o => percentile(o.itl_ms.p95))),
    ("itl_p99", both!(o => percentile(o.itl_ms.p99))),
    ("latency_mean", both!(o => time(o.latency_ms.mean))),
    ("latency_p50", both!(o => percentile(o.latency_ms.p50))),
    ("latency_p99", both!(o => percentile(o.latency_ms.p99))),
    ("in_time", both!(o => known(o.in_time, 5))),
    ("hit_rate", Run(|o| share(o.cache.hit_rate))),
    ("conversational_rate", Run(|o| share(o.cache.conversational_rate))),
    ("cross_request_rate", Run(|o| share(o.cache.cross_request_rate))),
    ("mean_cached", Run(|o| known(o.cache.mean_cached, 1))),
    ("mean_prefilled", Run(|o| known(o.cache.mean_prefilled, 1))),
    (
        "prefilled_ratio",
        Both(|o| known(o.cache.prefilled_ratio, 5), |t| known(t.cached_ratio.map(|cached| 1.0 - cached), 5)),
    ),
    ("ttft_hit_mean", Run(|o| known(o.cache.hit_ttft_ms, 3))),
    ("ttft_miss_mean", Run(|o| known(o.cache.miss_ttft_ms, 3))),
    ("preemptions", both!(o => o.preemptions.to_string())),
    ("service_gap", Run(|o| known(Some(o.service_gap), 1))),
    ("policy_faults", Run(|o| o.policy_faults.to_string())),
    ("fingerprint", Run(|o| o.fingerprint.clone())),
    ("tenant", Tenant(|t| t.tenant.to_string())),
    ("seed", Every(|c| c.settings.seed.to_string())),
    ("device", Every(|c| c.settings.device.clone())),
    ("model", Every(|c| c.settings.model.clone().unwrap_or_default())),
    ("blocks", Every(|c| c.settings.blocks.to_string())),
    ("block_size", Every(|c| c.settings.block_size.to_string())),
    ("steps", Run(|o| o.steps.to_string())),
    ("tokens_per_second", Run(|o| milli(o.tokens_per_second))),
    ("latency_p95", both!(o => percentile(o.latency_ms.p95))),
    ("queue_mean", both!(o => time(o.queue_ms.mean))),
    ("queue_p95", both!(o => percentile(o.queue_ms.p95))),
    ("pool_used_mean", Run(|o| share(o.pool.used_mean))),
    ("pool_used_peak", Run(|o| share(o.pool.used_peak))),
    ("pool_cached_mean", Run(|o| share(o.pool.cached_mean))),
    ("pool_cached_peak", Run(|o| share(o.pool.cached_peak))),
    ("evicted_blocks", Run(|o| o.evicted_blocks.to_string())),
    ("CONVERSATIONAL_HIT", Run(|o| event(o, PrefixEvent::ConversationalHit))),
    ("CROSS_REQUEST_HIT", Run(|o| event(o, PrefixEvent::CrossRequestHit))),
    ("MISS_FULL", Run(|o| event(o, PrefixEvent::MissFull))),
    ("FULL_HIT_NO_PREFILL_NEEDED", Run(|o| event(o, PrefixEvent::FullHitNoPrefillNeeded))),
    (
        "CONVERSATIONAL_MISS_UNEXPECTED_PROMPT",
        Run(|o| event(o, PrefixEvent::ConversationalMissUnexpectedPrompt)),
    ),
    ("builtin_share", Run(|o| share(o.builtin_share))),
    ("fault_kind", Run(|o| fault(o, |fault| fault.kind.to_owned()))),
    ("fault_policy", Run(|o| fault(o, |fault| fault.policy.clone()))),
    ("fault_message", Run(|o| fault(o, |fault| fault.message.clone()))),
    ("fault_at", Run(|o| fault(o, |fault| milli(fault.at_s)))),
    ("error", Every(|c| c.outcome.as_ref().err().cloned().unwrap_or_default())),
    ("offered_per_second", Every(|c| known(c.offered_per_second, 3))),
    ("max_batch_size", Every(|c| c.settings.max_batch_size.to_string())),
    ("max_batch_tokens", Every(|c| c.settings.max_batch_tokens.to_string())),
    ("prefill_chunk", Every(|c| c.settings.prefill_chunk.to_string())),
    ("max_waiting_requests", Every(|c| c.settings.max_waiting_requests.to_string())),
    ("max_prefill_requests", Every(|c| c.settings.max_prefill_requests.to_string())),
    ("prefix_caching", Every(|c| c.settings.prefix_caching.to_string())),
    ("prompt_cache_entries", Every(|c| c.settings.prompt_cache_entries.to_string())),
    ("prompt_cache_ttl_s", Every(|c| c.settings.prompt_cache_ttl_s.to_string())),
    ("plan_ahead", Every(|c| c.settings.plan_ahead.to_string())),
    ("host_us", Every(|c| c.settings.host_us.to_string())),
    ("met_targets", both!(o => o.targets.met.to_string())),
    ("late", both!(o => o.targets.late.to_string())),
    ("slow", both!(o => o.targets.slow.to_string())),
    ("offload_blocks", Every(|c| c.settings.offload_blocks.to_string())),
    ("onloaded_blocks", Run(|o| o.onloaded_blocks.to_string())),
    ("offered_seconds", Run(|o| milli(o.offered_seconds))),
    ("goodput_share", both!(o => share(o.goodput_share))),
    ("ttft_min", both!(o => time(o.ttft_ms.min))),
    ("ttft_max", both!(o => time(o.ttft_ms.max))),
    ("itl_max", both!(o => time(o.itl_ms.max))),
    ("latency_max", both!(o => time(o.latency_ms.max))),
    ("queue_max", both!(o => time(o.queue_ms.max))),
    ("fairness_service", Run(|o| known(o.fairness.service, 5))),
    ("fairness_latency", Run(|o| known(o.fairness.latency, 5))),
    ("fairness_latency_per_token", Run(|o| known(o.fairness.latency_per_token, 5))),
    ("tenant_service", Tenant(|t| known(Some(t.service), 1))),
    ("tenant_latency_per_token", Tenant(|t| known(t.latency_per_token_ms, 3))),
    ("tenant_name", Tenant(|t| t.name.clone().unwrap_or_default())),
    ("ttft_p90", both!(o => percentile(o.ttft_ms.p90))),
    ("ttft_p999", both!(o => percentile(o.ttft_ms.p999))),
    ("itl_p90", both!(o => percentile(o.itl_ms.p90))),
    ("itl_p999", both!(o => percentile(o.itl_ms.p999))),
    ("tpot_mean", both!(o => time(o.tpot_ms.mean))),
    ("tpot_p50", both!(o => percentile(o.tpot_ms.p50))),
    ("tpot_p90", both!(o => percentile(o.tpot_ms.p90))),
    ("tpot_p95", both!(o => percentile(o.tpot_ms.p95))),
    ("tpot_p99", both!(o => percentile(o.tpot_ms.p99))),
    ("tpot_p999", both!(o => percentile(o.tpot_ms.p999))),
    ("tpot_max", both!(o => time(o.tpot_ms.max))),
    ("latency_p90", both!(o => percentile(o.latency_ms.p90))),
    ("latency_p999", both!(o => percentile(o.latency_ms.p999))),
    ("burstiness", Every(|c| c.burstiness.map_or_else(String::new, |burstiness| burstiness.to_string()))),
    ("predictions", Every(|c| c.settings.predictions.to_string())),
];

fn event(outcome: &Outcome, event: PrefixEvent) -> String {
    outcome.cache.events[Counters::prefix_index(event)].to_string()
}

fn fault(outcome: &Outcome, read: fn(&FirstFault) -> String) -> String {
    outcome.fault.as_ref().map_or_else(String::new, read)
}
