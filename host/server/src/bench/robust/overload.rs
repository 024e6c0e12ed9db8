//! Far more requests than the host can serve, for a while, in an open loop: who is turned away is told so and
//! when to come back, who is admitted is served as if nothing were, and afterwards all is as before.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::{Distribution, Summary};
use super::host::{Host, HostKind, HostOptions};
use super::{RobustError, mib, raw};

/// Sequences at once, a step's time, tokens out: together the capacity.
const RUNNING: u32 = 32;
const STEP_US: u64 = 20_000;
const TOKENS: u32 = 16;
/// The KV pool: several times what runs, and full of what is cached within seconds, so that what is remembered of
/// cached blocks doesn't grow for as long as the storm lasts.
const POOL_MIB: u64 = 64;
/// Prompt of a request: some steps' worth, so that a first token is not just a step.
const PROMPT: u32 = 64;
/// Requests before and after the storm, one after the other.
const ALONE: usize = 20;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct OverloadReport {
    /// Requests a second that the host can serve at most.
    pub capacity_per_s: f64,
    /// Requests a second that it got.
    pub offered_per_s: f64,
    /// For how long.
    pub seconds: f64,
    /// Answers by status.
    pub answers: BTreeMap<u16, usize>,
    /// Answers that are neither a whole stream nor a 429 or 503 with `Retry-After`, and an example.
    pub wrong: usize,
    /// The first of them.
    pub example: Option<String>,
    /// First tokens of requests one at a time, in milliseconds.
    pub ttft_alone_ms: Summary,
    /// Those of admitted ones in the storm.
    pub ttft_storm_ms: Summary,
    /// Requests one at a time after the storm.
    pub ttft_after_ms: Summary,
    /// Resident memory before, and after each storm.
    pub resident_bytes: Vec<u64>,
    /// Connections left when all is over.
    pub open_files: [u64; 2],
}

/// How much, how long.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// How many times the capacity.
    pub times: f64,
    /// For how long.
    pub seconds: f64,
    /// Storms, one after the other.
    pub rounds: u32,
    /// Requests that may wait.
    pub waiting: u32,
}

/// Offers more than a host can serve. `exe` is the program `infer`.
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
    let after = host.usage()?;
    report.open_files = [before.open_files, after.open_files];
    Ok(report)
}

/// No two are alike: nothing is to be found cached.
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
    /// Counts an answer; milliseconds to its first token where it was admitted.
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

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let row = |name: &str, s: &Summary| {
            format!("{name:22} {:>8.1} {:>8.1} {:>8.1} {:>7}\n", s.p50, s.p99, s.max, s.count)
        };
        let mut out = format!(
            "{:.0} requests/s offered to a host that serves {:.0}, for {:.0} s\nanswers                {:?}, {} wrong\n",
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
        let (before, after) = self.resident_bytes.split_first().expect("it was asked before the storm");
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
