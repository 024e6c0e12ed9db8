//! The policy slots: the live policies, what can be swapped in, faults, history and quarantine.

use serde::{Deserialize, Serialize};

use super::{CanaryInfo, RestoredState, ShadowInfo};

/// One policy slot, in snapshots and in `GET /admin/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicySlot {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Name of the live policy.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its description of itself.
    pub description: String,
    /// SHA-256 of the component; empty for a native policy. For a list of policies, theirs joined by `+`.
    pub sha256: String,
    /// `live`, `canary` while it is on trial, or `fallback` if the built-in has replaced a policy that was
    /// removed.
    pub state: String,
    /// Calls so far. A native policy's are neither counted nor timed: here and in the percentiles, 0 says nothing about
    /// one that [is native](PolicySlot::is_native).
    pub calls: u64,
    /// Median duration of a call, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of it.
    pub p99_us: f64,
    /// What the live policy publishes about itself, by policy and name.
    #[serde(default)]
    pub gauges: Vec<GaugeInfo>,
    /// Faults of the live policy since it was swapped in; it keeps them when it comes back.
    pub faults: u64,
    /// Decisions that the built-in made in this slot since start, whichever policy was live.
    pub fallbacks: u64,
    /// Milliseconds since it became live.
    pub since_ms: u64,
    /// The policy that a rollback would restore.
    pub previous: Option<String>,
    /// SHA-256 of the configuration with which it would be restored; empty if nothing is configured.
    #[serde(default)]
    pub previous_config_sha256: String,
    /// The last fault in this slot.
    pub last_fault: Option<FaultInfo>,
    /// JSON Schema of its configuration; for a list of policies an array schema with theirs as `prefixItems`.
    pub config_schema: serde_json::Value,
    /// Its configuration; for a list of policies `[{"name", "config"}, ..]`.
    pub config: serde_json::Value,
    /// SHA-256 of its configuration, which tells configurations apart; empty if nothing is configured.
    #[serde(default)]
    pub config_sha256: String,
    /// Stands for the live policy with just this component and configuration: the most exact text that `?of=` takes.
    #[serde(default)]
    pub tag: String,
    /// The policy that runs in shadow, or the last one that did.
    #[serde(default)]
    pub shadow: Option<ShadowInfo>,
    /// The running canary, or the last one, until another policy becomes live than the one its verdict left.
    #[serde(default)]
    pub canary: Option<CanaryInfo>,
}

impl PolicySlot {
    /// Whether the live policy is a part of the host, as the built-ins are, or a list of such policies.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.sha256.split('+').all(str::is_empty)
    }
}

/// A number that a policy publishes about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GaugeInfo {
    /// Name of the policy: in a list of policies each has its own.
    pub policy: String,
    /// Name of the gauge, with its unit at the end.
    pub name: String,
    /// Its latest value.
    pub value: f64,
}

/// A policy fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultInfo {
    /// Name of the policy.
    pub policy: String,
    /// SHA-256 of its component; empty for a native policy.
    pub sha256: String,
    /// `trap`, `deadline`, `step-budget`, `memory`, `invalid-decision`, `starvation`, `setup`.
    pub reason: String,
    /// What happened, for the operator.
    pub message: String,
    /// The engine step.
    pub step: u64,
    /// Milliseconds from the host's start to the fault.
    pub at_ms: u64,
    /// Whether the policy was removed because of it.
    pub removed: bool,
    /// Whether the policy ran in shadow, so that no request was affected.
    #[serde(default)]
    pub shadow: bool,
    /// Path of the fault file on the host; `infer policy replay` repeats the call from it.
    #[serde(default)]
    pub artifact: Option<String>,
}

/// Response of `GET /admin/policies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// The three slots.
    pub slots: Vec<PolicySlot>,
    /// The policies that can be swapped in by name.
    pub available: Vec<AvailablePolicy>,
    /// Quarantined components, latest last.
    #[serde(default)]
    pub quarantine: Vec<QuarantineEntry>,
    /// Why the slots, their history, the quarantine or what policies know would not outlive the host as they are now,
    /// although it is to save them (`--policy-state`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_saved: Option<String>,
    /// What of the state of an earlier host is not in effect, and why ([`PolicyState`](super::PolicyState)).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_restored: Vec<String>,
    /// The policies that went on at the start with what they knew before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<RestoredState>,
}

