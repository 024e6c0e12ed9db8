//! `memory-aware`: lets in what the pool can hold to its end. The default admission policy.
//!
//! A request needs the blocks of its prompt and its longest output, less those that others use already:
//! what it would find cached and nobody uses is no less taken by its start. There are the free and the
//! cached blocks, less a reserve, less what was promised: a running sequence takes its blocks one by one,
//! and an admitted one that hasn't started holds none yet, but both will want theirs. Without that, a burst
//! would be let in against memory that is spoken for, and the scheduler would have to preempt.
//!
//! Sequences are limited in number only where the host has more places than they may take: else its places
//! are the limit, and who sees more of the queue chooses better. What doesn't fit now waits; what never can
//! is refused at once. A full queue is the host's to refuse, before anybody is asked.

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, Verdict, blocks_for, export_policy,
    tokens_in,
};
use serde::{Deserialize, Serialize};

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of the pool that is kept back.
    pub reserve: f64,
    /// Sequences that may run at once, of the places that the host has.
    pub max_in_flight: u32,
    /// Memory pressure, 0 to 1, from which clients should slow down.
    pub backpressure_at: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { reserve: 0.1, max_in_flight: 100, backpressure_at: 0.8 }
    }
}

/// Admission by blocks needed against blocks available.
pub struct MemoryAware {
    config: Config,
}

impl Policy for MemoryAware {
    type Config = Config;
    const NAME: &'static str = "memory-aware";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Admits what the memory pool can hold to its longest output, keeps a \
         reserve, makes the rest wait, and refuses what can never fit.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "reserve": {
                "type": "number", "minimum": 0, "maximum": 0.9, "default": 0.1,
                "description": "Share of the pool that is kept back"
            },
            "max_in_flight": {
                "type": "integer", "minimum": 1, "default": 100,
                "description": "Sequences that may run at once; of no effect where the host has no more places"
            },
            "backpressure_at": {
                "type": "number", "minimum": 0, "maximum": 1, "default": 0.8,
                "description": "Memory pressure from which clients should slow down"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(0.0..=0.9).contains(&config.reserve) {
            return Err(format!("`reserve` must be from 0 to 0.9, not {}", config.reserve));
        }
        if !(0.0..=1.0).contains(&config.backpressure_at) {
            return Err(format!("`backpressure_at` must be from 0 to 1, not {}", config.backpressure_at));
        }
        if config.max_in_flight == 0 {
            return Err("`max_in_flight` must be at least 1".to_owned());
        }
        Ok(Self { config })
    }
}

impl Admission for MemoryAware {
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict {
        let memory = load.memory;
        let longest = request.prompt_tokens.saturating_add(request.max_new_tokens);
        // The last token of the output is never read again, so it needs no place.
        let least = blocks_for(longest.saturating_sub(1), memory.block_size);
        if least > memory.total_blocks {
            let message =
                format!("the request needs {least} blocks of memory, the pool has {}", memory.total_blocks);
            return Verdict::Refuse(Refusal { reason: Reason::Memory, message, retry_after_ms: 0 });
        }
        let cached = request.cached_tokens / memory.block_size.max(1);
        let whole = blocks_for(longest, memory.block_size);
        let needed = whole.saturating_sub(cached).saturating_add(request.idle_blocks);
        let fits = self.has_place(load) && needed <= self.available(load);
        if fits || is_idle(load) { Verdict::Admit } else { Verdict::Wait }
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        let available = self.available(load);
        let total = load.memory.total_blocks.max(1);
        // Rounded up, so that 1000 is reported only where nothing is left and 0 only where all is.
        let used = u64::from(total.saturating_sub(available)) * 1_000;
        let level = u32::try_from(used.div_ceil(u64::from(total))).unwrap_or(1_000);
        let longest = match (is_idle(load), self.has_place(load)) {
            (true, _) => load.memory.total_blocks,
            (false, true) => available,
            (false, false) => 0,
        };
        Pressure {
            level_permille: level,
            backpressure: f64::from(level) >= self.config.backpressure_at * 1_000.0 || !self.has_place(load),
            reserved_blocks: self.reserve(load),
            available_blocks: available,
            max_sequence_tokens: tokens_in(longest, load.memory.block_size),
        }
    }
}

impl MemoryAware {
    /// Whether one more sequence may be in flight.
    fn has_place(&self, load: &Load) -> bool {
        let most = self.config.max_in_flight;
        load.max_running <= most || in_flight(load) < most
    }

    fn reserve(&self, load: &Load) -> u32 {
        (f64::from(load.memory.total_blocks) * self.config.reserve) as u32
    }

    fn available(&self, load: &Load) -> u32 {
        load.memory
            .allocatable_blocks()
            .saturating_sub(self.reserve(load))
            .saturating_sub(load.promised_blocks)
    }
}

/// Sequences that run or will without being asked about again.
fn in_flight(load: &Load) -> u32 {
    load.running.saturating_add(load.admitted).saturating_add(load.preempted)
}

/// Nobody else is in flight: then whatever fits the pool is let in, reserve or not, for nothing would ever
/// change by waiting.
fn is_idle(load: &Load) -> bool {
    in_flight(load) == 0
}

export_policy!(admission: MemoryAware);

#[cfg(test)]
mod tests;
