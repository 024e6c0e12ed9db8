//! What `infer bench serve` measured. Failed requests are excluded from distributions and counted in every report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::about::About;
use super::client::Outcome;
use super::load::Served;
use super::{Api, Arrival, Dialect, Distribution, Machine, Shape, SlotPolicy, Summary, Sustained};
use crate::generate::Generated;

/// A run of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Describes the model and the server.
    pub subject: String,
    /// Version of the program that measured; empty if the report is too old to say.
    #[serde(default)]
    pub version: String,
    /// Flags of the load, and of the host in the measuring process, that were not their defaults.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Policies of that host by slot, when the measurement began.
    #[serde(default)]
    pub policies: BTreeMap<String, SlotPolicy>,
    /// Those when it ended, if any was swapped or removed meanwhile; then it measured several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies_after: BTreeMap<String, SlotPolicy>,
    /// Where requests went.
    pub url: String,
    /// Stream format of the server.
    pub dialect: Dialect,
    /// What requests carried.
    pub api: Api,
    /// Model name in requests.
    pub model: String,
    /// Seed of the workloads.
    pub seed: u64,
    /// Machine that ran the load generator.
    pub machine: Machine,
    /// Load average of the last minute when the measurement ended.
    pub load_average_after: Option<f64>,
    /// One per workload.
    pub workloads: Vec<WorkloadReport>,
    /// The highest rates, if they were searched for; each workload then has a report for every rate that was tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sustained: Vec<Sustained>,
}

/// One workload over HTTP, with its in-process baseline if there is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// `W1` to `W4`, or a trace's name.
    pub name: String,
    /// Requests and lengths in words.
    pub description: String,
    /// Lengths that its requests were generated from, or that a trace's have.
    pub shape: Shape,
    /// Requests per conversation; 0 if the report is too old to say.
    #[serde(default)]
    pub turns: usize,
    /// When requests were sent.
    pub arrival: Arrival,
    /// Longest delay with which a request of an open loop was sent, in milliseconds.
    pub late_ms: f64,
    /// Requests that completed.
    pub completed: usize,
    /// Failed requests by message; messages that differ only in numbers are counted under the first of them.
    pub errors: BTreeMap<String, usize>,
    /// Seconds from the first request sent to the last one finished.
    pub wall_s: f64,
    /// Of the completed requests.
    pub prompt_tokens: u64,
    /// Of the completed requests.
    pub output_tokens: u64,
    /// Prompt tokens that the server found in its prefix cache.
    pub cached_tokens: u64,
    /// Output tokens per second of wall time.
    pub output_tokens_per_s: f64,
    /// Milliseconds.
    pub ttft_ms: Summary,
    /// Milliseconds.
    pub itl_ms: Summary,
    /// Milliseconds.
    pub latency_ms: Summary,
    /// Requests that met the targets; `None` without targets, or if the workload was never sent.
    pub goodput: Option<Goodput>,
    /// The same prompts run sequentially in process.
    pub in_process: Option<Comparison>,
    /// Every request, in the order of the workload.
    pub samples: Vec<Sample>,
}

/// Latency targets of goodput. The time per token is the mean after the first, as in DistServe (Zhong et al.
/// 2024, section 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// Longest time to the first token.
    pub ttft_ms: Option<f64>,
    /// Longest mean time per token after the first.
    pub itl_ms: Option<f64>,
}

