//! `infer sim judge`: compares a profile's predictions for recorded traffic with what was measured.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use infer_api::trace::Line;
use infer_core::ids::Micros;
use infer_core::policy::PolicyKind;
use infer_sim::metrics::{Durations, Measured};
use infer_sim::{Outcome, Predictions, Settings, Slo, replay};
use serde::Serialize;

use super::policies::{self, Choice, Components};
use super::settings::{note_second_level, price_copies, profile, validated};
use super::trace::{NO_RECORDING, TraceFile};
use super::{Failure, check_inputs, check_out, emit};
use crate::trace::RecordedLines;

pub const AFTER_HELP: &str = "\
Simulates each recording with the recorded host's settings and policies on the profile's device, and compares the \
latencies and the throughput with the recorded ones. Times start when the host has read a request and end when a \
token leaves the engine. Judge a profile on recordings that it was not fitted to.";

/// Arguments of `infer sim judge`.
#[derive(Args)]
pub struct JudgeArgs {
    /// Recordings of the profile's host
    #[arg(value_name = "FILE", required = true)]
    recordings: Vec<PathBuf>,
    /// Profile file written by `infer sim calibrate`, or a device by name or file
    #[arg(long, visible_alias = "hardware", value_name = "FILE|NAME")]
    device: String,
    /// Model shape by name or file, if the device is no profile
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Closed loop: requests sent right after another one finished wait for that one, as with a client that keeps
    /// a fixed number in flight
    #[arg(long)]
    closed_loop: bool,
    /// Seed of the variation of step times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Component that a recording names but that isn't bundled; repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
    /// Format of the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File for the result [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Csv,
    /// A table for a README
    Markdown,
}

/// One figure of a recording.
#[derive(Debug, Serialize)]
struct Figure {
    recording: String,
    what: &'static str,
    measured: f64,
    predicted: f64,
    /// Deviation of the prediction from the measurement, in percent.
    error_percent: f64,
}

/// Compares and prints.
pub fn run(args: &JudgeArgs) -> Result<(), Failure> {
    let out = args.out.as_deref();
    check_out(out)?;
    check_inputs("--out", out, "the recordings", args.recordings.iter())?;
    let profile = profile(&args.device, args.model.as_deref())?;
    let loader = policies::loader()?;
    let components = Components::new(&loader, &args.component)?;
    let mut figures = Vec::new();
    for path in &args.recordings {
        let wrong = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
        let trace = TraceFile::find(path)?.closed_loop(args.closed_loop);
        let head = trace.head().ok_or_else(|| wrong(NO_RECORDING.to_owned()))?;
        if head.engine.speculate > 0 {
            return Err(wrong(super::calibrate::DRAFT_TOKENS.to_owned()));
        }
        let lines = trace.lines().map_err(wrong)?;
        let measured = measure(lines).map_err(wrong)?;
        if measured.tokens == 0 {
            return Err(wrong(trace.lacks("no request generated a token")));
        }
        if let Some(changes) = trace.changes() {
            eprintln!("{changes}; the predictions are for those at its start");
        }
        if let Some(refused) = trace.refused() {
            eprintln!("{refused}");
        }
        let slot = |kind: PolicyKind| -> Result<Choice, Failure> {
            let policy = head.policies.iter().find(|policy| policy.kind == kind.name());
            let policy = policy.ok_or_else(|| wrong(format!("the recording names no {kind} policy")))?;
            components.find(policy).map_err(wrong)
        };
        let [scheduler, admission, cache] = PolicyKind::ALL.map(slot);
        let (scheduler, admission, cache) = (scheduler?, admission?, cache?);
        let slots = policies::slots(&loader, [&scheduler, &admission, &cache]).map_err(wrong)?;
        let mut engine = validated(&head.engine, args.seed)?;
        if !price_copies(&mut engine, &profile) {
            note_second_level(head);
        }
        let settings = Settings {
            engine,
            profile: profile.clone(),
            host: Micros::ZERO,
            load: 1.0,
            slo: Slo::default(),
            seed: args.seed,
            tenants: crate::trace::terms(&head.tenants),
            predictions: Predictions::Learned,
        };
        let requests = trace.read().map_err(wrong)?;
        let predicted =
            replay(&settings, slots, requests, u64::MAX, |_| {}).map_err(|error| wrong(error.to_string()))?;
        figures.extend(compare(&trace.name(), &measured, &predicted));
    }
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&figures).map_err(Failure::failed)? + "\n",
        Format::Csv => csv(&figures),
        Format::Text => table(&figures, false),
        Format::Markdown => table(&figures, true),
    };
    emit(out, &text)
}

