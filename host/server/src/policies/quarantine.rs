//! What keeps a policy from becoming live, and what ends that. A list is in quarantine if a member of it is.

use std::sync::Arc;

use infer_api::admin::QuarantineEntry;
use infer_core::policy::{PolicyInfo, PolicyKind};

use super::{Origin, PolicyError, PolicyManager};
use crate::engine::By;

impl PolicyManager {
    /// Ends the quarantine of a component. Returns false if it is in none.
    pub fn lift_quarantine(&self, sha256: &str, by: Option<&By>) -> bool {
        let lifted = self.engine.observer().quarantine().lift(sha256);
        if lifted {
            log_lifted(sha256, by);
        }
        lifted
    }

    /// Ends the quarantine of a policy and of its members; returns their entries. Must come before the policy is live,
    /// which may fail at once.
    pub(super) fn pardon(&self, origin: &Origin) -> Vec<QuarantineEntry> {
        let quarantine = self.engine.observer().quarantine();
        parts(origin).filter_map(|info| quarantine.pardon(info)).collect()
    }

    /// Refuses a quarantined policy.
    pub(super) fn admit(&self, origin: &Origin) -> Result<(), PolicyError> {
        match self.quarantined(origin) {
            Some(QuarantineEntry { name, kind, reason, .. }) => {
                Err(PolicyError::Quarantined { name, kind, reason })
            }
            None => Ok(()),
        }
    }

    /// Returns a policy that was loaded earlier and, of a list, its members.
    pub(super) fn parts_of(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Vec<Arc<PolicyInfo>> {
        self.origins.find(kind, policy).iter().flat_map(parts).cloned().collect()
    }

    /// Returns the quarantine entry of a policy, or of a list's member.
    pub(super) fn quarantined(&self, origin: &Origin) -> Option<QuarantineEntry> {
        let quarantine = self.engine.observer().quarantine();
        parts(origin).find_map(|info| quarantine.find(info))
    }
}

/// A policy and, of a list, its members.
pub(super) fn parts(origin: &Origin) -> impl Iterator<Item = &Arc<PolicyInfo>> {
    origin.members.iter().map(|member| &member.info).chain([&origin.info])
}

pub(super) fn log_lifted(sha256: &str, by: Option<&By>) {
    tracing::info!(
        sha256,
        operator = by.map(|by| by.operator.as_str()),
        peer = by.map(|by| by.peer.to_string()),
        "quarantine lifted"
    );
}
