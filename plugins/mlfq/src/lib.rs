//! `mlfq`: a multi-level feedback queue, for outputs of which nobody knows the length.
//!
//! A sequence's level is how much service it has had: below one quantum 0, then one more each time that it
//! doubles. The lowest level runs first, and a waiting sequence replaces a running one of a higher level if
//! slots or memory are short. So short outputs end soon although nothing says that they are short, and long
//! ones sink until only others like them are left. Least attained service first is the best order without
//! knowledge of lengths if they vary much (Rai, Urvoy-Keller and Biersack, SIGMETRICS 2003); FastServe (Wu et
//! al. 2023) uses such queues for language models.
//!
//! Service is counted in steps in which a sequence takes part: its output tokens, and the chunks of its prompt
//! before it has computed one. So a long prompt starts at a higher level, as FastServe has it join.
//!
//! A preempted sequence finds its keys and values in the prefix cache as long as nothing else needed their
//! blocks, and with `--kv-offloading-size` also after that; the rest is computed again. Therefore none gives
//! way to another before it has run for one quantum. None is overtaken for longer than the patience: then it
//! takes the next slot, and keeps it for at least one quantum, whatever its level. Only if memory is too short
//! for the next tokens of all that run is one preempted earlier, and among equals the latest to start.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use infer_policy_sdk::{
    Micros, Patience, Plan, Planner, Policy, Scheduler, Sequence, SequenceId, Short, Starts, Step,
    export_policy, make_way,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Service of the lowest level, and for how long a sequence runs before it may give way to another; in steps.
    pub quantum: u32,
    /// How long a sequence may be overtaken by those of lower levels.
    pub patience_ms: u64,
    /// Whether sequences are also preempted for blocks, not only for slots.
    pub preempt_for_memory: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { quantum: 64, patience_ms: 3_000, preempt_for_memory: false }
    }
}

/// A multi-level feedback queue.
pub struct Mlfq {
    quantum: u32,
    preempt_for_memory: bool,
    patience: Patience,
    starts: Starts,
    /// Service of running sequences when they last started.
    started_at: BTreeMap<SequenceId, u32>,
}

impl Policy for Mlfq {
    type Config = Config;
    const NAME: &'static str = "mlfq";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching with a multi-level feedback queue: what has had the \
         least service runs first, so short outputs end soon without anybody knowing that they are short. Long \
         ones are preempted if slots are short, and overtaken no longer than the patience.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "quantum": {
                "type": "integer", "minimum": 1, "maximum": 4294967295, "default": 64,
                "description": "Steps of the lowest level, each of which is an output token or a chunk of the prompt; levels double. No sequence gives way to another before it has run for as many"
            },
            "patience_ms": {
                "type": "integer", "minimum": 0, "default": 3000,
                "description": "How long a sequence may be overtaken by those of lower levels; at most 60 % of the host's starvation bound counts"
            },
            "preempt_for_memory": {
                "type": "boolean", "default": false,
                "description": "Whether sequences are also preempted for want of blocks, not only of slots"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.quantum == 0 {
            return Err("`quantum` must be at least 1: a sequence must run before it is preempted".to_owned());
        }
        Ok(Self {
            quantum: config.quantum,
            preempt_for_memory: config.preempt_for_memory,
            patience: Patience::new(Micros::from_millis(config.patience_ms)).passing_preempted(),
            starts: Starts::default(),
            started_at: BTreeMap::new(),
        })
    }
}

impl Scheduler for Mlfq {
    fn schedule(&mut self, step: &Step) -> Plan {
        let planner = self.plan(step);
        self.patience.note(step, planner.started());
        self.patience.note_preempted(step, planner.preempted());
        self.note_starts(step, planner.started());
        planner.finish()
    }
}

impl Mlfq {
    fn plan<'a>(&mut self, step: &'a Step) -> Planner<'a> {
        let mut planner = Planner::new(step);
        if planner.go_on_by(|running| self.worth(step, running)) > 0 {
            return planner;
        }
        let order = self.patience.order(step, |waiting| self.level(step, waiting));
        let blocked = self.starts.start(order, step, &mut planner);
        // Sequences that can start without a preemption do so first.
        let Some(blocked) =
            blocked.filter(|blocked| planner.started().is_empty() && self.may_preempt(blocked.short))
        else {
            return planner;
        };
        let level = self.level(step, blocked.sequence);
        let gives_way =
            |running: Sequence<'_>| self.level(step, running) > level && !self.is_in_quantum(step, running);
        make_way(step, &blocked, gives_way, |running| self.worth(step, running)).unwrap_or(planner)
    }

    fn may_preempt(&self, short: Short) -> bool {
        short == Short::Slots || self.preempt_for_memory
    }

    /// The least service is worth most, but for those that none may pass.
    fn worth(&self, step: &Step, running: Sequence<'_>) -> Reverse<u32> {
        Reverse(if self.is_in_quantum(step, running) { 0 } else { self.level(step, running) })
    }

    /// Whether it has run for less than a quantum since it started.
    fn is_in_quantum(&self, step: &Step, running: Sequence<'_>) -> bool {
        let before = self.started_at.get(&running.id());
        before.is_some_and(|before| service(step, running).saturating_sub(*before) < self.quantum)
    }

    fn level(&self, step: &Step, sequence: Sequence<'_>) -> u32 {
        (service(step, sequence) / self.quantum).checked_ilog2().map_or(0, |doublings| doublings + 1)
    }

    fn note_starts(&mut self, step: &Step, started: &[SequenceId]) {
        if started.is_empty() {
            return;
        }
        let running: BTreeSet<SequenceId> = step.running.iter().map(|running| running.id()).collect();
        self.started_at.retain(|id, _| running.contains(id));
        for waiting in step.waiting.iter().filter(|waiting| started.contains(&waiting.id())) {
            self.started_at.insert(waiting.id(), service(step, waiting));
        }
    }
}

/// Steps in which it has taken part, or would have with its prompt alone.
fn service(step: &Step, sequence: Sequence<'_>) -> u32 {
    let chunks = sequence.prompt_tokens().div_ceil(step.limits.prefill_chunk.max(1));
    chunks.saturating_add(sequence.generated_tokens())
}

export_policy!(scheduler: Mlfq);

#[cfg(test)]
mod tests;
