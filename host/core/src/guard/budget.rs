//! The time budgets that all calls of a slot share.

use crate::ids::Micros;
use crate::policy::{FaultKind, Policy, PolicyFault};

/// Processor time that a shadow's calls may take of each second. The live policy's time is what an operator chose to
/// spend on decisions; a shadow's is spent on none, while every stream waits for it.
const SHADOW_BUDGET: Micros = Micros(250_000);

const SECOND: Micros = Micros(1_000_000);

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

/// What a shadow's calls have taken of the current second.
pub(super) struct Share {
    since: Micros,
    /// The policy's total before it.
    before: Micros,
}

impl Share {
    pub fn new<P: Policy + ?Sized>(policy: &P, now: Micros) -> Self {
        Self { since: now, before: policy.spent() }
    }

    /// Starts the next second, if the current one is over.
    pub fn begin_call<P: Policy + ?Sized>(&mut self, policy: &P, now: Micros) {
        if now.since(self.since) >= SECOND {
            *self = Self::new(policy, now);
        }
    }

    /// The fault of a shadow that took more than its share. No member of a list is to blame: live, all of them would
    /// be within their limits.
    pub fn exceeded<P: Policy + ?Sized>(&self, policy: &P) -> Option<PolicyFault> {
        exceeded(policy, self.before, SHADOW_BUDGET, "within a second")
    }
}

/// The fault of a policy whose calls of one step took more than `budget`; `before` is its total before the step.
pub(super) fn over_budget<P: Policy + ?Sized>(
    policy: &P,
    before: Micros,
    budget: Micros,
) -> Option<PolicyFault> {
    exceeded(policy, before, budget, "of one step").map(|fault| policy.attribute(fault))
}

fn exceeded<P: Policy + ?Sized>(
    policy: &P,
    before: Micros,
    budget: Micros,
    span: &str,
) -> Option<PolicyFault> {
    let spent = policy.spent().since(before);
    (spent > budget).then(|| {
        let (spent, budget) = (spent.0.div_ceil(1_000), budget.0 / 1_000);
        let message = format!("its calls {span} took {spent} ms, over {budget} ms in all");
        PolicyFault::new(FaultKind::StepBudget, message)
    })
}
