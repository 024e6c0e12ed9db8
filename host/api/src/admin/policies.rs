//! The policy slots: who is in force, what can be swapped in, what happened.

use serde::{Deserialize, Serialize};

use super::{CanaryInfo, ShadowInfo};

/// One policy slot, also an element of `GET /admin/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicySlot {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Name of the policy in force.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it says of itself.
    pub description: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// `live`, `canary` while it is on trial, or `fallback` where the built-in stands in for a policy that
    /// was taken out.
    pub state: String,
    /// Decisions asked of it.
    pub calls: u64,
    /// Median duration of a call.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Faults of this slot since start.
    pub faults: u64,
    /// Decisions that the built-in made in its stead.
    pub fallbacks: u64,
    /// Milliseconds since it came into force.
    pub since_ms: u64,
    /// Who a rollback would bring back.
    pub previous: Option<String>,
    /// The last fault of this slot.
    pub last_fault: Option<FaultInfo>,
    /// JSON Schema of its configuration; for a list of policies an array's, with theirs as `prefixItems`.
    pub config_schema: serde_json::Value,
    /// Its configuration; for a list of policies `[{"name", "config"}, ..]`.
    pub config: serde_json::Value,
    /// The policy that runs in shadow, or the last one that did.
    #[serde(default)]
    pub shadow: Option<ShadowInfo>,
    /// The trial of the policy in force, or the slot's last trial.
    #[serde(default)]
    pub canary: Option<CanaryInfo>,
}

/// A policy fault as consoles show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultInfo {
    /// Name of the policy.
    pub policy: String,
    /// Its digest.
    pub sha256: String,
    /// `trap`, `deadline`, `step-budget`, `memory`, `invalid-decision`, `starvation`, `setup`.
    pub reason: String,
    /// What happened, for a person.
    pub message: String,
    /// The engine's step.
    pub step: u64,
    /// Milliseconds since the host started.
    pub at_ms: u64,
    /// Whether the policy was taken out for it.
    pub removed: bool,
    /// Whether it ran in shadow: no request was in its hands.
    #[serde(default)]
    pub shadow: bool,
    /// Path of the file on the host that `infer policy replay` asks the question again from.
    #[serde(default)]
    pub artifact: Option<String>,
}

/// `GET /admin/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// The three slots.
    pub slots: Vec<PolicySlot>,
    /// What can be swapped in by name.
    pub available: Vec<AvailablePolicy>,
    /// What was taken out, latest last.
    #[serde(default)]
    pub quarantine: Vec<QuarantineEntry>,
}

/// A policy that the host carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AvailablePolicy {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Name to swap it in by.
    pub name: String,
    /// Version.
    pub version: String,
    /// What it says of itself.
    pub description: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// JSON Schema of its configuration.
    pub config_schema: serde_json::Value,
}

/// JSON body of `PUT /admin/policies/{kind}`; any other content type is a component. For admission also a
/// list of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapRequest {
    /// A bundled policy's name; for admission also several, with commas between.
    pub name: String,
    /// Its configuration; of several policies, theirs under their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Value>,
}

/// Answer to a swap, once it is in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwapAnswer {
    /// Which slot.
    pub kind: String,
    /// Who left.
    pub from: String,
    /// Who is in force.
    pub to: String,
    /// The step before which it took effect.
    pub at_step: u64,
    /// Microseconds that the engine thread spent on it.
    pub pause_us: f64,
    /// `restored` or `cold`.
    pub state: String,
    /// `now`, `shadow`, `canary`, `promote` or `rollback`. In shadow, `to` runs beside `from`.
    #[serde(default)]
    pub mode: String,
}

/// One entry of `GET /admin/policies/{kind}/history`, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Milliseconds since the host started.
    pub at_ms: u64,
    /// The first engine step that it governed; 0 for the start.
    pub step: u64,
    /// Who left; empty for the first.
    pub from: String,
    /// Who came.
    pub to: String,
    /// Digest of who came.
    pub sha256: String,
    /// `start`, `swap`, `canary`, `promote`, `rollback`, or why the predecessor was taken out.
    pub reason: String,
    /// `start`, `swap`, `canary`, `promote`, `rollback`, `fault`, `verdict`; `shadow` where `to` came or
    /// ended beside `from`; `stays` where a trial ended well, `disturbed` where one is compared with nothing any more,
    /// for another slot's policy changed.
    #[serde(default)]
    pub mode: String,
}

/// A component that was taken out, and that is not taken in again with this configuration unless that is forced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineEntry {
    /// SHA-256 of the component.
    pub sha256: String,
    /// How it was configured.
    #[serde(default)]
    pub config: serde_json::Value,
    /// Name of the policy.
    pub name: String,
    /// Which slot.
    pub kind: String,
    /// Why it was taken out.
    pub reason: String,
    /// Milliseconds since the host started.
    pub at_ms: u64,
}
