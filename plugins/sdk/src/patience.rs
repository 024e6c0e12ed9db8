//! Lets a policy serve out of order without leaving any sequence behind.
//!
//! A sequence is overtaken if it waits while a later one starts, and it can be for a limited time only; from
//! then on no sequence may pass it. Otherwise any order but that of the queue starves some sequence under
//! load, and the host's watchdog removes the policy. Waiting for a slot while no other sequence passes
//! doesn't count: under plain overload the policy's own order applies.

use crate::order::Order;
use crate::scheduler::{Sequence, Step};
use crate::types::{Micros, SequenceId};

/// Sequences that have been overtaken, and since when.
#[derive(Clone, Debug)]
pub struct Patience {
    limit: Micros,
    /// Whether sequences that were preempted may be overtaken like others.
    passes_preempted: bool,
    /// By id. One that starts stays here until it is seen to wait no longer: a plan may not be carried out.
    overtaken: Vec<(SequenceId, Micros)>,
}

/// When a waiting sequence is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn<K> {
    /// Before all others, because none may pass it: when it arrived.
    Due(Micros, SequenceId),
    /// In the policy's order.
    InOrder(K),
}

impl Patience {
    /// Lets a sequence be overtaken for `limit`, but never for longer than [`Step::patience`] allows.
    pub fn new(limit: Micros) -> Self {
        Self { limit, passes_preempted: false, overtaken: Vec::new() }
    }

    /// Lets sequences that were preempted be overtaken for as long as others. Otherwise none passes them, which
    /// a policy needs that preempts only if memory is short: what it starts in their place would be preempted
    /// next.
    pub fn passing_preempted(self) -> Self {
        Self { passes_preempted: true, ..self }
    }

    /// The waiting sequences in the order in which to start them: first those that none may pass, by arrival,
    /// then the others, smallest key first and equal ones by arrival.
    pub fn order<'a, K: Ord>(
        &self,
        step: &'a Step,
        mut key: impl FnMut(Sequence<'a>) -> K,
    ) -> Order<'a, Turn<K>> {
        let limit = step.patience(self.limit);
        let mut overtaken = Lookup::new(&self.overtaken);
        Order::new(&step.waiting, |waiting| {
            let since = overtaken.get(waiting.id());
            match self.ran_before(waiting) || since.is_some_and(|since| step.now.since(since) >= limit) {
                true => Turn::Due(waiting.arrived(), waiting.id()),
                false => Turn::InOrder(key(waiting)),
            }
        })
    }

    /// Whether no sequence may pass this waiting one: its patience is at its end, or it ran before.
    pub fn is_due(&self, step: &Step, waiting: Sequence<'_>) -> bool {
        let since = Lookup::new(&self.overtaken).get(waiting.id());
        let limit = step.patience(self.limit);
        self.ran_before(waiting) || since.is_some_and(|since| step.now.since(since) >= limit)
    }

    /// Whether it comes first because it was preempted.
    fn ran_before(&self, waiting: Sequence<'_>) -> bool {
        !self.passes_preempted && waiting.preemptions() > 0
    }

    /// Notes which sequences the starts of this step overtake: [`crate::Planner::started`].
    pub fn note(&mut self, step: &Step, started: &[SequenceId]) {
        if started.is_empty() {
            return;
        }
        let mut starts: Vec<_> = started.iter().map(|id| (*id, ())).collect();
        starts.sort_unstable();
        let mut starting = Lookup::new(&starts);
        let started = step.waiting.iter().filter(|waiting| starting.get(waiting.id()).is_some());
        let Some(last) = started.map(arrival).max() else { return };
        let (mut starting, mut before) = (Lookup::new(&starts), Lookup::new(&self.overtaken));
        let mut overtaken = Vec::with_capacity(step.waiting.len());
        for waiting in step.waiting.iter() {
            let id = waiting.id();
            let is_passed = starting.get(id).is_none() && arrival(waiting) < last;
            let since = before.get(id).or(is_passed.then_some(step.now));
            overtaken.extend(since.map(|since| (id, since)));
        }
        if !overtaken.is_sorted() {
            overtaken.sort_unstable();
        }
        self.overtaken = overtaken;
    }

    /// Notes which sequences a step preempts, after [`Self::note`]: they are overtaken from then on. Only for a
    /// policy with [`Self::passing_preempted`].
    pub fn note_preempted(&mut self, step: &Step, preempted: &[SequenceId]) {
        if preempted.is_empty() {
            return;
        }
        self.overtaken.retain(|(id, _)| !preempted.contains(id));
        self.overtaken.extend(preempted.iter().map(|id| (*id, step.now)));
        self.overtaken.sort_unstable();
    }
}

