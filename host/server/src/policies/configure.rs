//! What flags and files say of a slot, when they are read again.

use std::sync::{Arc, PoisonError};

use infer_core::policy::{PolicyInfo, PolicyKind};

use super::load::load_choice;
use super::rollback::EARLIER;
use super::{Origin, PolicyError, PolicyManager, Reconfigured, drop_elsewhere};
use crate::config::PolicyChoice;
use crate::engine::{By, Seen, SlotChange, SwapMode};

/// Policies of a slot that can become live again: the live one, the previous one and those before it.
const CONFIGURED: usize = EARLIER + 2;

impl PolicyManager {
    /// Reloads a slot's configured policy with a new configuration, if the live policy came from flags or files or if
    /// the built-in replaces a removed one. A policy that an operator swapped in is left alone, even if it has the
    /// same name.
    pub async fn reconfigure(
        &self,
        kind: PolicyKind,
        choice: PolicyChoice,
        by: Option<By>,
    ) -> Result<Reconfigured, PolicyError> {
        Ok(match self.configure(kind, choice, by).await? {
            Reconfigured::Done(answer) => Reconfigured::Done(Box::new(self.saved(*answer).await)),
            stays @ Reconfigured::Stays { .. } => stays,
        })
    }

    async fn configure(
        &self,
        kind: PolicyKind,
        choice: PolicyChoice,
        by: Option<By>,
    ) -> Result<Reconfigured, PolicyError> {
        let (new, _turn) = self.loaded(move |loader| load_choice(loader, kind, &choice)).await?;
        let slot = self.slot(kind).await?;
        if !slot.fallback && !self.is_configured(kind, &slot.policy) {
            // Nor does the next start replace it, which finds the same in flags and files.
            self.note_choice(kind, &new.origin, false);
            drop_elsewhere(new.policy);
            return Ok(Reconfigured::Stays { name: slot.policy.name.clone() });
        }
        if let Err(error) = self.admit(&new.origin) {
            drop_elsewhere(new.policy);
            return Err(error);
        }
        let (info, chosen) = (Arc::clone(&new.origin.info), new.origin.clone());
        let change = |policy| SlotChange::Swap(policy, SwapMode::Now);
        let swapped = self.bring_in(new, change, Some(Seen::live(&slot)), by).await?;
        let answer = self.finish(swapped, "now", &info);
        self.note_configured(kind, info);
        self.note_choice(kind, &chosen, true);
        Ok(Reconfigured::Done(Box::new(answer)))
    }

    /// Whether a policy was made from flags or files. It may be an earlier one that a fault or a rollback brought back.
    fn is_configured(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> bool {
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        configured[kind as usize].iter().any(|own| Arc::ptr_eq(own, policy))
    }

    fn note_configured(&self, kind: PolicyKind, policy: Arc<PolicyInfo>) {
        let mut configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut configured[kind as usize];
        if slot.len() == CONFIGURED {
            slot.pop_front();
        }
        slot.push_back(policy);
    }

    /// Flags and files say this of a slot, whether or not it has become live there.
    fn note_choice(&self, kind: PolicyKind, chosen: &Origin, is_live: bool) {
        if let Some(keeper) = &self.keeper {
            keeper.set_configured(kind, chosen, is_live);
        }
    }
}
