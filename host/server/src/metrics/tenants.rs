//! Metrics with a label per tenant.

use std::collections::BTreeMap;

use infer_core::Durations;
use infer_core::snapshot::TenantSnapshot;

use super::families::{Families, Kind};
use crate::app::App;
use crate::tenants::{Latencies, UsageSnapshot};

/// With what the names of all of them begin, and of no others.
pub const PREFIX: &str = "infer_tenant_";

/// Usage and latencies by tenant; `Tenants::usage` bounds the number of rows.
pub fn usage(f: &mut Families, app: &App) {
    let all = app.tenants.usage();
    let of = |tenant: &String| vec![("tenant", tenant.clone())];
    let mut family = |name, help, value: fn(&UsageSnapshot) -> u64| {
        let rows = all.iter().map(|(tenant, usage)| (of(tenant), value(usage) as f64));
        f.family(name, help, Kind::Counter, rows.collect());
    };
    family("infer_tenant_requests", "Requests of a tenant that ended and were not refused", |u| u.requests);
    family("infer_tenant_requests_refused", "Refused requests of a tenant", |u| u.refused);
    family("infer_tenant_requests_failed", "Admitted requests that ended with an error", |u| u.failed);
    family("infer_tenant_prompt_tokens", "Prompt tokens of a tenant's requests", |u| u.prompt_tokens);
    family(
        "infer_tenant_cached_tokens",
        "Prompt tokens of a tenant's requests found in the prefix cache",
        |u| u.cached_tokens,
    );
    family("infer_tenant_generated_tokens", "Tokens generated for a tenant", |u| u.generated_tokens);
    let mut times = |name, help, value: fn(&Latencies) -> Durations| {
        let begun = all.iter().filter(|(_, usage)| usage.latencies != Latencies::default());
        let rows = begun.map(|(tenant, usage)| (of(tenant), value(&usage.latencies)));
        f.histograms(name, help, rows.collect());
    };
    times("infer_tenant_time_to_first_token_seconds", "Submission to first token", |l| l.ttft);
    times("infer_tenant_inter_token_latency_seconds", "Time between two tokens of a stream", |l| l.itl);
    times("infer_tenant_request_queue_time_seconds", "Submission to first start", |l| l.queue);
}

/// Sequences by tenant, with the labels of `usage`.
pub fn queues(f: &mut Families, app: &App, all: &[TenantSnapshot]) {
    let mut family = |name, help, value: fn(&TenantSnapshot) -> u32| {
        let mut sums = BTreeMap::new();
        for tenant in all {
            *sums.entry(app.tenants.label(tenant.tenant)).or_default() += f64::from(value(tenant));
        }
        let rows = sums.into_iter().map(|(tenant, sum)| (vec![("tenant", tenant)], sum));
        f.family(name, help, Kind::Gauge, rows.collect());
    };
    family("infer_tenant_requests_running", "Sequences of a tenant that hold blocks", |t| t.running);
    family("infer_tenant_requests_waiting", "Sequences of a tenant that wait, held ones included", |t| {
        t.waiting
    });
}