/// A policy that the host knows by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AvailablePolicy {
    /// `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// Its name in a [`SwapRequest`].
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its description of itself.
    pub description: String,
    /// SHA-256 of the component; empty for a native policy.
    pub sha256: String,
    /// JSON Schema of its configuration.
    pub config_schema: serde_json::Value,
}

/// JSON body of `PUT /admin/policies/{kind}`; a body of any other content type is a component. For
/// `admission` it may be an array of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapRequest {
    /// Name of an available policy; for `admission` also several, separated by commas.
    pub name: String,
    /// Its configuration; for several policies an object with their configurations under their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Value>,
}

/// Response to a swap, a promotion or a rollback, sent once it has taken effect; also the data of a `swap`
/// event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwapAnswer {
    /// The slot.
    pub kind: String,
    /// The policy that was live before.
    pub from: String,
    /// The policy that is live after it; for `shadow`, the one that runs beside `from`.
    pub to: String,
    /// The first engine step with it in effect.
    pub at_step: u64,
    /// Microseconds that the engine thread spent on it.
    pub pause_us: f64,
    /// `restored` if `to` took the state that its predecessor exported, `kept` if it goes on with the state that it
    /// had itself, `cold` if it, or a member of a list, begins with nothing.
    pub state: String,
    /// Why `to` doesn't have the state that there was for it: it, or members of a list, refused that or failed over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_note: Option<String>,
    /// `now`, `shadow`, `canary`, `promote` or `rollback`.
    #[serde(default)]
    pub mode: String,
    /// SHA-256 of `to`'s component; empty for a native policy.
    #[serde(default)]
    pub sha256: String,
    /// SHA-256 of `to`'s configuration; empty if nothing is configured.
    #[serde(default)]
    pub config_sha256: String,
    /// `to`'s tag, which stands for it with just this component and configuration.
    #[serde(default)]
    pub tag: String,
    /// Whether nothing changed, because the policy was live already with this configuration.
    #[serde(default)]
    pub unchanged: bool,
    /// Why the change took effect but would not outlive the host, although that is to save it (`--policy-state`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_saved: Option<String>,
    /// In the response to a swap with `mode=canary`: its trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Box<CanaryInfo>>,
}

/// One entry of `GET /admin/policies/{kind}/history`, which is sorted oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Milliseconds from the host's start to the change; of an entry `before_restart`, from the start of that time.
    pub at_ms: u64,
    /// Time of day of the change: RFC 3339, UTC.
    #[serde(default)]
    pub at_utc: String,
    /// The first engine step after the change, counted on over restarts if the host goes on with what policies know
    /// (`--policy-state`); the last one before it for the start.
    pub step: u64,
    /// The policy before; empty for the first entry.
    pub from: String,
    /// The policy after.
    pub to: String,
    /// SHA-256 of `to`'s component; empty for a native policy.
    pub sha256: String,
    /// SHA-256 of `to`'s configuration, which tells configurations apart; empty if nothing is configured.
    #[serde(default)]
    pub config_sha256: String,
    /// `start`, `swap`, `canary`, `promote`, `rollback`, or why `from` was removed. Behind a semicolon, why `to` doesn't
    /// have the state that there was for it. Behind `start:`, why the slot has another policy than the configured one.
    pub reason: String,
    /// `start`, `swap`, `canary`, `promote`, `rollback`, `fault`, `verdict` (a failed canary); `shadow` when
    /// `to` starts or ends in the shadow of `from`; `stays` when a canary passes; `disturbed` when a canary
    /// loses its baseline, because another slot's policy changed.
    #[serde(default)]
    pub mode: String,
    /// Name of the operator who asked for it; `None` for what the host does by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Whether it happened before the host's last start (`--policy-state`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_restart: bool,
}

/// A quarantined component: with this configuration it can be swapped in only by force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineEntry {
    /// SHA-256 of the component.
    pub sha256: String,
    /// Its configuration when it failed.
    #[serde(default)]
    pub config: serde_json::Value,
    /// Name of the policy.
    pub name: String,
    /// The slot.
    pub kind: String,
    /// Why it was removed.
    pub reason: String,
    /// Milliseconds from the host's start to the removal; 0 if that was before a restart.
    pub at_ms: u64,
    /// Time of day of the removal: RFC 3339, UTC.
    #[serde(default)]
    pub at_utc: String,
}
