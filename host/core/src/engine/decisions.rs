//! What schedulers were shown and what they planned, for a driver that records it.
//!
//! Asked again with the same views from the same state, the same policy plans the same.

use std::sync::Arc;

use super::{Context, Engine, context};
use crate::ids::Micros;
use crate::policy::{Plan, PolicyInfo, StepView};

/// Decisions kept for a driver that doesn't take them.
const KEPT: usize = 64;

/// One question to a scheduler, and its answer as it was given, checked or not.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Who was asked.
    pub policy: Arc<PolicyInfo>,
    /// The state that it had before, where the decision before was not its own.
    pub state: Option<Vec<u8>>,
    /// What it was shown.
    pub view: StepView,
    /// What it planned.
    pub plan: Plan,
}

#[derive(Debug, Default)]
pub(super) struct Decisions {
    on: bool,
    kept: Vec<Decision>,
    last: Option<Arc<PolicyInfo>>,
    state: Option<Vec<u8>>,
}

impl Decisions {
    pub fn note(&mut self, policy: Arc<PolicyInfo>, view: &StepView, plan: &Plan) {
        if !self.on || self.kept.len() == KEPT {
            return;
        }
        let state = self.state.take();
        self.last = Some(Arc::clone(&policy));
        self.kept.push(Decision { policy, state, view: view.clone(), plan: plan.clone() });
    }
}

impl Engine {
    /// From now on decisions are kept to be taken, or not any more.
    pub fn record_decisions(&mut self, on: bool) {
        self.decisions = Decisions { on, ..Decisions::default() };
    }

    /// Decisions since the last call, oldest first.
    pub fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions.kept)
    }

    /// Keeps the state of a scheduler whose decisions begin to be recorded.
    pub(super) fn note_scheduler_state(&mut self, now: Micros) {
        let same = |last: &Arc<PolicyInfo>| Arc::ptr_eq(last, &self.scheduler.info());
        if !self.decisions.on || self.decisions.last.as_ref().is_some_and(same) {
            return;
        }
        let mut cx = context!(self, now);
        self.scheduler.save_state(&mut cx);
        self.decisions.state = Some(self.scheduler.saved_state().to_vec());
    }
}
