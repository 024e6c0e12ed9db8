//! What all runs together must reach.

use infer_core::snapshot::Counters;

/// A test that no longer reaches what it is for would pass forever.
#[derive(Debug, Default)]
pub struct Reached {
    events: [u64; 5],
    refused: [u64; 7],
    finished: [u64; 4],
    others: [u64; 10],
}

impl Reached {
    pub fn add(&mut self, c: &Counters) {
        let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(&mut self.events, &c.prefix_events);
        add(&mut self.refused, &c.refused);
        add(&mut self.finished, &c.finished);
        assert!(c.accepted_tokens <= c.drafted_tokens);
        let others = [
            c.failed,
            c.preemptions,
            c.evicted_blocks,
            c.cut_rows,
            c.device_faults,
            c.prefix_hits,
            c.drafted_tokens - c.accepted_tokens,
            c.accepted_tokens,
            c.offloaded_blocks,
            c.onloaded_blocks,
        ];
        add(&mut self.others, &others);
    }

    pub fn check(&self) {
        assert!(self.events.iter().chain(&self.others).all(|&n| n > 50), "{self:?}");
        // Only a driver causes rates and drains.
        let unreached = |all: &[u64]| all.iter().filter(|&&n| n == 0).count();
        assert!(unreached(&self.finished) == 0 && unreached(&self.refused) <= 3, "{self:?}");
    }
}
