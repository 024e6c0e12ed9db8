//! What prompts found in the prefix cache.

use infer_core::event::PrefixEvent;
use infer_core::ids::Micros;
use infer_core::snapshot::Counters;

use super::super::durations::millis;
use super::super::mean::Mean;
use super::super::{CacheOutcome, count};
use super::Start;

/// Counts of requests and of their prompts' tokens; arrays are in the order of `PrefixEvent::ALL`.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    hit_ttft: Mean,
    miss_ttft: Mean,
    /// Cached tokens of hits.
    cached: Mean,
    prefilled: Mean,
    events: [u64; 5],
    with_block: [u64; 5],
    cached_tokens: [u64; 5],
    prefilled_tokens: [u64; 5],
}

impl Prefixes {
    pub fn started(&mut self, start: &Start) {
        let at = Counters::prefix_index(start.prefix);
        self.events[at] += 1;
        self.with_block[at] += u64::from(start.has_block);
        self.cached_tokens[at] += u64::from(start.cached);
        self.prefilled_tokens[at] += u64::from(start.prefill);
        if start.is_hit() == Some(true) {
            self.cached.add(f64::from(start.cached));
        }
        self.prefilled.add(f64::from(start.prefill));
    }

    /// `is_hit`: see `Start::is_hit`.
    pub fn finished(&mut self, is_hit: Option<bool>, ttft: Micros) {
        match is_hit {
            Some(true) => self.hit_ttft.add(millis(ttft)),
            Some(false) => self.miss_ttft.add(millis(ttft)),
            None => {}
        }
    }

    pub fn outcome(&self) -> CacheOutcome {
        let with_block = count(self.with_block.iter().sum()).max(1.0);
        let rate = |kind| count(self.with_block[Counters::prefix_index(kind)]) / with_block;
        let prompt: u64 = self.cached_tokens.iter().chain(&self.prefilled_tokens).sum();
        CacheOutcome {
            hit_rate: count(self.cached.count) / with_block,
            conversational_rate: rate(PrefixEvent::ConversationalHit),
            cross_request_rate: rate(PrefixEvent::CrossRequestHit),
            full_rate: rate(PrefixEvent::FullHitNoPrefillNeeded),
            diverged_rate: rate(PrefixEvent::ConversationalMissUnexpectedPrompt),
            mean_cached: self.cached.get(),
            mean_prefilled: self.prefilled.get(),
            prefilled_ratio: (prompt > 0).then(|| self.prefilled.sum / count(prompt)),
            hit_ttft_ms: self.hit_ttft.get(),
            miss_ttft_ms: self.miss_ttft.get(),
            events: self.events,
            cached_tokens: self.cached_tokens,
            prefilled_tokens: self.prefilled_tokens,
        }
    }
}
