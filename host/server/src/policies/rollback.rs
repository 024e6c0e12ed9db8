//! Rollbacks: the engine keeps one previous policy per slot, this keeps those before it and reloads them.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use infer_api::admin::{QuarantineEntry, SwapAnswer};
use infer_core::policy::{PolicyInfo, PolicyKind};
use infer_core::snapshot::SlotSnapshot;

use super::load::load_again;
use super::{Origin, PolicyError, PolicyManager, blocking, expect};
use crate::engine::Swapped;

/// Policies that rollbacks can reach behind the engine's previous one, per slot.
pub(super) const EARLIER: usize = 8;

/// Policies that were live before the engine's previous one, latest last.
pub(super) type Earlier = [VecDeque<Origin>; 3];

impl PolicyManager {
    /// Brings a slot's previous policy back; called again, the one before it. Skips quarantined policies and those
    /// that were rolled back from. With `of`, fails unless that policy is live: of two concurrent rollbacks only one
    /// takes effect.
    pub async fn rollback(&self, kind: PolicyKind, of: Option<&str>) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let SlotSnapshot { policy, previous, .. } = self.slot(kind).await?;
        expect(kind, &policy, of)?;
        let back = match previous.as_ref().filter(|info| self.may_come_back(kind, info)) {
            Some(_) => self.engine.rollback(kind).await?,
            None => None,
        };
        let swapped = match back {
            Some(swapped) => swapped,
            None => self.rollback_to_earlier(kind, previous).await?,
        };
        Ok(self.finish(swapped, "rollback"))
    }

    async fn rollback_to_earlier(
        &self,
        kind: PolicyKind,
        previous: Option<Arc<PolicyInfo>>,
    ) -> Result<Swapped, PolicyError> {
        let (at, earlier) = self.last_earlier(kind).ok_or_else(|| self.no_way_back(kind, previous))?;
        let then = Arc::clone(&earlier.info);
        let loader = self.loader.clone();
        let new = blocking(move || load_again(&loader, kind, earlier)).await?;
        let info = Arc::clone(&new.origin.info);
        let enter = |policy| async { self.engine.rollback_to(policy).await.map(Ok) };
        let swapped = self.bring_in(new, enter).await?;
        // Drops it, since it is live, and those after it, which were rolled back from.
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].truncate(at);
        let mut configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = configured[kind as usize].iter_mut().find(|own| Arc::ptr_eq(own, &then)) {
            *own = info;
        }
        Ok(swapped)
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

    /// Returns the name of the policy that a rollback would bring back.
    pub fn before(&self, slot: &SlotSnapshot) -> Option<String> {
        let info = slot.previous.clone().filter(|info| self.may_come_back(slot.kind, info));
        let info = info.or_else(|| self.last_earlier(slot.kind).map(|(_, earlier)| earlier.info))?;
        Some(info.name.clone())
    }

    /// Whether neither the policy nor one of its members is quarantined.
    fn may_come_back(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> bool {
        self.origins.find(kind, policy).is_none_or(|origin| self.quarantined(&origin).is_none())
    }

    /// Returns the latest earlier policy that is not quarantined, and its index.
    fn last_earlier(&self, kind: PolicyKind) -> Option<(usize, Origin)> {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &earlier[kind as usize];
        let at = slot.iter().rposition(|origin| self.quarantined(origin).is_none())?;
        Some((at, slot[at].clone()))
    }

    /// Remembers a policy that the engine has retired.
    pub(super) fn keep_earlier(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) {
        let Some(origin) = self.origins.find(kind, policy) else { return };
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut earlier[kind as usize];
        if slot.len() == EARLIER {
            slot.pop_front();
        }
        slot.push_back(origin);
    }
}
