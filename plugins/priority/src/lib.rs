//! `priority`: the more urgent first, and waiting makes urgent.
//!
//! A request's effective priority is its own plus one level for every `aging_ms` since it arrived. All age
//! alike, so their order never changes: it is that of `arrived - priority * aging`. A request is overtaken by
//! those that arrive within the difference of their priorities times `aging_ms` after it, and by none after
//! them. Only that keeps low priorities from starving, so priorities are clamped to `max_level` above and
//! below 0: a client that may set any priority cannot stay ahead for days.
//!
//! If slots or blocks are short, a waiting sequence replaces running ones of lower priority that are also
//! half a level or more below it in effective priority; each time that a sequence was preempted doubles that
//! distance and adds half a level. So two sequences never replace each other in turn, equal ones never do, a
//! sequence that became urgent by waiting stays, and a low one loses what it computed only a few times: the
//! logarithm of the levels above it, six times for the default's forty.
//!
//! Long prompts of low priority that have started share the steps' prompt tokens by rank, but no sequence is
//! preempted for want of these alone.

use std::cmp::Reverse;

use infer_policy_sdk::{
    Order, Plan, Planner, Policy, Scheduler, Sequence, Starts, Step, export_policy, make_way,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a request waits until it is as urgent as new ones of the next level.
    pub aging_ms: u64,
    /// Whether running sequences are preempted for more urgent waiting ones.
    pub preempt: bool,
    /// Priorities beyond this, above and below 0, count as this.
    pub max_level: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { aging_ms: 5_000, preempt: true, max_level: 20 }
    }
}

/// Priorities with aging and preemption.
pub struct Priority {
    aging_us: i64,
    preempt: bool,
    max_level: i64,
    starts: Starts,
}

impl Policy for Priority {
    type Config = Config;
    const NAME: &'static str = "priority";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Continuous batching, higher priority first. Waiting raises priority, so \
         no request starves; running sequences of lower priority are preempted if slots or memory are short.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "aging_ms": {
                "type": "integer", "minimum": 1, "default": 5000,
                "description": "How long a request waits until it is as urgent as new ones of the next level"
            },
            "preempt": {
                "type": "boolean", "default": true,
                "description": "Whether running sequences are preempted for waiting ones of higher priority if slots or memory are short"
            },
            "max_level": {
                "type": "integer", "minimum": 1, "default": 20,
                "description": "Priorities beyond this, above and below 0, count as this: so long, times aging_ms twice, can a request be overtaken"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.aging_ms == 0 {
            return Err("`aging_ms` must be at least 1: without aging, low priorities starve".to_owned());
        }
        if config.max_level == 0 {
            return Err("`max_level` must be at least 1, or there are no priorities".to_owned());
        }
        Ok(Self {
            aging_us: i64::try_from(config.aging_ms.saturating_mul(1_000)).unwrap_or(i64::MAX),
            preempt: config.preempt,
            max_level: i64::from(config.max_level),
            starts: Starts::default(),
        })
    }
}

impl Scheduler for Priority {
    fn schedule(&mut self, step: &Step) -> Plan {
        let order = Order::new(&step.waiting, |waiting| (self.rank(waiting), waiting.id()));
        let mut planner = Planner::new(step);
        let mut blocked = None;
        if planner.go_on_by(|running| Reverse(self.rank(running))) == 0 {
            blocked = self.starts.start(order, step, &mut planner);
        }
        // Sequences that can start without a preemption do so first.
        if self.preempt
            && planner.started().is_empty()
            && let Some(blocked) = blocked
            && let Some(with_room) = make_way(
                step,
                &blocked,
                |running| self.gives_way(running, blocked.sequence),
                |running| Reverse(self.rank(running)),
            )
        {
            return with_room.finish();
        }
        planner.finish()
    }
}

impl Priority {
    /// Whether a running sequence may be preempted for a waiting one.
    fn gives_way(&self, running: Sequence<'_>, waiting: Sequence<'_>) -> bool {
        // 1, 3, 7, 15 ..; beyond all priorities long before it would overflow.
        let half_levels = (2i64 << running.preemptions().min(40)) - 1;
        let margin = half_levels.saturating_mul(self.aging_us) / 2;
        self.level(waiting) > self.level(running)
            && self.rank(waiting).saturating_add(margin) <= self.rank(running)
    }

    /// When it would have arrived with priority 0; the smallest comes first. In microseconds, signed.
    fn rank(&self, sequence: Sequence<'_>) -> i64 {
        let arrived = i64::try_from(sequence.arrived().0).unwrap_or(i64::MAX);
        arrived.saturating_sub(self.level(sequence).saturating_mul(self.aging_us))
    }

    fn level(&self, sequence: Sequence<'_>) -> i64 {
        i64::from(sequence.priority()).clamp(-self.max_level, self.max_level)
    }
}

export_policy!(scheduler: Priority);

#[cfg(test)]
mod tests;
