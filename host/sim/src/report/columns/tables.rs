//! The columns of each table.

use super::{Better, Column, Row, column};
use crate::metrics::{Outcome, TenantOutcome, count, present};
use crate::search::Found;

/// A table of runs.
pub(in crate::report) struct Table {
    pub title: &'static str,
    /// What a page says before it.
    pub about: Option<&'static str>,
    pub columns: &'static [Column<Outcome>],
    /// Whether a run has anything to show in it.
    has: fn(&Outcome) -> bool,
}

/// All of them.
pub(in crate::report) static TABLES: [Table; 4] = [
    Table { title: "speed", about: None, columns: &SPEED, has: |_| true },
    Table { title: "latency", about: None, columns: &LATENCY, has: |_| true },
    Table { title: "memory", about: None, columns: &MEMORY, has: |_| true },
    Table {
        title: "prefix cache",
        about: Some("Prefix cache; hits are counted among prompts with at least one full block:"),
        columns: &CACHE,
        has: |outcome| outcome.cache.mean_cached.is_some(),
    },
];

/// Those in which any of these runs has something to show.
pub(in crate::report) fn tables_of(rows: &[Row<'_, Outcome>]) -> impl Iterator<Item = &'static Table> {
    let has =
        move |table: &&Table| rows.iter().any(|row| row.results.iter().flatten().any(|run| (table.has)(run)));
    TABLES.iter().filter(has)
}

pub(super) const SPEED: [Column<Outcome>; 10] = [
    column("run s", 1, |o| Some(o.seconds), Better::Neither),
    column("out tok/s", 0, |o| Some(o.output_per_second), Better::More),
    column("goodput/s", 2, |o| Some(o.goodput_per_second), Better::More),
    column("in time %", 1, |o| percent(o.in_time), Better::More),
    column("queue mean", 0, |o| present(o.queue_ms.mean), Better::Less),
    column("ttft mean", 0, |o| present(o.ttft_ms.mean), Better::Less),
    column("ttft p50", 0, |o| present(o.ttft_ms.p50), Better::Less),
    column("ttft p95", 0, |o| present(o.ttft_ms.p95), Better::Less),
    column("ttft p99", 0, |o| present(o.ttft_ms.p99), Better::Less),
    column("ttft p99.9", 0, |o| present(o.ttft_ms.p999), Better::Less),
];

pub(super) const LATENCY: [Column<Outcome>; 13] = [
    column("itl p50", 1, |o| present(o.itl_ms.p50), Better::Less),
    column("itl p95", 1, |o| present(o.itl_ms.p95), Better::Less),
    column("itl p99", 1, |o| present(o.itl_ms.p99), Better::Less),
    column("itl p99.9", 1, |o| present(o.itl_ms.p999), Better::Less),
    column("tpot p50", 1, |o| present(o.tpot_ms.p50), Better::Less),
    column("tpot p95", 1, |o| present(o.tpot_ms.p95), Better::Less),
    column("tpot p99", 1, |o| present(o.tpot_ms.p99), Better::Less),
    column("tpot p99.9", 1, |o| present(o.tpot_ms.p999), Better::Less),
    column("latency mean", 0, |o| present(o.latency_ms.mean), Better::Less),
    column("latency p50", 0, |o| present(o.latency_ms.p50), Better::Less),
    column("latency p95", 0, |o| present(o.latency_ms.p95), Better::Less),
    column("latency p99", 0, |o| present(o.latency_ms.p99), Better::Less),
    column("latency p99.9", 0, |o| present(o.latency_ms.p999), Better::Less),
];

/// Quantities of summaries alone: with them, lines of tables would be too long to compare.
pub(in crate::report) static MORE: [Column<Outcome>; 5] = [
    column("ttft p90", 0, |o| present(o.ttft_ms.p90), Better::Less),
    column("itl p90", 1, |o| present(o.itl_ms.p90), Better::Less),
    column("tpot mean", 1, |o| present(o.tpot_ms.mean), Better::Less),
    column("tpot p90", 1, |o| present(o.tpot_ms.p90), Better::Less),
    column("latency p90", 0, |o| present(o.latency_ms.p90), Better::Less),
];

/// Memory, and how evenly it was shared.
const MEMORY: [Column<Outcome>; 13] = [
    column("used %", 1, |o| percent(Some(o.pool.used_mean)), Better::Neither),
    column("used peak %", 1, |o| percent(Some(o.pool.used_peak)), Better::Neither),
    column("cached %", 1, |o| percent(Some(o.pool.cached_mean)), Better::Neither),
    column("cached peak %", 1, |o| percent(Some(o.pool.cached_peak)), Better::Neither),
    column("prefilled %", 1, |o| percent(o.cache.prefilled_ratio), Better::Less),
    column("evicted", 0, |o| Some(count(o.evicted_blocks)), Better::Neither),
    column("came back", 0, |o| Some(count(o.onloaded_blocks)), Better::Neither),
    column("preempted", 0, |o| Some(count(o.preemptions)), Better::Neither),
    column("refused", 0, |o| Some(count(o.refused)), Better::Neither),
    column("failed", 0, |o| Some(count(o.failed)), Better::Neither),
    column("service gap", 0, |o| Some(o.service_gap), Better::Less),
    column("jain service", 3, |o| o.fairness.service, Better::More),
    column("jain latency", 3, |o| o.fairness.latency, Better::More),
];

/// The prefix cache.
pub(super) const CACHE: [Column<Outcome>; 9] = [
    column("hits %", 1, |o| percent(Some(o.cache.hit_rate)), Better::More),
    column("conversational %", 1, |o| percent(Some(o.cache.conversational_rate)), Better::More),
    column("cross-request %", 1, |o| percent(Some(o.cache.cross_request_rate)), Better::More),
    column("full %", 1, |o| percent(Some(o.cache.full_rate)), Better::Neither),
    column("diverged %", 1, |o| percent(Some(o.cache.diverged_rate)), Better::Neither),
    column("cached tokens", 0, |o| o.cache.mean_cached, Better::More),
    column("prefilled tokens", 0, |o| o.cache.mean_prefilled, Better::Less),
    column("ttft hits", 0, |o| o.cache.hit_ttft_ms, Better::Less),
    column("ttft misses", 0, |o| o.cache.miss_ttft_ms, Better::Less),
];

/// The highest load that was sustained.
pub(in crate::report) const SUSTAINED: [Column<Found>; 10] = [
    column("requests/s", 2, |f| f.sustained.as_ref()?.offered_per_second, Better::More),
    column("load", 2, |f| Some(f.sustained.as_ref()?.load), Better::More),
    column("out tok/s", 0, |f| Some(f.outcome()?.output_per_second), Better::More),
    column("in targets %", 1, |f| percent(Some(f.outcome()?.targets.share())), Better::Neither),
    column("ttft p50", 0, |f| present(f.outcome()?.ttft_ms.p50), Better::Neither),
    column("ttft p99", 0, |f| present(f.outcome()?.ttft_ms.p99), Better::Neither),
    column("itl p50", 1, |f| present(f.outcome()?.itl_ms.p50), Better::Neither),
    column("itl p99", 1, |f| present(f.outcome()?.itl_ms.p99), Better::Neither),
    column("tpot p50", 1, |f| present(f.outcome()?.tpot_ms.p50), Better::Neither),
    column("tpot p99", 1, |f| present(f.outcome()?.tpot_ms.p99), Better::Neither),
];

/// One tenant's part of a run.
pub(in crate::report) const TENANT: [Column<TenantOutcome>; 19] = [
    column("finished", 0, |t| Some(count(t.finished)), Better::Neither),
    column("refused", 0, |t| Some(count(t.refused)), Better::Neither),
    column("out tok/s", 0, |t| Some(t.output_per_second), Better::Neither),
    column("ttft mean", 0, |t| present(t.ttft_ms.mean), Better::Neither),
    column("ttft p50", 0, |t| present(t.ttft_ms.p50), Better::Neither),
    column("ttft p95", 0, |t| present(t.ttft_ms.p95), Better::Neither),
    column("ttft p99", 0, |t| present(t.ttft_ms.p99), Better::Neither),
    column("cached %", 1, |t| percent(t.cached_ratio), Better::Neither),
    column("goodput/s", 2, |t| Some(t.goodput_per_second), Better::Neither),
    column("in targets %", 1, |t| percent(Some(t.goodput_share)), Better::Neither),
    column("in time %", 1, |t| percent(t.in_time), Better::Neither),
    column("queue mean", 0, |t| present(t.queue_ms.mean), Better::Neither),
    column("itl p50", 1, |t| present(t.itl_ms.p50), Better::Neither),
    column("itl p99", 1, |t| present(t.itl_ms.p99), Better::Neither),
    column("tpot p50", 1, |t| present(t.tpot_ms.p50), Better::Neither),
    column("tpot p99", 1, |t| present(t.tpot_ms.p99), Better::Neither),
    column("latency mean", 0, |t| present(t.latency_ms.mean), Better::Neither),
    column("latency p99", 0, |t| present(t.latency_ms.p99), Better::Neither),
    column("preempted", 0, |t| Some(count(t.preemptions)), Better::Neither),
];

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| 100.0 * share)
}
