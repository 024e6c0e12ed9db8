//! What the simulated clients send: workloads by name or from files, and traces.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use infer_sim::trace::{MAX_NEW_TOKENS, Reader, Recorded, TraceError, due, limited};
use infer_sim::workload::Arrivals;
use infer_sim::{Pace, Subject, Workload};

use super::Failure;
use super::settings::repeated;
use super::trace::TraceFile;

/// A workload by name, or from a JSON file; with `requests` requests if given.
pub fn workload(given: &str, requests: Option<u64>) -> Result<Workload, Failure> {
    let is_file = Path::new(given).extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    if is_file {
        let wrong = |error: String| Failure::Usage(format!("--workload {given}: {error}"));
        let text =
            std::fs::read_to_string(given).map_err(|error| wrong(format!("can't be read: {error}")))?;
        let workload = Workload::from_json(&text).map_err(|error| wrong(error.to_string()))?;
        return Ok(Workload { requests: requests.unwrap_or(workload.requests), ..workload });
    }
    Workload::named(given, requests.unwrap_or(Workload::REQUESTS)).ok_or_else(|| {
        let known = Workload::NAMES.join(", ");
        Failure::Usage(format!("--workload: unknown workload `{given}`; use one of {known}, or a .json file"))
    })
}

/// A burstiness of arrivals.
pub fn burstiness(text: &str) -> Result<f64, String> {
    let range = Arrivals::BURSTINESS;
    let given = text.parse().ok().filter(|given| range.contains(given));
    given.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
}

/// The workloads with each burstiness, under names that tell them apart; as they are if none is given. Says on stderr
/// which of them have arrivals that it doesn't replace.
pub fn bursting(workloads: Vec<Workload>, given: &[f64]) -> Result<Vec<Workload>, Failure> {
    if let Some(twice) = repeated(given) {
        return Err(Failure::Usage(format!("--burstiness {twice} is given twice; give each value once")));
    }
    if given.is_empty() {
        return Ok(workloads);
    }
    let (mut all, mut kept, mut replaced) = (Vec::new(), Vec::new(), false);
    for workload in workloads {
        let takes = workload.streams.iter().filter(|stream| stream.arrivals.burstiness().is_some()).count();
        if takes < workload.streams.len() {
            kept.push(workload.name.clone());
        }
        if takes == 0 {
            all.push(workload);
            continue;
        }
        replaced = true;
        all.extend(given.iter().map(|&burstiness| {
            let name = format!("{} burstiness={burstiness}", workload.name);
            Workload { name, ..workload.clone().bursting(burstiness) }
        }));
    }
    let kept = kept.join(", ");
    match (replaced, kept.is_empty()) {
        (false, true) => Err(Failure::Usage(
            "--burstiness: the arrivals of a trace are recorded; give a workload, whose arrivals are drawn"
                .to_owned(),
        )),
        (false, false) => Err(Failure::Usage(format!(
            "--burstiness: it replaces Poisson processes, and the arrivals of {kept} are others; change them in a file \
             (--list --format json)"
        ))),
        (true, true) => Ok(all),
        (true, false) => {
            eprintln!(
                "{kept}: --burstiness replaces Poisson processes alone; bursts and oscillating rates stay"
            );
            Ok(all)
        }
    }
}

/// The numbers of the tenants in the traffic, ascending; `None` for 0, 1 and so on, as in traces.
pub fn tenant_numbers(workloads: &[Workload], has_traces: bool) -> Result<Option<Vec<u32>>, Failure> {
    let differ = |other: &str, numbers: &str, workload: &Workload, own: &[u32]| {
        let (name, own) = (&workload.name, listed(own));
        Failure::Usage(format!(
            "--api-keys: the tenants of {other} have the numbers {numbers}, those of {name} {own}; compare them \
             separately"
        ))
    };
    let mut longest: Option<(&str, Vec<u32>)> = None;
    for workload in workloads {
        let numbers: BTreeSet<u32> = workload.streams.iter().map(|stream| stream.tenant).collect();
        if has_traces && !(0..).zip(&numbers).all(|(nth, &number)| nth == number) {
            return Err(differ("a trace", "0, 1 and so on", workload, &Vec::from_iter(numbers)));
        }
        let numbers = Vec::from_iter(numbers);
        let Some((other, known)) = &longest else {
            longest = Some((workload.name.as_str(), numbers));
            continue;
        };
        if !known.starts_with(&numbers) && !numbers.starts_with(known) {
            return Err(differ(other, &listed(known), workload, &numbers));
        }
        if numbers.len() > known.len() {
            longest = Some((workload.name.as_str(), numbers));
        }
    }
    Ok(longest.filter(|_| !has_traces).map(|(_, numbers)| numbers))
}

