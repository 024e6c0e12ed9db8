//! What of a slot outlives the engine: what the policy knows that a restart of the host brings back. Exporting and
//! importing that is no step's work, so no step's budget pays for it.

use super::exchange::why_not_taken;
use super::{Context, Slot};
use crate::ids::Micros;
use crate::policy::Policy;

impl<P: Policy + ?Sized> Slot<P> {
    /// The slot is one of an engine that begins then, with this policy.
    pub fn begin_at(&mut self, now: Micros) {
        if let Some(tenure) = &mut self.current {
            tenure.since = now;
        }
        self.fallback_since = now;
    }

    /// The policy that a restart brings back, by name, and its state: exported now or, if that fails, the last copy.
    /// During a trial it is the policy before, with what it had when it was replaced. `None` if there is no state.
    pub fn lasting_state(&mut self, cx: &mut Context<'_>) -> Option<(String, Vec<u8>)> {
        let on_trial = self.on_trial();
        if !on_trial {
            self.save_state(cx);
            self.measure();
        }
        let tenure = if on_trial { self.previous.as_ref() } else { self.current.as_ref() };
        let tenure = tenure.filter(|tenure| !tenure.state.is_empty())?;
        Some((tenure.policy.info().name.clone(), tenure.state.clone()))
    }

    /// Gives the live policy what one with this name exported before a restart, as if it had come after that. `None` if
    /// it isn't meant for it; an error says why it begins cold.
    pub fn take_over(&mut self, name: &str, state: &[u8]) -> Option<Result<(), String>> {
        let tenure = self.current.as_mut().filter(|tenure| tenure.policy.takes_state_of(name))?;
        let own = tenure.policy.own_part_of(name, state).filter(|own| !own.is_empty())?;
        let outcome = tenure.import(own).map_err(|fault| why_not_taken(&fault, false).unwrap_or_default());
        self.measure();
        Some(outcome)
    }
}
