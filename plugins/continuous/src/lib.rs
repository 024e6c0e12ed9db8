//! `continuous`: every step admits and retires. The default scheduler.
//!
//! What runs goes on first (decodes, then prompts in chunks), then waiting sequences start in the order
//! of the queue while slots, tokens and memory last. Nobody is overtaken, except who waits for a prefix
//! that another one is computing. Priorities and deadlines are deliberately not looked at.

use infer_policy_sdk::{
    Micros, Plan, Planner, Policy, Scheduler, Sequence, SequenceId, Step, blocks_to_start, export_policy,
};
use serde::{Deserialize, Serialize};

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of the pool that a start leaves alone, so that it doesn't cause a preemption right away.
    pub watermark: f64,
    /// How long a sequence waits for a prefix that another one is computing.
    pub prefix_wait_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { watermark: 0.01, prefix_wait_ms: 3_000 }
    }
}

/// Sequences that may wait for a prefix at once; the scan of the queue ends there.
const MAX_DEFERRED: usize = 64;

/// Continuous batching, first come first served.
pub struct Continuous {
    watermark_permyriad: u64,
    prefix_wait: Micros,
    /// Who waits for a prefix, and since when. Renewed at every step.
    deferred: Vec<(SequenceId, Micros)>,
}

impl Policy for Continuous {
    type Config = Config;
    const NAME: &'static str = "continuous";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching: every step admits and retires, decodes go first, \
         prompts are computed in chunks, first come first served.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "watermark": {
                "type": "number", "minimum": 0, "maximum": 0.5, "default": 0.01,
                "description": "Share of the pool that starting a sequence leaves free"
            },
            "prefix_wait_ms": {
                "type": "integer", "minimum": 0, "default": 3000,
                "description": "How long a sequence waits for a prefix that another one is computing; 0 never waits"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(0.0..=0.5).contains(&config.watermark) {
            return Err(format!("`watermark` must be from 0 to 0.5, not {}", config.watermark));
        }
        Ok(Self {
            watermark_permyriad: (config.watermark * 10_000.0) as u64,
            prefix_wait: Micros::from_millis(config.prefix_wait_ms),
            deferred: Vec::new(),
        })
    }
}

impl Scheduler for Continuous {
    fn schedule(&mut self, step: &Step) -> Plan {
        let mut planner = Planner::new(step);
        let preempted = planner.go_on();
        // What was just pushed out must not be let in again by the same plan.
        if preempted == 0 {
            self.start_waiting(step, &mut planner);
        }
        planner.finish()
    }
}

impl Continuous {
    fn start_waiting(&mut self, step: &Step, planner: &mut Planner<'_>) {
        let since = std::mem::take(&mut self.deferred);
        // Prompts that start together compute what they have in common once each; those that start a
        // step later find it. So a step starts about one chunk's worth of them, however wide it is.
        let mut fresh = 0;
        for sequence in step.waiting.iter() {
            if planner.slots_left() == 0
                || self.deferred.len() == MAX_DEFERRED
                || fresh >= step.limits.prefill_chunk
            {
                break;
            }
            if self.waits_for_prefix(sequence, step, &since) {
                continue;
            }
            if !self.fits(sequence, step, planner) {
                break;
            }
            let Ok(tokens) = planner.start(sequence, u32::MAX) else { break };
            fresh += tokens;
        }
        for (_, since) in &self.deferred {
            planner.wake_at(since.plus(self.prefix_wait));
        }
    }

    /// Whether a running sequence is computing what this one would compute too: at least one more block
    /// of its prompt. Bounded, for what is worth a short wait isn't worth being overtaken for ever.
    fn waits_for_prefix(
        &mut self,
        waiting: Sequence<'_>,
        step: &Step,
        since: &[(SequenceId, Micros)],
    ) -> bool {
        let block_size = step.memory.block_size.max(1);
        if waiting.pending_tokens() / block_size <= waiting.computed_tokens() / block_size {
            return false;
        }
        let began = since.iter().find(|(id, _)| *id == waiting.id()).map_or(step.now, |(_, began)| *began);
        if step.now.since(began) >= self.prefix_wait {
            return false;
        }
        self.deferred.push((waiting.id(), began));
        true
    }

    /// Whether its whole prompt fits beside what the others' prompts will still need, one more block for
    /// each of them, and the watermark. With nobody else in the pool, it may have all of it.
    fn fits(&self, waiting: Sequence<'_>, step: &Step, planner: &Planner<'_>) -> bool {
        if planner.is_empty() {
            return true;
        }
        let whole = waiting.remaining_tokens().saturating_add(1);
        let needed = blocks_to_start(waiting, whole, step.memory.block_size);
        let watermark = u64::from(step.memory.total_blocks) * self.watermark_permyriad / 10_000;
        let kept = u64::from(planner.promised_blocks()) + u64::from(planner.sequences()) + watermark;
        u64::from(needed) + kept <= u64::from(planner.blocks_left())
    }
}

export_policy!(scheduler: Continuous);

#[cfg(test)]
mod tests;
