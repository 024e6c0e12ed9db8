//! `deadline`: earliest deadline first, for the time at which a first token is due.
//!
//! Earliest deadline first meets all deadlines whenever any order does, with preemption and on one device
//! (Liu and Layland, 1973), but collapses under overload: sequences that are late anyway delay the next ones.
//! So sequences that can't meet their deadline any more go last, judged by the time that their prompt will
//! take on this device, which is learned from past steps. Sequences without a deadline come between, in order
//! of arrival. How long any sequence may be overtaken is bounded.
//!
//! A prompt that has begun isn't interrupted; chunks of several are computed side by side.

use std::collections::VecDeque;

use infer_policy_sdk::{
    Micros, Patience, Plan, Planner, Policy, Scheduler, Sequence, Starts, Step, StepTime, export_policy,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a sequence may be overtaken by those with earlier deadlines.
    pub patience_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { patience_ms: 3_000 }
    }
}

/// Earliest deadline first, late ones last.
pub struct Deadline {
    patience: Patience,
    starts: Starts,
    step_time: StepTime,
}

/// The urgency of a waiting sequence; the smallest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// Its first token can be on time.
    Due(Micros),
    /// Nothing was promised.
    Whenever,
    /// It can't be on time any more.
    Late,
}

impl Policy for Deadline {
    type Config = Config;
    const NAME: &'static str = "deadline";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching, earliest deadline of the first token first; requests \
         that can't meet it any more go last. No request is overtaken for longer than the patience.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "patience_ms": {
                "type": "integer", "minimum": 0, "default": 3000,
                "description": "How long a sequence may be overtaken by more urgent ones; at most 60 % of the host's starvation bound counts"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self {
            patience: Patience::new(Micros::from_millis(config.patience_ms)),
            starts: Starts::default(),
            step_time: StepTime::default(),
        })
    }

    fn export_state(&mut self) -> Vec<u8> {
        self.step_time.to_bytes()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        self.step_time = StepTime::from_bytes(state)?;
        Ok(())
    }
}

impl Scheduler for Deadline {
    fn schedule(&mut self, step: &Step) -> Plan {
        self.step_time.learn(step);
        let mut planner = Planner::new(step);
        if planner.go_on() == 0 && planner.slots_left() > 0 {
            let order = order(&self.patience, &self.step_time, step);
            self.starts.start(order, step, &mut planner);
        }
        self.patience.note(step, planner.started());
        planner.finish()
    }
}

/// By urgency; each start delays those after it.
fn order<'a>(
    patience: &'a Patience,
    step_time: &'a StepTime,
    step: &'a Step,
) -> impl Iterator<Item = Sequence<'a>> {
    let prompts = step.running.iter().filter(|running| !running.is_decoding());
    let mut ahead = prompts.fold(0u32, |sum, prompt| sum.saturating_add(prompt.remaining_tokens()));
    let mut in_order = patience.order(step, |waiting| urgency(step_time, waiting, ahead, step));
    let mut late = VecDeque::new();
    std::iter::from_fn(move || {
        for waiting in in_order.by_ref() {
            let due = patience.is_due(step, waiting);
            if due || urgency(step_time, waiting, ahead, step) != Urgency::Late {
                ahead = ahead.saturating_add(waiting.remaining_tokens());
                return Some(waiting);
            }
            late.push_back(waiting);
        }
        late.pop_front()
    })
}

/// `ahead_tokens`: what other prompts compute beside or before its own.
fn urgency(step_time: &StepTime, waiting: Sequence<'_>, ahead_tokens: u32, step: &Step) -> Urgency {
    if waiting.deadline() == Micros::NEVER {
        return Urgency::Whenever;
    }
    let tokens = waiting.remaining_tokens().saturating_add(ahead_tokens);
    let needed = step_time.prompt_time(tokens, step.limits.prefill_chunk, step.last_decodes);
    if step.now.plus(needed) > waiting.deadline() { Urgency::Late } else { Urgency::Due(waiting.deadline()) }
}

export_policy!(scheduler: Deadline);

#[cfg(test)]
mod tests;
