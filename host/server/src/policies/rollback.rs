//! Rollbacks: the engine keeps one previous policy per slot, this keeps those before it and reloads them.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use infer_api::admin::{QuarantineEntry, SwapAnswer};
use infer_core::policy::{PolicyInfo, PolicyKind};
use infer_core::snapshot::SlotSnapshot;

use super::load::load_again;
use super::{Origin, PolicyError, PolicyManager, blocking, expect, not_changed};
use crate::engine::{By, Provided, Seen, SlotChange, Swapped};

/// Policies that rollbacks can reach behind the engine's previous one, per slot.
pub(super) const EARLIER: usize = 8;

/// Policies that were live before the engine's previous one, latest last.
pub(super) type Earlier = [VecDeque<Origin>; 3];

impl PolicyManager {
    /// Brings a slot's previous policy back; called again, the one before it. Skips quarantined policies, those that
    /// were rolled back from, and those that are the live one once more. With `of`, fails unless that policy is live:
    /// of two concurrent rollbacks only one takes effect.
    pub async fn rollback(
        &self,
        kind: PolicyKind,
        of: Option<&str>,
        by: Option<By>,
    ) -> Result<SwapAnswer, PolicyError> {
        let answer = self.bring_back(kind, of, by).await?;
        Ok(self.saved(answer).await)
    }

    async fn bring_back(
        &self,
        kind: PolicyKind,
        of: Option<&str>,
        by: Option<By>,
    ) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let slot = self.slot(kind).await?;
        expect(kind, &slot.policy, of)?;
        let rolled_back = match self.previous(&slot) {
            Some(previous) => self.rollback_to_previous(&slot, previous, by).await,
            None => self.rollback_to_earlier(slot, by).await,
        };
        let (swapped, back) = rolled_back.map_err(|error| match error {
            PolicyError::Quarantined { name, reason, .. } => {
                PolicyError::PreviousQuarantined { kind, name, reason }
            }
            other => other,
        })?;
        Ok(self.finish(swapped, "rollback", &back))
    }

    async fn rollback_to_previous(
        &self,
        slot: &SlotSnapshot,
        previous: Arc<PolicyInfo>,
        by: Option<By>,
    ) -> Result<(Swapped, Arc<PolicyInfo>), PolicyError> {
        let kind = slot.kind;
        let provided = Provided { there: Some(Seen::live(slot)), sound: self.parts_of(kind, &previous) };
        let swapped = self.engine.change(SlotChange::Rollback(kind), provided, by).await?;
        Ok((swapped.map_err(|why| not_changed(kind, why))?, previous))
    }

    async fn rollback_to_earlier(
        &self,
        slot: SlotSnapshot,
        by: Option<By>,
    ) -> Result<(Swapped, Arc<PolicyInfo>), PolicyError> {
        let (kind, there) = (slot.kind, Seen::live(&slot));
        let last = self.last_earlier(&slot);
        let (at, earlier) = last.ok_or_else(|| self.no_way_back(kind, slot.previous))?;
        let then = Arc::clone(&earlier.info);
        let loader = self.loader.clone();
        let new = blocking(move || load_again(&loader, kind, earlier)).await?;
        let info = Arc::clone(&new.origin.info);
        let swapped = self.bring_in(new, SlotChange::RollbackTo, Some(there), by).await?;
        // Drops it, since it is live, and those after it, which were rolled back from.
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].truncate(at);
        let mut configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = configured[kind as usize].iter_mut().find(|own| Arc::ptr_eq(own, &then)) {
            *own = Arc::clone(&info);
        }
        Ok((swapped, info))
    }

    fn no_way_back(&self, kind: PolicyKind, previous: Option<Arc<PolicyInfo>>) -> PolicyError {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let last = previous.and_then(|info| self.origins.find(kind, &info));
        let last = last.as_ref().or_else(|| earlier[kind as usize].back());
        match last.and_then(|origin| self.quarantined(origin)) {
            Some(QuarantineEntry { name, reason, .. }) => {
                PolicyError::PreviousQuarantined { kind, name, reason }
            }
            None => PolicyError::NoPrevious(kind),
        }
    }

    /// Returns the policy that a rollback would bring back.
    pub fn before(&self, slot: &SlotSnapshot) -> Option<Arc<PolicyInfo>> {
        self.previous(slot).or_else(|| self.last_earlier(slot).map(|(_, earlier)| earlier.info))
    }

    /// Returns the engine's previous policy, if a rollback leads to it. A canary leads there even if both are the same.
    fn previous(&self, slot: &SlotSnapshot) -> Option<Arc<PolicyInfo>> {
        let differs = |info: &PolicyInfo| slot.trial || !info.is_same(&slot.policy);
        slot.previous.clone().filter(|info| differs(info) && self.may_come_back(slot.kind, info))
    }

    /// Whether neither the policy nor one of its members is quarantined.
    fn may_come_back(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> bool {
        self.origins.find(kind, policy).is_none_or(|origin| self.quarantined(&origin).is_none())
    }

    /// Returns the latest earlier policy that is neither quarantined nor the same as the live one, and its index.
    fn last_earlier(&self, slot: &SlotSnapshot) -> Option<(usize, Origin)> {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let all = &earlier[slot.kind as usize];
        let leads_back =
            |origin: &Origin| !origin.info.is_same(&slot.policy) && self.quarantined(origin).is_none();
        let at = all.iter().rposition(leads_back)?;
        Some((at, all[at].clone()))
    }

    /// Remembers a policy that the engine has retired; the same one twice in a row counts once.
    pub(super) fn keep_earlier(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) {
        let Some(origin) = self.origins.find(kind, policy) else { return };
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut earlier[kind as usize];
        if slot.back().is_some_and(|last| last.info.is_same(policy)) {
            return;
        }
        if slot.len() == EARLIER {
            slot.pop_front();
        }
        slot.push_back(origin);
    }
}
