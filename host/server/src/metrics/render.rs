//! `GET /metrics`: the engine's counters and the recorder's histograms, under our names and under vLLM's
//! names, which routers and dashboards already read. The format is OpenMetrics if the client accepts it, else
//! Prometheus' older one, for simpler scrapers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use hyper::header::ACCEPT;
use infer_api::admin::{CacheLengths, Offload, PolicySlot, State};
use infer_core::policy::{FaultKind, PolicyKind};
use infer_core::snapshot::TenantSnapshot;
use infer_core::trial::ShadowState;
use infer_core::{Change, Durations, FinishReason};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Mutex;

use super::calls::Calls;
use super::families::{Families, Kind, Labels};
use super::process::ProcessUsage;
use super::tenants;
use crate::admin;
use crate::app::{App, Health, ServedAdapter};
use crate::engine::Observer;
use crate::http::{self, Answer, ApiError};
use crate::startup::load::shares_blocks;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long a scrape waits for the current step. Scrapers give up after ten seconds and two scrapes may
/// follow each other; and metrics are needed most when the device is stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who reads metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Whoever reaches the data plane: without the metrics of single tenants, unless the configuration shows them.
    Anyone,
    /// Who has a token of the admin plane.
    Operator,
}

/// All metrics that a reader may see. While the model loads, or after the engine has stopped, only the host's own are
/// there; during a long step the engine's are those of the last scrape, with `infer_state_age_seconds`.
pub async fn render(app: &App, headers: &HeaderMap, reader: Reader) -> Answer {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let open_metrics = accepts.into_iter().any(|v| v.contains("application/openmetrics-text"));
    let all = app.scrapes.text(app).await;
    let text = match reader {
        Reader::Anyone if !app.config.shows_tenants() => without_tenants(&all),
        Reader::Anyone | Reader::Operator => all.to_string(),
    };
    match open_metrics {
        true => http::text(OPEN_METRICS, text),
        false => http::text(PROMETHEUS, older(&text)),
    }
}

/// Scrapes need no key, and each makes the engine report between two steps. So only one runs at a time, and
/// clients that ask meanwhile share the next one.
#[derive(Debug, Default)]
pub struct Scrapes {
    begun: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// Number of the scrape that made the text.
    number: u64,
    text: Arc<str>,
    /// The engine's last report.
    report: Option<Report>,
    calls: Calls,
}

/// A report of the engine, as far as metrics show it.
#[derive(Debug)]
struct Report {
    asked: Instant,
    state: State,
    /// Device times of all steps.
    steps: Durations,
    /// Durations of the live policies' calls.
    calls: Vec<(Labels, Durations)>,
    tenants: Vec<TenantSnapshot>,
}

impl Report {
    async fn ask(app: &App, calls: &mut Calls) -> Result<Self, ApiError> {
        let asked = Instant::now();
        let served = app.served()?;
        let report = admin::report_within(served, PATIENCE).await?;
        Ok(Self {
            asked,
            state: admin::numbers(app, served, &report),
            steps: report.steps,
            calls: calls.add(&report.snapshot.policies),
            tenants: report.snapshot.tenants,
        })
    }
}

impl Scrapes {
    /// The text of a scrape that begins now or later.
    async fn text(&self, app: &App) -> Arc<str> {
        let before = self.begun.load(Ordering::Acquire);
        let mut last = self.last.lock().await;
        if last.number <= before {
            let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
            match Report::ask(app, &mut last.calls).await {
                Ok(report) => last.report = Some(report),
                Err(_) if app.served().is_ok_and(|served| served.engine.is_alive()) => {}
                Err(_) => last.report = None,
            }
            last.text = open_metrics_text(app, last.report.as_ref()).into();
            last.number = number;
        }
        Arc::clone(&last.text)
    }
}

