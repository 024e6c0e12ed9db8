//! Snapshots for consoles: the engine's report joined with what only the server knows.

use std::collections::BTreeMap;
use std::time::Duration;

use infer_api::admin::{
    CacheLengths, Counters, HostInfo, Latencies, MAX_ROWS, Memory, Offload, PolicySlot, PolicyState,
    Pressure, Queue, Rates, RequestRow, RowChange, ShadowInfo, State,
};
use infer_core::request::{RefusalReason, SequenceState};
use infer_core::snapshot::{self, RequestSnapshot, SlotSnapshot, Snapshot};
use infer_core::trial::{CanaryReport, CanaryState};
use infer_core::{FinishReason, Micros, PrefixEvent};
use infer_model::KvCacheKind;

use super::operators::Caller;
use super::tenants;
use crate::app::{App, Served};
use crate::engine::{self, EngineReport, EngineStopped, PrefixHits, RequestMeta};
use crate::http::ApiError;
use crate::metrics::percentile;
use crate::policies::tag;

/// What a response says that didn't wait longer.
const BUSY: &str = "the engine is in a long step; try again later";

/// Returns the engine's report after the current step. 503 if that takes longer than `Bounds::engine_patience`.
pub async fn report(app: &App, served: &Served) -> Result<Box<EngineReport>, ApiError> {
    report_within(served, app.config.bounds.engine_patience).await
}

/// Returns the engine's report after the current step, or 503 after `patience`.
pub async fn report_within(served: &Served, patience: Duration) -> Result<Box<EngineReport>, ApiError> {
    within(patience, served.engine.report(), BUSY).await
}

/// Returns what the engine says after the current step. 503 as for a `report`.
pub async fn asked<T>(
    app: &App,
    answer: impl Future<Output = Result<T, EngineStopped>>,
) -> Result<T, ApiError> {
    within(app.config.bounds.engine_patience, answer, BUSY).await
}

/// Returns what the engine says, or 503 with `message` after `patience`.
pub(super) async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, EngineStopped>>,
    message: &str,
) -> Result<T, ApiError> {
    let answer = tokio::time::timeout(patience, answer).await;
    answer.map_err(|_| ApiError::unavailable_here("busy", message))?.map_err(ApiError::from)
}

/// Returns the whole state, as a caller sees it.
pub async fn state(app: &App, caller: &Caller) -> Result<State, ApiError> {
    let served = app.served()?;
    let report = report(app, served).await?;
    let rows = report.snapshot.requests.iter().zip(&report.metas).take(MAX_ROWS);
    let requests = rows.map(|(row, meta)| request_row(row, meta, report.at).listed()).collect();
    Ok(State { operator: Some(caller.info()), requests, ..numbers(app, served, &report) })
}

/// Returns the state without its requests and without who asked.
pub fn numbers(app: &App, served: &Served, report: &EngineReport) -> State {
    let EngineReport { snapshot, step_us, prefix_hits, at, .. } = report;
    let at = *at;
    let (tenants, tenants_total) = tenants::rows(&app.tenants, &snapshot.tenants);
    State {
        host: HostInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run: served.run(),
            started_unix_s: app.clock.started_unix_s(),
            model: served.model_names[0].clone(),
            dtype: served.weights.clone(),
            device: served.device.clone(),
            kv_cache: match app.config.kv_cache {
                KvCacheKind::Paged => "paged",
                KvCacheKind::Contiguous => "contiguous",
            }
            .to_owned(),
            data_plane: app.data_url.clone(),
            policy_interface: infer_wasm::INTERFACE.to_owned(),
        },
        operator: None,
        uptime_ms: app.clock.ms(at),
        draining: app.is_draining(),
        step: snapshot.step,
        memory: Memory {
            block_size: snapshot.memory.block_size,
            total: snapshot.memory.total,
            free: snapshot.memory.free,
            cached: snapshot.memory.cached,
            used: snapshot.memory.used,
            block_bytes: served.block_bytes,
        },
        offload: offload(snapshot),
        queue: Queue {
            waiting: snapshot.queue.waiting,
            held: snapshot.queue.held,
            running: snapshot.queue.running,
            preempted: snapshot.queue.preempted,
        },
        rates: rates(app, snapshot),
        latencies: latencies(app, step_us),
        pressure: pressure(app, served, snapshot),
        counters: counters(app, served, &snapshot.counters),
        cache_events: cache_events(&snapshot.counters),
        cache_lengths: cache_lengths(&snapshot.counters, prefix_hits),
        policies: slots(served, snapshot, at),
        policy_state: served.policies.keeper().map(|keeper| {
            let error = keeper.error();
            let (not_restored, restored) = (keeper.not_restored(), keeper.restored());
            PolicyState { saved: error.is_none(), error, not_restored, restored }
        }),
        tenants,
        tenants_total,
        requests_total: snapshot.requests.len() as u32,
        requests: Vec::new(),
    }
}

