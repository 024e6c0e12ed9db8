//! What happened on each host, and the table at the end.

use infer_api::admin::PolicySlot;
use serde::Serialize;

use super::{Action, Step};
use crate::cli::policy::several::Made;

/// What happened on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    pub outcome: Outcome,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It had the policy already.
    Unchanged,
    /// The rollout stopped before it.
    NotReached,
    /// It has the policy.
    Live,
    /// It did not take the policy, or did not keep it.
    Failed,
    /// It has the policy as a canary, without a verdict.
    Undecided,
    /// It had taken the policy, and has its former one again.
    RolledBack,
    /// It had taken the policy, and has one again that is neither this one nor its former one.
    RolledBackToAnother,
    /// It was not rolled back.
    Left,
}

impl Fate {
    pub fn new(outcome: Outcome, detail: impl Into<String>) -> Self {
        Self { outcome, detail: detail.into() }
    }

    /// Of a host that the rollout has not come to yet.
    pub fn ahead(action: Action) -> Self {
        let outcome = if action == Action::Leave { Outcome::Unchanged } else { Outcome::NotReached };
        Self::new(outcome, "")
    }

    /// This one, which followed on another one, with what made it necessary.
    pub fn after(self, earlier: &Self) -> Self {
        if !matches!(earlier.outcome, Outcome::Failed | Outcome::Undecided) || earlier.detail.is_empty() {
            return self;
        }
        let why = earlier.words();
        let detail = if self.detail.is_empty() { why } else { format!("{}; before: {why}", self.detail) };
        Self { detail, ..self }
    }

    /// Whether the policy is live there.
    pub fn is_good(&self) -> bool {
        matches!(self.outcome, Outcome::Unchanged | Outcome::Live)
    }

    pub fn words(&self) -> String {
        let outcome = match self.outcome {
            Outcome::Unchanged => "had it already",
            Outcome::NotReached => "not reached",
            Outcome::Live => "live",
            Outcome::Failed => "failed",
            Outcome::Undecided => "no verdict",
            Outcome::RolledBack => "rolled back",
            Outcome::RolledBackToAnother => "rolled back to another policy",
            Outcome::Left => "left as it is",
        };
        let detail = self.detail.lines().next().unwrap_or_default();
        if detail.is_empty() { outcome.to_owned() } else { format!("{outcome}: {detail}") }
    }
}

/// A row of the table at the end. `now` is `None` for a host that doesn't answer.
pub fn row(host: &str, step: &Step, now: Option<&PolicySlot>, fate: &Fate) -> [String; 4] {
    let now = now.map_or_else(|| "?".to_owned(), cell);
    [host.to_owned(), cell(&step.before), now, fate.words()]
}

/// What a slot runs, with its state unless it is live for good.
pub fn cell(slot: &PolicySlot) -> String {
    let words = Made::of(slot).words();
    if slot.state == "live" { words } else { format!("{words}, {}", slot.state) }
}
