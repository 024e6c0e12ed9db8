//! Quarantine: components that were removed for strikes, starvation, a fault as shadow or canary, or because clients
//! were worse off.
//!
//! Together with the configuration that failed, a component is not accepted again for as long as the host runs, or
//! longer with `--policy-state`, unless an operator forces it. Other configurations of it are: a bad experiment must not
//! block the way back to one that works. Native policies are part of the host and are never listed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use infer_api::admin::QuarantineEntry;
use infer_core::Micros;
use infer_core::policy::{PolicyInfo, PolicyKind};
use serde_json::Value;

use super::clock::Clock;
use super::lasting::Changes;

/// Most entries; the oldest is dropped.
const ENTRIES: usize = 64;

/// The quarantined components with their configurations.
#[derive(Debug)]
pub struct Quarantine {
    clock: Clock,
    entries: Mutex<VecDeque<QuarantineEntry>>,
    changes: Arc<Changes>,
}

impl Quarantine {
    /// An empty one, whose changes are counted.
    pub fn new(clock: Clock, changes: Arc<Changes>) -> Self {
        Self { clock, entries: Mutex::default(), changes }
    }

    /// Adds a policy that was removed, or renews its entry.
    pub fn add(&self, kind: PolicyKind, policy: &PolicyInfo, reason: &str, at: Micros) {
        if policy.digest.is_empty() {
            return;
        }
        self.with(|entries| {
            entries.retain(|entry| !is_of(entry, policy));
            if entries.len() == ENTRIES {
                entries.pop_front();
            }
            entries.push_back(QuarantineEntry {
                sha256: policy.digest.clone(),
                name: policy.name.clone(),
                config: config_of(policy),
                kind: kind.name().to_owned(),
                reason: reason.to_owned(),
                at_ms: self.clock.ms(at),
                at_utc: self.clock.utc(at),
            });
        });
        self.changes.note();
    }

    /// Returns a policy's entry.
    pub fn find(&self, policy: &PolicyInfo) -> Option<QuarantineEntry> {
        self.with(|entries| entries.iter().find(|entry| is_of(entry, policy)).cloned())
    }

    /// Removes a policy's entry because an operator vouches for it. Returns it for `put_back`.
    pub fn pardon(&self, policy: &PolicyInfo) -> Option<QuarantineEntry> {
        let pardoned = self.with(|entries| {
            let at = entries.iter().position(|entry| is_of(entry, policy))?;
            entries.remove(at)
        })?;
        self.changes.note();
        Some(pardoned)
    }

    /// Adds a pardoned policy's entry again, unless it has failed once more since.
    pub fn put_back(&self, entry: QuarantineEntry) {
        self.with(|entries| {
            let same =
                |other: &QuarantineEntry| (&other.sha256, &other.config) == (&entry.sha256, &entry.config);
            if entries.len() < ENTRIES && !entries.iter().any(same) {
                let at = entries.partition_point(|other| other.at_ms <= entry.at_ms);
                entries.insert(at, entry);
            }
        });
        self.changes.note();
    }

    /// Removes all entries of a component. Returns false if there were none.
    pub fn lift(&self, sha256: &str) -> bool {
        let lifted = self.with(|entries| {
            let before = entries.len();
            entries.retain(|entry| entry.sha256 != sha256);
            entries.len() < before
        });
        if lifted {
            self.changes.note();
        }
        lifted
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.with(|entries| entries.len())
    }

    /// Returns all entries, oldest first.
    pub fn list(&self) -> Vec<QuarantineEntry> {
        self.with(|entries| entries.iter().cloned().collect())
    }

    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<QuarantineEntry>) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_of(entry: &QuarantineEntry, policy: &PolicyInfo) -> bool {
    entry.sha256 == policy.digest && entry.config == config_of(policy)
}

/// Parsed, so that the order of keys does not matter.
fn config_of(policy: &PolicyInfo) -> Value {
    serde_json::from_str(&policy.config).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Quarantine {
        Quarantine::new(Clock::start(), Arc::default())
    }

    #[test]
    fn each_policy_is_listed_once_and_the_oldest_is_dropped() {
        let quarantine = empty();
        let policy = |digest: String| PolicyInfo { name: "p".into(), digest, ..PolicyInfo::default() };
        quarantine.add(PolicyKind::Scheduler, &policy(String::new()), "native", Micros(1));
        assert!(quarantine.list().is_empty());
        for at in 0..ENTRIES + 2 {
            quarantine.add(PolicyKind::Scheduler, &policy(at.to_string()), "trap", Micros(at as u64));
        }
        quarantine.add(PolicyKind::Scheduler, &policy("5".into()), "again", Micros(1 << 20));
        assert_eq!(quarantine.count(), ENTRIES);
        assert_eq!(quarantine.find(&policy("5".into())).unwrap().reason, "again");
        assert_eq!(quarantine.find(&policy("1".into())), None);
        assert!(quarantine.lift("5") && !quarantine.lift("5"));
    }

    #[test]
    fn each_configuration_of_a_component_has_its_own_entry() {
        let quarantine = empty();
        let policy =
            |config: &str| PolicyInfo { digest: "d".into(), config: config.into(), ..PolicyInfo::default() };
        for config in [r#"{"a":1,"b":2}"#, r#"{"a":2}"#] {
            quarantine.add(PolicyKind::Scheduler, &policy(config), config, Micros(1));
        }
        assert_eq!(quarantine.find(&policy("{}")), None);
        let found = quarantine.find(&policy(r#"{ "b": 2, "a": 1 }"#)).unwrap();
        assert_eq!(found.config, serde_json::json!({"a": 1, "b": 2}));
        let all = quarantine.list();
        let pardoned = quarantine.pardon(&policy(r#"{"a":2}"#));
        assert_eq!(quarantine.list(), [found]);
        pardoned.into_iter().for_each(|entry| quarantine.put_back(entry));
        assert_eq!(quarantine.list(), all);
        assert!(quarantine.lift("d") && quarantine.list().is_empty());
    }
}
