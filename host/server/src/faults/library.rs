//! Who was loaded lately, how it was configured, and from which bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use infer_core::policy::{PolicyInfo, PolicyKind};
use serde_json::{Value, json};

/// Policies remembered per slot: the live one, the previous one, a shadow, and some before them.
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
}

impl Library {
    /// A policy was loaded.
    pub fn remember(&self, kind: PolicyKind, loaded: Loaded) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut slots[kind as usize];
        if slot.len() == REMEMBERED {
            slot.pop_front();
        }
        slot.push_back(loaded);
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