fn listed(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Limits on the requests of traces, and what they lack.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Most requests.
    pub requests: u64,
    /// The `max_tokens` of public formats.
    pub max_tokens: Option<u32>,
    /// When the first token is due of requests that name no time.
    pub ttft_ms: Option<u64>,
    /// The simulated host's.
    pub max_seq_len: u32,
}

/// What traffic has that policies may go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// A request has a deadline.
    pub deadlines: bool,
    /// Requests have different priorities.
    pub priorities: bool,
}

/// The requests of a trace that exceed the maximum sequence length, counted while they are replayed, and what the
/// requests have that policies may go by.
pub struct Lengths {
    name: String,
    max_seq_len: u32,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    requests: u64,
    too_long: u64,
    longest: u64,
    with_deadline: u64,
    /// The lowest and the highest.
    priorities: Option<(i32, i32)>,
}

impl Lengths {
    /// The trace's name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its requests have; `None` if none was read.
    pub fn offers(&self) -> Option<Offers> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (lowest, highest) = seen.priorities?;
        Some(Offers { deadlines: seen.with_deadline > 0, priorities: lowest < highest })
    }

    /// What to tell whoever reads the results, if any request was too long.
    pub fn note(&self) -> Option<String> {
        let Seen { requests, too_long, longest, .. } =
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, limit) = (&self.name, self.max_seq_len);
        (too_long > 0).then(|| {
            format!(
                "{name}: {too_long} of {requests} requests exceed --max-seq-len {limit} (the longest has {longest} \
                 tokens) and are refused; a --max-seq-len of {longest} takes all if the pool can hold them (--blocks)"
            )
        })
    }
}

/// A trace as a subject under a name, and its lengths as far as it will have been replayed.
pub fn subject(trace: &TraceFile, name: String, paces: Vec<Pace>, limits: Limits) -> (Subject<'_>, Lengths) {
    let Limits { requests, max_tokens, ttft_ms, max_seq_len } = limits;
    let max_tokens = max_tokens.unwrap_or(MAX_NEW_TOKENS);
    let is_public = trace.head().is_none();
    let seen = Arc::<Mutex<Seen>>::default();
    let lengths = Lengths { name: name.clone(), max_seq_len, seen: Arc::clone(&seen) };
    let open = move || -> Result<Reader<'_>, String> {
        let reader = trace.read()?;
        let reader = if is_public { limited(reader, max_tokens, max_seq_len) } else { reader };
        let reader = match ttft_ms {
            Some(ms) => due(reader, ms.saturating_mul(1_000)),
            None => reader,
        };
        Ok(Box::new(Counted { reader, max_seq_len, now: Seen::default(), seen: Arc::clone(&seen) }))
    };
    let closed_loop = trace.is_closed_loop();
    (Subject::Recorded { paces, name, requests, closed_loop, open: Box::new(open) }, lengths)
}

/// Counts what is read. A trace is read once per run, and once more to learn its rate, always as far.
struct Counted<'a> {
    reader: Reader<'a>,
    max_seq_len: u32,
    now: Seen,
    seen: Arc<Mutex<Seen>>,
}

