//! The calls and answers of policies, for a driver that records them.
//!
//! A policy is a function of its state and of what it is shown: called again with the same from the same
//! state, it answers the same. So the first decision of a run carries the state that its policy had before
//! and, for a prefix cache, what it knew of the pool.

use std::sync::Arc;

use super::Engine;
use crate::guard::Renewal;
use crate::ids::Micros;
use crate::policy::{Answer, CacheEvents, FaultView, PolicyInfo, PolicyKind};

/// Decisions kept for a driver that doesn't fetch them.
const KEPT: usize = 8_192;

/// One call of a policy, and its answer as given, checked or not.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Which slot.
    pub kind: PolicyKind,
    /// The policy.
    pub policy: Arc<PolicyInfo>,
    /// Its state before, if the slot's preceding decision was not its own.
    pub state: Option<Vec<u8>>,
    /// Cached blocks that a prefix cache also knew, in that case.
    pub knew: Option<CacheEvents>,
    /// What it was called with.
    pub question: FaultView,
    /// What it answered.
    pub answer: Answer,
}

#[derive(Debug, Default)]
pub(super) struct Decisions {
    on: bool,
    kept: Vec<Decision>,
    slots: [Recorded; 3],
    /// What a prefix cache that is being primed received.
    primed: Option<CacheEvents>,
}

/// The decisions of one slot.
#[derive(Debug, Default)]
struct Recorded {
    last: Option<Arc<PolicyInfo>>,
    state: Option<Vec<u8>>,
    knew: Option<CacheEvents>,
}

impl Decisions {
    /// A policy answered.
    pub fn note(
        &mut self,
        kind: PolicyKind,
        policy: Arc<PolicyInfo>,
        question: impl FnOnce() -> FaultView,
        answer: impl FnOnce() -> Answer,
    ) {
        if !self.on {
            return;
        }
        if self.kept.len() == KEPT {
            // The next decision doesn't follow from the one before.
            self.slots = Default::default();
            return;
        }
        let slot = &mut self.slots[kind as usize];
        let (state, knew) = (slot.state.take(), slot.knew.take());
        slot.last = Some(Arc::clone(&policy));
        self.kept.push(Decision { kind, policy, state, knew, question: question(), answer: answer() });
    }

    /// A prefix cache that is being primed receives this.
    pub fn note_priming(&mut self, events: &CacheEvents) {
        if self.on {
            self.primed = Some(events.clone());
        }
    }
}

impl Engine {
    /// Starts or stops keeping decisions. Call it while no batch is in flight.
    pub fn record_decisions(&mut self, on: bool) {
        let now = self.clock;
        // Events that the prefix cache has yet to receive must not count as known to it.
        self.flush_before_command(now);
        self.decisions = Decisions { on, ..Decisions::default() };
        for kind in PolicyKind::ALL {
            self.note_state(kind, now);
        }
    }

    /// Decisions since the last call, oldest first.
    pub fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions.kept)
    }

    /// Keeps the state of a policy before a call, if its last decision isn't the slot's last.
    pub(super) fn note_state(&mut self, kind: PolicyKind, now: Micros) {
        if !self.decisions.on {
            return;
        }
        let info = self.policies.info(kind);
        let slot = &self.decisions.slots[kind as usize];
        if slot.state.is_some() || slot.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &info)) {
            return;
        }
        let mut cx = self.outbox.context(self.view.number, now);
        let state = self.policies.state_now(kind, &mut cx);
        let knew = (kind == PolicyKind::PrefixCache).then(|| match self.policies.prefix.renewed {
            // It receives everything next.
            Some(Renewal::Blank) => None,
            Some(Renewal::Primed) => self.decisions.primed.take(),
            // What it knew when it was replaced follows from what it missed since and, nearly, from what is
            // cached.
            Some(Renewal::CameBack) | None => Some(self.kv.blocks.idle_events(now)),
        });
        let slot = &mut self.decisions.slots[kind as usize];
        (slot.state, slot.knew) = (Some(state), knew.flatten());
    }
}