/// Requests that met all targets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// The targets.
    pub targets: Targets,
    /// Requests that met them.
    pub good: usize,
    /// Share of all requests of the workload.
    pub share: f64,
    /// Requests per second that met them.
    pub requests_per_s: f64,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was sent, in milliseconds from the start of the workload.
    pub sent_ms: f64,
    /// Milliseconds to the first token.
    pub ttft_ms: f64,
    /// Milliseconds between tokens, or between chunks if a chunk holds several tokens.
    pub itl_ms: Vec<f64>,
    /// Tokens received.
    #[serde(default)]
    pub completion_tokens: u32,
    /// Prompt tokens as the server counts them; 0 if it doesn't report them.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Those that it found in its prefix cache.
    #[serde(default)]
    pub cached_tokens: u32,
    /// Milliseconds to the end of the stream.
    pub latency_ms: f64,
    /// Whose it was, if the workload has several tenants.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Targets {
    /// Whether any target is set.
    #[must_use]
    pub fn any(&self) -> bool {
        self.ttft_ms.is_some() || self.itl_ms.is_some()
    }

    /// The targets in words.
    #[must_use]
    pub fn text(&self) -> String {
        let target = |name: &str, ms: Option<f64>| ms.map(|ms| format!("{name} {ms} ms"));
        let targets = [target("TTFT", self.ttft_ms), target("ITL", self.itl_ms)];
        targets.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// What a request missed, if it missed any: an answer, or the first of the targets.
    fn missed_by(&self, sample: &Sample) -> Option<&'static str> {
        // A chunk may hold several tokens; reports of earlier versions lack the token count.
        let gaps = (sample.completion_tokens as usize).saturating_sub(1).max(sample.itl_ms.len());
        let mean = sample.itl_ms.iter().sum::<f64>() / gaps.max(1) as f64;
        if sample.error.is_some() {
            Some("an answer")
        } else if self.ttft_ms.is_some_and(|most| sample.ttft_ms > most) {
            Some("TTFT")
        } else if self.itl_ms.is_some_and(|most| mean > most) {
            Some("ITL")
        } else {
            None
        }
    }

    /// What most of the requests missed that missed any.
    pub(super) fn limit(&self, samples: &[Sample]) -> Option<&'static str> {
        let missed: Vec<&str> = samples.iter().filter_map(|sample| self.missed_by(sample)).collect();
        let count = |what: &str| missed.iter().filter(|missed| **missed == what).count();
        ["an answer", "ITL", "TTFT"].into_iter().max_by_key(|what| count(what)).filter(|what| count(what) > 0)
    }

    fn judge(self, samples: &[Sample], wall_s: f64) -> Option<Goodput> {
        let good = samples.iter().filter(|sample| self.missed_by(sample).is_none()).count();
        self.any().then(|| Goodput {
            targets: self,
            good,
            share: good as f64 / samples.len().max(1) as f64,
            requests_per_s: per_second(good as u64, wall_s),
        })
    }
}

fn samples(served: &Served) -> Vec<Sample> {
    let tenants = served.tenants.iter().cloned().chain(std::iter::repeat_with(String::new));
    let sample = |((outcome, &sent_ms), tenant): ((&Outcome, &f64), String)| match outcome {
        Ok(timing) => Sample {
            sent_ms,
            tenant,
            ttft_ms: timing.ttft_ms,
            itl_ms: timing.itl_ms.clone(),
            completion_tokens: timing.completion_tokens,
            prompt_tokens: timing.prompt_tokens,
            cached_tokens: timing.cached_tokens,
            latency_ms: timing.latency_ms,
            error: None,
        },
        Err(error) => Sample { sent_ms, tenant, error: Some(error.clone()), ..Sample::default() },
    };
    // One that couldn't be sent has no time.
    let sent_ms = served.sent_ms.iter().chain(std::iter::repeat(&0.0));
    served.outcomes.iter().zip(sent_ms).zip(tenants).map(sample).collect()
}

/// The sequential baseline, and serving relative to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Sum of the requests' durations, in seconds.
    pub wall_s: f64,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
    /// Milliseconds.
    pub ttft_ms: Summary,
    /// Milliseconds.
    pub latency_ms: Summary,
    /// Served throughput over the baseline's; closed loop only, because an open loop's arrivals set the throughput.
    pub throughput_ratio: Option<f64>,
    /// What serving adds to the mean latency, in percent; only if requests run one at a time.
    pub overhead_percent: Option<f64>,
    /// Completed requests whose tokens equal the baseline's; `None` if the dialect carries no token ids.
    pub identical: Option<usize>,
}

