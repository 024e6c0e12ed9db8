//! Decides whether clients are worse off than before, beyond noise.
//!
//! Like is compared with like: times between tokens under the same class of load; time to the first token
//! only if no more was asked of the host than before; throughput only if work waited. A difference must also
//! exceed the spread of the baseline: slices are the samples, and most of those after must be worse than
//! nearly all of those before. So bursts, a change of load, or a busy neighbour for a second don't decide
//! anything.

use super::{Class, LoadClass, Ran, SLICE, Slice};
use crate::ids::Micros;
use crate::trial::WindowStats;

/// How much worse is harm.
const ITL_FACTOR: f64 = 1.5;
const TTFT_FACTOR: f64 = 2.0;
const THROUGHPUT_FACTOR: f64 = 1.5;
/// How much more load still counts as the same.
const SAME_LOAD: f64 = 1.15;
/// The queue counts as no longer than before if at most this many more wait.
const SAME_QUEUE: f64 = 4.0;
/// Tokens that make a slice's percentiles a sample.
const FEWEST_TOKENS: u32 = 8;
/// First tokens needed for a comparison.
const FEWEST_REQUESTS: u32 = 20;
/// Slices before that make a comparison of speeds.
pub(crate) const FEWEST_BEFORE: usize = 3;
/// Share of refusals beyond twice the share before that is harm.
const MORE_REFUSALS: f64 = 0.2;

type Percentile = fn(&Class) -> u64;

/// The verdict of the measurements so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outlook {
    /// Clients are no worse off, as far as the measurements show.
    Fine {
        /// What more was asked of the host than before, in words, so that not everything can be compared.
        more: Option<String>,
    },
    /// Clients are worse off, in a sentence.
    Harmful(String),
}

/// Compares what was measured since a policy became live with what was measured before.
pub(crate) fn judge(before: &[Slice], after: &[Slice], window: Micros) -> Outlook {
    let window = usize::try_from(window.0 / SLICE.0).unwrap_or(usize::MAX);
    let fewest = (window / 4).clamp(4, 8);
    let more = more_offered(&offered(before), &offered(after));
    let comparable = more.is_none();
    let harm = slower_tokens(before, after, fewest)
        .or_else(|| less_throughput(before, after, fewest))
        .or_else(|| comparable.then(|| later_first_tokens(before, after, fewest.max(window / 2))).flatten())
        .or_else(|| more_refusals(before, after).filter(|_| comparable || lets_in_fewer(before, after)));
    harm.map_or(Outlook::Fine { more }, Outlook::Harmful)
}

/// What clients got and asked for, for a report.
pub(crate) fn summarize(slices: &[Slice]) -> WindowStats {
    let busy: u64 = slices.iter().map(|s| s.busy_us).sum();
    let generated: u64 = slices.iter().map(|s| s.generated).sum();
    let [requests, prompt_tokens, _] = offered(slices);
    let classes = || slices.iter().flat_map(|s| &s.classes);
    let first = slices.iter().filter(|s| s.first_tokens > 0).map(|s| (s.ttft_p50, s.first_tokens)).collect();
    WindowStats {
        busy: Micros(busy),
        requests_per_second: requests,
        prompt_tokens_per_second: prompt_tokens,
        tokens_per_second: per_second(generated, busy),
        itl_p50: Micros(weighted_median(classes().map(|c| (c.p50, c.tokens)).collect())),
        itl_p95: Micros(weighted_median(classes().map(|c| (c.p95, c.tokens)).collect())),
        ttft_p50: Micros(weighted_median(first)),
        refused: refused(slices),
    }
}

/// Requests, prompt tokens and tokens to generate, asked for per second.
fn offered(slices: &[Slice]) -> [f64; 3] {
    let wall: u64 = slices.iter().map(|s| s.wall_us).sum();
    let arrivals = slices.iter().map(|s| u64::from(s.arrivals)).sum();
    let prompts = slices.iter().map(|s| s.prompt_tokens).sum();
    let outputs = slices.iter().map(|s| s.output_tokens).sum();
    [arrivals, prompts, outputs].map(|sum| per_second(sum, wall))
}

