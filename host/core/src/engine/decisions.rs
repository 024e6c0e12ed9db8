//! What policies were asked and what they answered, for a driver that records it.
//!
//! A policy is a function of its state and of what it is shown: asked again the same from the same state, it
//! answers the same. So the first decision of a run carries the state that its policy had before, and, of a prefix
//! cache, what it knew of the pool.

use std::sync::Arc;

use super::{Context, Engine, context};
use crate::guard::Renewal;
use crate::ids::Micros;
use crate::policy::{Answer, CacheEvents, FaultView, PolicyInfo, PolicyKind};

/// Decisions kept for a driver that doesn't take them.
const KEPT: usize = 8_192;

/// One question to a policy, and its answer as it was given, checked or not.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Which slot.
    pub kind: PolicyKind,
    /// Who was asked.
    pub policy: Arc<PolicyInfo>,
    /// What it had before, where the slot's decision before was not its own.
    pub state: Option<Vec<u8>>,
    /// Cached blocks that a prefix cache knew besides, in such a case.
    pub knew: Option<CacheEvents>,
    /// What it was asked, and shown.
    pub question: FaultView,
    /// What it answered.
    pub answer: Answer,
}

#[derive(Debug, Default)]
pub(super) struct Decisions {
    on: bool,
    kept: Vec<Decision>,
    slots: [Recorded; 3],
    /// What a prefix cache that is being primed was told.
    primed: Option<CacheEvents>,
}

/// Of one slot.
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
            // What comes next can't be told from what came before.
            self.slots = Default::default();
            return;
        }
        let slot = &mut self.slots[kind as usize];
        let (state, knew) = (slot.state.take(), slot.knew.take());
        slot.last = Some(Arc::clone(&policy));
        self.kept.push(Decision { kind, policy, state, knew, question: question(), answer: answer() });
    }

    /// A prefix cache that is to come in is told this.
    pub fn note_priming(&mut self, events: &CacheEvents) {
        if self.on {
            self.primed = Some(events.clone());
        }
    }
}

impl Engine {
    /// From now on decisions are kept to be taken, or not any more. While no batch is out.
    pub fn record_decisions(&mut self, on: bool) {
        let now = self.clock;
        // What the prefix cache hasn't been told yet must not stand in what it knew.
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

    /// Keeps the state of a policy that is about to be asked, where its last decision isn't the slot's last.
    pub(super) fn note_state(&mut self, kind: PolicyKind, now: Micros) {
        if !self.decisions.on {
            return;
        }
        let info = match kind {
            PolicyKind::Scheduler => self.scheduler.info(),
            PolicyKind::Admission => self.admission.info(),
            PolicyKind::PrefixCache => self.prefix.info(),
        };
        let slot = &self.decisions.slots[kind as usize];
        if slot.state.is_some() || slot.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &info)) {
            return;
        }
        let mut cx = context!(self, now);
        let state = match kind {
            PolicyKind::Scheduler => self.scheduler.state_now(&mut cx),
            PolicyKind::Admission => self.admission.state_now(&mut cx),
            PolicyKind::PrefixCache => self.prefix.state_now(&mut cx),
        };
        let knew = (kind == PolicyKind::PrefixCache).then(|| match self.prefix.renewed {
            // It is told everything next.
            Some(Renewal::Blank) => None,
            Some(Renewal::Primed) => self.decisions.primed.take(),
            // What it knew when it left is told by what it missed since, and nearly by what there is.
            Some(Renewal::CameBack) | None => Some(self.kv.blocks.idle_events(now)),
        });
        let slot = &mut self.decisions.slots[kind as usize];
        (slot.state, slot.knew) = (Some(state), knew.flatten());
    }
}
