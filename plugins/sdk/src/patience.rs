//! Lets a policy serve out of order without leaving anybody behind.
//!
//! Whoever is overtaken, that is waits while a later one starts, is so for a limited time only; from
//! then on nobody passes. Without that, any order but that of the queue starves somebody under load,
//! and the host's watchdog takes the policy out. Waiting for a place while nobody passes doesn't count:
//! under plain overload the order stays the policy's own.

use crate::scheduler::{Sequence, Step};
use crate::types::{Micros, SequenceId};

/// Who has been overtaken, and since when.
#[derive(Clone, Debug)]
pub struct Patience {
    limit: Micros,
    /// By id.
    overtaken: Vec<(SequenceId, Micros)>,
}

impl Patience {
    /// Lets a sequence be overtaken for `limit`, and never for longer than [`Step::patience`] allows.
    pub fn new(limit: Micros) -> Self {
        Self { limit, overtaken: Vec::new() }
    }

    /// The waiting sequences in the order in which to start them: those that nobody may pass by arrival,
    /// then the others, smallest key first and equal ones by arrival.
    pub fn order<'a, K: Ord>(&self, step: &'a Step, key: impl Fn(Sequence<'a>) -> K) -> Vec<Sequence<'a>> {
        let mut order: Vec<_> = step.waiting.iter().collect();
        order.sort_by_cached_key(|&waiting| {
            let key = if self.is_due(step, waiting) { None } else { Some(key(waiting)) };
            (key, arrival(waiting))
        });
        order
    }

    /// Whether nobody may pass a waiting sequence: its patience is at its end, or it ran before.
    pub fn is_due(&self, step: &Step, waiting: Sequence<'_>) -> bool {
        let limit = step.patience(self.limit);
        waiting.preemptions() > 0
            || self.since(waiting.id()).is_some_and(|since| step.now.since(since) >= limit)
    }

    /// Takes note of whom those that start in this step overtake: [`crate::Planner::started`].
    pub fn note(&mut self, step: &Step, started: &[SequenceId]) {
        let mut started = started.to_vec();
        started.sort_unstable();
        let starts = |waiting: &Sequence<'_>| started.binary_search(&waiting.id()).is_ok();
        let Some(last) = step.waiting.iter().filter(starts).map(arrival).max() else { return };
        let mut overtaken: Vec<_> = step
            .waiting
            .iter()
            .filter(|waiting| !starts(waiting))
            .filter_map(|waiting| {
                let passed = (arrival(waiting) < last).then_some(step.now);
                self.since(waiting.id()).or(passed).map(|since| (waiting.id(), since))
            })
            .collect();
        overtaken.sort_unstable();
        self.overtaken = overtaken;
    }

    fn since(&self, id: SequenceId) -> Option<Micros> {
        let found = self.overtaken.binary_search_by_key(&id, |(id, _)| *id);
        found.ok().map(|at| self.overtaken[at].1)
    }
}

fn arrival(waiting: Sequence<'_>) -> (Micros, SequenceId) {
    (waiting.arrived(), waiting.id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;

    fn step(now_ms: u64, waiting: &[u64]) -> Step {
        let row = |&id: &u64| Row { id, arrived: id, ..Row::default() };
        Step {
            now: Micros::from_millis(now_ms),
            starvation_bound: Micros::from_millis(1_000),
            waiting: waiting.iter().map(row).collect(),
            ..Step::default()
        }
    }

    /// The latest first.
    fn order(patience: &Patience, step: &Step) -> Vec<u64> {
        patience.order(step, |s| u64::MAX - s.id().0).iter().map(|s| s.id().0).collect()
    }

    #[test]
    fn who_is_overtaken_for_too_long_goes_first() {
        let mut patience = Patience::new(Micros::from_millis(100));
        patience.note(&step(10, &[1, 2, 3, 4]), &[SequenceId(3)]);
        assert_eq!(order(&patience, &step(109, &[1, 2, 4])), [4, 2, 1]);
        patience.note(&step(109, &[1, 2, 4]), &[SequenceId(4)]);
        assert_eq!(order(&patience, &step(110, &[1, 2, 5])), [1, 2, 5], "since the first time");
    }

    #[test]
    fn waiting_alone_is_not_being_overtaken() {
        let mut patience = Patience::new(Micros::ZERO);
        patience.note(&step(10, &[1, 2, 3]), &[]);
        patience.note(&step(10, &[1, 2, 3]), &[SequenceId(1)]);
        assert_eq!(order(&patience, &step(9_000, &[2, 3])), [3, 2]);
    }

    #[test]
    fn the_watchdogs_bound_limits_any_patience() {
        let mut patience = Patience::new(Micros::from_millis(60_000));
        patience.note(&step(0, &[1, 2, 3]), &[SequenceId(3)]);
        assert_eq!(order(&patience, &step(599, &[1, 2])), [2, 1]);
        assert_eq!(order(&patience, &step(600, &[1, 2])), [1, 2]);
    }

    #[test]
    fn who_was_preempted_comes_back_first() {
        let mut step = step(0, &[1, 2, 3]);
        step.waiting.preemptions[1] = 1;
        assert_eq!(order(&Patience::new(Micros::ZERO), &step), [2, 3, 1]);
    }
}
