//! Answers of policies of any kind, and repeating a recorded call.

use super::{AnyPolicy, FaultView, Plan, PolicyFault, Pressure, Retention, Verdict};
use crate::ids::BlockId;

/// The answer to a `FaultView`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To `schedule`.
    Plan(Plan),
    /// To `admit`.
    Verdict(Verdict),
    /// To `measure`.
    Pressure(Pressure),
    /// To `reuse`: tokens.
    Reuse(u32),
    /// To `retain`.
    Retention(Retention),
    /// To `observe` and `evict`: blocks to drop.
    Blocks(Vec<BlockId>),
}

impl FaultView {
    /// Makes this call. `None` if it is no call for a policy of its kind.
    pub fn put_to(&self, policy: &mut AnyPolicy) -> Option<Result<Answer, PolicyFault>> {
        Some(match (policy, self) {
            (AnyPolicy::Scheduler(p), Self::Schedule(view)) => p.schedule(view).map(Answer::Plan),
            (AnyPolicy::Admission(p), Self::Admit(request, load)) => {
                p.admit(request, load).map(Answer::Verdict)
            }
            (AnyPolicy::Admission(p), Self::Measure(load)) => p.measure(load).map(Answer::Pressure),
            (AnyPolicy::PrefixCache(p), Self::Reuse(hit)) => p.reuse(hit).map(Answer::Reuse),
            (AnyPolicy::PrefixCache(p), Self::Retain(ended)) => p.retain(ended).map(Answer::Retention),
            (AnyPolicy::PrefixCache(p), Self::Observe(events)) => p.observe_all(events).map(Answer::Blocks),
            (AnyPolicy::PrefixCache(p), Self::Evict { now, need }) => {
                p.evict(*now, *need).map(Answer::Blocks)
            }
            _ => return None,
        })
    }
}
