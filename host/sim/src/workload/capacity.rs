//! The device's capacity for a stream, with all slots always busy and shared prefixes always cached. It involves no
//! engine, so a load means the same whatever the policies do.

use std::collections::BTreeSet;

use infer_core::config::Limits;

use super::arrivals::Clock;
use super::source::{Source, outgrown};
use super::{Arrivals, Stream, Workload};
use crate::cost::{Profile, Work};
use crate::metrics::count;
use crate::run::Settings;

/// Minimum number of requests to measure: heavy-tailed lengths need thousands for a stable mean.
const REQUESTS: u64 = 8_000;
/// Warm-up requests per slot, because at first all slots start at the same time.
const WARM: u64 = 2;
/// Seed of the measured requests; the capacity must not depend on the seed of a run.
const SEED: u64 = 1;

/// What a device can finish of a workload, which a load of 1 offers.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Of each stream.
    pub(super) streams: Vec<Pace>,
}

/// A stream on a busy device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Requests that it finishes per second.
    pub per_s: f64,
    /// Microseconds of a step, so from one output token of a request to the next.
    pub step_us: f64,
}

impl Capacity {
    /// That of the settings' device and limits.
    pub fn of(workload: &Workload, settings: &Settings) -> Self {
        let Settings { engine, profile, .. } = settings;
        let of = |stream: &Stream| {
            let Pace { per_s, step_us } = pace(stream, profile, &engine.limits, engine.max_seq_len);
            Pace { per_s: stream.share * per_s, step_us }
        };
        Self { streams: workload.streams.iter().map(of).collect() }
    }

    /// Requests per second of all streams.
    pub fn requests_per_second(&self) -> f64 {
        self.streams.iter().map(|pace| pace.per_s).sum()
    }
}

/// A slot for a running sequence, and the work left in it.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    prompt_left: u32,
    output_left: u32,
    /// Tokens computed so far, cached ones included.
    context: u32,
    prefix: Option<(u64, u32)>,
}

/// The requests of a stream in order, each without its cached prefix.
struct Queue {
    source: Source,
    max_seq_len: u32,
    /// Remaining turns of the current conversation, the next one last.
    ready: Vec<Slot>,
}

/// The most of `stream` that the device can finish, one request after another in each slot.
fn pace(stream: &Stream, profile: &Profile, limits: &Limits, max_seq_len: u32) -> Pace {
    let mut queue = Queue::new(stream, max_seq_len);
    let mut slots: Vec<Slot> = (0..limits.max_running).map(|_| queue.next()).collect();
    let warm = WARM * u64::from(limits.max_running);
    let last = warm + REQUESTS.max(8 * u64::from(limits.max_running));
    let (mut ended, mut us, mut warm_us, mut warm_ended, mut steps) = (0, 0.0, 0.0, 0, 0);
    while ended < last {
        us += profile.step_us(&step(&mut slots, profile, limits));
        steps += 1;
        for slot in slots.iter_mut().filter(|slot| slot.output_left == 0) {
            *slot = queue.next();
            ended += 1;
        }
        if ended <= warm {
            (warm_us, warm_ended) = (us, ended);
        }
    }
    Pace { per_s: count(ended - warm_ended) / (us - warm_us) * 1e6, step_us: us / count(steps) }
}

/// Runs one step: every slot decodes a token or prefills a chunk, within the limits.
fn step(slots: &mut [Slot], profile: &Profile, limits: &Limits) -> Work {
    let mut work = Work::default();
    let mut prefixes = BTreeSet::new();
    let mut tokens_left = limits.max_batch_tokens;
    for slot in slots.iter_mut().filter(|slot| slot.prompt_left == 0).take(tokens_left as usize) {
        slot.context += 1;
        slot.output_left -= 1;
        tokens_left -= 1;
        work.add(1, slot.context, true);
        if let Some((prefix, tokens)) = slot.prefix
            && profile.knows_sharing()
            && !prefixes.insert(prefix)
        {
            work.repeated += f64::from(tokens);
        }
    }
    tokens_left = tokens_left.min(limits.max_prefill_tokens);
    let computing = slots.iter_mut().filter(|slot| slot.prompt_left > 0);
    for slot in computing.take(limits.max_prefill_sequences as usize) {
        let piece = slot.prompt_left.min(limits.prefill_chunk).min(tokens_left);
        if piece == 0 {
            break;
        }
        tokens_left -= piece;
        slot.prompt_left -= piece;
        slot.context += piece;
        let draws = slot.prompt_left == 0;
        slot.output_left -= u32::from(draws);
        work.add(piece, slot.context, draws);
    }
    work
}

impl Queue {
    fn new(stream: &Stream, max_seq_len: u32) -> Self {
        // Arrival times don't matter here.
        let clock = Clock::new(Arrivals::Poisson, 1.0, 1.0);
        let source = Source::new(stream, clock, SEED, 0);
        Self { source, max_seq_len, ready: Vec::new() }
    }

    fn next(&mut self) -> Slot {
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
                // Without its first turn, only what is before that is cached.
                let found = if gone == 0 { history } else { 0 };
                let prompt: usize = turns.iter().sum();
                self.ready.push(Slot {
                    prompt_left: (prompt - found) as u32,
                    output_left: ask.output_tokens,
                    context: found as u32 + cached,
                    prefix,
                });
                // The end token isn't part of the history.
                *turns.last_mut().expect("it was just asked") += ask.output_tokens as usize - 1;
            }
            self.ready.reverse();
        }
        self.ready.pop().expect("an arrival has at least one request")
    }
}
