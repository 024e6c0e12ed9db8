//! Changes of the policy slots, and what they rely on.
//!
//! Between its caller's look at a slot and the change itself, a step may end with a fault or a verdict that changes the
//! slot, too. So the engine thread checks again what the caller saw, after the steps in flight and right before the
//! change.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use infer_api::admin::QuarantineEntry;
use infer_core::engine::SwapReport;
use infer_core::policy::{AnyPolicy, PolicyInfo, PolicyKind};
use infer_core::snapshot::SlotSnapshot;
use infer_core::trial::ShadowState;
use infer_core::{Engine, Micros};

use super::quarantine::Quarantine;

/// A change of a slot.
#[derive(Debug)]
pub enum SlotChange {
    /// Bring a policy in.
    Swap(AnyPolicy, SwapMode),
    /// Make the shadow live, or accept the canary early.
    Promote(PolicyKind),
    /// Bring the previous policy back.
    Rollback(PolicyKind),
    /// Bring back a policy that was live before the previous one.
    RollbackTo(AnyPolicy),
}

/// How a policy comes into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapMode {
    /// Live at once.
    Now,
    /// Compared with the live policy, without effect.
    Shadow,
    /// Live, and judged over this much busy time.
    Canary(Micros),
}

/// The operator who asked for a change, for the log and the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// The operator's name.
    pub operator: String,
    /// Where the request came from.
    pub peer: SocketAddr,
}

/// What must still hold when a change is made.
#[derive(Debug, Default)]
pub struct Provided {
    /// The slot has this policy where its caller saw it.
    pub there: Option<Seen>,
    /// None of these is in quarantine.
    pub sound: Vec<Arc<PolicyInfo>>,
}

/// A policy in its slot, as a snapshot shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    policy: Arc<PolicyInfo>,
    place: Place,
    /// Since when it is there.
    since: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Live,
    Canary,
    Shadow,
}

/// A change that was made.
#[derive(Debug)]
pub struct Swapped {
    /// The engine's report. Drop its retired policy off the engine thread.
    pub report: SwapReport,
    /// How long it held up the engine thread.
    pub pause: Duration,
}

/// Why a change was not made.
#[derive(Debug)]
pub enum NotChanged {
    /// A canary runs in another slot, this one.
    OtherOnTrial(PolicyKind),
    /// The slot is no longer as its caller saw it, but like this.
    Overtaken(Box<SlotSnapshot>),
    /// A policy that was to become live has failed meanwhile.
    Quarantined(Box<QuarantineEntry>),
    /// There is nothing to promote, or no previous policy.
    Nothing,
}

impl SlotChange {
    /// Returns the slot.
    pub(super) fn kind(&self) -> PolicyKind {
        match self {
            Self::Swap(policy, _) | Self::RollbackTo(policy) => policy.kind(),
            Self::Promote(kind) | Self::Rollback(kind) => *kind,
        }
    }

    /// Makes the change, between two steps. `None` if there is nothing to promote or to bring back.
    ///
    /// # Errors
    /// A canary can't start because one runs in another slot: the policy, to be dropped off the engine thread, and that
    /// slot.
    pub(super) fn make(
        self,
        engine: &mut Engine,
        now: Micros,
    ) -> Result<Option<SwapReport>, (AnyPolicy, PolicyKind)> {
        Ok(match self {
            Self::Swap(policy, SwapMode::Now) => Some(engine.swap(policy, now)),
            Self::Swap(policy, SwapMode::Shadow) => Some(engine.shadow(policy, now)),
            Self::Swap(policy, SwapMode::Canary(window)) => Some(engine.canary(policy, window, now)?),
            Self::Promote(kind) => engine.promote(kind, now),
            Self::Rollback(kind) => engine.rollback(kind, now),
            Self::RollbackTo(policy) => Some(engine.rollback_to(policy, now)),
        })
    }
}

impl Provided {
    /// Checks all of it against the slot as it is now.
    pub(super) fn check(&self, slot: SlotSnapshot, quarantine: &Quarantine) -> Result<(), NotChanged> {
        if self.there.as_ref().is_some_and(|seen| !seen.is_in(&slot)) {
            return Err(NotChanged::Overtaken(Box::new(slot)));
        }
        match self.sound.iter().find_map(|policy| quarantine.find(policy)) {
            Some(entry) => Err(NotChanged::Quarantined(Box::new(entry))),
            None => Ok(()),
        }
    }
}

impl Seen {
    /// Returns the live policy.
    pub fn live(slot: &SlotSnapshot) -> Self {
        Self { policy: Arc::clone(&slot.policy), place: Place::Live, since: slot.since }
    }

    /// Returns what a promotion is about: the canary, or else the shadow.
    pub fn tried(slot: &SlotSnapshot) -> Option<Self> {
        if slot.trial {
            return Some(Self { place: Place::Canary, ..Self::live(slot) });
        }
        let shadow = slot.shadow.as_ref().filter(|shadow| shadow.state == ShadowState::Watching)?;
        Some(Self { policy: Arc::clone(&shadow.policy), place: Place::Shadow, since: shadow.since })
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Arc<PolicyInfo> {
        &self.policy
    }

    fn is_in(&self, slot: &SlotSnapshot) -> bool {
        match self.place {
            Place::Live => *self == Self::live(slot),
            Place::Canary | Place::Shadow => Some(self) == Self::tried(slot).as_ref(),
        }
    }
}