/// Returns the three slots.
pub fn slots(served: &Served, snapshot: &Snapshot, at: Micros) -> Vec<PolicySlot> {
    snapshot.policies.iter().map(|slot| policy_slot(served, slot, at)).collect()
}

fn policy_slot(served: &Served, slot: &SlotSnapshot, at: Micros) -> PolicySlot {
    let info = &slot.policy;
    let observer = served.engine.observer();
    let previous = served.policies.before(slot);
    let canary = slot.canary.as_ref().filter(|canary| left(canary, slot));
    let state = match slot {
        SlotSnapshot { fallback: true, .. } => "fallback",
        SlotSnapshot { trial: true, .. } => "canary",
        _ => "live",
    };
    PolicySlot {
        kind: slot.kind.name().to_owned(),
        name: info.name.clone(),
        version: info.version.clone(),
        description: info.description.clone(),
        sha256: info.digest.clone(),
        state: state.to_owned(),
        calls: slot.stats.calls,
        p50_us: slot.stats.p50_us,
        p99_us: slot.stats.p99_us,
        gauges: engine::gauges(&slot.gauges),
        faults: slot.faults,
        fallbacks: slot.fallbacks,
        since_ms: at.since(slot.since).0 / 1_000,
        previous: previous.as_ref().map(|info| info.name.clone()),
        previous_config_sha256: previous.map(|info| info.config_digest.clone()).unwrap_or_default(),
        last_fault: slot.last_fault.as_ref().map(|fault| observer.fault_info(fault)),
        config_schema: served.policies.schema_of(slot.kind, info),
        config: served.policies.config_of(slot.kind, info),
        config_sha256: info.config_digest.clone(),
        tag: tag(info),
        shadow: shadow(served, slot),
        canary: canary.map(|canary| engine::canary_info(served.engine.clock(), canary)),
    }
}

/// Whether a slot runs what a canary's trial left it with; later policies have nothing to do with its verdict.
fn left(canary: &CanaryReport, slot: &SlotSnapshot) -> bool {
    match canary.state {
        CanaryState::Watching => true,
        CanaryState::Promoted => slot.policy == canary.policy && slot.since == canary.since,
        CanaryState::RolledBack => slot.policy == canary.previous && slot.since == canary.ended,
    }
}

/// Returns the report of a slot's shadow, or of its last one.
pub fn shadow(served: &Served, slot: &SlotSnapshot) -> Option<ShadowInfo> {
    let report = slot.shadow.as_ref()?;
    let fault = report.fault.as_ref().map(|fault| served.engine.observer().fault_info(fault));
    Some(engine::shadow_info(served.engine.clock(), report, tag(&report.policy), fault))
}

/// Returns a request with all its fields.
pub fn request_row(row: &RequestSnapshot, meta: &RequestMeta, at: Micros) -> RequestRow {
    let age_ms = at.since(row.arrived).0 / 1_000;
    let moving = row_change(row, at);
    let RequestMeta { request_id, first, tenant, session, user, metadata, adapter } = meta.clone();
    RequestRow {
        id: row.id.0,
        first_id: first.get().map(|first| first.0),
        request_id,
        tenant: row.tenant.0,
        tenant_name: tenant,
        session,
        user,
        metadata,
        adapter: adapter.map(|adapter| adapter.name().to_owned()),
        priority: row.priority,
        state: moving.state,
        prompt_tokens: row.prompt_tokens,
        cached_tokens: row.cached_tokens,
        computed_tokens: row.computed_tokens,
        generated_tokens: row.generated_tokens,
        max_tokens: row.max_new_tokens,
        blocks: row.blocks,
        preemptions: row.preemptions,
        age_ms,
        queue_ms: moving.queue_ms,
        ttft_ms: moving.ttft_ms,
        started: moving.started,
    }
}

/// Returns the fields of a request that change.
pub fn row_change(row: &RequestSnapshot, at: Micros) -> RowChange {
    let after_arrival = |then: Micros| (then != Micros::NEVER).then(|| then.since(row.arrived).0 / 1_000);
    let started = after_arrival(row.started);
    RowChange {
        id: row.id.0,
        state: state_name(row.state).to_owned(),
        cached_tokens: row.cached_tokens,
        computed_tokens: row.computed_tokens,
        generated_tokens: row.generated_tokens,
        blocks: row.blocks,
        preemptions: row.preemptions,
        queue_ms: started.unwrap_or(at.since(row.arrived).0 / 1_000),
        ttft_ms: after_arrival(row.first_token),
        started: started.is_some(),
    }
}

fn state_name(state: SequenceState) -> &'static str {
    match state {
        SequenceState::Held => "held",
        SequenceState::Waiting => "waiting",
        SequenceState::Preempted => "preempted",
        SequenceState::Prefill => "prefill",
        SequenceState::Decode => "decode",
        SequenceState::Finished => "finished",
        SequenceState::Failed => "failed",
    }
}

