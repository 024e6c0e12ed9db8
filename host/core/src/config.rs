//! Validated engine settings, made from raw flags and files once at start.

use crate::ids::Micros;

/// Limits of one step and of the running set, as shown to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens one step may compute, prompt chunks and decodes together.
    pub max_batch_tokens: u32,
    /// Sequences that may run at once.
    pub max_running: u32,
    /// Prompt tokens of one sequence that one step may compute.
    pub prefill_chunk: u32,
    /// Sequences whose prompts may be computed in one step.
    pub max_prefill_sequences: u32,
    /// Prompt tokens of all sequences that one step may compute (derived from `--max-prefill-memory`).
    pub max_prefill_tokens: u32,
}

impl Limits {
    /// Prompt tokens of a step that is full of them.
    pub(crate) fn full_prefill(&self) -> u32 {
        let sequences = self.prefill_chunk.saturating_mul(self.max_prefill_sequences);
        self.max_batch_tokens.min(self.max_prefill_tokens).min(sequences)
    }
}

/// Settings of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Limits of one step.
    pub limits: Limits,
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Capacity of the queue for requests that have yet to start, held ones included and preempted ones not.
    pub max_waiting: u32,
    /// Prompt plus output tokens of one request.
    pub max_seq_len: u32,
    /// Whether blocks are kept and shared by content.
    pub prefix_caching: bool,
    /// Slots of the prefix cache's second level, which takes blocks that are evicted for room; 0 disables it. Has no
    /// effect without `prefix_caching`.
    pub offload_slots: u32,
    /// Blocks that come back from there in one step, or more for the first sequence of an idle host. Making room for one
    /// may copy another out.
    pub offload_step_blocks: u32,
    /// Prompts whose last logits are kept; 0 disables it.
    pub prompt_cache_entries: u32,
    /// How long after its last use such an entry is kept.
    pub prompt_cache_ttl: Micros,
    /// Key of the content hash. Random per process in production, fixed in tests and simulations.
    pub hash_key: [u64; 2],
    /// Faults of one policy within `strike_window` after which the previous one replaces it.
    pub max_strikes: u32,
    /// See `max_strikes`.
    pub strike_window: Micros,
    /// Processor time that the calls of one policy may take in one step. A step can make hundreds of calls, each within
    /// its own limit, and every stream would wait for their sum.
    pub policy_step_budget: Micros,
    /// Most draft tokens per sequence and step; 0 disables speculation.
    pub speculate: u32,
    /// Most tokens that a step with draft tokens samples, theirs included.
    pub max_samples: u32,
    /// Whether to plan a batch while another is in flight, for a device that can use the tokens it sampled
    /// last as input (`Executor::plans_ahead`). Has no effect with speculation.
    pub plan_ahead: bool,
    /// How long a runnable sequence may be ignored before the scheduler is removed. An admission policy that holds
    /// requests on an idle host is removed after it too while it is on trial, and otherwise after twelve times as long.
    pub starvation_bound: Micros,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_batch_tokens: 2_048,
                max_running: 32,
                prefill_chunk: 512,
                max_prefill_sequences: 8,
                max_prefill_tokens: 1 << 20,
            },
            block_size: 16,
            total_blocks: 1_024,
            max_waiting: 1_000,
            max_seq_len: 4_096,
            prefix_caching: true,
            offload_slots: 0,
            offload_step_blocks: 32,
            prompt_cache_entries: 100,
            prompt_cache_ttl: Micros(300_000_000),
            hash_key: [0, 0],
            max_strikes: 3,
            strike_window: Micros(10_000_000),
            policy_step_budget: Micros(100_000),
            speculate: 0,
            max_samples: u32::MAX,
            plan_ahead: false,
            starvation_bound: Micros(5_000_000),
        }
    }
}
