//! `static-batch`: forms a batch, runs it until every member is finished, forms the next.
//!
//! A batch starts when it is full, or a bounded wait after its first request (counted from the end of the
//! batch before, if the request was already waiting). No sequence joins a running batch.
//!
//! The batch consists of the running sequences, the preempted ones, which have run before, and those that the
//! plan that formed it named: of equal prompts the host starts one, and the others once its blocks are there
//! for them. Only these names are state, and not worth exporting: a policy that becomes live in mid-flight
//! finds its batch in the running sequences.

use infer_policy_sdk::{
    Micros, Plan, Planner, Policy, Scheduler, Sequence, SequenceId, Step, blocks_to_start, export_policy,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
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
    /// Sequences named by the plan that formed the batch.
    formed: Vec<SequenceId>,
}

impl Policy for StaticBatch {
    type Config = Config;
    const NAME: &'static str = "static-batch";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Static batching: waits briefly for a batch to fill, then runs it until \
         every member is finished; no request joins meanwhile.";
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
    /// Starts the next batch if it is full or its time has come, and otherwise names that time.
    fn form(&self, first: Sequence<'_>, step: &Step, planner: &mut Planner<'_>) {
        // All members start in one step, so that the running sequences are the batch; hence these limits on
        // its size.
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

/// Starts or resumes members that don't run, in order, if they fit beside the running ones.
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
