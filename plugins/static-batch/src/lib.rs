//! `static-batch`: forms a batch, runs it until every member is finished, forms the next.
//!
//! A batch starts when it is full, or a bounded wait after its first request (counted from the end of
//! the batch before, where the request was already there). Nobody joins a batch that runs.
//!
//! The batch is what runs, what was preempted and so has run before, and whom the plan that formed it named:
//! of equal prompts the host starts one, and the others once its blocks are there for them. Only these names
//! are state, and not worth carrying: a policy that is put in force in mid-flight finds its batch in what runs.

use infer_policy_sdk::{
    Micros, Plan, Planner, Policy, Scheduler, Sequence, SequenceId, Step, blocks_to_start, export_policy,
};
use serde::{Deserialize, Serialize};

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Sequences in a full batch.
    pub batch_size: u32,
    /// How long the first request waits for the batch to fill.
    pub wait_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { batch_size: 8, wait_ms: 50 }
    }
}

/// Static batching, first come first served.
pub struct StaticBatch {
    batch_size: u32,
    wait: Micros,
    /// Whom the plan named that formed the batch.
    formed: Vec<SequenceId>,
}

impl Policy for StaticBatch {
    type Config = Config;
    const NAME: &'static str = "static-batch";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Static batching: waits shortly for a batch to fill, runs it until every \
         member is finished, lets nobody join meanwhile.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "batch_size": {
                "type": "integer", "minimum": 1, "default": 8,
                "description": "Sequences in a full batch; the host's limits on running sequences and prompts apply too"
            },
            "wait_ms": {
                "type": "integer", "minimum": 0, "default": 50,
                "description": "How long the first request waits for the batch to fill"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.batch_size == 0 {
            return Err("`batch_size` must be at least 1".to_owned());
        }
        Ok(Self {
            batch_size: config.batch_size,
            wait: Micros::from_millis(config.wait_ms),
            formed: Vec::new(),
        })
    }
}

impl Scheduler for StaticBatch {
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        let preempted = planner.go_on();
        let is_member = |s: &Sequence<'_>| s.preemptions() > 0 || self.formed.contains(&s.id());
        let members = || step.waiting.iter().filter(is_member);
        if !step.running.is_empty() || members().next().is_some() {
            if preempted == 0 {
                resume(members(), step, &mut planner);
            }
        } else if let Some(first) = step.waiting.iter().next() {
            self.form(first, step, &mut planner);
            self.formed = planner.started().to_vec();
        }
        planner.finish()
    }
}

impl StaticBatch {
    /// Starts the next batch if it is full or its time has come, and says when that will be if not.
    fn form(&self, first: Sequence<'_>, step: &Step, planner: &mut Planner<'_>) {
        // All members start in one step, so that what runs is the batch; hence these limits on its size.
        let size = self.batch_size.min(planner.slots_left()).min(planner.prefills_left()).max(1) as usize;
        let since = if step.idle_since == Micros::NEVER { Micros::ZERO } else { step.idle_since };
        let due = first.arrived().max(since).plus(self.wait);
        if step.waiting.len() < size && step.now < due {
            planner.wake_at(due);
            return;
        }
        let members = fitting(step, size);
        for (place, member) in step.waiting.iter().take(members).enumerate() {
            let behind = u32::try_from(members - place).unwrap_or(u32::MAX);
            let share = (planner.prompt_tokens_left() / behind).max(1);
            if planner.start(member, share).is_err() {
                break;
            }
        }
    }
}

/// How many of the first `size` fit in memory at their longest, so that no member has to be preempted.
/// The first always does: it may have the whole pool.
fn fitting(step: &Step, size: usize) -> usize {
    let mut left = step.memory.allocatable_blocks();
    let fits = |member: &Sequence<'_>| {
        let longest = member.longest_tokens().saturating_sub(member.computed_tokens());
        let needed = blocks_to_start(*member, longest, step.memory.block_size);
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    };
    step.waiting.iter().take(size).take_while(fits).count().max(1)
}

/// Lets members that don't run in or back in, in their order, where they fit beside what still runs.
fn resume<'a>(members: impl Iterator<Item = Sequence<'a>>, step: &Step, planner: &mut Planner<'_>) {
    for member in members {
        let whole = member.remaining_tokens().saturating_add(1);
        let needed = blocks_to_start(member, whole, step.memory.block_size);
        let kept = planner.promised_blocks().saturating_add(planner.sequences());
        let fits = planner.is_empty() || needed.saturating_add(kept) <= planner.blocks_left();
        if !fits || planner.start(member, u32::MAX).is_err() {
            break;
        }
    }
}

export_policy!(scheduler: StaticBatch);

#[cfg(test)]
mod tests;
