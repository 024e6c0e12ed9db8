//! What outlives an engine: how far it has counted, and what its policies exported.
//!
//! A state is told in times, ids and counts that its policy was shown. So an engine that gives it back counts on from
//! where the one before it was: to the policy, that looks like a restart after a fault, during which time has passed
//! and every sequence has ended. Deliberately absent: the pool, whose content `cached_blocks` lists, and policies on
//! trial.

use super::Engine;
use crate::ids::{Micros, TenantId};
use crate::perf::Recorder;
use crate::policy::PolicyKind;
use crate::tenants::TenantHistory;
use crate::watchdog::Mark;

/// How far an engine has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Its clock.
    pub now: Micros,
    /// The next sequence.
    pub next_id: u64,
    /// The step that is planned next.
    pub next_step: u64,
    /// What it knows of each tenant.
    pub tenants: Vec<(TenantId, TenantHistory)>,
    /// What all tenants' requests generated lately, as [`TenantHistory::mean_output`].
    pub mean_output: u32,
}

/// What a policy exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Which slot.
    pub kind: PolicyKind,
    /// The policy's name.
    pub policy: String,
    /// Its state; never empty.
    pub state: Vec<u8>,
}

/// What an engine leaves to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// How far it has counted.
    pub numbers: Numbers,
    /// At most one for each slot.
    pub states: Vec<Exported>,
}

impl Default for Numbers {
    /// Those of a new engine.
    fn default() -> Self {
        Self { now: Micros::ZERO, next_id: 1, next_step: 1, tenants: Vec::new(), mean_output: 0 }
    }
}

impl Engine {
    /// Returns what the next engine goes on with. Asks the live policies for their states, which is a fault if it
    /// fails.
    pub fn carry(&mut self, now: Micros) -> Carried {
        let now = self.tick(now);
        let mut states = Vec::new();
        for kind in PolicyKind::ALL {
            let mut cx = self.outbox.context(self.view.number, now);
            if let Some((policy, state)) = self.policies.lasting_state(kind, &mut cx) {
                states.push(Exported { kind, policy, state });
            }
        }
        let numbers = Numbers {
            now,
            next_id: self.next_id,
            next_step: self.view.number,
            tenants: self.tenants.histories(&self.view.tenants),
            mean_output: self.tenants.any_output(),
        };
        Carried { numbers, states }
    }

    /// Makes a new engine count on from where another one was; it has been idle since `now`. Call it before anything
    /// else.
    pub fn continue_from(&mut self, before: &Numbers, now: Micros) {
        assert!(self.counters.submitted == 0 && self.clock == Micros::ZERO, "the engine is new");
        let now = self.tick(now.max(before.now));
        self.next_id = before.next_id.max(1);
        self.view.number = before.next_step.max(1);
        self.view.idle_since = now;
        self.tenants.remember(&before.tenants, before.mean_output);
        self.policies.begin_at(now, self.view.number);
        self.perf = Recorder::begin_at(now);
        self.watchdog.advanced(Mark { at: now, step: self.view.number });
    }

    /// Gives the live policy of a new engine what one of the same name, or of a list with it, exported before a restart
    /// of the host. `None` if the live policy is another one; an error says why it begins cold, which is no fault.
    pub fn import_state(&mut self, exported: &Exported) -> Option<Result<(), String>> {
        self.policies.take_over(exported)
    }
}
