//! Judges a scheduler by the results of its plans, whatever they say: it is removed if nothing progresses
//! although something could, if a running sequence is left idle, or if a waiting one is overtaken for too
//! long.
//!
//! Waiting for other requests (static batching) and plain overload are neither: then no later request is
//! started first. Tenants may be served in any proportion, so between tenants a request counts as overtaken
//! only while none of its own tenant runs. And a sequence counts as overtaken only if it waited the whole
//! time: one that left the queue by its own doing does not. After Linux's sched_ext, whose watchdog does the
//! same.

use crate::ids::{Micros, SequenceId};

/// A wake within this many bounds counts as a promise; a later one does not. An admission policy that holds requests on an
/// idle host, unless it is on trial, is judged as if it had made the longest.
pub(crate) const LONGEST_PROMISE: u64 = 12;

/// Batches that must also have been computed: on a slow device a single one may take longer than the bound.
const FEWEST_STEPS: u64 = 8;
/// Batches without any sequence getting further than ever before. More than the above, because a long
/// sequence that was preempted has to catch up with itself.
const FEWEST_IDLE_STEPS: u64 = 64;

/// An instant, in time and in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub at: Micros,
    pub step: u64,
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    bound: Micros,
    /// Since when nothing progressed although something could, and the first wake that those plans asked for.
    stall: Option<(Micros, Micros)>,
    /// When a sequence last got further than ever before.
    advanced: Mark,
    /// When running rows, and overtaken ones, are scanned next.
    next_look: Micros,
    next_scan: Micros,
    /// The sequence that was overtaken for too long.
    pub starved: Option<SequenceId>,
}

impl Watchdog {
    pub fn new(bound: Micros) -> Self {
        Self {
            bound,
            stall: None,
            advanced: Mark::default(),
            next_look: Micros::ZERO,
            next_scan: Micros::ZERO,
            starved: None,
        }
    }

    /// Something ran, or nothing could.
    pub fn progressed(&mut self) {
        self.stall = None;
    }

    /// A sequence got further than ever before, or the count restarts.
    pub fn advanced(&mut self, now: Mark) {
        self.advanced = now;
    }

    /// Whether batches are computed and no sequence gets further: results are thrown away again and again.
    pub fn runs_in_circles(&self, now: Mark) -> bool {
        self.too_long(self.advanced, now) && now.step >= self.advanced.step + FEWEST_IDLE_STEPS
    }

    /// A plan ran nothing although something could run. Returns for how long, if that is too long.
    pub fn stalled(&mut self, now: Micros, wake: Micros) -> Option<Micros> {
        let promised = if wake == Micros::NEVER { now } else { wake };
        let &mut (since, promised) = self.stall.get_or_insert((now, promised));
        (now >= self.due(since, promised)).then(|| now.since(since))
    }

    /// When to check for a stall, whatever the plan's wake says.
    pub fn next_check(&self) -> Option<Micros> {
        self.stall.map(|(since, promised)| self.due(since, promised))
    }

    /// After the bound, and after the promised wake, if that counts as a promise.
    fn due(&self, since: Micros, promised: Micros) -> Micros {
        let longest = since.plus(Micros(self.bound.0.saturating_mul(LONGEST_PROMISE)));
        since.plus(self.bound).max(promised.min(longest))
    }

    /// Whether too much has passed since `mark`.
    pub fn too_long(&self, mark: Mark, now: Mark) -> bool {
        now.at.since(mark.at) > self.bound && now.step >= mark.step + FEWEST_STEPS
    }

    /// Whether it is time to scan the running sequences: often enough to notice within an eighth of the
    /// bound.
    pub fn look_now(&mut self, now: Micros) -> bool {
        is_due(&mut self.next_look, now, self.bound.0 / 8)
    }

    /// Whether it is time to scan for overtaken ones. If sequences are started many times a second, a sample
    /// of the starts is enough.
    pub fn scan_now(&mut self, now: Micros) -> bool {
        is_due(&mut self.next_scan, now, self.bound.0 / 64)
    }
}

fn is_due(next: &mut Micros, now: Micros, interval_us: u64) -> bool {
    let due = now >= *next;
    if due {
        *next = now.plus(Micros(interval_us));
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_judged_after_the_bound_and_the_promised_wake() {
        let bound = Micros(1_000);
        for (wake, judged_at) in
            [(Micros::NEVER, 1_000), (Micros(500), 1_000), (Micros(3_000), 3_000), (Micros(1 << 40), 12_000)]
        {
            let mut watchdog = Watchdog::new(bound);
            assert_eq!(watchdog.stalled(Micros(0), wake), None);
            assert_eq!(watchdog.next_check(), Some(Micros(judged_at)), "the engine sleeps until then");
            assert_eq!(watchdog.stalled(Micros(judged_at - 1), Micros::NEVER), None, "{wake:?}");
            assert!(watchdog.stalled(Micros(judged_at), Micros::NEVER).is_some(), "{wake:?}");
        }
    }

    #[test]
    fn progress_ends_a_stall() {
        let mut watchdog = Watchdog::new(Micros(1_000));
        assert_eq!(watchdog.stalled(Micros(0), Micros::NEVER), None);
        watchdog.progressed();
        assert_eq!(watchdog.stalled(Micros(5_000), Micros::NEVER), None);
    }
}
