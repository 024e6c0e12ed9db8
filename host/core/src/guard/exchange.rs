//! How another policy becomes live in a slot, by a swap, a promotion or a rollback, and what it gets of the state of the
//! one before.

use super::tenure::Tenure;
use super::{Arrival, Context, Renewal, Slot};
use crate::event::{Change, Handover};
use crate::policy::{AnyPolicy, Policy, PolicyFault};
use crate::trial::{CanaryState, ShadowState};

impl<P: Policy + ?Sized> Slot<P> {
    /// Makes `policy` live.
    pub fn replace(&mut self, cx: &mut Context<'_>, policy: Box<P>, change: Change) -> Arrival {
        self.end_shadow(cx, ShadowState::Replaced, "another policy was swapped in");
        let state = self.outgoing_state(&*policy);
        let mut tenure = Tenure::new(policy, cx.now);
        let (state, note) = match state.map(|state| (state.is_empty(), tenure.import(state))) {
            Some((_, Ok(()))) => (Handover::Restored, None),
            Some((empty, Err(fault))) => (Handover::Cold, why_not_taken(&fault, empty)),
            None => (Handover::Cold, None),
        };
        let retired = self.install(cx, tenure, change, note.as_deref());
        Arrival { state, note, retired }
    }

    /// Makes the shadow the live policy. It keeps its own state.
    pub fn promote_shadow(&mut self, cx: &mut Context<'_>) -> Option<Arrival> {
        let policy = self.take_shadow(cx, ShadowState::Promoted, "it became the live policy")?;
        let mut tenure = Tenure::new(policy, cx.now);
        // An error leaves it broken, and it is restarted before its first call.
        let note = tenure.export().err().map(|fault| format!("its own state could not be exported: {fault}"));
        let state = tenure.own_state();
        let retired = self.install(cx, tenure, Change::Promote, note.as_deref());
        Some(Arrival { state, note, retired })
    }

    fn install(
        &mut self,
        cx: &mut Context<'_>,
        tenure: Tenure<P>,
        change: Change,
        note: Option<&str>,
    ) -> Option<AnyPolicy> {
        let from = self.info();
        let mut outgoing = self.current.replace(tenure);
        self.measure();
        if self.renewed.take().is_some()
            && let Some(outgoing) = &mut outgoing
        {
            // It has not received what it missed: should it come back, it is restarted.
            outgoing.broken = true;
        }
        let retired = match outgoing {
            Some(outgoing) => self.previous.replace(outgoing),
            None => self.previous.take(),
        };
        self.changed(cx, from, change, reason_of(change, note));
        retired.map(|t| (self.into_any)(t.policy))
    }

    /// Brings the previous policy back and retires the live one.
    pub fn rollback(&mut self, cx: &mut Context<'_>) -> Option<Arrival> {
        let mut previous = self.previous.take()?;
        self.end_canary(cx, CanaryState::RolledBack, "an operator rolled it back");
        let from = self.info();
        let state = self.outgoing_state(&*previous.policy);
        let (state, note) = match state.map(|state| (state.is_empty(), previous.import(state))) {
            Some((_, Ok(()))) => (Handover::Restored, None),
            Some((empty, Err(fault))) => (previous.own_state(), why_not_taken(&fault, empty)),
            None => (previous.own_state(), None),
        };
        previous.since = cx.now;
        let retired = self.current.replace(previous);
        self.measure();
        self.renew(Renewal::CameBack);
        self.changed(cx, from, Change::Rollback, reason_of(Change::Rollback, note.as_deref()));
        Some(Arrival { state, note, retired: retired.map(|t| (self.into_any)(t.policy)) })
    }

    /// The state that a successor imports: exported now or, if that fails, the last copy.
    fn outgoing_state(&mut self, successor: &P) -> Option<Vec<u8>> {
        let tenure = self.current.as_mut()?;
        let outgoing = tenure.policy.info();
        if !successor.takes_state_of(&outgoing.name) {
            return None;
        }
        let fresh = !tenure.broken && tenure.export().is_ok();
        // An empty copy may also mean that nothing was ever exported.
        let any = fresh || !tenure.state.is_empty();
        any.then(|| successor.own_part_of(&outgoing.name, &tenure.state)).flatten()
    }

    /// A copy of the live state for a policy that runs beside the live one. Empty if there is none for it.
    pub(super) fn shared_state(&mut self, cx: &mut Context<'_>, companion: &P) -> Vec<u8> {
        let takes = |slot: &Self| {
            slot.current.as_ref().is_some_and(|t| companion.takes_state_of(&t.policy.info().name))
        };
        if takes(self) {
            // The live policy stays, so its failure to export is a fault like any other, and may remove it.
            self.save_state(cx);
        }
        let tenure = self.current.as_ref().filter(|t| takes(self) && !t.state.is_empty());
        tenure.and_then(|t| companion.own_part_of(&t.policy.info().name, &t.state)).unwrap_or_default()
    }
}

/// Why a policy doesn't have the state of its predecessor. One that refuses an empty state misses nothing.
pub(super) fn why_not_taken(fault: &PolicyFault, empty: bool) -> Option<String> {
    match fault.is_refusal() {
        true if empty => None,
        true => Some(format!("it refuses its predecessor's state: {}", fault.message)),
        false => Some(format!("it failed over its predecessor's state: {fault}")),
    }
}

/// Why a policy became live, and what is to be known about its state.
fn reason_of(change: Change, note: Option<&str>) -> String {
    note.map_or_else(|| change.name().to_owned(), |note| format!("{}; {note}", change.name()))
}
