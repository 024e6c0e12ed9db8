//! `memory-aware`: admits what the pool can probably hold to its end. The default admission policy.
//!
//! A request needs the blocks of its prompt and its output, without those that other sequences use already;
//! cached blocks that no sequence uses count, because starting the request takes them. Available are the free
//! and the cached blocks, less a reserve, less what others claim: a running sequence takes its blocks one by
//! one, and an admitted one that hasn't started holds none yet, but both will need theirs. Otherwise a burst
//! would be admitted against memory that is spoken for, and the scheduler would have to preempt.
//!
//! How long an output will be isn't known. Most clients of chats set no limit, so that the longest output is
//! whatever the context leaves, and a host that promised it to everyone would run almost alone. So an output
//! counts `margin` times what the host expects of it (`outputs: "expected"`), at most its limit, and others claim
//! `margin` times the most that the host expects them to hold at once: when one reaches its end, others have
//! left. If outputs get longer, sequences may be preempted, which costs time but no tokens. With `outputs:
//! "longest"` each output counts its limit, and nothing is preempted for want of memory.
//!
//! Until the host has seen an output end, it expects the limit of each: the first requests are admitted as by
//! their longest outputs. Held requests are judged by what is known when they are asked about again, so the
//! rest of a first burst waits for its first outputs only.
//!
//! The number of sequences is limited only if the host has more slots than `max_in_flight`; otherwise the
//! slots are the limit, and a scheduler that sees more of the queue chooses better. Requests that don't fit
//! now wait; those that can't fit at their longest are refused at once. The host refuses by itself when the
//! queue is full.

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, Verdict, blocks_for, export_policy, gauge,
    tokens_in,
};
use serde::{Deserialize, Serialize};

/// What outputs count.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outputs {
    /// What is expected of them, with a margin.
    Expected,
    /// Their limits.
    Longest,
}

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What outputs count.
    pub outputs: Outputs,
    /// How many times its expected length an output counts; without effect on `Outputs::Longest`.
    pub margin: f64,
    /// Share of the pool that is kept back.
    pub reserve: f64,
    /// Sequences that may run at once, out of the host's slots.
    pub max_in_flight: u32,
    /// Memory pressure, 0 to 1, from which operators and load balancers are told that more requests would only wait.
    pub backpressure_at: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            outputs: Outputs::Expected,
            margin: 1.25,
            reserve: 0.1,
            max_in_flight: 100,
            backpressure_at: 0.8,
        }
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
    const DESCRIPTION: &'static str = "Admits what the memory pool can hold to its expected or longest \
         output, keeps a reserve, makes the rest wait, and refuses what can never fit.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "outputs": {
                "type": "string", "enum": ["expected", "longest"], "default": "expected",
                "description": "What an output counts: what is expected of it, or its limit, so that nothing is preempted for want of memory"
            },
            "margin": {
                "type": "number", "minimum": 1, "maximum": 1000, "default": 1.25,
                "description": "How many times its expected length an output counts, at most its limit"
            },
            "reserve": {
                "type": "number", "minimum": 0, "maximum": 0.9, "default": 0.1,
                "description": "Share of the pool that is kept back"
            },
            "max_in_flight": {
                "type": "integer", "minimum": 1, "default": 100,
                "description": "Sequences that may run at once; has no effect if the host has no more slots"
            },
            "backpressure_at": {
                "type": "number", "minimum": 0, "maximum": 1, "default": 0.8,
                "description": "Memory pressure from which backpressure is reported, to operators and load balancers: in metrics, state and console. Clients are not told, and none is refused for it"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(1.0..=1_000.0).contains(&config.margin) {
            return Err(format!("`margin` must be from 1 to 1000, not {}", config.margin));
        }
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
        // The last output token is never read again, so it needs no slot.
        let least = blocks_for(longest.saturating_sub(1), memory.block_size);
        if least > memory.total_blocks {
            let message =
                format!("the request needs {least} blocks of memory, the pool has {}", memory.total_blocks);
            return Verdict::Refuse(Refusal { reason: Reason::Memory, message, retry_after_ms: 0 });
        }
        let cached = request.cached_tokens / memory.block_size.max(1);
        let whole = request.prompt_tokens.saturating_add(self.output(request));
        let whole = blocks_for(whole, memory.block_size);
        let needed = whole.saturating_sub(cached).saturating_add(request.idle_blocks);
        let fits = self.has_place(load) && needed <= self.available(load);
        if fits || is_idle(load) { Verdict::Admit } else { Verdict::Wait }
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        gauge("claimed_blocks", f64::from(self.claimed(load)));
        let available = self.available(load);
        let total = load.memory.total_blocks.max(1);
        // Rounded up, so that 1000 is reported only if nothing is left and 0 only if everything is.
        let used = u64::from(total.saturating_sub(available)) * 1_000;
        let level = u32::try_from(used.div_ceil(u64::from(total))).unwrap_or(1_000);
        // If its whole output is expected. One of which less is expected may be longer.
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
        load.memory.allocatable_blocks().saturating_sub(self.reserve(load)).saturating_sub(self.claimed(load))
    }

    /// Tokens that a request's output counts.
    fn output(&self, request: &Request) -> u32 {
        self.counted(request.expected_tokens, request.max_new_tokens)
    }

    /// Blocks that others will still take.
    fn claimed(&self, load: &Load) -> u32 {
        self.counted(load.expected_blocks, load.promised_blocks)
    }

    fn counted(&self, expected: u32, longest: u32) -> u32 {
        match self.config.outputs {
            Outputs::Expected => longest.min((f64::from(expected) * self.config.margin).ceil() as u32),
            Outputs::Longest => longest,
        }
    }
}

/// Sequences that run, or will without another call.
fn in_flight(load: &Load) -> u32 {
    load.running.saturating_add(load.admitted).saturating_add(load.preempted)
}

/// Whether nothing else is in flight. Then whatever fits the pool is admitted, reserve or not, because
/// waiting would not change anything.
fn is_idle(load: &Load) -> bool {
    in_flight(load) == 0
}

export_policy!(admission: MemoryAware);

#[cfg(test)]
mod tests;
