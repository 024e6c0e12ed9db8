//! Faults of policies: the first of them, and the steps that they left to the built-in.

use infer_core::policy::Fault;

use super::{FirstFault, count};

/// Faults of a run, in the order of their steps.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub number: u64,
    pub first: Option<FirstFault>,
    /// Steps with a fault, up to the first removal of a policy.
    steps: u64,
    /// The last of them.
    last: Option<u64>,
    /// The step of that removal.
    removed: Option<u64>,
}

impl Faults {
    /// A policy failed, and the built-in answered in its place.
    pub fn add(&mut self, fault: &Fault) {
        self.number += 1;
        self.first.get_or_insert_with(|| FirstFault {
            kind: fault.slot.name(),
            policy: fault.fault.member.as_ref().unwrap_or(&fault.policy).name.clone(),
            message: fault.fault.to_string(),
            at_s: count(fault.at.0) / 1e6,
        });
        if self.removed.is_none() && self.last.replace(fault.step) != Some(fault.step) {
            self.steps += 1;
        }
        if fault.removed {
            self.removed.get_or_insert(fault.step);
        }
    }

    /// The fraction of a run's steps, which count from 1, in which the built-in decided.
    pub fn share(&self, steps: u64) -> f64 {
        let after = self.removed.map_or(0, |removed| steps.saturating_sub(removed));
        count((self.steps + after).min(steps)) / count(steps).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use infer_core::ids::Micros;
    use infer_core::policy::{FaultKind, FaultView, PolicyFault, PolicyInfo, PolicyKind};

    use super::*;

    /// Faults by step, and whether each removes the policy.
    fn faults(all: &[(u64, bool)]) -> Faults {
        let info = |name: &str| Arc::new(PolicyInfo { name: name.to_owned(), ..PolicyInfo::default() });
        let mut faults = Faults::default();
        for &(step, removed) in all {
            let member = Some(info("moody"));
            faults.add(&Fault {
                slot: PolicyKind::Admission,
                policy: info("moody+slo"),
                fault: PolicyFault { member, ..PolicyFault::new(FaultKind::Trap, format!("at {step}")) },
                step,
                at: Micros(1_000_000 * step),
                view: FaultView::Lifecycle,
                state: Vec::new(),
                shadow: false,
                removed,
                culprits: Vec::new(),
            });
        }
        faults
    }

    #[test]
    fn built_in_decides_steps_with_a_fault_and_all_after_a_removal() {
        for (all, share) in [
            (&[(3, false), (3, false), (50, false)][..], 0.02),
            (&[(1, true)], 1.0),
            (&[(11, false), (81, true), (90, false)], 0.21),
            (&[], 0.0),
        ] {
            assert_eq!(faults(all).share(100), share, "{all:?}");
        }
        assert_eq!(faults(&[]).share(0), 0.0);
    }

    #[test]
    fn first_fault_names_the_policy_that_failed() {
        let faults = faults(&[(3, false), (50, true)]);
        let first = faults.first.expect("there was one");
        assert_eq!((first.kind, first.policy.as_str(), first.at_s), ("admission", "moody", 3.0));
        assert_eq!((first.message.as_str(), faults.number), ("trap: at 3", 2));
    }
}
