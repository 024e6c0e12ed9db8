//! Durations of the live policies' calls, by slot and name. A policy counts its own calls from the moment it is loaded,
//! and another one of the same name may take its place: so what each has counted since the last scrape is added up.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use infer_core::Durations;
use infer_core::policy::PolicyInfo;
use infer_core::snapshot::SlotSnapshot;
use infer_core::trial::ShadowState;

use super::families::Labels;

/// Most slots and names with a sum. Beyond it, those of policies that aren't live start again from 0.
const NAMES: usize = 256;

/// The calls so far. What a policy was asked between the last scrape and its end is lost.
#[derive(Debug, Default)]
pub struct Calls {
    sums: BTreeMap<(&'static str, String), Durations>,
    /// What each policy had counted at the last scrape. Weak, because others tell from their count which are in use.
    seen: Vec<(Weak<PolicyInfo>, Durations)>,
}

impl Calls {
    /// Adds the calls since the last time, and returns the sums of the policies that are live.
    pub fn add(&mut self, slots: &[SlotSnapshot]) -> Vec<(Labels, Durations)> {
        let rows = slots.iter().map(|slot| self.add_slot(slot)).collect();
        if self.sums.len() > NAMES {
            let is_live =
                |kind, name: &str| slots.iter().any(|s| (s.kind.name(), &*s.policy.name) == (kind, name));
            self.sums.retain(|(kind, name), _| is_live(kind, name));
        }
        // What nobody else knows any more doesn't come back.
        self.seen.retain(|(policy, _)| policy.strong_count() > 0);
        rows
    }

    fn add_slot(&mut self, slot: &SlotSnapshot) -> (Labels, Durations) {
        let new = self.since_last(&slot.policy, &slot.stats.durations);
        if let Some(shadow) = slot.shadow.as_ref().filter(|shadow| shadow.state == ShadowState::Watching) {
            // If it is promoted, its calls as a shadow don't count.
            self.since_last(&shadow.policy, &shadow.stats.durations);
        }
        let (kind, name) = (slot.kind.name(), slot.policy.name.clone());
        let labels = vec![("kind", kind.to_owned()), ("name", name.clone())];
        let sum = self.sums.entry((kind, name)).or_default();
        sum.merge(&new);
        (labels, *sum)
    }

    fn since_last(&mut self, policy: &Arc<PolicyInfo>, now: &Durations) -> Durations {
        let same = |seen: &Weak<PolicyInfo>| std::ptr::eq(seen.as_ptr(), Arc::as_ptr(policy));
        match self.seen.iter_mut().find(|(seen, _)| same(seen)) {
            Some((_, then)) => now.since(&std::mem::replace(then, *now)),
            None => {
                self.seen.push((Arc::downgrade(policy), *now));
                *now
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use infer_core::Micros;
    use infer_core::policy::{CallStats, PolicyKind};
    use infer_core::trial::ShadowReport;

    use super::*;

    fn fair() -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo { name: "fair".to_owned(), ..PolicyInfo::default() })
    }

    fn stats(calls: u64) -> CallStats {
        let mut durations = Durations::default();
        (0..calls).for_each(|_| durations.add(1_500));
        CallStats { calls, durations, ..CallStats::default() }
    }

    fn slot(policy: &Arc<PolicyInfo>, calls: u64) -> SlotSnapshot {
        SlotSnapshot {
            kind: PolicyKind::Scheduler,
            policy: Arc::clone(policy),
            fallback: false,
            previous: None,
            stats: stats(calls),
            gauges: Vec::new(),
            faults: 0,
            fallbacks: 0,
            since: Micros(0),
            last_fault: None,
            trial: false,
            canary: None,
            shadow: None,
        }
    }

    fn watching(policy: &Arc<PolicyInfo>, calls: u64) -> ShadowReport {
        ShadowReport {
            policy: Arc::clone(policy),
            state: ShadowState::Watching,
            reason: String::new(),
            since: Micros(0),
            ended: Micros::NEVER,
            questions: calls,
            agreements: calls,
            divergences: Default::default(),
            examples: Vec::new(),
            fault: None,
            stats: stats(calls),
            live_stats: CallStats::default(),
            gauges: Vec::new(),
        }
    }

    #[test]
    fn calls_of_a_name_add_up_whichever_policy_has_it() {
        let (one, other, third) = (fair(), fair(), fair());
        let mut calls = Calls::default();
        let shadowed = SlotSnapshot { shadow: Some(watching(&third, 30)), ..slot(&one, 9) };
        for (slot, sum, what) in [
            (slot(&one, 5), 5, "the first"),
            (slot(&one, 8), 8, "three more"),
            (slot(&other, 2), 10, "its successor"),
            (shadowed, 11, "it is back, with a shadow"),
            (slot(&third, 34), 15, "the shadow is promoted"),
        ] {
            let rows = calls.add(&[slot]);
            let labels = vec![("kind", "scheduler".to_owned()), ("name", "fair".to_owned())];
            assert_eq!((&rows[0].0, rows[0].1.count()), (&labels, sum), "{what}");
        }
        assert_eq!(calls.seen.len(), 3);
        assert_eq!(Arc::strong_count(&one), 1, "nothing here keeps a policy");
        drop((one, other));
        calls.add(&[slot(&third, 34)]);
        assert_eq!(calls.seen.len(), 1, "the others are gone");
    }

    #[test]
    fn names_that_come_and_go_are_forgotten() {
        let mut calls = Calls::default();
        for at in 0..2 * NAMES {
            let policy = PolicyInfo { name: format!("policy-{at}"), ..PolicyInfo::default() };
            let rows = calls.add(&[slot(&Arc::new(policy), 3)]);
            assert_eq!(rows[0].1.count(), 3);
            assert!(calls.sums.len() <= NAMES);
        }
    }
}
