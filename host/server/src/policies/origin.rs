//! What loaded policies were made of: their configuration and bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use infer_core::policy::{PolicyInfo, PolicyKind};
use serde_json::{Value, json};

/// Origins kept per slot of policies that are gone. Those whose `info` is still used elsewhere (by the engine for a
/// live, previous or shadow policy, or by a rollback) are always kept.
const REMEMBERED: usize = 8;

/// A policy and what it was made of.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Identifies the policy.
    pub info: Arc<PolicyInfo>,
    /// The policy itself, or the members of a list of admission policies.
    pub members: Vec<Member>,
}

/// A component, or a native policy, with its configuration.
#[derive(Clone, Debug)]
pub struct Member {
    /// Identifies the policy.
    pub info: Arc<PolicyInfo>,
    /// Its configuration, as it was given.
    pub config: Value,
    /// Its bytes.
    pub component: Component,
}

/// The bytes of a policy.
#[derive(Clone, Debug)]
pub enum Component {
    /// A native policy of the host.
    Native,
    /// Bundled with the host.
    Bundled(&'static [u8]),
    /// Uploaded, or read from a file.
    Given(Arc<[u8]>),
}

/// Origins by slot, found by the identity of the policy's info.
#[derive(Debug, Default)]
pub struct Origins {
    slots: Mutex<[VecDeque<Origin>; 3]>,
}

impl Component {
    /// Returns the bytes; `None` for a native policy.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Native => None,
            Self::Bundled(bytes) => Some(bytes),
            Self::Given(bytes) => Some(bytes),
        }
    }
}

impl Origin {
    /// Returns the configuration as a swap by name takes it.
    pub fn config(&self) -> Value {
        match &self.members[..] {
            [one] => one.config.clone(),
            all => all.iter().map(|m| json!({"name": m.info.name, "config": m.config})).collect(),
        }
    }

    /// Whether the info is referenced from elsewhere, for example by the policy itself.
    fn is_used(&self) -> bool {
        let own = 1 + self.members.iter().filter(|member| Arc::ptr_eq(&member.info, &self.info)).count();
        Arc::strong_count(&self.info) > own
    }
}

impl Origins {
    /// Adds the origin of a policy that was just loaded.
    pub fn remember(&self, kind: PolicyKind, origin: Origin) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut slots[kind as usize];
        slot.push_back(origin);
        let mut excess = slot.iter().filter(|origin| !origin.is_used()).count().saturating_sub(REMEMBERED);
        slot.retain(|origin| {
            let dropped = excess > 0 && !origin.is_used();
            excess -= usize::from(dropped);
            !dropped
        });
    }

    /// Returns the origin of the policy that was loaded last.
    pub fn latest(&self, kind: PolicyKind) -> Option<Origin> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots[kind as usize].back().cloned()
    }

    /// Returns the bytes of the latest given component with this name.
    pub fn given(&self, kind: PolicyKind, name: &str) -> Option<Arc<[u8]>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut members = slots[kind as usize].iter().rev().flat_map(|origin| &origin.members);
        members.find_map(|member| match &member.component {
            Component::Given(bytes) if member.info.name == name => Some(Arc::clone(bytes)),
            _ => None,
        })
    }

    /// Returns what a policy was made of.
    pub fn find(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Option<Origin> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &slots[kind as usize];
        let same = slot.iter().rev().find(|origin| Arc::ptr_eq(&origin.info, policy));
        same.or_else(|| slot.iter().rev().find(|origin| origin.info == *policy)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(name: &str) -> Origin {
        let info = Arc::new(PolicyInfo { name: name.to_owned(), ..PolicyInfo::default() });
        let config = json!({"of": name});
        Origin { members: vec![Member { info: info.clone(), config, component: Component::Native }], info }
    }

    #[test]
    fn origins_of_policies_in_use_are_kept_and_the_oldest_others_dropped() {
        const KIND: PolicyKind = PolicyKind::Scheduler;
        let origins = Origins::default();
        let live = origin("live");
        let info = Arc::clone(&live.info);
        origins.remember(KIND, live);
        for at in 0..3 * REMEMBERED {
            origins.remember(KIND, origin(&at.to_string()));
        }
        let config_of = |info| origins.find(KIND, info).map(|origin| origin.config());
        assert_eq!(config_of(&info), Some(json!({"of": "live"})));
        assert_eq!(config_of(&origin("0").info), None, "it is not used");
        assert_eq!(origins.latest(KIND).unwrap().info.name, (3 * REMEMBERED - 1).to_string());
        assert_eq!(origins.slots.lock().unwrap()[KIND as usize].len(), REMEMBERED + 1);

        drop(info);
        for at in 0..REMEMBERED {
            origins.remember(KIND, origin(&at.to_string()));
        }
        assert_eq!(origins.slots.lock().unwrap()[KIND as usize].len(), REMEMBERED);
    }
}
