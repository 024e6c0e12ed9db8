//! `memory-aware`: lets in what the pool can hold to its end. The default admission policy.
//!
//! A request needs the blocks of its prompt and its longest output, less those it would find cached.
//! There are the free and the cached blocks, less a reserve, less what was promised: a running sequence
//! takes its blocks one by one, and an admitted one that hasn't started holds none yet, but both will
//! want theirs. Without that, a burst would be let in against memory that is spoken for, and the
//! scheduler would have to preempt. What doesn't fit now waits; what never can is refused at once.

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
    /// Sequences that may run at once.
    pub max_in_flight: u32,
    /// Memory pressure, 0 to 1, from which clients should slow down.
    pub backpressure_at: f64,
    /// What a client is told to wait when the queue is full.
    pub retry_after_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { reserve: 0.1, max_in_flight: 100, backpressure_at: 0.8, retry_after_ms: 1_000 }
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
                "description": "Sequences that may run at once"
            },
            "backpressure_at": {
                "type": "number", "minimum": 0, "maximum": 1, "default": 0.8,
                "description": "Memory pressure from which clients should slow down"
            },
            "retry_after_ms": {
                "type": "integer", "minimum": 0, "default": 1000,
                "description": "What a client is told to wait when the queue is full"
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
            return refuse(
                Reason::Memory,
                format!("the request needs {least} blocks of memory, the pool has {}", memory.total_blocks),
                0,
            );
        }
        let cached = request.cached_tokens / memory.block_size.max(1);
        let needed = blocks_for(longest, memory.block_size).saturating_sub(cached);
        let fits = load.running < self.config.max_in_flight && needed <= self.available(load);
        if fits || is_idle(load) {
            Verdict::Admit
        } else if load.waiting > load.max_waiting {
            // The request itself may be among those that wait. A host that refuses at its bound before it
            // asks never gets here.
            let message = format!(
                "the queue is full with {} requests; this one needs {needed} blocks, {} are available",
                load.waiting,
                self.available(load)
            );
            refuse(Reason::QueueFull, message, self.config.retry_after_ms)
        } else {
            Verdict::Wait
        }
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        let available = self.available(load);
        let total = load.memory.total_blocks.max(1);
        // Rounded up, so that 1000 is reported only where nothing is left and 0 only where all is.
        let used = u64::from(total.saturating_sub(available)) * 1_000;
        let level = u32::try_from(used.div_ceil(u64::from(total))).unwrap_or(1_000);
        let longest = if is_idle(load) { load.memory.total_blocks } else { available };
        Pressure {
            level_permille: level,
            backpressure: f64::from(level) >= self.config.backpressure_at * 1_000.0,
            reserved_blocks: self.reserve(load),
            available_blocks: available,
            max_sequence_tokens: tokens_in(longest, load.memory.block_size),
        }
    }
}

impl MemoryAware {
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

/// Nobody runs and nobody was promised anything: then whatever fits the pool is let in, reserve or not,
/// for nothing would ever change by waiting.
fn is_idle(load: &Load) -> bool {
    load.running == 0 && load.promised_blocks == 0
}

fn refuse(reason: Reason, message: String, retry_after_ms: u32) -> Verdict {
    Verdict::Refuse(Refusal { reason, message, retry_after_ms })
}

export_policy!(admission: MemoryAware);

#[cfg(test)]
mod tests;
