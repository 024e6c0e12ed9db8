//! Requests that the prefix cache served, as the simulator's reports define them. The engine's counters don't tell how
//! many of the prompts that diverged from their conversation found what other requests had left.

use infer_core::PrefixEvent;
use infer_core::snapshot::Counters;

/// Hits so far: requests with cached tokens, of those whose prompt fills a block. In `PrefixEvent::ALL` order.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefixHits {
    /// How many.
    pub requests: [u64; PrefixEvent::ALL.len()],
    /// Their cached tokens.
    pub tokens: [u64; PrefixEvent::ALL.len()],
}

impl PrefixHits {
    /// Counts a request that started for the first time, if it is a hit.
    pub fn note(&mut self, event: PrefixEvent, cached_tokens: u32, fills_block: bool) {
        if fills_block && cached_tokens > 0 {
            let at = Counters::prefix_index(event);
            self.requests[at] += 1;
            self.tokens[at] += u64::from(cached_tokens);
        }
    }
}
