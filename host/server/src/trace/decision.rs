//! A scheduler's decisions as lines, and back.

use infer_api::trace::{Decision, Plan};
use infer_core::policy::{self, StepView};
use infer_core::{Micros, SequenceId, engine};

use crate::faults::{step_view_json, step_view_of_json};

/// A decision as a line.
pub(super) fn line(decision: &engine::Decision) -> Decision {
    let hex = |state: &Vec<u8>| state.iter().map(|byte| format!("{byte:02x}")).collect();
    Decision {
        sha256: decision.policy.digest.clone(),
        state: decision.state.as_ref().map(hex),
        view: step_view_json(&decision.view),
        plan: plan_of(&decision.plan),
    }
}

/// A plan as it stands in a line.
pub fn plan_of(plan: &policy::Plan) -> Plan {
    let ids = |ids: &[SequenceId]| ids.iter().map(|id| id.0).collect();
    let Micros(wake) = plan.wake;
    Plan { run: ids(&plan.run), tokens: plan.tokens.clone(), preempt: ids(&plan.preempt), wake }
}

/// A view as it stood in a line.
///
/// # Errors
/// What is wrong with it.
pub fn parse_view(view: serde_json::Value) -> Result<StepView, String> {
    let view = step_view_of_json(view)?;
    if view.running.is_even() && view.waiting.is_even() {
        return Ok(view);
    }
    Err("the view's columns are not equally long".to_owned())
}
