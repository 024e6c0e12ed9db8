//! The end of a case: no more requests arrive, all end, and every block can be allocated again.

use infer_core::FinishReason;
use infer_core::engine::Policies;
use infer_core::policy::AnyPolicy;
use infer_core::snapshot::Counters;

use super::{Machine, Outcome};
use crate::fuzz::case::Ask;

/// Turns in which all that is left must end. A hang lasts longer.
const LAST_TURNS: u32 = 30_000;

impl Machine<'_> {
    /// No more requests arrive: all that are left end, and every block can be allocated again.
    pub(super) fn wind_up(&mut self, mut turned: impl FnMut()) {
        self.end_all(1_000);
        self.trouble = None;
        self.now = self.now.max(self.clock);
        if !self.setup.unaided {
            self.patience.disturbed();
            let Policies { scheduler, admission, prefix_cache } = Policies::builtin();
            let now = self.tell();
            self.engine.swap(AnyPolicy::Scheduler(scheduler), now);
            self.engine.swap(AnyPolicy::Admission(admission), now);
            self.engine.swap(AnyPolicy::PrefixCache(prefix_cache), now);
            self.drain();
        }
        self.run_dry(&mut turned);
        assert_eq!(self.ledger.used(), 0, "blocks are in use although no request is alive");
        let memory = self.engine.memory();
        assert_eq!(memory.free + memory.cached, memory.total, "{memory:?}");
        if !self.setup.unaided && !self.draining {
            self.fill(memory.total, &mut turned);
        }
        self.report();
    }

    fn run_dry(&mut self, turned: &mut impl FnMut()) {
        let mut turns = 0;
        while self.engine.has_work() {
            self.step(1_000);
            self.check();
            turned();
            turns += 1;
            assert!(turns < LAST_TURNS, "these never end: {:?}", self.clients.live().keys());
        }
        self.end_all(1_000);
        // Sends the last events and releases the last blocks.
        self.begin();
        self.check();
    }

    /// One request gets the whole pool.
    fn fill(&mut self, total_blocks: u32, turned: &mut impl FnMut()) {
        let longest = (total_blocks * self.setup.block_size + 1).min(self.setup.max_seq_len);
        let own = u16::try_from(longest.saturating_sub(1)).unwrap_or(u16::MAX);
        if self.setup.max_waiting == 0 || own == 0 {
            return;
        }
        let finished = self.clients.reached.finished;
        self.submit(&Ask { own, max_new: 1, tenant: 250, seed: 77, ..Ask::default() });
        self.run_dry(turned);
        let length = Counters::finish_index(FinishReason::Length);
        assert_eq!(
            self.clients.reached.finished[length],
            finished[length] + 1,
            "the pool can't be filled again"
        );
    }

    pub(super) fn outcome(mut self, steps: u64) -> Outcome {
        let fingerprint = self.clients.fingerprint ^ self.clock.0;
        let reached = std::mem::take(&mut self.clients.reached);
        Outcome { steps, batches: self.batches, fingerprint, reached }
    }
}