impl Iterator for Counted<'_> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.reader.next();
        if let Some(Ok(recorded)) = &next {
            let output = if recorded.embeds { 0 } else { recorded.max_tokens };
            let tokens = u64::from(recorded.prompt_tokens) + u64::from(output);
            self.now.requests += 1;
            self.now.too_long += u64::from(tokens > u64::from(self.max_seq_len));
            self.now.longest = self.now.longest.max(tokens);
            self.now.with_deadline += u64::from(recorded.ttft_us.is_some());
            let own = recorded.priority;
            let (lowest, highest) = self.now.priorities.unwrap_or((own, own));
            self.now.priorities = Some((lowest.min(own), highest.max(own)));
        }
        next
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.now.requests > seen.requests {
            *seen = self.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_varied_by_burstiness_where_their_arrivals_are_poisson_processes() {
        let all = |names: &[&str], given: &[f64]| {
            let named = |name: &&str| Workload::named(name, 9).expect("a known workload");
            match bursting(names.iter().map(named).collect(), given) {
                Ok(all) => Ok(all.into_iter().map(|one| (one.burstiness(), one.name)).collect::<Vec<_>>()),
                Err(Failure::Usage(why) | Failure::Failed(why)) => Err(why),
            }
        };
        let of = |burstiness, name: &str| (burstiness, name.to_owned());
        assert_eq!(all(&["chat", "bursty"], &[]), Ok(vec![of(Some(1.0), "chat"), of(None, "bursty")]));
        let varied = vec![
            of(Some(0.25), "chat burstiness=0.25"),
            of(Some(1.0), "chat burstiness=1"),
            of(None, "bursty"),
            of(Some(0.25), "urgent burstiness=0.25"),
            of(Some(1.0), "urgent burstiness=1"),
        ];
        assert_eq!(all(&["chat", "bursty", "urgent"], &[0.25, 1.0]), Ok(varied));
        for (names, given, says) in [
            (&["chat"][..], &[2.0, 2.0][..], "--burstiness 2 is given twice"),
            (&["bursty", "diurnal"], &[0.5], "the arrivals of bursty, diurnal are others"),
            (&[], &[0.5], "a trace are recorded"),
        ] {
            let why = all(names, given).expect_err(says);
            assert!(why.contains(says), "{says}: {why}");
        }
        for (text, read) in
            [("0.25", Some(0.25)), ("0", None), ("NaN", None), ("20000", None), ("high", None)]
        {
            assert_eq!(burstiness(text).ok(), read, "{text}");
        }
    }

    #[test]
    fn numbers_of_tenants_are_those_of_all_workloads_if_they_agree() {
        let workload = |numbers: &[u32]| {
            let mut workload = Workload::named("chat", 9).expect("a known workload");
            let stream = workload.streams[0].clone();
            workload.streams =
                numbers.iter().map(|&tenant| infer_sim::Stream { tenant, ..stream.clone() }).collect();
            workload
        };
        let numbers = |all: &[&[u32]], has_traces| {
            let workloads: Vec<Workload> = all.iter().map(|numbers| workload(numbers)).collect();
            match tenant_numbers(&workloads, has_traces) {
                Ok(numbers) => Ok(numbers),
                Err(Failure::Usage(why) | Failure::Failed(why)) => Err(why),
            }
        };
        assert_eq!(numbers(&[&[40, 3, 40]], false), Ok(Some(vec![3, 40])));
        assert_eq!(numbers(&[&[0], &[1, 0], &[0]], false), Ok(Some(vec![0, 1])));
        assert_eq!(numbers(&[&[1, 0]], true), Ok(None));
        assert_eq!(numbers(&[], true), Ok(None));
        for (all, has_traces, says) in [
            (&[&[1, 3][..], &[2, 1]][..], false, "of chat have the numbers 1, 3, those of chat 1, 2;"),
            (&[&[1]], true, "of a trace have the numbers 0, 1 and so on, those of chat 1;"),
            (&[&[0, 2]], true, "those of chat 0, 2;"),
        ] {
            let why = numbers(all, has_traces).expect_err(says);
            assert!(why.contains(says), "{says}: {why}");
        }
    }
}
