//! Overload in an open loop: refused requests get a proper refusal with `Retry-After`, admitted ones are served in
//! full, and latency returns to normal afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::{Distribution, Summary};
use super::host::{Host, HostKind, HostOptions};
use super::{RobustError, mib, raw};

/// Running sequences, step duration and output length, which together determine the capacity.
const RUNNING: u32 = 32;
const STEP_US: u64 = 20_000;
const TOKENS: u32 = 16;
/// KV pool: several times what running sequences need, yet full of cached blocks within seconds, so that the index of
/// cached blocks stops growing early in the storm.
const POOL_MIB: u64 = 64;
/// Prompt length: several steps of prefill, so that TTFT is more than one step.
const PROMPT: u32 = 64;
/// Sequential requests before and after the storm.
const ALONE: usize = 20;

/// Result of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct OverloadReport {
    /// Requests per second that the host can serve.
    pub capacity_per_s: f64,
    /// Requests per second that were sent.
    pub offered_per_s: f64,
    /// Duration of a storm.
    pub seconds: f64,
    /// Responses by status.
    pub answers: BTreeMap<u16, usize>,
    /// Responses that are neither a complete stream nor a 429 or 503 with `Retry-After`.
    pub wrong: usize,
    /// The first of those.
    pub example: Option<String>,
    /// TTFT of sequential requests before the storm, in milliseconds.
    pub ttft_alone_ms: Summary,
    /// TTFT of admitted requests in the storm.
    pub ttft_storm_ms: Summary,
    /// TTFT of sequential requests after the storm.
    pub ttft_after_ms: Summary,
    /// Resident memory before the first storm, and after each.
    pub resident_bytes: Vec<u64>,
    /// Open files before the first storm and after the last.
    pub open_files: [u64; 2],
}

/// Size and duration of the load.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// Multiple of the capacity.
    pub times: f64,
    /// Duration of a storm.
    pub seconds: f64,
    /// Storms, one after the other.
    pub rounds: u32,
    /// Maximum number of waiting requests.
    pub waiting: u32,
}

/// Sends more load than a host can serve. `exe` is the `infer` binary.
pub async fn overload(exe: &Path, storm: Storm) -> Result<OverloadReport, RobustError> {
    let Storm { times, seconds, rounds, waiting } = storm;
    let (running, step_us, pool_mib) = (RUNNING, STEP_US, POOL_MIB);
    let options = HostOptions { kind: HostKind::Scripted, running, waiting, step_us, pool_mib };
    let host = Host::start(exe, options)?;
    let capacity_per_s = f64::from(RUNNING) / (f64::from(TOKENS) * STEP_US as f64 / 1e6);
    let mut report = OverloadReport {
        capacity_per_s,
        offered_per_s: capacity_per_s * times,
        seconds,
        answers: BTreeMap::new(),
        wrong: 0,
        example: None,
        ttft_alone_ms: Summary::default(),
        ttft_storm_ms: Summary::default(),
        ttft_after_ms: Summary::default(),
        resident_bytes: Vec::new(),
        open_files: [0; 2],
    };
    let mut number = 0u32;
    report.ttft_alone_ms = alone(&host, &mut report, &mut number).await;
    let before = host.usage()?;
    report.resident_bytes.push(before.resident_bytes);
    let gap = Duration::from_secs_f64(1.0 / report.offered_per_s);
    let count = (report.offered_per_s * seconds) as u32;
    let mut first_tokens = Vec::new();
    for _ in 0..rounds.max(1) {
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..count {
            tokio::time::sleep_until((begun + gap * n).into()).await;
            number += 1;
            let (address, request) = (host.address, raw::request(&prompt(number), TOKENS));
            tasks.spawn(async move { raw::complete(address, &request).await });
        }
        report.offered_per_s = f64::from(count) / begun.elapsed().as_secs_f64();
        for outcome in tasks.join_all().await {
            first_tokens.extend(report.take(outcome));
        }
        report.resident_bytes.push(host.usage()?.resident_bytes);
    }
    report.ttft_storm_ms = first_tokens.into_iter().collect::<Distribution>().summary();
    report.ttft_after_ms = alone(&host, &mut report, &mut number).await;
    report.open_files = [before.open_files, host.files_left(before.open_files + 2).await?];
    Ok(report)
}

/// A distinct prompt per request, so that none hits the prefix cache.
fn prompt(number: u32) -> Vec<u32> {
    (0..PROMPT).map(|at| 1 + (number >> (at % 32)) % 2 + 2 * (at % 7)).collect()
}

async fn alone(host: &Host, report: &mut OverloadReport, number: &mut u32) -> Summary {
    let mut first_tokens = Vec::new();
    for _ in 0..ALONE {
        *number += 1;
        let outcome = raw::complete(host.address, &raw::request(&prompt(*number), TOKENS)).await;
        first_tokens.extend(report.take(outcome));
    }
    first_tokens.into_iter().collect::<Distribution>().summary()
}

impl OverloadReport {
    /// Counts a response; returns its TTFT in milliseconds if the request was admitted.
    fn take(&mut self, outcome: std::io::Result<raw::Stream>) -> Option<f64> {
        let wrong = match &outcome {
            Ok(stream) => {
                *self.answers.entry(stream.status).or_default() += 1;
                match stream.status {
                    200 if stream.done && stream.tokens.len() == TOKENS as usize => {
                        return Some(stream.ttft.as_secs_f64() * 1e3);
                    }
                    429 | 503 if stream.retry_after => return None,
                    _ => format!("status {}, {} tokens", stream.status, stream.tokens.len()),
                }
            }
            Err(error) => error.to_string(),
        };
        self.wrong += 1;
        self.example.get_or_insert(wrong);
        None
    }

    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let row = |name: &str, s: &Summary| {
            format!("{name:22} {:>8.1} {:>8.1} {:>8.1} {:>7}\n", s.p50, s.p99, s.max, s.count)
        };
        let mut out = format!(
            "{:.0} requests/s sent to a host that can serve {:.0}, for {:.0} s\nresponses              {:?}, {} wrong\n",
            self.offered_per_s, self.capacity_per_s, self.seconds, self.answers, self.wrong
        );
        if let Some(example) = &self.example {
            out += &format!("  {example}\n");
        }
        out += &format!("{:22} {:>8} {:>8} {:>8} {:>7}\n", "TTFT ms", "p50", "p99", "max", "n");
        out += &row("alone, before", &self.ttft_alone_ms);
        out += &row("admitted in the storm", &self.ttft_storm_ms);
        out += &row("alone, after", &self.ttft_after_ms);
        let ratio = self.ttft_storm_ms.p99 / self.ttft_alone_ms.p99.max(1e-9);
        let (before, after) = self.resident_bytes.split_first().expect("it is measured before the storm");
        let after: Vec<String> = after.iter().map(|&bytes| format!("{:.1}", mib(bytes))).collect();
        out += &format!(
            "p99 in the storm is {ratio:.2}x that of a request alone\nmemory                 {:.1} MiB before, {} \
             after; files {:?}\n",
            mib(*before),
            after.join(" "),
            self.open_files
        );
        out
    }
}