impl WorkloadReport {
    pub(super) fn new(about: About, served: &Served, targets: Targets, local: Option<&[Generated]>) -> Self {
        let (outcomes, wall_s) = (&served.outcomes, served.wall_s);
        let samples = samples(served);
        assert_eq!(outcomes.len(), about.requests, "every request has an outcome");
        let completed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        // The server's own count, which includes the history and chat template tokens.
        let prompt_tokens = completed.iter().map(|timing| u64::from(timing.prompt_tokens)).sum();
        let output_tokens = completed.iter().map(|timing| u64::from(timing.completion_tokens)).sum();
        let latency: Distribution = completed.iter().map(|timing| timing.latency_ms).collect();
        let mut report = Self {
            description: about.describe(),
            name: about.name,
            shape: about.shape,
            turns: about.turns,
            arrival: about.arrival,
            late_ms: served.late_ms,
            completed: completed.len(),
            errors: counted(outcomes.iter().filter_map(|outcome| outcome.as_ref().err())),
            wall_s,
            prompt_tokens,
            output_tokens,
            cached_tokens: completed.iter().map(|timing| u64::from(timing.cached_tokens)).sum(),
            output_tokens_per_s: per_second(output_tokens, wall_s),
            ttft_ms: completed.iter().map(|timing| timing.ttft_ms).collect::<Distribution>().summary(),
            itl_ms: completed
                .iter()
                .flat_map(|timing| timing.itl_ms.iter().copied())
                .collect::<Distribution>()
                .summary(),
            latency_ms: latency.summary(),
            goodput: targets.judge(&samples, wall_s),
            in_process: None,
            samples,
        };
        report.in_process = local.map(|local| report.compare(outcomes, local));
        report
    }

    /// Times to the first token of hits (any token of the prompt was cached) and of misses; `None` unless there are both.
    /// Prompts that the server didn't count are neither.
    pub(super) fn ttft_by_cache(&self) -> Option<[Summary; 2]> {
        let counted = self.samples.iter().filter(|sample| sample.error.is_none() && sample.prompt_tokens > 0);
        let (hits, misses): (Vec<_>, Vec<_>) = counted.partition(|sample| sample.cached_tokens > 0);
        let summary = |samples: &[&Sample]| {
            samples.iter().map(|sample| sample.ttft_ms).collect::<Distribution>().summary()
        };
        (!hits.is_empty() && !misses.is_empty()).then(|| [summary(&hits), summary(&misses)])
    }

    /// Times to the first token by tenant, if there are several.
    pub(super) fn ttft_by_tenant(&self) -> Vec<(&str, Summary)> {
        // By length first: the names end in numbers.
        let mut times: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.error.is_none() && !sample.tenant.is_empty())
        {
            times.entry((sample.tenant.len(), &sample.tenant)).or_default().push(sample.ttft_ms);
        }
        let summary = |times: Vec<f64>| times.into_iter().collect::<Distribution>().summary();
        times.into_iter().map(|((_, tenant), times)| (tenant, summary(times))).collect()
    }

    fn compare(&self, outcomes: &[Outcome], local: &[Generated]) -> Comparison {
        let wall_s: f64 = local.iter().map(|generated| generated.total.as_secs_f64()).sum();
        let tokens: u64 = local.iter().map(|generated| generated.tokens.len() as u64).sum();
        let output_tokens_per_s = per_second(tokens, wall_s);
        let summary = |value: fn(&Generated) -> f64| {
            local.iter().map(|generated| value(generated) * 1e3).collect::<Distribution>().summary()
        };
        let latency_ms = summary(|generated| generated.total.as_secs_f64());
        let has_ids = outcomes.iter().flatten().any(|timing| !timing.tokens.is_empty());
        let same = outcomes.iter().zip(local).filter(|(outcome, generated)| {
            outcome.as_ref().is_ok_and(|timing| timing.tokens == generated.tokens)
        });
        Comparison {
            wall_s,
            output_tokens_per_s,
            ttft_ms: summary(|generated| generated.ttft.as_secs_f64()),
            throughput_ratio: matches!(self.arrival, Arrival::Closed(_))
                .then(|| ratio(self.output_tokens_per_s, output_tokens_per_s)),
            overhead_percent: (self.arrival == Arrival::Closed(1) && self.completed > 0)
                .then(|| (ratio(self.latency_ms.mean, latency_ms.mean) - 1.0) * 100.0),
            identical: has_ids.then(|| same.count()),
            latency_ms,
        }
    }
}