/// Leaves out the metrics of single tenants.
fn without_tenants(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let about = ["# HELP ", "# TYPE ", "# UNIT "].iter().find_map(|mark| line.strip_prefix(mark));
        if !about.unwrap_or(line).starts_with(tenants::PREFIX) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Converts to the older format: a counter has the name of its samples, and there is no end mark.
fn older(text: &str) -> String {
    let mut counters: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.push(name);
        }
    }
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|&line| line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(&name) => {
                out.push_str(&format!("# {what} {name}_total {rest}\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

fn open_metrics_text(app: &App, report: Option<&Report>) -> String {
    let mut families = Families::default();
    let health = app.served().map(|served| served.health(app.config.bounds.step_timeout));
    let ready = !app.is_draining() && matches!(health, Ok(Health::Working));
    families.gauge("infer_ready", "1 while new requests are accepted", u8::from(ready).into());
    if app.config.cache_file.is_some() {
        families.gauge(
            "infer_cache_file_saving",
            "1 while the prefix cache is saved, at the end (--cache-file)",
            u8::from(app.is_saving()).into(),
        );
    }
    if let Some(keeper) = app.served().ok().and_then(|served| served.policies.keeper()) {
        families.gauge(
            "infer_policy_state_saved",
            "1 while swaps and the quarantine would outlive the host (--policy-state)",
            u8::from(keeper.error().is_none()).into(),
        );
    }
    process(&mut families, app);
    tenants::usage(&mut families, app);
    adapters(&mut families, app);
    if let (Some(report), Ok(served)) = (report, app.served()) {
        let Report { asked, state, steps, calls, tenants } = report;
        families.gauge(
            "infer_state_age_seconds",
            "Age of the engine's metrics, which can't be updated during a step",
            asked.elapsed().as_secs_f64(),
        );
        own(&mut families, state);
        tenants::queues(&mut families, app, tenants);
        families.histograms("infer_step_seconds", "Device time of a step", vec![(Vec::new(), *steps)]);
        policies(&mut families, state, served.engine.observer());
        families.histograms(
            "infer_policy_call_seconds",
            "Time of a call of the live policy; in a list each member's calls are its own",
            calls.clone(),
        );
        let config = CacheConfig {
            block_size: served.block_size,
            total_blocks: served.total_blocks,
            prefix_caching: shares_blocks(&app.config),
        };
        aliases(&mut families, state, &config);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(families));
    histograms(&mut registry, app);
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string can't fail");
    out
}

fn histograms(registry: &mut Registry, app: &App) {
    let r = &app.recorder;
    let model = app.served().map_or_else(|_| String::new(), |served| served.model_names[0].clone());
    registry.register("infer_http_answers", "Responses of the data plane", r.answers.clone());
    registry.register("infer_request_errors", "Admitted requests that ended with an error", r.errors.clone());
    let all = [
        ("time_to_first_token_seconds", "Submission to first token", &r.ttft),
        ("inter_token_latency_seconds", "Time between two tokens of a stream", &r.itl),
        ("e2e_request_latency_seconds", "Submission to end", &r.e2e),
        ("request_queue_time_seconds", "Submission to first start", &r.queue),
    ];
    for (name, help, histogram) in all {
        registry.register(format!("infer_{name}"), help, histogram.clone());
    }
    for (name, help, histogram) in [
        ("prefill_time_seconds", "First start to first token", &r.prefill),
        ("decode_time_seconds", "First token to end", &r.decode),
    ] {
        registry.register(format!("infer_{name}"), help, histogram.clone());
    }
    registry.register(
        "infer_prefix_cache_time_to_first_token_seconds",
        "Submission to first token, by whether a part of the prompt was cached (none: it fills no block)",
        r.ttft_by_prefix.clone(),
    );
    registry.register("infer_request_prompt_tokens", "Tokens of a prompt", r.prompt_tokens.clone());
    registry.register(
        "infer_request_generated_tokens",
        "Tokens generated by a request",
        r.generated_tokens.clone(),
    );
    // Readers of the aliases select by model.
    let aliases = registry.sub_registry_with_label(("model_name".into(), model.into()));
    for (name, help, histogram) in all {
        aliases.register(format!("vllm:{name}"), help, histogram.clone());
    }
    for (name, help, histogram) in [
        ("request_prefill_time_seconds", "First start to first token", &r.prefill),
        ("request_decode_time_seconds", "First token to end", &r.decode),
        ("request_prompt_tokens", "Tokens of a prompt", &r.prompt_tokens),
        ("request_generation_tokens", "Tokens generated by a request", &r.generated_tokens),
    ] {
        aliases.register(format!("vllm:{name}"), help, histogram.clone());
    }
}

/// Version, connections and resources of the process.
fn process(f: &mut Families, app: &App) {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    f.family("infer_build_info", "This build", Kind::Gauge, vec![(version, 1.0)]);
    let connections = &app.connections;
    f.gauge("infer_http_connections", "Open connections of the data plane", connections.open() as f64);
    f.gauge(
        "infer_http_connections_limit",
        "Connections of the data plane that may be open at once",
        app.config.bounds.max_connections as f64,
    );
    f.counter(
        "infer_http_connections_closed_for_others",
        "Idle connections of the data plane that were closed because others needed their places",
        connections.made_room(),
    );
    f.counter(
        "infer_http_connections_without_place",
        "Connections of the data plane that found no place; only probes and scrapes are served on them",
        connections.crowded(),
    );
    f.gauge("process_start_time_seconds", "Unix time of the start", app.clock.started_unix_s() as f64);
    // Without a limit it is the largest number, as Prometheus' own clients have it.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    f.gauge("process_max_fds", "Limit of open file descriptors", limit as f64);
    let Some(usage) = ProcessUsage::now() else { return };
    f.gauge("process_resident_memory_bytes", "Resident memory", usage.resident_bytes as f64);
    f.gauge("process_open_fds", "Open file descriptors", usage.open_files as f64);
    f.real_counter("process_cpu_seconds", "Processor time, user and system", usage.cpu_seconds);
}

fn second_level(f: &mut Families, offload: &Offload, block_size: u32) {
    let found = offload.blocks_in * u64::from(block_size);
    f.gauge(
        "infer_kv_offload_blocks",
        "Blocks of the second level of the prefix cache",
        offload.total.into(),
    );
    f.gauge("infer_kv_offload_blocks_used", "Blocks of the second level that are used", offload.used.into());
    f.counter("infer_kv_offload_blocks_out", "Blocks copied to the second level", offload.blocks_out);
    f.counter("infer_kv_offload_blocks_in", "Blocks copied back to the pool", offload.blocks_in);
    f.counter("infer_kv_offload_tokens_found", "Tokens of the blocks that were copied back", found);
    f.gauge(
        "infer_kv_offload_failed",
        "1 after the second level failed: it is not used any more",
        u8::from(offload.failed).into(),
    );
}

/// Requests of each adapter, if there are any.
fn adapters(f: &mut Families, app: &App) {
    let Ok(served) = app.served() else { return };
    let row = |adapter: &ServedAdapter| {
        let requests = adapter.requests.load(Ordering::Relaxed);
        (vec![("adapter", adapter.name.clone())], requests as f64)
    };
    let rows: Vec<_> = served.adapters.iter().map(row).collect();
    if !rows.is_empty() {
        f.family(
            "infer_adapter_requests",
            "Requests for an adapter that the engine took",
            Kind::Counter,
            rows,
        );
    }
}

fn own(f: &mut Families, s: &State) {
    f.gauge("infer_requests_running", "Sequences that hold blocks", s.queue.running.into());
    f.gauge(
        "infer_requests_running_limit",
        "Sequences that may run at once",
        s.pressure.max_sequences.into(),
    );
    f.gauge("infer_requests_waiting", "Sequences that wait", s.queue.waiting.into());
    f.gauge("infer_requests_held", "Requests held by admission", s.queue.held.into());
    f.gauge("infer_requests_preempted", "Sequences that wait after a preemption", s.queue.preempted.into());
    f.gauge("infer_kv_block_size_tokens", "Tokens per block", s.memory.block_size.into());
    f.gauge("infer_kv_block_bytes", "Bytes per block", s.memory.block_bytes as f64);
    f.gauge("infer_kv_blocks", "Blocks in the pool", s.memory.total.into());
    f.gauge("infer_kv_blocks_free", "Free blocks", s.memory.free.into());
    f.gauge("infer_kv_blocks_cached", "Idle blocks kept for reuse", s.memory.cached.into());
    f.gauge("infer_kv_blocks_used", "Blocks that sequences hold", s.memory.used.into());
    if let Some(offload) = &s.offload {
        second_level(f, offload, s.memory.block_size);
    }
    f.gauge("infer_pressure", "Admission's memory pressure, 0 to 1", s.pressure.level);
    f.gauge(
        "infer_backpressure",
        "1 while the admission policy reports that more requests would only wait; clients are not told",
        u8::from(s.pressure.backpressure).into(),
    );
    f.gauge("infer_kv_blocks_reserved", "Blocks that admission reserves", s.pressure.reserved_blocks.into());
    f.gauge(
        "infer_kv_blocks_available",
        "Blocks that new requests may use",
        s.pressure.available_blocks.into(),
    );
    f.gauge(
        "infer_max_admissible_tokens",
        "Longest sequence, prompt plus output, that would be admitted now",
        s.pressure.max_sequence_tokens.into(),
    );
    f.gauge("infer_step_p50_seconds", "Median device time of recent steps", s.latencies.step_p50_ms / 1e3);
    f.gauge(
        "infer_step_p99_seconds",
        "99th percentile of the device time of recent steps",
        s.latencies.step_p99_ms / 1e3,
    );
    let c = &s.counters;
    f.counter("infer_steps", "Engine steps begun", s.step);
    f.counter("infer_requests_submitted", "Requests submitted", c.submitted);
    f.counter("infer_requests_failed", "Requests that ended with an error", c.failed);
    f.counter("infer_preemptions", "Preemptions", c.preemptions);
    f.counter("infer_prompt_tokens", "Prompt tokens of requests that started", c.prompt_tokens);
    f.counter("infer_generated_tokens", "Tokens generated", c.generated_tokens);
    f.counter("infer_computed_tokens", "Tokens that the device computed", c.computed_tokens);
    f.counter("infer_drafted_tokens", "Draft tokens (--speculate)", c.drafted_tokens);
    f.counter("infer_accepted_tokens", "Draft tokens that were accepted", c.accepted_tokens);
    f.counter("infer_prefix_cache_queries", "Prompt tokens looked up in the prefix cache", c.prefix_queries);
    f.counter("infer_prefix_cache_hits", "Prompt tokens found in the prefix cache", c.prefix_hits);
    f.counter("infer_evicted_blocks", "Cached blocks evicted", c.evicted_blocks);
    f.counter("infer_cut_rows", "Planned rows truncated for lack of memory", c.cut_rows);
    f.counter("infer_device_faults", "Steps that failed on the device", c.device_faults);
    let by = |label: &'static str, map: &std::collections::BTreeMap<String, u64>| {
        map.iter().map(|(k, &n)| (vec![(label, k.clone())], n as f64)).collect()
    };
    f.family("infer_requests_refused", "Requests refused", Kind::Counter, by("reason", &c.refused));
    f.family(
        "infer_requests_finished",
        "Requests that ended without an error",
        Kind::Counter,
        by("reason", &c.finished),
    );
    f.family(
        "infer_prefix_cache_events",
        "Prefix cache lookups by outcome",
        Kind::Counter,
        by("event", &s.cache_events),
    );
    prefixes(f, s);
}

/// Prefix cache totals by outcome; hit rates and mean lengths follow from them.
fn prefixes(f: &mut Families, s: &State) {
    let each = |value: &dyn Fn(&CacheLengths) -> u64| -> Vec<(Labels, f64)> {
        s.cache_lengths.iter().map(|(event, l)| (vec![("event", event.clone())], value(l) as f64)).collect()
    };
    for (name, help, samples) in [
        (
            "infer_prefix_cache_eligible_requests",
            "Requests whose prompt fills at least one block",
            each(&|l| l.eligible_requests),
        ),
        (
            "infer_prefix_cache_cached_tokens",
            "Prompt tokens found in the prefix cache",
            each(&|l| l.cached_tokens),
        ),
        ("infer_prefix_cache_prefilled_tokens", "Prompt tokens computed", each(&|l| l.prefilled_tokens)),
        (
            "infer_prefix_cache_hit_requests",
            "Hits: requests with cached tokens, of those whose prompt fills at least one block",
            each(&|l| l.hit_requests),
        ),
        ("infer_prefix_cache_hit_tokens", "Cached prompt tokens of hits", each(&|l| l.hit_tokens)),
    ] {
        f.family(name, help, Kind::Counter, samples);
    }
}

fn policies(f: &mut Families, s: &State, observer: &Observer) {
    let each = |value: &dyn Fn(&PolicySlot) -> f64| -> Vec<(Labels, f64)> {
        s.policies.iter().map(|p| (vec![("kind", p.kind.clone())], value(p))).collect()
    };
    let faults = PolicyKind::ALL.into_iter().flat_map(|kind| {
        FaultKind::ALL
            .map(|fault| (of_slot(kind, "reason", fault.name()), observer.faults(kind, fault) as f64))
    });
    f.family("infer_policy_faults", "Faults of a slot's live policies", Kind::Counter, faults.collect());
    let changes = PolicyKind::ALL.into_iter().flat_map(|kind| {
        Change::ALL.map(|how| (of_slot(kind, "change", how.name()), observer.changes(kind, how) as f64))
    });
    f.family("infer_policy_changes", "Changes of a slot's live policy", Kind::Counter, changes.collect());
    let trials = s.policies.iter().flat_map(|p| {
        let watching = p.shadow.as_ref().is_some_and(|shadow| shadow.state == ShadowState::Watching.name());
        [("canary", p.state == "canary"), ("shadow", watching)].map(|(mode, runs)| {
            (vec![("kind", p.kind.clone()), ("mode", mode.to_owned())], f64::from(u8::from(runs)))
        })
    });
    f.family("infer_policy_trial", "1 while a policy is on trial", Kind::Gauge, trials.collect());
    f.gauge(
        "infer_policy_quarantined",
        "Quarantined components, each with a configuration",
        observer.quarantine().count() as f64,
    );
    f.family(
        "infer_policy_fallbacks",
        "Decisions made by the built-in policy instead",
        Kind::Counter,
        each(&|p| p.fallbacks as f64),
    );
    f.family(
        "infer_policy_call_p50_seconds",
        "Median of recent calls",
        Kind::Gauge,
        each(&|p| p.p50_us / 1e6),
    );
    f.family(
        "infer_policy_call_p99_seconds",
        "99th percentile of recent calls",
        Kind::Gauge,
        each(&|p| p.p99_us / 1e6),
    );
    let gauges = s.policies.iter().flat_map(|p| {
        let shadow = p.shadow.as_ref().filter(|shadow| shadow.state == ShadowState::Watching.name());
        let shadow = shadow.into_iter().flat_map(|shadow| &shadow.gauges).map(|gauge| ("shadow", gauge));
        let live = p.gauges.iter().map(|gauge| ("live", gauge));
        live.chain(shadow).map(|(mode, gauge)| {
            let labels = vec![
                ("kind", p.kind.clone()),
                ("name", gauge.policy.clone()),
                ("mode", mode.to_owned()),
                ("gauge", gauge.name.clone()),
            ];
            (labels, gauge.value)
        })
    });
    f.family("infer_policy_gauge", "What a policy publishes about itself", Kind::Gauge, gauges.collect());
    let info = s.policies.iter().map(|p| {
        let labels = vec![
            ("kind", p.kind.clone()),
            ("name", p.name.clone()),
            ("version", p.version.clone()),
            ("sha256", p.sha256.clone()),
            ("state", p.state.clone()),
        ];
        (labels, 1.0)
    });
    f.family("infer_policy_info", "Live policy", Kind::Gauge, info.collect());
}

fn of_slot(kind: PolicyKind, label: &'static str, value: &str) -> Labels {
    vec![("kind", kind.name().to_owned()), (label, value.to_owned())]
}

struct CacheConfig {
    block_size: u32,
    total_blocks: u32,
    prefix_caching: bool,
}

fn aliases(f: &mut Families, s: &State, config: &CacheConfig) {
    let model = || vec![("model_name", s.host.model.clone())];
    let waiting = s.queue.waiting + s.queue.held + s.queue.preempted;
    let usage = f64::from(s.memory.used) / f64::from(s.memory.total.max(1));
    let c = &s.counters;
    let gauges = [
        ("vllm:num_requests_running", "Sequences that hold blocks", f64::from(s.queue.running)),
        ("vllm:num_requests_waiting", "Sequences that wait", f64::from(waiting)),
        ("vllm:kv_cache_usage_perc", "Share of the blocks that sequences hold, 0 to 1", usage),
    ];
    for (name, help, value) in gauges {
        f.family(name, help, Kind::Gauge, vec![(model(), value)]);
    }
    let counters = [
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", c.prefix_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", c.prefix_hits),
        ("vllm:prompt_tokens", "Prompt tokens of requests that started", c.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated", c.generated_tokens),
        ("vllm:spec_decode_num_draft_tokens", "Draft tokens", c.drafted_tokens),
        ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted", c.accepted_tokens),
        ("vllm:num_preemptions", "Preemptions", c.preemptions),
    ];
    for (name, help, value) in counters {
        f.family(name, help, Kind::Counter, vec![(model(), value as f64)]);
    }
    let finished = |reasons: &[FinishReason]| -> f64 {
        reasons.iter().filter_map(|r| c.finished.get(finish_name(*r))).sum::<u64>() as f64
    };
    let success = [
        ("stop", finished(&[FinishReason::Eos, FinishReason::Stop])),
        ("length", finished(&[FinishReason::Length])),
        ("abort", finished(&[FinishReason::Cancelled])),
    ];
    let rows = success.map(|(reason, n)| {
        let mut labels = model();
        labels.push(("finished_reason", reason.to_owned()));
        (labels, n)
    });
    f.family("vllm:request_success", "Requests that ended", Kind::Counter, rows.into());
    let labels = vec![
        ("block_size", config.block_size.to_string()),
        ("num_gpu_blocks", config.total_blocks.to_string()),
        ("enable_prefix_caching", config.prefix_caching.to_string()),
    ];
    f.family("vllm:cache_config_info", "Settings of the KV cache", Kind::Gauge, vec![(labels, 1.0)]);
}

fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Eos => "eos",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}
