//! Many concurrent streams, against a bare hyper loop in the same run: tokens per second, processor time per token,
//! memory over the rounds, and whether every token arrived in its place.

use std::path::Path;
use std::time::Instant;

use infer_core::testing::{request, solo};
use serde::Serialize;

use super::host::{Host, HostKind, HostOptions, VOCAB};
use super::{RobustError, mib, raw};

/// Streams opened at once, so that the listener's backlog doesn't overflow.
const OPENED_AT_ONCE: usize = 200;

/// Results of one server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Side {
    /// Throughput of each round, in tokens of streams that were right.
    pub tokens_per_s: Vec<f64>,
    /// Processor time of the server in each round, by those tokens.
    pub cpu_us_per_token: Vec<f64>,
    /// Resident memory after each round.
    pub resident_bytes: Vec<u64>,
    /// Streams whose tokens were not exactly the expected ones.
    pub wrong: usize,
    /// The first of those.
    pub example: Option<String>,
}

/// Results of both servers.
#[derive(Clone, Debug, Serialize)]
pub struct StreamsReport {
    /// Concurrent streams.
    pub streams: usize,
    /// Tokens per stream.
    pub tokens: u32,
    /// This host.
    pub host: Side,
    /// The bare loop.
    pub bare: Side,
}

/// Measures `rounds` rounds per server, alternating. `exe` is the `infer` binary.
pub async fn streams(
    exe: &Path,
    streams: usize,
    tokens: u32,
    rounds: usize,
) -> Result<StreamsReport, RobustError> {
    let options = |kind| HostOptions {
        kind,
        running: streams.max(32) as u32,
        waiting: 10_000,
        step_us: 0,
        pool_mib: 4_096,
    };
    let sides = [HostKind::Scripted, HostKind::Bare];
    let hosts = sides.map(|kind| Host::start(exe, options(kind)));
    let mut report = StreamsReport { streams, tokens, host: Side::default(), bare: Side::default() };
    let [host, bare] = hosts;
    let (host, bare) = (host?, bare?);
    // Round 0 is a warm-up, in which pools reach their size.
    for round in 0..=rounds {
        let due = |stream: usize| solo(&request(prompt(stream), tokens), VOCAB);
        measure(&host, &mut report.host, round > 0, streams, tokens, due).await?;
        let due = |_| (0..tokens).collect();
        measure(&bare, &mut report.bare, round > 0, streams, tokens, due).await?;
    }
    Ok(report)
}

/// A distinct prompt per stream, so that no two streams share a block or have the same tokens.
fn prompt(stream: usize) -> Vec<u32> {
    vec![1 + stream as u32 % 13, 1 + stream as u32 / 13, 3, 5]
}

async fn measure(
    host: &Host,
    side: &mut Side,
    counts: bool,
    streams: usize,
    tokens: u32,
    due: impl Fn(usize) -> Vec<u32>,
) -> Result<(), RobustError> {
    let requests: Vec<Vec<u8>> = (0..streams).map(|n| raw::request(&prompt(n), tokens)).collect();
    let before = host.usage()?;
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (n, request) in requests.into_iter().enumerate() {
        if n % OPENED_AT_ONCE == OPENED_AT_ONCE - 1 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let address = host.address;
        tasks.spawn(async move { (n, raw::complete(address, &request).await) });
    }
    let all = tasks.join_all().await;
    let seconds = begun.elapsed().as_secs_f64();
    let after = host.usage()?;
    let right: usize = all.into_iter().map(|(n, outcome)| side.take(n, outcome, &due(n))).sum();
    if counts {
        side.tokens_per_s.push(right as f64 / seconds);
        side.cpu_us_per_token.push((after.cpu_seconds - before.cpu_seconds) * 1e6 / right.max(1) as f64);
        side.resident_bytes.push(after.resident_bytes);
    }
    Ok(())
}

impl Side {
    /// Counts stream `n` as wrong unless it brought exactly the tokens that were due. Returns how many tokens it counts
    /// for: none if it is wrong, or a server that refuses would be the fastest.
    fn take(&mut self, n: usize, outcome: std::io::Result<raw::Stream>, due: &[u32]) -> usize {
        let wrong = match outcome {
            Ok(stream) if stream.status == 200 && stream.done && stream.tokens == due => return due.len(),
            Ok(stream) => format!(
                "stream {n}: status {}, {} of {} tokens, {}",
                stream.status,
                stream.tokens.len(),
                due.len(),
                if stream.done { "ended" } else { "cut" }
            ),
            Err(error) => format!("stream {n}: {error}"),
        };
        self.wrong += 1;
        self.example.get_or_insert(wrong);
        0
    }
}

impl StreamsReport {
    /// Whether every token of every stream arrived in its place.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.host.wrong == 0 && self.bare.wrong == 0
    }

    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let median = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
        };
        let mut out = format!(
            "{} streams of {} tokens, {} rounds of each, medians\n{:10} {:>12} {:>14} {:>16} {:>8}\n",
            self.streams,
            self.tokens,
            self.host.tokens_per_s.len(),
            "",
            "tokens/s",
            "CPU us/token",
            "MiB first..last",
            "wrong"
        );
        for (name, side) in [("host", &self.host), ("bare hyper", &self.bare)] {
            let first = side.resident_bytes.first().copied().unwrap_or(0);
            let last = side.resident_bytes.last().copied().unwrap_or(0);
            let memory = format!("{:.1}..{:.1}", mib(first), mib(last));
            out += &format!(
                "{name:10} {:>12.0} {:>14.2} {memory:>16} {:>8}\n",
                median(&side.tokens_per_s),
                median(&side.cpu_us_per_token),
                side.wrong
            );
            if let Some(example) = &side.example {
                out += &format!("           {example}\n");
            }
        }
        let (host, bare) = (median(&self.host.tokens_per_s), median(&self.bare.tokens_per_s));
        let (host_cpu, bare_cpu) = (median(&self.host.cpu_us_per_token), median(&self.bare.cpu_us_per_token));
        out += &format!(
            "the host needs {:.2}x the bare loop's processor time per token and delivers {:.2}x its tokens per second\n",
            host_cpu / bare_cpu.max(1e-9),
            host / bare.max(1e-9)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_streams_that_are_right_count_as_throughput() {
        let mut side = Side::default();
        let whole =
            || raw::Stream { status: 200, done: true, tokens: vec![4, 5, 6], ..raw::Stream::default() };
        assert_eq!(side.take(0, Ok(whole()), &[4, 5, 6]), 3);
        assert_eq!((side.wrong, &side.example), (0, &None));
        let wrong = [
            Ok(raw::Stream { status: 503, ..raw::Stream::default() }),
            Ok(raw::Stream { tokens: vec![4, 5], ..whole() }),
            Ok(raw::Stream { tokens: vec![4, 5, 7], ..whole() }),
            Ok(raw::Stream { done: false, ..whole() }),
            Err(std::io::ErrorKind::ConnectionReset.into()),
        ];
        let counted: Vec<usize> =
            wrong.into_iter().map(|outcome| side.take(1, outcome, &[4, 5, 6])).collect();
        assert_eq!((counted, side.wrong), (vec![0; 5], 5));
        assert_eq!(side.example.as_deref(), Some("stream 1: status 503, 0 of 3 tokens, cut"));
    }
}