/// Finds entries by id, in constant time if ids are looked up in ascending order, as the queue has them.
struct Lookup<'a, T> {
    sorted: &'a [(SequenceId, T)],
    at: usize,
}

impl<'a, T: Copy> Lookup<'a, T> {
    fn new(sorted: &'a [(SequenceId, T)]) -> Self {
        Self { sorted, at: usize::MAX }
    }

    fn get(&mut self, id: SequenceId) -> Option<T> {
        let is_before = |at: usize| self.sorted.get(at).is_some_and(|(other, _)| *other < id);
        let near = self.at <= self.sorted.len() && (self.at == 0 || is_before(self.at - 1));
        if near && is_before(self.at) {
            self.at += 1;
        }
        if !near || self.sorted.get(self.at).is_some_and(|(other, _)| *other < id) {
            self.at = self.sorted.partition_point(|(other, _)| *other < id);
        }
        self.sorted.get(self.at).filter(|(other, _)| *other == id).map(|(_, value)| *value)
    }
}

fn arrival(waiting: Sequence<'_>) -> (Micros, SequenceId) {
    (waiting.arrived(), waiting.id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;
    use crate::testing::for_seeds;

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
        patience.order(step, |s| u64::MAX - s.id().0).map(|s| s.id().0).collect()
    }

    #[test]
    fn entries_are_found_in_any_order_of_lookups() {
        for_seeds(0..300, |rng| {
            let mut ids: Vec<u64> = (0..rng.between(0, 30)).map(|_| u64::from(rng.between(0, 40))).collect();
            ids.sort_unstable();
            ids.dedup();
            let sorted: Vec<_> = ids.iter().map(|id| (SequenceId(*id), *id)).collect();
            let mut lookup = Lookup::new(&sorted);
            let mut asked: Vec<u64> = (0..40).map(|_| u64::from(rng.between(0, 41))).collect();
            if rng.one_in(2) {
                asked.sort_unstable();
            }
            for id in asked {
                assert_eq!(lookup.get(SequenceId(id)), ids.contains(&id).then_some(id), "{id} of {ids:?}");
            }
        });
    }

    #[test]
    fn a_sequence_overtaken_for_too_long_goes_first() {
        let mut patience = Patience::new(Micros::from_millis(100));
        patience.note(&step(10, &[1, 2, 3, 4]), &[SequenceId(3)]);
        assert_eq!(order(&patience, &step(109, &[1, 2, 4])), [4, 2, 1]);
        patience.note(&step(109, &[1, 2, 4]), &[SequenceId(4)]);
        assert_eq!(order(&patience, &step(110, &[1, 2, 5])), [1, 2, 5], "since the first time");
    }

    #[test]
    fn waiting_without_later_starts_is_not_being_overtaken() {
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
        let passing = Patience::new(Micros::ZERO).passing_preempted();
        assert_eq!(order(&passing, &step), [3, 2, 1]);
        assert!(!passing.is_due(&step, step.waiting.get(1)));
    }

    #[test]
    fn who_is_preempted_is_overtaken_from_then_on() {
        let mut patience = Patience::new(Micros::from_millis(100)).passing_preempted();
        patience.note(&step(10, &[3, 4]), &[SequenceId(4)]);
        patience.note_preempted(&step(10, &[3, 4]), &[SequenceId(1)]);
        assert_eq!(order(&patience, &step(109, &[1, 2, 3])), [3, 2, 1]);
        assert_eq!(order(&patience, &step(110, &[1, 2, 3])), [1, 3, 2]);
        patience.note_preempted(&step(60, &[3]), &[SequenceId(1)]);
        assert_eq!(order(&patience, &step(159, &[1, 2, 3])), [3, 2, 1], "since the last time");
        assert_eq!(order(&patience, &step(160, &[1, 2, 3])), [1, 3, 2]);
    }

    #[test]
    fn whose_start_was_not_carried_out_is_overtaken_since_the_first_time() {
        let mut patience = Patience::new(Micros::from_millis(100));
        patience.note(&step(10, &[1, 2, 3]), &[SequenceId(3)]);
        patience.note(&step(110, &[1, 2, 4]), &[SequenceId(1)]);
        assert_eq!(order(&patience, &step(111, &[1, 2, 4])), [1, 2, 4]);
        patience.note(&step(112, &[2, 4, 5]), &[SequenceId(5)]);
        assert_eq!(order(&patience, &step(113, &[1, 2, 4])), [2, 4, 1], "the first one ran");
    }
}