/// Returns the growth of the counters per second, over the last seconds.
pub fn rates(app: &App, snapshot: &Snapshot) -> Rates {
    let c = &snapshot.counters;
    let ended: u64 = c.finished.iter().sum::<u64>() + c.failed;
    let [prompt_tokens, generated_tokens, requests, steps] =
        app.recorder.rates.note([c.prompt_tokens, c.generated_tokens, ended, snapshot.step]);
    Rates { prompt_tokens, generated_tokens, requests, steps }
}

fn latencies(app: &App, step_us: &[u32]) -> Latencies {
    let windows = &app.recorder.windows;
    let (ttft_p50_ms, ttft_p99_ms) = windows.ttft.p50_p99();
    let (itl_p50_ms, itl_p99_ms) = windows.itl.p50_p99();
    let (e2e_p50_ms, e2e_p99_ms) = windows.e2e.p50_p99();
    let (queue_p50_ms, queue_p99_ms) = windows.queue.p50_p99();
    let mut steps: Vec<f32> = step_us.iter().map(|&us| us as f32 / 1e3).collect();
    steps.sort_by(f32::total_cmp);
    Latencies {
        ttft_p50_ms,
        ttft_p99_ms,
        itl_p50_ms,
        itl_p99_ms,
        e2e_p50_ms,
        e2e_p99_ms,
        queue_p50_ms,
        queue_p99_ms,
        step_p50_ms: percentile(&steps, 50),
        step_p99_ms: percentile(&steps, 99),
    }
}

fn pressure(app: &App, served: &Served, snapshot: &Snapshot) -> Pressure {
    let p = &snapshot.pressure;
    let q = &snapshot.queue;
    Pressure {
        level: f64::from(p.level_permille) / 1_000.0,
        backpressure: p.backpressure,
        reserved_blocks: p.reserved_blocks,
        available_blocks: p.available_blocks,
        allocated_blocks: snapshot.memory.used,
        // The pool may hold a longer sequence than a request may have.
        max_sequence_tokens: p.max_sequence_tokens.min(served.max_seq_len),
        active_sequences: q.running,
        max_sequences: app.config.max_batch_size,
    }
}

fn offload(snapshot: &Snapshot) -> Option<Offload> {
    let (counts, c) = (snapshot.offload, &snapshot.counters);
    let failed = c.offload_failures > 0;
    (failed || counts.total > 0).then_some(Offload {
        total: counts.total,
        used: counts.used,
        blocks_out: c.offloaded_blocks,
        blocks_in: c.onloaded_blocks,
        failed,
    })
}

fn counters(app: &App, served: &Served, c: &snapshot::Counters) -> Counters {
    // The engine never sees requests that were refused before it; the sums include them.
    let (queue_full, draining) = (served.engine.refused_at_the_door(), app.turned_away());
    let (busy, rate) = (served.engine.refused_while_busy(), app.beyond_rates());
    let refused = RefusalReason::ALL
        .into_iter()
        .map(|reason| {
            let here = match reason {
                RefusalReason::QueueFull => queue_full,
                RefusalReason::Draining => draining,
                RefusalReason::Rate => rate,
                _ => 0,
            };
            (reason.name().to_owned(), c.refused[snapshot::Counters::refusal_index(reason)] + here)
        })
        .chain([("busy".to_owned(), busy)])
        .collect();
    let finished = FinishReason::ALL
        .into_iter()
        .map(|reason| (reason.name().to_owned(), c.finished[snapshot::Counters::finish_index(reason)]))
        .collect();
    Counters {
        steps: c.steps,
        submitted: c.submitted + queue_full + draining + busy + rate,
        refused,
        finished,
        failed: c.failed,
        preemptions: c.preemptions,
        prompt_tokens: c.prompt_tokens,
        generated_tokens: c.generated_tokens,
        computed_tokens: c.computed_tokens,
        drafted_tokens: c.drafted_tokens,
        accepted_tokens: c.accepted_tokens,
        prefix_queries: c.prefix_queries,
        prefix_hits: c.prefix_hits,
        evicted_blocks: c.evicted_blocks,
        cut_rows: c.cut_rows,
        device_faults: c.device_faults,
    }
}

fn cache_lengths(c: &snapshot::Counters, hits: &PrefixHits) -> BTreeMap<String, CacheLengths> {
    let lengths = |at: usize| CacheLengths {
        eligible_requests: c.prefix_eligible[at],
        cached_tokens: c.prefix_cached_tokens[at],
        prefilled_tokens: c.prefix_prefilled_tokens[at],
        hit_requests: hits.requests[at],
        hit_tokens: hits.tokens[at],
    };
    PrefixEvent::ALL.iter().enumerate().map(|(at, event)| (event.name().to_owned(), lengths(at))).collect()
}

fn cache_events(c: &snapshot::Counters) -> BTreeMap<String, u64> {
    PrefixEvent::ALL.iter().zip(c.prefix_events).map(|(e, n)| (e.name().to_owned(), n)).collect()
}