/// The first of what was asked for that is beyond the same load.
fn more_offered(before: &[f64; 3], after: &[f64; 3]) -> Option<String> {
    let names = ["requests", "prompt tokens", "tokens to generate"];
    let mut all = names.iter().zip(before.iter().zip(after));
    let (name, (was, is)) = all.find(|&(_, (&before, &after))| after > before * SAME_LOAD)?;
    Some(format!("{is:.1} {name}/s, up from {was:.1}"))
}

fn refused(slices: &[Slice]) -> f64 {
    let refused: u32 = slices.iter().map(|s| s.refused).sum();
    let arrivals: u32 = slices.iter().map(|s| s.arrivals).sum();
    f64::from(refused) / f64::from(arrivals.max(1))
}

/// Times between tokens, class by class. It is harmful if that affects most tokens.
fn slower_tokens(before: &[Slice], after: &[Slice], fewest: usize) -> Option<String> {
    let mut loads: Vec<LoadClass> = after.iter().flat_map(|s| &s.classes).map(|c| c.load).collect();
    loads.sort_unstable();
    loads.dedup();
    let all: u64 = after.iter().flat_map(|s| &s.classes).map(|c| u64::from(c.tokens)).sum();
    let (mut comparable, mut harmed) = (0, 0);
    let mut worst: Option<(u64, String)> = None;
    for load in loads {
        let is_sample = |c: &&Class| c.load == load && c.tokens >= FEWEST_TOKENS;
        let of = |slices: &[Slice], value: Percentile| -> Vec<f64> {
            slices.iter().flat_map(|s| &s.classes).filter(is_sample).map(|c| value(c) as f64).collect()
        };
        let samples = before.iter().chain(after).flat_map(|s| &s.classes).filter(is_sample);
        let Some(ran) = samples.map(|c| c.ran).reduce(Ran::and) else { continue };
        let percentiles: [(&str, Percentile); 2] = [("p50", |c| c.p50), ("p95", |c| c.p95)];
        let (mut enough, mut found) = (false, None);
        for (name, value) in percentiles {
            let (before, after) = (Samples::of(of(before, value)), Samples::of(of(after, value)));
            enough = before.len() >= FEWEST_BEFORE && after.len() >= fewest;
            if enough && found.is_none() && after.is_beyond(&before, ITL_FACTOR) {
                let words = load.words(ran);
                let (was, is) = (before.median() / 1e3, after.median() / 1e3);
                found = Some(format!("ITL {name} is {is:.1} ms, up from {was:.1} ms, with {words}"));
            }
        }
        if !enough {
            continue;
        }
        let classes = after.iter().flat_map(|s| &s.classes).filter(|c| c.load == load);
        let tokens: u64 = classes.map(|c| u64::from(c.tokens)).sum();
        comparable += tokens;
        if let Some(found) = found {
            harmed += tokens;
            if worst.as_ref().is_none_or(|(most, _)| tokens > *most) {
                // Medians of all tokens, as reports show them, are others.
                worst = Some((tokens, format!("{found} ({tokens} of {all} tokens)")));
            }
        }
    }
    worst.filter(|_| harmed * 2 >= comparable).map(|(_, words)| words)
}

/// First tokens, if no more is asked of the host. `fewest` is half the window, because queues also grow and
/// shrink on their own.
fn later_first_tokens(before: &[Slice], after: &[Slice], fewest: usize) -> Option<String> {
    let requests = |slices: &[Slice]| slices.iter().map(|s| s.first_tokens).sum::<u32>();
    let of = |slices: &[Slice]| {
        Samples::of(slices.iter().filter(|s| s.first_tokens > 0).map(|s| s.ttft_p50 as f64).collect())
    };
    let after = from_same_queue(before, after);
    let few = requests(before).min(requests(after)) < FEWEST_REQUESTS || after.len() < fewest;
    let (before, after) = (of(before), of(after));
    if few || before.len() < FEWEST_BEFORE || !after.is_beyond(&before, TTFT_FACTOR) {
        return None;
    }
    // For the same reason most slices must be beyond the spread, not only half of them.
    (after.at(0.25) > before.at(0.9)).then(|| {
        let (was, is) = (before.median() / 1e3, after.median() / 1e3);
        format!("TTFT p50 is {is:.1} ms, up from {was:.1} ms, at no higher load")
    })
}

