//! Who was loaded lately, how it was configured, and from which bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use infer_core::policy::{PolicyInfo, PolicyKind};
use serde_json::{Value, json};

/// Policies remembered per slot, besides those that somebody still has: the engine (live, previous, in shadow), or
/// whoever may bring them back.
const REMEMBERED: usize = 8;

/// A policy and what it was made of.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Who.
    pub info: Arc<PolicyInfo>,
    /// Itself; for a list of admission policies, each of them.
    pub members: Vec<Member>,
}

/// A component, or a native policy, with its configuration.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who.
    pub info: Arc<PolicyInfo>,
    /// As it was told.
    pub config: Value,
    /// Its bytes.
    pub component: Component,
}

/// The bytes of a policy.
#[derive(Clone, Debug)]
pub enum Component {
    /// It is part of the host.
    Native,
    /// It is bundled with the host.
    Bundled(&'static [u8]),
    /// Somebody gave it.
    Given(Arc<[u8]>),
}

/// The policies of the three slots, by the identity of their info.
#[derive(Debug, Default)]
pub struct Library {
    slots: Mutex<[VecDeque<Loaded>; 3]>,
}

impl Component {
    /// The bytes; `None` for a native policy.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Native => None,
            Self::Bundled(bytes) => Some(bytes),
            Self::Given(bytes) => Some(bytes),
        }
    }
}

impl Loaded {
    /// How it is configured, as a swap by name takes it.
    pub fn config(&self) -> Value {
        match &self.members[..] {
            [one] => one.config.clone(),
            all => all.iter().map(|m| json!({"name": m.info.name, "config": m.config})).collect(),
        }
    }

    /// Whether anybody besides this has its info, as the policy itself has.
    fn is_held(&self) -> bool {
        let own = 1 + self.members.iter().filter(|member| Arc::ptr_eq(&member.info, &self.info)).count();
        Arc::strong_count(&self.info) > own
    }
}

impl Library {
    /// A policy was loaded.
    pub fn remember(&self, kind: PolicyKind, loaded: Loaded) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut slots[kind as usize];
        slot.push_back(loaded);
        let mut excess = slot.iter().filter(|loaded| !loaded.is_held()).count().saturating_sub(REMEMBERED);
        slot.retain(|loaded| {
            let dropped = excess > 0 && !loaded.is_held();
            excess -= usize::from(dropped);
            !dropped
        });
    }

    /// Who was loaded last.
    pub fn latest(&self, kind: PolicyKind) -> Option<Loaded> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots[kind as usize].back().cloned()
    }

    /// The bytes of the policy that somebody gave under this name, the latest of them.
    pub fn given(&self, kind: PolicyKind, name: &str) -> Option<Arc<[u8]>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut members = slots[kind as usize].iter().rev().flat_map(|loaded| &loaded.members);
        members.find_map(|member| match &member.component {
            Component::Given(bytes) if member.info.name == name => Some(Arc::clone(bytes)),
            _ => None,
        })
    }

    /// What a policy was made of.
    pub fn find(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Option<Loaded> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &slots[kind as usize];
        let same = slot.iter().rev().find(|loaded| Arc::ptr_eq(&loaded.info, policy));
        same.or_else(|| slot.iter().rev().find(|loaded| loaded.info == *policy)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(name: &str) -> Loaded {
        let info = Arc::new(PolicyInfo { name: name.to_owned(), ..PolicyInfo::default() });
        let config = json!({"of": name});
        Loaded { members: vec![Member { info: info.clone(), config, component: Component::Native }], info }
    }

    #[test]
    fn whom_somebody_has_is_remembered_however_many_came_since() {
        const KIND: PolicyKind = PolicyKind::Scheduler;
        let library = Library::default();
        let live = loaded("live");
        let info = Arc::clone(&live.info);
        library.remember(KIND, live);
        for at in 0..3 * REMEMBERED {
            library.remember(KIND, loaded(&at.to_string()));
        }
        let config_of = |info| library.find(KIND, info).map(|loaded| loaded.config());
        assert_eq!(config_of(&info), Some(json!({"of": "live"})));
        assert_eq!(config_of(&loaded("0").info), None, "nobody has it");
        assert_eq!(library.latest(KIND).unwrap().info.name, (3 * REMEMBERED - 1).to_string());
        assert_eq!(library.slots.lock().unwrap()[KIND as usize].len(), REMEMBERED + 1);

        drop(info);
        for at in 0..REMEMBERED {
            library.remember(KIND, loaded(&at.to_string()));
        }
        assert_eq!(library.slots.lock().unwrap()[KIND as usize].len(), REMEMBERED);
    }
}
