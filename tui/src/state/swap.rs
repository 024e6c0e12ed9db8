//! A swap in preparation: which policy, how it enters, how it is configured. Nothing is sent before the
//! operator confirms.

use infer_api::admin::{AvailablePolicy, Policies, QuarantineEntry};
use serde_json::Value;

use super::form::Form;
use super::text::LineEdit;
use crate::order::{Order, Source};

/// An order with what its confirmation shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The order to send.
    pub order: Order,
    /// Name of the slot's live policy.
    pub live: String,
    /// Schema of its configuration; null if unknown.
    pub schema: Value,
}

/// The latest entry that makes the host refuse an order unless it is forced. The host quarantines a component
/// together with its configuration, of a list only the member that failed. A file's digest is unknown here,
/// so the host alone can tell.
#[must_use]
pub fn quarantined<'a>(order: &Order, known: &'a Policies) -> Option<&'a QuarantineEntry> {
    let Source::Name(name) = &order.source else { return None };
    let members: Vec<(&str, &Value)> = match &order.config {
        Some(Value::Array(list)) => list
            .iter()
            .map(|member| (member["name"].as_str().unwrap_or_default(), &member["config"]))
            .collect(),
        config => vec![(name, config.as_ref().unwrap_or(&Value::Null))],
    };
    let bars = |entry: &QuarantineEntry, (name, config): &(&str, &Value)| {
        let mut available = known.available.iter().filter(|policy| policy.kind == order.kind);
        available.any(|policy| policy.name == *name && is_of(entry, policy)) && is_same(&entry.config, config)
    };
    known.quarantine.iter().rev().find(|entry| members.iter().any(|member| bars(entry, member)))
}

/// Whether an entry is about this policy's component; a native policy has no digest and is never quarantined.
fn is_of(entry: &QuarantineEntry, policy: &AvailablePolicy) -> bool {
    !policy.sha256.is_empty() && entry.sha256 == policy.sha256
}

/// Whether two configurations are the same to the host: no configuration is an empty one.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || is_default(a) && is_default(b)
}

/// Whether a configuration leaves everything at its default.
#[must_use]
pub fn is_default(config: &Value) -> bool {
    config.is_null() || config.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The list of policies for a slot; its last entry is a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Picker {
    /// The slot.
    pub kind: String,
    /// The policies; `None` until the host has responded.
    pub options: Option<Result<Vec<AvailablePolicy>, String>>,
    /// The slot's quarantine, latest last.
    pub quarantine: Vec<QuarantineEntry>,
    /// Index of the selection; the index after the last policy is the file.
    pub selected: usize,
}

impl Picker {
    /// Creates the list for a slot, before the host has responded.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), options: None, quarantine: Vec::new(), selected: 0 }
    }

    /// Takes the host's response. The selection stays on its policy, so that a list that grows doesn't change
    /// it.
    pub fn on_policies(&mut self, result: &Result<Policies, String>) {
        let name = |picked: Picked<'_>| match picked {
            Picked::Policy(policy) => Some(policy.name.clone()),
            Picked::File => None,
        };
        let before = self.selected().map(name);
        self.options = Some(match result {
            Ok(all) => {
                let of_kind = |policy: &&AvailablePolicy| policy.kind == self.kind;
                self.quarantine = all.quarantine.iter().filter(|q| q.kind == self.kind).cloned().collect();
                Ok(all.available.iter().filter(of_kind).cloned().collect())
            }
            Err(error) => Err(error.clone()),
        });
        if let (Some(before), Some(Ok(options))) = (before, &self.options) {
            let place = options.iter().position(|option| Some(&option.name) == before.as_ref());
            self.selected = match before {
                Some(_) => place.unwrap_or(0),
                None => options.len(),
            };
        }
    }

    /// The quarantine entry of a policy: the one of its default configuration, which the list offers, else
    /// the latest.
    #[must_use]
    pub fn quarantined(&self, policy: &AvailablePolicy) -> Option<&QuarantineEntry> {
        let entries = || self.quarantine.iter().rev().filter(|entry| is_of(entry, policy));
        entries().find(|entry| is_default(&entry.config)).or_else(|| entries().next())
    }

    /// Moves the selection.
    pub fn move_by(&mut self, by: isize) {
        let last = match &self.options {
            Some(Ok(options)) => options.len(),
            _ => 0,
        };
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// Returns the selection; `None` while there is nothing to select.
    #[must_use]
    pub fn selected(&self) -> Option<Picked<'_>> {
        match &self.options {
            Some(Ok(options)) => Some(options.get(self.selected).map_or(Picked::File, Picked::Policy)),
            _ => None,
        }
    }
}

/// A selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Picked<'a> {
    /// A policy that the host knows.
    Policy(&'a AvailablePolicy),
    /// A component on this machine; its path is typed next.
    File,
}

/// The configuration of a plan, being edited.
#[derive(Clone, Debug, PartialEq)]
pub struct Editing {
    /// The plan.
    pub plan: Plan,
    /// The fields.
    pub form: Form,
    /// Faults found at the last attempt to finish.
    pub faults: Vec<String>,
}

/// The path of a component, being typed.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The slot.
    pub kind: String,
    /// What is typed.
    pub line: LineEdit,
    /// Completions of its last part; `None` if not requested.
    pub options: Option<Vec<String>>,
}

impl Path {
    /// Creates an empty line for a slot.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), line: LineEdit::default(), options: None }
    }
}