/// The slices since the queue was first as short as before: a queue that the policy inherited, or that grows
/// under any policy, is not attributed to it.
fn from_same_queue<'a>(before: &[Slice], after: &'a [Slice]) -> &'a [Slice] {
    let usual = Samples::of(before.iter().map(|s| f64::from(s.waiting)).collect()).median() + SAME_QUEUE;
    let short = |slice: &Slice| f64::from(slice.waiting) <= usual;
    // The recorder returns the baseline's last slice first.
    if before.first().is_none_or(short) {
        return after;
    }
    let first = after.iter().position(short).map_or(after.len(), |at| at + 1);
    &after[first..]
}

/// Tokens per second while work waits: of generated tokens and of all computed ones, because a policy may
/// prefer prompts for a while.
fn less_throughput(before: &[Slice], after: &[Slice], fewest: usize) -> Option<String> {
    let of = |slices: &[Slice], tokens: fn(&Slice) -> u64| {
        let saturated = slices.iter().filter(|s| s.busy_us > 0 && s.waiting_us * 5 >= s.busy_us * 4);
        // Times per token, so that more is worse, as elsewhere here.
        let rates = saturated.map(|s| s.busy_us as f64 / (tokens(s) as f64).max(0.5));
        Samples::of(rates.collect())
    };
    let mut said = None;
    for tokens in [|s: &Slice| s.computed, |s: &Slice| s.generated] {
        let (before, after) = (of(before, tokens), of(after, tokens));
        if before.len() < FEWEST_BEFORE
            || after.len() < fewest
            || !after.is_beyond(&before, THROUGHPUT_FACTOR)
            || after.at(0.25) <= before.at(0.9)
        {
            return None;
        }
        said = Some((1e6 / after.median(), 1e6 / before.median()));
    }
    said.map(|(is, was)| format!("{is:.0} tokens/s are generated, down from {was:.0}, although work waits"))
}

fn more_refusals(before: &[Slice], after: &[Slice]) -> Option<String> {
    let arrivals: u32 = after.iter().map(|s| s.arrivals).sum();
    let (was, is) = (refused(before), refused(after));
    (arrivals >= FEWEST_REQUESTS && !before.is_empty() && is > 2.0 * was + MORE_REFUSALS)
        .then(|| format!("{:.0}% of the requests are refused, up from {:.0}%", is * 100.0, was * 100.0))
}

/// Whether far fewer requests are admitted although no more arrive. Refused clients retry, so a higher
/// arrival rate alone is no excuse.
fn lets_in_fewer(before: &[Slice], after: &[Slice]) -> bool {
    let each =
        |[requests, prompt, output]: [f64; 3]| [prompt, output].map(|tokens| tokens / requests.max(1e-9));
    let (was, is) = (each(offered(before)), each(offered(after)));
    let served = |slices: &[Slice]| offered(slices)[0] * (1.0 - refused(slices));
    served(after) * THROUGHPUT_FACTOR < served(before)
        && was.iter().zip(is).all(|(was, is)| is <= was * SAME_LOAD)
}

/// Sorted samples, one per slice.
struct Samples(Vec<f64>);

impl Samples {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// The value that this share of the samples don't exceed.
    fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
    }

    fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// Whether three quarters are beyond the others' median by `factor`, and half beyond nearly all of them.
    fn is_beyond(&self, others: &Self, factor: f64) -> bool {
        self.at(0.25) > others.median() * factor && self.median() > others.at(0.9)
    }
}

fn weighted_median(mut all: Vec<(u64, u32)>) -> u64 {
    all.sort_unstable();
    let total: u64 = all.iter().map(|&(_, weight)| u64::from(weight)).sum();
    let mut seen = 0;
    for (value, weight) in all {
        seen += u64::from(weight);
        if seen * 2 >= total {
            return value;
        }
    }
    0
}

