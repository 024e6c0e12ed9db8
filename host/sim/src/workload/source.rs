//! The arrivals of a stream. A conversation is generated as a whole at its start, so nothing in it depends on the host.

use std::collections::VecDeque;

use super::arrivals::Clock;
use super::popularity::Popularity;
use super::{Lengths, Limit, Stream, Text, longest};
use crate::random::Random;

/// A running stream.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub stream: Stream,
    clock: Clock,
    /// Randomness of arrival times, separate so that other lengths leave the arrivals unchanged.
    times: Random,
    random: Random,
    /// Base id of the texts that its requests share.
    identity: u64,
    popularity: Popularity,
}

/// An arrival: a request, or a conversation with all its turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub at_us: u64,
    /// Id of the conversation; `None` for a single request.
    pub conversation: Option<u64>,
    /// Id and length of the text that other requests start with, too.
    pub prefix: Option<(u64, u32)>,
    /// Its requests, at least one.
    pub asks: VecDeque<Ask>,
}

/// The new part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// Id of its text.
    pub text: u64,
    /// 0 only behind a prefix.
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Time since the end of the previous turn; 0 for the first.
    pub think_us: u64,
}

impl Source {
    /// The `at`th stream of a workload.
    pub fn new(stream: &Stream, clock: Clock, seed: u64, at: u64) -> Self {
        let (times, mut random) = (Random::new(seed, 2 * at + 1), Random::new(seed, 2 * at));
        let identity = random.bits();
        let popularity = stream.text.popularity();
        Self { stream: stream.clone(), clock, times, random, identity, popularity }
    }

    /// The next arrival.
    pub fn begin(&mut self) -> Begin {
        let at_us = self.clock.next(&mut self.times);
        let single = |ask| VecDeque::from([ask]);
        match self.stream.text {
            Text::Unique => Begin { at_us, conversation: None, prefix: None, asks: single(self.ask(0.0)) },
            Text::Shared { tokens, .. } => {
                let which = self.popularity.draw(&mut self.random);
                let prefix = Some((self.identity ^ which, tokens));
                Begin { at_us, conversation: None, prefix, asks: single(self.ask(0.0)) }
            }
            Text::Repeated { .. } => {
                let which = self.popularity.draw(&mut self.random);
                let mut random = Random::new(self.identity, which);
                let prefix = Some((random.bits(), self.stream.prompt.draw(&mut random)));
                let ask = Ask { prompt_tokens: 0, ..self.ask(0.0) };
                Begin { at_us, conversation: None, prefix, asks: single(ask) }
            }
            Text::Conversation { turns, think_s, system, .. } => {
                let turns = Lengths::Uniform(1, longest(turns)).draw(&mut self.random);
                let conversation = self.random.bits() | 1;
                let prefix = system.map(|system| {
                    // Randomness of its own, so that the turns are the same with and without a system prompt.
                    let mut random = Random::new(self.identity, conversation);
                    (self.identity ^ self.popularity.draw(&mut random), system.tokens)
                });
                let thinks = |turn| if turn == 0 { 0.0 } else { think_s };
                let asks = (0..turns).map(|turn| self.ask(thinks(turn))).collect();
                Begin { at_us, conversation: Some(conversation), prefix, asks }
            }
        }
    }

    fn ask(&mut self, think_s: f64) -> Ask {
        let random = &mut self.random;
        let (text, prompt_tokens) = (random.bits(), self.stream.prompt.draw(random));
        let output_tokens = match (self.stream.output.draw(random), self.stream.limit) {
            (wanted, Limit::Tight) => wanted,
            (wanted, Limit::Fixed(limit)) => wanted.min(limit.max(1)),
        };
        let think_us = us(random.exponential(think_s) * 1e6);
        Ask { text, prompt_tokens, output_tokens, think_us }
    }
}

/// Whole microseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
pub(super) fn us(us: f64) -> u64 {
    us as u64
}

/// Number of oldest turns to drop so that the rest, of the given lengths, fits into `window` tokens. Never drops the
/// last.
pub(super) fn outgrown(turns: impl ExactSizeIterator<Item = usize>, window: usize) -> usize {
    let last = turns.len().saturating_sub(1);
    let lengths: Vec<usize> = turns.collect();
    let mut tokens: usize = lengths.iter().sum();
    let too_many = |length: &&usize| {
        let too_many = tokens > window;
        tokens -= **length;
        too_many
    };
    lengths[..last].iter().take_while(too_many).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Arrivals, System, Workload};

    const SHARED: fn(f64) -> Text = |zipf| Text::Shared { prefixes: 30, tokens: 50, zipf };

    fn begins(name: &str, text: Text, seed: u64) -> Vec<Begin> {
        begins_by(Arrivals::Poisson, name, text, seed)
    }

    fn begins_by(arrivals: Arrivals, name: &str, text: Text, seed: u64) -> Vec<Begin> {
        let stream = Workload::named(name, 1).expect("a known workload").streams[0].clone();
        let mut source = Source::new(&Stream { text, ..stream }, Clock::new(arrivals, 2.0, 1.0), seed, 0);
        (0..300).map(|_| source.begin()).collect()
    }

    fn without_prefix(begins: Vec<Begin>) -> Vec<Begin> {
        begins.into_iter().map(|begin| Begin { prefix: None, ..begin }).collect()
    }

    #[test]
    fn seed_determines_what_arrives() {
        let of = |seed| begins("instruct", SHARED(1.0), seed);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn burstiness_changes_only_when_it_arrives() {
        let chat = Text::Conversation { turns: 6, think_s: 5.0, window: 3_000, system: None };
        let of = |burstiness| begins_by(Arrivals::Gamma { burstiness }, "chat", chat, 1);
        let without_times =
            |all: Vec<Begin>| all.into_iter().map(|one| Begin { at_us: 0, ..one }).collect::<Vec<_>>();
        assert_eq!(of(1.0), begins("chat", chat, 1), "a Poisson process");
        assert_ne!(of(0.25), of(1.0));
        assert_eq!(without_times(of(0.25)), without_times(of(1.0)));
    }

    #[test]
    fn popularity_changes_only_which_text_is_shared() {
        let (even, steep) = (begins("instruct", SHARED(0.0), 1), begins("instruct", SHARED(1.5), 1));
        assert_ne!(even, steep);
        assert_eq!(without_prefix(even), without_prefix(steep));
    }

    #[test]
    fn system_prompts_leave_the_turns_as_they_were() {
        let chat = |system| Text::Conversation { turns: 6, think_s: 5.0, window: 3_000, system };
        let with = begins("chat", chat(Some(System { prompts: 20, tokens: 50, zipf: 1.0 })), 1);
        let begun = |prefix| with.iter().filter(|begin| begin.prefix == prefix).count();
        let mut counts: Vec<usize> = with.iter().map(|begin| begun(begin.prefix)).collect();
        counts.sort_unstable();
        // One of 20 has 28 % of 300 at this exponent, the last one 1.4 %.
        assert!((60..110).contains(counts.last().expect("a most popular")) && counts[0] < 12, "{counts:?}");
        assert_eq!(without_prefix(with), begins("chat", chat(None), 1));
    }
}
