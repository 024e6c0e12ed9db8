//! `GET /metrics`: the engine's counters and the recorder's histograms, under our names and under vLLM's
//! names, which routers and dashboards already read. The format is OpenMetrics if the client accepts it, else
//! Prometheus' older one, for simpler scrapers.

mod aliases;
mod engine;
mod host;
mod policies;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hyper::HeaderMap;
use hyper::header::ACCEPT;
use infer_api::admin::State;
use infer_core::Durations;
use infer_core::snapshot::TenantSnapshot;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;

use super::calls::Calls;
use super::families::{Families, Labels};
use super::tenants;
use crate::admin;
use crate::app::{App, Health};
use crate::http::{self, Answer, ApiError};
use crate::startup::load::shares_blocks;
use aliases::CacheConfig;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Who reads metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Whoever reaches the data plane: without the metrics of single tenants, and of adapters that not all of them may use,
    /// unless the configuration shows them.
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
        Reader::Anyone if !app.config.shows_tenants() => {
            let names_adapters = app.tenants.limit_models().then_some(host::ADAPTERS);
            without(&all, &[Some(tenants::PREFIX), names_adapters])
        }
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
        let report = admin::report_within(served, app.config.bounds.scrape_patience).await?;
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

/// Leaves out metrics whose names begin with one of these.
fn without(text: &str, prefixes: &[Option<&str>]) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let about = ["# HELP ", "# TYPE ", "# UNIT "].iter().find_map(|mark| line.strip_prefix(mark));
        let name = about.unwrap_or(line);
        if !prefixes.iter().flatten().any(|prefix| name.starts_with(prefix)) {
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
            "1 while swaps, the quarantine and what policies know would outlive the host (--policy-state)",
            u8::from(keeper.error().is_none()).into(),
        );
    }
    host::process(&mut families, app);
    tenants::usage(&mut families, app);
    host::adapters(&mut families, app);
    if let (Some(report), Ok(served)) = (report, app.served()) {
        let Report { asked, state, steps, calls, tenants } = report;
        families.gauge(
            "infer_state_age_seconds",
            "Age of the engine's metrics, which can't be updated during a step",
            asked.elapsed().as_secs_f64(),
        );
        engine::own(&mut families, state);
        tenants::queues(&mut families, app, tenants);
        families.histograms("infer_step_seconds", "Device time of a step", vec![(Vec::new(), *steps)]);
        policies::policies(&mut families, state, served.engine.observer());
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
        aliases::aliases(&mut families, state, &config);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(families));
    host::histograms(&mut registry, app);
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string can't fail");
    out
}