/// Latencies and tokens of a recorded run.
#[derive(Default)]
struct Run {
    ttft: Measured,
    itl: Measured,
    latency: Measured,
    begun: Option<u64>,
    ended: u64,
    tokens: u64,
}

fn measure(mut recording: RecordedLines) -> Result<Run, String> {
    let mut run = Run::default();
    // Per request: when it was sent, and when its last token left the engine.
    let mut live: HashMap<u64, (u64, Option<u64>)> = HashMap::new();
    while let Some((line, what)) = recording.next_line().map_err(|error| error.to_string())? {
        match what {
            Line::Request(request) => {
                run.begun.get_or_insert(request.sent);
                live.insert(request.id, (request.sent, None));
            }
            Line::Step(step) => {
                for (id, _) in step.ids.iter().zip(&step.drew).filter(|(_, drew)| **drew != 0) {
                    let Some((sent, last)) = live.get_mut(id) else { continue };
                    let (since, into) = match last.replace(step.end) {
                        Some(last) => (last, &mut run.itl),
                        None => (*sent, &mut run.ttft),
                    };
                    into.add(Micros(step.end.saturating_sub(since)));
                    run.tokens += 1;
                    run.ended = run.ended.max(step.end);
                }
            }
            Line::End(end) => {
                if let Some((sent, Some(last))) = live.remove(&end.id) {
                    run.latency.add(Micros(last.saturating_sub(sent)));
                }
            }
            Line::Lost { happenings } => return Err(RecordedLines::lost(line, happenings).to_string()),
            _ => {}
        }
    }
    Ok(run)
}

fn compare(recording: &str, run: &Run, predicted: &Outcome) -> Vec<Figure> {
    let seconds = Micros(run.ended - run.begun.unwrap_or(run.ended)).0 as f64 / 1e6;
    let figure = |what, measured: f64, predicted: f64| Figure {
        recording: recording.to_owned(),
        what,
        measured,
        predicted,
        error_percent: if measured > 0.0 { 100.0 * (predicted / measured - 1.0) } else { 0.0 },
    };
    let mut figures = Vec::new();
    let kinds: [(_, Durations, Durations); 3] = [
        (["TTFT p50 ms", "TTFT p95 ms"], run.ttft.durations(), predicted.ttft_ms),
        (["ITL p50 ms", "ITL p95 ms"], run.itl.durations(), predicted.itl_ms),
        (["latency p50 ms", "latency p95 ms"], run.latency.durations(), predicted.latency_ms),
    ];
    for ([p50, p95], was, is) in kinds {
        figures.push(figure(p50, was.p50, is.p50));
        figures.push(figure(p95, was.p95, is.p95));
    }
    figures.push(figure("output tok/s", run.tokens as f64 / seconds.max(1e-9), predicted.output_per_second));
    figures
}

/// A row per figure; the names of the columns are those of the fields.
fn csv(figures: &[Figure]) -> String {
    let mut text = ::csv::Writer::from_writer(Vec::new());
    for figure in figures {
        text.serialize(figure).expect("memory takes it");
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

fn table(figures: &[Figure], markdown: bool) -> String {
    let mut text = String::new();
    let width = figures.iter().map(|figure| figure.recording.chars().count()).max().unwrap_or(0).max(9);
    if markdown {
        text.push_str("| recording | | measured | predicted | error |\n|---|---|---|---|---|\n");
    } else {
        let _ = writeln!(
            text,
            "{:width$}  {:14} {:>10} {:>10} {:>8}",
            "recording", "", "measured", "predicted", "error"
        );
    }
    for Figure { recording, what, measured, predicted, error_percent } in figures {
        let _ = if markdown {
            writeln!(
                text,
                "| {recording} | {what} | {measured:.2} | {predicted:.2} | {error_percent:+.1} % |"
            )
        } else {
            writeln!(
                text,
                "{recording:width$}  {what:14} {measured:10.2} {predicted:10.2} {error_percent:+7.1}%"
            )
        };
    }
    text
}
