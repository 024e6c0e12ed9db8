//! The format of fault files: JSON, with views as columns and in the engine's units.
//!
//! The engine's types don't implement serialization, so each has a mirror here; a macro writes both conversions.

use infer_core::policy::{
    AdmissionRequest, CacheEvents, Ended, Fault, FaultKind, FaultView, Hit, Load, Memory, PolicyKind,
    SequenceColumns, StepView, TenantColumns,
};
use infer_core::{Limits, Micros, SequenceId, SessionId, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::policies::Origin;

/// Version of the format.
pub(super) const VERSION: u32 = 1;

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Artifact {
    pub format: u32,
    /// `scheduler`, `admission`, `prefix-cache`.
    pub slot: String,
    pub policy: PolicyJson,
    pub fault: FaultJson,
    pub step: u64,
    pub at_us: u64,
    pub shadow: bool,
    pub removed: bool,
    /// The last state that the policy exported, in hex.
    pub state: String,
    pub question: Question,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct PolicyJson {
    pub name: String,
    pub version: String,
    /// More than one for a list of admission policies.
    pub members: Vec<MemberJson>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct MemberJson {
    pub name: String,
    pub version: String,
    /// Digest of the component beside the file; empty for a native policy.
    pub sha256: String,
    pub config: Value,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct FaultJson {
    pub kind: String,
    pub message: String,
}

impl Artifact {
    pub fn of(fault: &Fault, origin: &Origin) -> Self {
        let members = origin.members.iter().map(|member| MemberJson {
            name: member.info.name.clone(),
            version: member.info.version.clone(),
            sha256: member.info.digest.clone(),
            config: member.config.clone(),
        });
        Self {
            format: VERSION,
            slot: fault.slot.name().to_owned(),
            policy: PolicyJson {
                name: fault.policy.name.clone(),
                version: fault.policy.version.clone(),
                members: members.collect(),
            },
            fault: FaultJson {
                kind: fault.fault.kind.name().to_owned(),
                message: fault.fault.message.clone(),
            },
            step: fault.step,
            at_us: fault.at.0,
            shadow: fault.shadow,
            removed: fault.removed,
            state: fault.state.iter().map(|byte| format!("{byte:02x}")).collect(),
            question: Question::of(&fault.view),
        }
    }

    pub fn kind(&self) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == self.slot)
    }

    pub fn fault_kind(&self) -> Option<FaultKind> {
        use FaultKind::{Deadline, InvalidDecision, Memory, Setup, Starvation, StepBudget, Trap};
        let all = [Trap, Deadline, StepBudget, Memory, InvalidDecision, Starvation, Setup];
        all.into_iter().find(|kind| kind.name() == self.fault.kind)
    }

    /// Returns the state; `None` if it is not hex.
    pub fn state(&self) -> Option<Vec<u8>> {
        let digits = self.state.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
    }
}

/// A call of a policy with its arguments.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Question {
    Schedule(Box<StepViewJson>),
    Admit { request: AdmissionRequestJson, load: LoadJson },
    Measure(LoadJson),
    Reuse(HitJson),
    Retain(EndedJson),
    Observe(CacheEventsJson),
    Evict { now: u64, need: u32 },
    Lifecycle,
}

impl Question {
    pub fn of(view: &FaultView) -> Self {
        match view {
            FaultView::Schedule(step) => Self::Schedule(Box::new(step.to_json())),
            FaultView::Admit(request, load) => {
                Self::Admit { request: request.to_json(), load: load.to_json() }
            }
            FaultView::Measure(load) => Self::Measure(load.to_json()),
            FaultView::Reuse(hit) => Self::Reuse(hit.to_json()),
            FaultView::Retain(ended) => Self::Retain(ended.to_json()),
            FaultView::Observe(events) => Self::Observe(events.to_json()),
            FaultView::Evict { now, need } => Self::Evict { now: now.0, need: *need },
            FaultView::Lifecycle => Self::Lifecycle,
        }
    }

    pub fn view(self) -> FaultView {
        match self {
            Self::Schedule(step) => FaultView::Schedule(Box::new(StepView::of_json(*step))),
            Self::Admit { request, load } => {
                FaultView::Admit(AdmissionRequest::of_json(request), Load::of_json(load))
            }
            Self::Measure(load) => FaultView::Measure(Load::of_json(load)),
            Self::Reuse(hit) => FaultView::Reuse(Hit::of_json(hit)),
            Self::Retain(ended) => FaultView::Retain(Ended::of_json(ended)),
            Self::Observe(events) => FaultView::Observe(Box::new(CacheEvents::of_json(events))),
            Self::Evict { now, need } => FaultView::Evict { now: Micros(now), need },
            Self::Lifecycle => FaultView::Lifecycle,
        }
    }
}

/// Returns the name of the called function.
pub(super) fn question_name(view: &FaultView) -> &'static str {
    match view {
        FaultView::Schedule(_) => "schedule",
        FaultView::Admit(..) => "admit",
        FaultView::Measure(_) => "measure",
        FaultView::Reuse(_) => "reuse",
        FaultView::Retain(_) => "retain",
        FaultView::Observe(_) => "observe",
        FaultView::Evict { .. } => "evict",
        FaultView::Lifecycle => "lifecycle",
    }
}

