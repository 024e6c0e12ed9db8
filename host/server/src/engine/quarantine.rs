//! Components that were taken out: for strikes, starvation, a fault in shadow or on trial, or because
//! clients were worse off. They are not taken in again unless that is forced, for a process's lifetime.
//! Native policies are never listed: the host itself vouches for them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use infer_api::admin::QuarantineEntry;
use infer_core::Micros;
use infer_core::policy::{PolicyInfo, PolicyKind};

/// Components listed; the oldest is forgotten.
const ENTRIES: usize = 64;

/// The list.
#[derive(Debug, Default)]
pub struct Quarantine {
    entries: Mutex<VecDeque<QuarantineEntry>>,
}

impl Quarantine {
    /// A policy was taken out.
    pub fn add(&self, kind: PolicyKind, policy: &PolicyInfo, reason: &str, at: Micros) {
        if policy.digest.is_empty() {
            return;
        }
        self.with(|entries| {
            entries.retain(|entry| entry.sha256 != policy.digest);
            if entries.len() == ENTRIES {
                entries.pop_front();
            }
            entries.push_back(QuarantineEntry {
                sha256: policy.digest.clone(),
                name: policy.name.clone(),
                kind: kind.name().to_owned(),
                reason: reason.to_owned(),
                at_ms: at.0 / 1_000,
            });
        });
    }

    /// Why a component is listed.
    pub fn find(&self, sha256: &str) -> Option<QuarantineEntry> {
        self.with(|entries| entries.iter().find(|entry| entry.sha256 == sha256).cloned())
    }

    /// Takes a component off the list. False if it was not on it.
    pub fn lift(&self, sha256: &str) -> bool {
        self.with(|entries| {
            let before = entries.len();
            entries.retain(|entry| entry.sha256 != sha256);
            entries.len() < before
        })
    }

    /// All, oldest first.
    pub fn list(&self) -> Vec<QuarantineEntry> {
        self.with(|entries| entries.iter().cloned().collect())
    }

    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<QuarantineEntry>) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_component_is_listed_once_and_the_oldest_is_forgotten() {
        let quarantine = Quarantine::default();
        let policy = |digest: String| PolicyInfo { name: "p".into(), digest, ..PolicyInfo::default() };
        quarantine.add(PolicyKind::Scheduler, &policy(String::new()), "native", Micros(1));
        assert!(quarantine.list().is_empty());
        for at in 0..ENTRIES + 2 {
            quarantine.add(PolicyKind::Scheduler, &policy(at.to_string()), "trap", Micros(at as u64));
        }
        quarantine.add(PolicyKind::Scheduler, &policy("5".into()), "again", Micros(1 << 20));
        assert_eq!(quarantine.list().len(), ENTRIES);
        assert_eq!(quarantine.find("5").unwrap().reason, "again");
        assert_eq!(quarantine.find("1"), None);
        assert!(quarantine.lift("5") && !quarantine.lift("5"));
    }
}