fn per_second(count: u64, us: u64) -> f64 {
    if us == 0 { 0.0 } else { count as f64 * 1e6 / us as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(itl: u64, ttft: u64, generated: u64, arrivals: u32) -> Slice {
        let (load, ran) = (LoadClass::of(4, false), Ran { fewest: 4, most: 4 });
        Slice {
            wall_us: 500_000,
            busy_us: 500_000,
            waiting_us: 500_000,
            computed: generated,
            generated,
            arrivals,
            first_tokens: arrivals,
            ttft_p50: ttft,
            classes: vec![Class { load, ran, tokens: 100, p50: itl, p95: itl }],
            ..Slice::default()
        }
    }

    fn said(before: &[Slice], after: &[Slice]) -> String {
        match judge(before, after, Micros(10_000_000)) {
            Outlook::Fine { more: None } => "fine".to_owned(),
            Outlook::Fine { more: Some(more) } => format!("fine, {more}"),
            Outlook::Harmful(words) => words,
        }
    }

    #[test]
    fn harm_is_named_with_its_numbers() {
        let before = vec![slice(10_000, 50_000, 1_000, 5); 20];
        let after = |itl, ttft, generated| vec![slice(itl, ttft, generated, 5); 20];
        let cases = [
            (after(12_000, 90_000, 800), "fine"),
            (
                after(20_000, 50_000, 1_000),
                "ITL p50 is 20.0 ms, up from 10.0 ms, with 4 sequences running (2000 of 2000 tokens)",
            ),
            (after(10_000, 150_000, 1_000), "TTFT p50 is 150.0 ms, up from 50.0 ms, at no higher load"),
            (after(10_000, 50_000, 500), "1000 tokens/s are generated, down from 2000, although work waits"),
        ];
        for (after, want) in cases {
            assert_eq!(said(&before, &after), want);
        }
        let mut refusing = after(10_000, 50_000, 1_000);
        refusing.iter_mut().for_each(|s| s.refused = 2);
        assert_eq!(said(&before, &refusing), "40% of the requests are refused, up from 0%");
    }

    #[test]
    fn harm_under_one_load_says_how_many_tokens_that_is() {
        let other = LoadClass::of(1, true);
        let mixed = |itl, alone| {
            let mut slice = slice(itl, 50_000, 1_000, 5);
            let ran = Ran { fewest: 1, most: 1 };
            slice.classes.push(Class { load: other, ran, tokens: 60, p50: alone, p95: alone });
            slice
        };
        let (before, after) = (vec![mixed(10_000, 2_000); 20], vec![mixed(20_000, 2_000); 20]);
        let words = "ITL p50 is 20.0 ms, up from 10.0 ms, with 4 sequences running (2000 of 3200 tokens)";
        assert_eq!(said(&before, &after), words);
    }

    #[test]
    fn retries_do_not_hide_refusals() {
        let before = vec![slice(10_000, 50_000, 1_000, 5); 20];
        let mut after = vec![slice(10_000, 50_000, 1_000, 100); 20];
        after.iter_mut().for_each(|s| s.refused = 98);
        assert_eq!(said(&before, &after), "98% of the requests are refused, up from 0%");
        // As many as before are admitted.
        after.iter_mut().for_each(|s| s.refused = 95);
        assert_eq!(said(&before, &after), "fine, 200.0 requests/s, up from 10.0");
        // Fewer, but each is larger.
        after.iter_mut().for_each(|s| (s.refused, s.prompt_tokens) = (98, 90_000));
        assert_eq!(said(&before, &after), "fine, 200.0 requests/s, up from 10.0");
    }

    #[test]
    fn few_slices_an_earlier_spread_and_another_load_are_no_harm() {
        let before = vec![slice(10_000, 50_000, 1_000, 5); 20];
        assert_eq!(said(&before, &vec![slice(90_000, 50_000, 1_000, 5); 3]), "fine");
        let some = |n| {
            [vec![slice(40_000, 50_000, 1_000, 5); n], vec![slice(10_000, 50_000, 1_000, 5); 20]].concat()
        };
        assert_eq!(said(&before, &some(6)), "fine");
        assert_eq!(said(&some(5), &vec![slice(30_000, 50_000, 1_000, 5); 20]), "fine");
        // More is asked of the host, so clients wait longer for their first tokens.
        let more = "fine, 18.0 requests/s, up from 10.0";
        assert_eq!(said(&before, &vec![slice(10_000, 900_000, 1_000, 9); 20]), more);
        // Nothing to compare with.
        let more = "fine, 10.0 requests/s, up from 0.0";
        assert_eq!(said(&[], &vec![slice(90_000, 900_000, 10, 5); 20]), more);
    }
}