/// A type of the engine with its form in a file.
trait Mirrored: Sized {
    type Json;
    fn to_json(&self) -> Self::Json;
    fn of_json(json: Self::Json) -> Self;
}

macro_rules! as_it_is {
    ($($type:ty),*) => {$(
        impl Mirrored for $type {
            type Json = Self;
            fn to_json(&self) -> Self {
                self.clone()
            }
            fn of_json(json: Self) -> Self {
                json
            }
        }
    )*};
}

macro_rules! as_number {
    ($($type:ident: $number:ty),*) => {$(
        impl Mirrored for $type {
            type Json = $number;
            fn to_json(&self) -> $number {
                self.0
            }
            fn of_json(json: $number) -> Self {
                Self(json)
            }
        }
    )*};
}

macro_rules! mirror {
    ($type:ident as $json:ident { $($(#[$default:meta])? $field:ident: $of:ty),* $(,)? }) => {
        #[derive(Debug, Deserialize, Serialize)]
        pub(super) struct $json {
            $($(#[$default])? $field: <$of as Mirrored>::Json),*
        }

        impl Mirrored for $type {
            type Json = $json;
            fn to_json(&self) -> $json {
                $json { $($field: self.$field.to_json()),* }
            }
            fn of_json(json: $json) -> Self {
                Self { $($field: <$of>::of_json(json.$field)),* }
            }
        }
    };
}

as_it_is!(bool, u32, u64, i32, Vec<u8>, Vec<u32>, Vec<u64>, Vec<i32>);
as_number!(Micros: u64, SequenceId: u64, TenantId: u32, SessionId: u64);

mirror!(Memory as MemoryJson { block_size: u32, total_blocks: u32, free_blocks: u32, cached_blocks: u32 });

mirror!(Limits as StepLimitsJson {
    max_batch_tokens: u32,
    max_running: u32,
    prefill_chunk: u32,
    max_prefill_sequences: u32,
    max_prefill_tokens: u32,
});

mirror!(SequenceColumns as SequenceColumnsJson {
    id: Vec<u64>,
    tenant: Vec<u32>,
    session: Vec<u64>,
    priority: Vec<i32>,
    arrived: Vec<u64>,
    deadline: Vec<u64>,
    prompt_tokens: Vec<u32>,
    computed_tokens: Vec<u32>,
    pending_tokens: Vec<u32>,
    idle_blocks: Vec<u32>,
    generated_tokens: Vec<u32>,
    max_new_tokens: Vec<u32>,
    expected_tokens: Vec<u32>,
    blocks: Vec<u32>,
    freeable_blocks: Vec<u32>,
    preemptions: Vec<u32>,
});

mirror!(TenantColumns as TenantColumnsJson {
    id: Vec<u32>,
    weight_permille: Vec<u32>,
    running: Vec<u32>,
    waiting: Vec<u32>,
    prompt_tokens_served: Vec<u64>,
    output_tokens_served: Vec<u64>,
});

mirror!(StepView as StepViewJson {
    now: Micros,
    number: u64,
    last_step: Micros,
    last_prefill_tokens: u32,
    last_decodes: u32,
    idle_since: Micros,
    starvation_bound: Micros,
    limits: Limits,
    memory: Memory,
    running: SequenceColumns,
    waiting: SequenceColumns,
    tenants: TenantColumns,
});

/// Converts a scheduler's view to JSON.
pub fn step_view_json(view: &StepView) -> Value {
    serde_json::to_value(view.to_json()).expect("a view is JSON")
}

/// Reads a scheduler's view from JSON. Its columns may differ in length.
pub fn step_view_of_json(view: Value) -> Result<StepView, String> {
    let view: StepViewJson = serde_json::from_value(view).map_err(|error| format!("not a view: {error}"))?;
    Ok(StepView::of_json(view))
}

/// Converts a call to JSON.
pub fn question_json(view: &FaultView) -> Value {
    serde_json::to_value(Question::of(view)).expect("a call is JSON")
}

/// Reads a call from JSON. The columns of a view may differ in length.
pub fn question_of_json(question: Value) -> Result<FaultView, String> {
    let question: Question =
        serde_json::from_value(question).map_err(|error| format!("not a call of a policy: {error}"))?;
    Ok(question.view())
}

/// Converts cache events to JSON.
pub fn cache_events_json(events: &CacheEvents) -> Value {
    serde_json::to_value(events.to_json()).expect("events are JSON")
}

/// Reads cache events from JSON. Their columns may differ in length.
pub fn cache_events_of_json(events: Value) -> Result<CacheEvents, String> {
    let events: CacheEventsJson =
        serde_json::from_value(events).map_err(|error| format!("not cache events: {error}"))?;
    Ok(CacheEvents::of_json(events))
}

mirror!(AdmissionRequest as AdmissionRequestJson {
    id: SequenceId,
    tenant: TenantId,
    session: SessionId,
    priority: i32,
    arrived: Micros,
    deadline: Micros,
    prompt_tokens: u32,
    cached_tokens: u32,
    #[serde(default)]
    idle_blocks: u32,
    max_new_tokens: u32,
    expected_tokens: u32,
});

mirror!(Load as LoadJson {
    now: Micros,
    memory: Memory,
    max_running: u32,
    running: u32,
    #[serde(default)]
    admitted: u32,
    #[serde(default)]
    preempted: u32,
    max_waiting: u32,
    waiting: u32,
    waiting_tokens: u64,
    waiting_prompt_tokens: u64,
    #[serde(default)]
    started_prompt_tokens: u64,
    expected_output_tokens: u64,
    prefill_tokens_per_second: u32,
    output_tokens_per_second: u32,
    promised_blocks: u32,
    #[serde(default)]
    expected_blocks: u32,
    tenant_running: u32,
    tenant_waiting: u32,
    #[serde(default)]
    tenant_in_flight: u32,
    tenant_weight_permille: u32,
    tenant_rate_per_minute: u32,
    tenant_burst: u32,
    tenant_prompt_tokens_served: u64,
    tenant_output_tokens_served: u64,
});

mirror!(Hit as HitJson {
    now: Micros,
    id: SequenceId,
    tenant: TenantId,
    session: SessionId,
    prompt_tokens: u32,
    cached_tokens: u32,
    same_session: bool,
});

mirror!(Ended as EndedJson {
    now: Micros,
    id: SequenceId,
    tenant: TenantId,
    session: SessionId,
    prompt_tokens: u32,
    generated_tokens: u32,
    reused_tokens: u32,
    memory: Memory,
});

mirror!(CacheEvents as CacheEventsJson {
    memory: Memory,
    at: Vec<u64>,
    kind: Vec<u8>,
    block: Vec<u32>,
    parent: Vec<u32>,
    depth: Vec<u32>,
    tenant: Vec<u32>,
    session: Vec<u64>,
});

#[cfg(test)]
mod tests {
    use super::*;

    /// From before requests had `idle_blocks` and loads `admitted`, `preempted`, `started_prompt_tokens`,
    /// `expected_blocks` and `tenant_in_flight`.
    const OLDER: &str = r#"{"admit": {
        "request": {"id": 1, "tenant": 1, "session": 0, "priority": 0, "arrived": 1, "deadline": 9,
            "prompt_tokens": 4, "cached_tokens": 2, "max_new_tokens": 4, "expected_tokens": 4},
        "load": {"now": 5,
            "memory": {"block_size": 16, "total_blocks": 8, "free_blocks": 4, "cached_blocks": 2},
            "max_running": 4, "running": 1, "max_waiting": 9, "waiting": 2, "waiting_tokens": 8,
            "waiting_prompt_tokens": 4, "expected_output_tokens": 9, "prefill_tokens_per_second": 1,
            "output_tokens_per_second": 1, "promised_blocks": 1, "tenant_running": 1, "tenant_waiting": 1,
            "tenant_weight_permille": 1000, "tenant_rate_per_minute": 0, "tenant_burst": 0,
            "tenant_prompt_tokens_served": 1, "tenant_output_tokens_served": 1}}}"#;

    #[test]
    fn missing_fields_of_an_older_admission_call_are_read_as_0() {
        let question = question_of_json(serde_json::from_str(OLDER).unwrap()).unwrap();
        let FaultView::Admit(request, load) = &question else { panic!("{question:?}") };
        assert_eq!((request.cached_tokens, request.idle_blocks), (2, 0));
        assert_eq!((load.running, load.admitted, load.preempted, load.started_prompt_tokens), (1, 0, 0, 0));
        assert_eq!((load.promised_blocks, load.expected_blocks), (1, 0));
        assert_eq!((load.tenant_running, load.tenant_in_flight), (1, 0));
        let again = question_of_json(question_json(&question)).unwrap();
        assert_eq!(format!("{again:?}"), format!("{question:?}"));
    }
}