impl Report {
    /// Number of failed requests.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.workloads.iter().flat_map(|workload| workload.errors.values()).sum()
    }
}

/// Counts failures by kind, each under the first message of its kind.
fn counted<'a>(errors: impl Iterator<Item = &'a String>) -> BTreeMap<String, usize> {
    const KINDS: usize = 10;
    let mut kinds: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    let mut others = 0;
    for error in errors {
        let kind = kind(error);
        if kinds.len() < KINDS || kinds.contains_key(&kind) {
            kinds.entry(kind).or_insert((error, 0)).1 += 1;
        } else {
            others += 1;
        }
    }
    let others = (others > 0).then_some(("other messages", others));
    kinds.into_values().chain(others).map(|(message, count)| (message.to_owned(), count)).collect()
}

/// The message without digits after its status: lengths, ids and times differ from request to request.
fn kind(message: &str) -> String {
    let (status, rest) = message.split_at(message.find(':').unwrap_or(0));
    status.chars().chain(rest.chars().filter(|c| !c.is_ascii_digit())).collect()
}

pub(super) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use infer_core::FinishReason;

    use super::super::Workload;
    use super::super::client::Timing;
    use super::*;

    fn generated(tokens: &[u32], total_ms: u64) -> Generated {
        Generated {
            tokens: tokens.to_vec(),
            text: String::new(),
            reason: FinishReason::Length,
            ttft: Duration::from_millis(10),
            total: Duration::from_millis(total_ms),
        }
    }

    fn timing(tokens: &[u32], latency_ms: f64) -> Outcome {
        Ok(Timing {
            ttft_ms: 12.0,
            itl_ms: vec![4.0; tokens.len().saturating_sub(1)],
            latency_ms,
            completion_tokens: tokens.len() as u32,
            tokens: tokens.to_vec(),
            ..Timing::default()
        })
    }

    #[test]
    fn failed_requests_are_counted_and_excluded_from_distributions() {
        let workload = Workload::single(1, 4, 0, 64);
        let failed = || Err("HTTP 503: full".to_owned());
        let outcomes = [timing(&[1, 2], 100.0), failed(), failed(), timing(&[3, 4], 300.0)];
        let local = [&[1u32, 2][..], &[9, 9], &[9, 9], &[3, 5]].map(|tokens| generated(tokens, 100));
        let served =
            Served { outcomes: outcomes.into(), sent_ms: vec![0.0; 4], wall_s: 2.0, ..Served::default() };
        let targets = Targets { ttft_ms: Some(12.0), itl_ms: Some(3.9) };
        let report = WorkloadReport::new(workload.about(), &served, targets, Some(&local));
        assert_eq!((report.completed, report.errors["HTTP 503: full"]), (2, 2));
        assert_eq!((report.latency_ms.count, report.latency_ms.mean), (2, 200.0));
        assert_eq!(report.goodput.map(|g| g.good), Some(0), "4 ms a token are too many");
        let lax = WorkloadReport::new(workload.about(), &served, Targets { itl_ms: None, ..targets }, None);
        assert_eq!(lax.goodput.map(|g| (g.good, g.share, g.requests_per_s)), Some((2, 0.5, 1.0)));
        assert_eq!((report.output_tokens, report.output_tokens_per_s), (4, 2.0));
        let local = report.in_process.as_ref().unwrap();
        assert_eq!(local.output_tokens_per_s, 20.0);
        assert_eq!(local.throughput_ratio, Some(0.1));
        assert_eq!(local.overhead_percent, Some(100.0));
        assert_eq!(local.identical, Some(1));
        let text = report.text();
        assert!(
            text.contains("2 completed, 2 failed") && text.contains("failed 2x  HTTP 503: full"),
            "{text}"
        );
    }

    #[test]
    fn hits_and_misses_of_the_prefix_cache_have_their_own_times() {
        let workload = Workload::single(1, 4, 0, 64);
        let counted = |prompt_tokens, cached_tokens, ttft_ms| {
            timing(&[1, 2], 90.0).map(|timing| Timing { prompt_tokens, cached_tokens, ttft_ms, ..timing })
        };
        let report = |outcomes: [Outcome; 4]| {
            let served =
                Served { outcomes: outcomes.into(), sent_ms: vec![0.0; 4], wall_s: 2.0, ..Served::default() };
            WorkloadReport::new(workload.about(), &served, Targets::default(), None)
        };
        let (hit, failed) = (counted(256, 240, 10.0), Outcome::Err("gone".to_owned()));
        let mixed = report([counted(256, 0, 40.0), hit.clone(), counted(256, 0, 60.0), failed.clone()]);
        let sample = &mixed.samples[1];
        assert_eq!((sample.prompt_tokens, sample.cached_tokens), (256, 240));
        let [hits, misses] = mixed.ttft_by_cache().unwrap();
        assert_eq!((hits.count, hits.p50, hits.p95), (1, 10.0, 10.0));
        assert_eq!((misses.count, misses.p50, misses.p95), (2, 40.0, 60.0));
        let text = mixed.text();
        let row = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(row("of hits"), ["10.00", "10.00", "10.00", "10.00", "1"]);
        assert_eq!(row("of misses"), ["40.00", "60.00", "60.00", "50.00", "2"]);

        let uncounted = counted(0, 0, 40.0);
        for alike in [[&hit, &hit, &hit, &failed], [&uncounted, &hit, &hit, &failed]] {
            let report = report(alike.map(Clone::clone));
            assert_eq!(report.ttft_by_cache(), None);
            assert!(!report.text().contains("of hits"), "{}", report.text());
        }
    }

    #[test]
    fn open_loop_has_no_throughput_ratio() {
        let workload = Workload::single(1, 1, 0, 64).arriving(Arrival::Poisson(8.0));
        let served = Served {
            outcomes: vec![timing(&[1], 9.0)],
            sent_ms: vec![0.0],
            wall_s: 1.0,
            ..Served::default()
        };
        let report =
            WorkloadReport::new(workload.about(), &served, Targets::default(), Some(&[generated(&[1], 9)]));
        assert_eq!(report.in_process.as_ref().unwrap().throughput_ratio, None);
        let text = report.text();
        assert!(text.contains("baseline") && !text.contains("the server reaches"), "{text}");
    }

    #[test]
    fn failures_that_differ_only_in_numbers_are_counted_together() {
        let long = |tokens| format!("HTTP 422: {tokens} tokens are too many");
        let letters = || ('a'..='z').map(|letter| format!("no {letter}"));
        type Case = (Vec<String>, &'static [(&'static str, usize)]);
        let cases: [Case; 4] = [
            ((600..900).map(long).collect(), &[("HTTP 422: 600 tokens are too many", 300)]),
            (
                vec!["HTTP 503: full".into(), "HTTP 429: full".into()],
                &[("HTTP 429: full", 1), ("HTTP 503: full", 1)],
            ),
            (vec!["7 tokens came".into(), "8 tokens came".into()], &[("7 tokens came", 2)]),
            (vec![], &[]),
        ];
        for (errors, want) in cases {
            let want = want.iter().map(|&(message, count)| (message.to_owned(), count)).collect();
            assert_eq!(counted(errors.iter()), want, "{errors:?}");
        }
        let many = counted(letters().collect::<Vec<_>>().iter());
        assert_eq!((many.len(), many["other messages"]), (11, 16), "{many:?}");
    }
}
