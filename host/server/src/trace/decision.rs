//! Converts policies' decisions to lines and back.

use infer_api::trace::{Asked, Decision, Line, Plan};
use infer_core::policy::{self, Answer, CacheEvents, FaultView, PolicyKind, StepView, Verdict};
use infer_core::{BlockId, Micros, SequenceId, engine};
use serde_json::{Value, json};

use crate::faults::{
    cache_events_json, cache_events_of_json, question_json, question_of_json, step_view_json,
    step_view_of_json,
};

/// Converts a decision to a line.
pub(super) fn line(decision: &engine::Decision) -> Line {
    let sha256 = decision.policy.digest.clone();
    let state = decision.state.as_ref().map(|state| state.iter().map(|byte| format!("{byte:02x}")).collect());
    if let (FaultView::Schedule(view), Answer::Plan(plan)) = (&decision.question, &decision.answer) {
        let (view, plan) = (step_view_json(view), plan_of(plan));
        return Line::Decision(Box::new(Decision { sha256, state, view, plan }));
    }
    Line::Asked(Box::new(Asked {
        kind: decision.kind.name().to_owned(),
        sha256,
        state,
        knew: decision.knew.as_ref().map(cache_events_json),
        question: question_json(&decision.question),
        answer: answer_json(&decision.answer),
    }))
}

/// A decision that was read from a line.
pub struct Question {
    /// The slot.
    pub kind: PolicyKind,
    /// SHA-256 of the component that was called, or several joined by `+`; empty for a native policy.
    pub sha256: String,
    /// The state to start from, if the policy starts here.
    pub state: Option<Vec<u8>>,
    /// Cached blocks that it knew at its start.
    pub knew: Option<CacheEvents>,
    /// The call.
    pub view: FaultView,
    /// Its answer, in the form of `answer_json`.
    pub answer: Value,
}

impl Question {
    /// Reads a scheduler's line.
    ///
    /// # Errors
    /// A message that says what is wrong with it.
    pub fn of_decision(line: Decision) -> Result<Self, String> {
        Ok(Self {
            kind: PolicyKind::Scheduler,
            sha256: line.sha256,
            state: line.state.as_deref().map(from_hex).transpose()?,
            knew: None,
            view: FaultView::Schedule(Box::new(even_view(step_view_of_json(line.view)?)?)),
            answer: json!(line.plan),
        })
    }

    /// Reads another policy's line.
    ///
    /// # Errors
    /// A message that says what is wrong with it.
    pub fn of_asked(line: Asked) -> Result<Self, String> {
        let kind = PolicyKind::ALL.into_iter().find(|kind| kind.name() == line.kind);
        let view = match question_of_json(line.question)? {
            FaultView::Schedule(view) => FaultView::Schedule(Box::new(even_view(*view)?)),
            FaultView::Observe(events) => FaultView::Observe(Box::new(even_events(*events)?)),
            view => view,
        };
        Ok(Self {
            kind: kind.ok_or_else(|| format!("there is no policy slot `{}`", line.kind))?,
            sha256: line.sha256,
            state: line.state.as_deref().map(from_hex).transpose()?,
            knew: line.knew.map(|knew| cache_events_of_json(knew).and_then(even_events)).transpose()?,
            view,
            answer: line.answer,
        })
    }
}

/// Converts an answer to its form in a line.
pub fn answer_json(answer: &Answer) -> Value {
    match answer {
        Answer::Plan(plan) => json!(plan_of(plan)),
        Answer::Verdict(Verdict::Admit) => json!("admit"),
        Answer::Verdict(Verdict::Wait) => json!("wait"),
        Answer::Verdict(Verdict::WaitTenant) => json!("wait_tenant"),
        Answer::Verdict(Verdict::Refuse(refusal)) => json!({"refuse": {
            "reason": refusal.reason.name(),
            "message": refusal.message,
            "retry_after_ms": refusal.retry_after_ms,
        }}),
        Answer::Pressure(pressure) => json!({
            "level_permille": pressure.level_permille,
            "backpressure": pressure.backpressure,
            "reserved_blocks": pressure.reserved_blocks,
            "available_blocks": pressure.available_blocks,
            "max_sequence_tokens": pressure.max_sequence_tokens,
        }),
        Answer::Reuse(tokens) => json!({"reuse": tokens}),
        Answer::Retention(kept) => json!({"keep_tokens": kept.keep_tokens, "ttl": kept.ttl.0}),
        Answer::Blocks(blocks) => json!(blocks.iter().map(|&BlockId(id)| id).collect::<Vec<_>>()),
    }
}

fn plan_of(plan: &policy::Plan) -> Plan {
    let ids = |ids: &[SequenceId]| ids.iter().map(|id| id.0).collect();
    let Micros(wake) = plan.wake;
    Plan { run: ids(&plan.run), tokens: plan.tokens.clone(), preempt: ids(&plan.preempt), wake }
}

fn even_view(view: StepView) -> Result<StepView, String> {
    if view.running.is_even() && view.waiting.is_even() {
        return Ok(view);
    }
    Err("the view's columns differ in length".to_owned())
}

fn even_events(events: CacheEvents) -> Result<CacheEvents, String> {
    let columns = [
        events.kind.len(),
        events.block.len(),
        events.parent.len(),
        events.depth.len(),
        events.tenant.len(),
        events.session.len(),
    ];
    if columns.iter().all(|&len| len == events.len()) {
        return Ok(events);
    }
    Err("the events' columns differ in length".to_owned())
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = text.len().is_multiple_of(2).then(|| text.as_bytes().chunks(2).map(byte).collect());
    bytes.flatten().ok_or_else(|| "its state is not hex".to_owned())
}
