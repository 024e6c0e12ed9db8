//! The policy that a rollout brings to all hosts, as the hosts themselves would say what it is.

use infer_api::admin::{Policies, PolicySlot};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::cli::policy::order::{Order, Source};
use crate::policies::{empty, list_members};

/// Also names the native policy of a slot.
const BUILTIN: &str = "builtin";

/// The policy that all hosts are to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Of a single policy that was given by name.
    name: Option<String>,
    pub sha256: String,
    config: Value,
    /// Component and configuration of the policy, or of each member of a list.
    parts: Vec<(String, Value)>,
}

impl Target {
    /// What a host would swap in, as far as it knows the names.
    pub fn of(kind: &str, order: &Order, policies: &Policies) -> Result<Self, String> {
        let config = order.config.clone().unwrap_or_else(empty);
        let names = match &order.source {
            Source::Component(bytes) => {
                let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                return Ok(Self {
                    name: None,
                    parts: vec![(sha256.clone(), config.clone())],
                    sha256,
                    config,
                });
            }
            Source::Names(names) => names,
        };
        if kind != "admission" || !names.contains(',') {
            let (name, sha256) = known(kind, names, policies)?;
            let parts = vec![(sha256.clone(), config.clone())];
            return Ok(Self { name: Some(name), sha256, config, parts });
        }
        let (mut parts, mut configs) = (Vec::new(), Vec::new());
        for (name, config) in list_members(names, &config)? {
            let (name, sha256) = known(kind, name, policies)?;
            configs.push(json!({"name": name, "config": config}));
            parts.push((sha256, config));
        }
        let sha256 = parts.iter().map(|(sha256, _)| sha256.as_str()).collect::<Vec<_>>().join("+");
        Ok(Self { name: None, sha256, config: Value::Array(configs), parts })
    }

    /// Whether a slot runs it, on trial or for good.
    pub fn is_in(&self, slot: &PolicySlot) -> bool {
        self.name.as_ref().is_none_or(|name| *name == slot.name)
            && (&self.sha256, &self.config) == (&slot.sha256, &slot.config)
    }

    /// Whether a slot runs it for good.
    pub fn is_live(&self, slot: &PolicySlot) -> bool {
        self.is_in(slot) && slot.state == "live"
    }

    /// The failure that bars it from a host, unless it is forced.
    pub fn quarantined<'a>(&self, kind: &str, policies: &'a Policies) -> Option<(&'a str, &'a str)> {
        // A list may have failed as a whole, with the configurations of its members.
        let configs = || Value::Array(self.parts.iter().map(|(_, config)| config.clone()).collect());
        let list = (self.parts.len() > 1).then(|| (self.sha256.clone(), configs()));
        let bars = |sha256: &str, config: &Value| {
            self.parts.iter().chain(&list).any(|(own, with)| own == sha256 && with == config)
        };
        let mut entries = policies.quarantine.iter().filter(|entry| entry.kind == kind);
        let found = entries.find(|entry| bars(&entry.sha256, &entry.config))?;
        Some((found.name.as_str(), found.reason.as_str()))
    }
}

/// The policy that a host has under a name, and its digest.
fn known(kind: &str, name: &str, policies: &Policies) -> Result<(String, String), String> {
    let is_called = |own: &str, sha256: &str| own == name || name == BUILTIN && sha256.is_empty();
    let available = policies.available.iter().filter(|policy| policy.kind == kind);
    let live = policies.slots.iter().filter(|slot| slot.kind == kind && slot.name == name);
    let mut all = available
        .map(|policy| (&policy.name, &policy.sha256))
        .chain(live.map(|slot| (&slot.name, &slot.sha256)));
    let found = all.find(|(own, sha256)| is_called(own, sha256));
    let (own, sha256) = found.ok_or_else(|| {
        format!("there is no {kind} policy `{name}` (give the file of its component, which every host takes)")
    })?;
    Ok((own.clone(), sha256.clone()))
}

/// The policy interface of a component for this slot.
pub fn interface_of(kind: &str, exports: &[String]) -> Result<String, String> {
    let own = format!("infer:policy/{kind}@");
    let version = exports.iter().find_map(|export| export.strip_prefix(&own));
    version.map(|version| format!("infer:policy@{version}")).ok_or_else(|| {
        let other = exports.iter().filter(|export| !export.contains("/lifecycle@")).cloned();
        format!("it is no {kind} policy: it exports {}", other.collect::<Vec<_>>().join(", "))
    })
}
