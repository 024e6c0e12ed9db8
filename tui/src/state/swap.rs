//! A change of policy that is being prepared: what comes, how it comes, how it is configured. Nothing
//! happens before the last question is answered with yes.

use infer_api::admin::{AvailablePolicy, Policies, QuarantineEntry};
use serde_json::Value;

use super::form::Form;
use super::text::LineEdit;

/// How a policy comes into a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In force, for good.
    #[default]
    Now,
    /// Beside the live policy, without effect.
    Shadow,
    /// In force and watched; the previous one comes back when clients are worse off.
    Canary,
}

impl Mode {
    /// All of them, in the order of the keys.
    pub const ALL: [Self; 3] = [Self::Now, Self::Shadow, Self::Canary];

    /// Its name, as the host knows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Shadow => "shadow",
            Self::Canary => "canary",
        }
    }

    /// What it means, in a sentence.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Now => "in force at once; running requests go on",
            Self::Shadow => "asked what the live one is asked, without effect",
            Self::Canary => "in force on trial; rolled back by itself if clients are worse off",
        }
    }

    /// The mode `by` places further.
    #[must_use]
    pub fn step(self, by: isize) -> Self {
        let len = Self::ALL.len().cast_signed();
        Self::ALL[((self as usize).cast_signed() + by).rem_euclid(len).cast_unsigned()]
    }
}

/// Where a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A name that the host knows.
    Name(String),
    /// A component on this machine.
    File(String),
}

impl Source {
    /// A file where it ends in `.wasm`, else a name.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let is_file = std::path::Path::new(text).extension().is_some_and(|e| e.eq_ignore_ascii_case("wasm"));
        if is_file { Self::File(text.to_owned()) } else { Self::Name(text.to_owned()) }
    }

    /// As it is shown.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Name(text) | Self::File(text) => text,
        }
    }
}

/// What the host is asked for once it is confirmed.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Into which slot.
    pub kind: String,
    /// What.
    pub source: Source,
    /// How.
    pub mode: Mode,
    /// Its configuration; none leaves it to the policy.
    pub config: Option<Value>,
    /// Also where it was taken out before.
    pub force: bool,
    /// Only where this one is still in force; whoever is, where it isn't known.
    pub of: Option<String>,
}

/// An order with what its question shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What would be asked for.
    pub order: Order,
    /// Schema of its configuration; null where it isn't known.
    pub schema: Value,
    /// Why it was taken out before, where it was.
    pub quarantine: Option<QuarantineEntry>,
}

/// The policies that a slot can have, with a file at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Picker {
    /// Which slot.
    pub kind: String,
    /// What there is; `None` until the host has answered.
    pub options: Option<Result<Vec<AvailablePolicy>, String>>,
    /// What was taken out.
    pub quarantine: Vec<QuarantineEntry>,
    /// Which one is selected; the place after the last is the file.
    pub selected: usize,
}

impl Picker {
    /// For a slot, before the host has answered.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), options: None, quarantine: Vec::new(), selected: 0 }
    }

    /// Takes the host's answer. The selection stays on its policy, so that none comes in because a list grew.
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

    /// Moves the selection.
    pub fn move_by(&mut self, by: isize) {
        let last = match &self.options {
            Some(Ok(options)) => options.len(),
            _ => 0,
        };
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// What is selected; `None` while there is nothing to select.
    #[must_use]
    pub fn selected(&self) -> Option<Picked<'_>> {
        match &self.options {
            Some(Ok(options)) => Some(options.get(self.selected).map_or(Picked::File, Picked::Policy)),
            _ => None,
        }
    }
}

/// What a picker's selection stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Picked<'a> {
    /// A policy that the host carries.
    Policy(&'a AvailablePolicy),
    /// A component of this machine, whose path is asked for.
    File,
}

/// A configuration that is edited on the way to a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Editing {
    /// The plan that it is for.
    pub plan: Plan,
    /// The fields.
    pub form: Form,
    /// What was wrong when it was last given.
    pub faults: Vec<String>,
}

/// The path of a component that is being typed.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// For which slot.
    pub kind: String,
    /// What is typed.
    pub line: LineEdit,
    /// What its last part could become; `None` where nobody asked.
    pub options: Option<Vec<String>>,
}

impl Path {
    /// For a slot, with nothing typed yet.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), line: LineEdit::default(), options: None }
    }
}
