//! What a device can finish of a stream: all places are taken all the time, and prompts find cached what they have in
//! common. There is no engine in it, so a load means the same whatever policies do with it.

use std::collections::BTreeSet;

use infer_core::config::Limits;

use super::arrivals::Clock;
use super::source::{Source, outgrown};
use super::{Arrivals, Stream};
use crate::cost::{Profile, Work};

/// Requests whose time is taken, at least: lengths of a heavy tail need thousands to show their mean.
const REQUESTS: u64 = 8_000;
/// Requests per place that end before, since at first all places begin at once.
const WARM: u64 = 2;
/// Names the requests that are tried: what a load is doesn't depend on the seed of a run.
const SEED: u64 = 1;

/// One of the device's places, and what is still to be computed there.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    prompt_left: u32,
    output_left: u32,
    /// Tokens computed so far, cached ones included.
    context: u32,
    prefix: Option<(u64, u32)>,
}

/// The requests of a stream one after another, each less what is cached of it.
struct Queue {
    source: Source,
    max_seq_len: u32,
    /// Those of the last conversation that are still to come, the next one last.
    ready: Vec<Place>,
}

/// Requests of `stream` that the device finishes a second.
pub(super) fn capacity(stream: &Stream, profile: &Profile, limits: &Limits, max_seq_len: u32) -> f64 {
    let mut queue = Queue::new(stream, max_seq_len);
    let mut places: Vec<Place> = (0..limits.max_running).map(|_| queue.next()).collect();
    let warm = WARM * u64::from(limits.max_running);
    let last = warm + REQUESTS.max(8 * u64::from(limits.max_running));
    let (mut ended, mut us, mut warm_us, mut warm_ended) = (0, 0.0, 0.0, 0);
    while ended < last {
        us += profile.step_us(&step(&mut places, profile, limits));
        for place in places.iter_mut().filter(|place| place.output_left == 0) {
            *place = queue.next();
            ended += 1;
        }
        if ended <= warm {
            (warm_us, warm_ended) = (us, ended);
        }
    }
    crate::metrics::count(ended - warm_ended) / (us - warm_us) * 1e6
}

/// Every place draws a token or computes a piece of its prompt, as far as the limits go.
fn step(places: &mut [Place], profile: &Profile, limits: &Limits) -> Work {
    let mut work = Work::default();
    let mut prefixes = BTreeSet::new();
    let mut tokens_left = limits.max_batch_tokens;
    for place in places.iter_mut().filter(|place| place.prompt_left == 0).take(tokens_left as usize) {
        place.context += 1;
        place.output_left -= 1;
        tokens_left -= 1;
        work.add(1, place.context, true);
        if let Some((prefix, tokens)) = place.prefix
            && profile.knows_sharing()
            && !prefixes.insert(prefix)
        {
            work.repeated += f64::from(tokens);
        }
    }
    tokens_left = tokens_left.min(limits.max_prefill_tokens);
    let computing = places.iter_mut().filter(|place| place.prompt_left > 0);
    for place in computing.take(limits.max_prefill_sequences as usize) {
        let piece = place.prompt_left.min(limits.prefill_chunk).min(tokens_left);
        if piece == 0 {
            break;
        }
        tokens_left -= piece;
        place.prompt_left -= piece;
        place.context += piece;
        let draws = place.prompt_left == 0;
        place.output_left -= u32::from(draws);
        work.add(piece, place.context, draws);
    }
    work
}

impl Queue {
    fn new(stream: &Stream, max_seq_len: u32) -> Self {
        // When they come is of no account here.
        let clock = Clock::new(Arrivals::Poisson, 1.0, 1.0);
        let source = Source::new(stream, clock, SEED, 0);
        Self { source, max_seq_len, ready: Vec::new() }
    }

    fn next(&mut self) -> Place {
        if self.ready.is_empty() {
            let begin = self.source.begin();
            let (prefix, cached) = (begin.prefix, begin.prefix.map_or(0, |(_, tokens)| tokens));
            let mut turns: Vec<usize> = Vec::new();
            for ask in begin.asks {
                let history: usize = turns.iter().sum();
                turns.push(ask.prompt_tokens as usize);
                let window = self.source.stream.text.window(self.max_seq_len, ask.output_tokens);
                let gone = outgrown(turns.iter().copied(), window);
                turns.drain(..gone);
                // Without its first turn a conversation shares no beginning with what it was.
                let found = if gone == 0 { history } else { 0 };
                let prompt: usize = turns.iter().sum();
                self.ready.push(Place {
                    prompt_left: (prompt - found) as u32,
                    output_left: ask.output_tokens,
                    context: found as u32 + cached,
                    prefix,
                });
                // The end token isn't part of what was said.
                *turns.last_mut().expect("it was just asked") += ask.output_tokens as usize - 1;
            }
            self.ready.reverse();
        }
        self.ready.pop().expect("something begins with a request")
    }
}
