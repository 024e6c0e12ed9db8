//! The time budget that all calls of a slot share within one step.

use crate::ids::Micros;
use crate::policy::{FaultKind, Policy, PolicyFault};

/// Processor time that a policy's calls may take in one step: five calls' worth of the per-call limit. A step can
/// make hundreds of calls, each within its own limit, and every stream would wait for their sum.
const STEP_BUDGET: Micros = Micros(100_000);

/// What a slot's calls have left of the current step.
#[derive(Default)]
pub(super) struct Budget {
    /// The policy's total before this step.
    pub before: Micros,
    /// It is spent: the built-in answers for the rest of the step.
    pub over: bool,
}

impl Budget {
    /// Starts to measure a policy, or the built-in, which is never charged.
    pub fn measure_from<P: Policy + ?Sized>(&mut self, policy: Option<&mut P>) {
        self.before = policy.map_or(Micros::ZERO, |policy| {
            policy.begin_step();
            policy.spent()
        });
    }
}

/// The fault of a policy whose calls of one step took too long; `before` is its total before the step.
pub(super) fn over_budget<P: Policy + ?Sized>(policy: &P, before: Micros) -> Option<PolicyFault> {
    let spent = policy.spent().since(before);
    (spent > STEP_BUDGET).then(|| {
        let (spent, budget) = (spent.0 / 1_000, STEP_BUDGET.0 / 1_000);
        let message = format!("its calls of one step took {spent} ms, over {budget} ms in all");
        policy.attribute(PolicyFault::new(FaultKind::StepBudget, message))
    })
}
