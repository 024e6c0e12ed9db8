//! Settings of a run, as reports show them.

use serde::Serialize;

use crate::cost::Profile;
use crate::metrics::{Slo, count};
use crate::predictions::Predictions;
use crate::run::Settings;

/// Settings of a run; limits have the names of the host's flags.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// Name of the device, or of the measured profile.
    pub device: String,
    /// Shape of the model; `None` for a measured profile, which includes its model.
    pub model: Option<String>,
    /// Seed of the traffic, and of the variation of a measured device.
    pub seed: u64,
    /// Blocks in the pool.
    pub blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks in the second level of the prefix cache.
    pub offload_blocks: u32,
    /// Maximum number of running sequences.
    pub max_batch_size: u32,
    /// Maximum tokens per step.
    pub max_batch_tokens: u32,
    /// Maximum prompt tokens of a sequence per step.
    pub prefill_chunk: u32,
    /// Maximum number of sequences whose prompts are computed in one step.
    pub max_prefill_requests: u32,
    /// Maximum prompt tokens of all sequences per step.
    pub max_prefill_tokens: u32,
    /// Maximum prompt plus output tokens of a request.
    pub max_seq_len: u32,
    /// Maximum number of waiting requests.
    pub max_waiting_requests: u32,
    /// Whether prefixes are cached.
    pub prefix_caching: bool,
    /// Whole prompts of which the prompt cache keeps the end state.
    pub prompt_cache_entries: u32,
    /// Seconds that an entry of the prompt cache is kept after its last use.
    pub prompt_cache_ttl_s: f64,
    /// Whether a step is planned while another is on the device.
    pub plan_ahead: bool,
    /// Host time per step in microseconds.
    pub host_us: u64,
    /// Seconds that a sequence may be ignored before its scheduler is removed.
    pub starvation_bound_s: f64,
    /// What requests say of the length of their outputs: `learned`, `exact`, or the sigma of an error.
    pub predictions: Predictions,
    /// Latency targets of goodput.
    pub slo: Slo,
}

impl Setup {
    /// Those of a run with `settings`.
    pub fn of(settings: &Settings) -> Self {
        let Settings { engine, profile, host, slo, seed, predictions, .. } = settings;
        let limits = engine.limits;
        let (device, model) = match profile {
            Profile::Roofline(roofline) => {
                (roofline.hardware.name.clone(), Some(roofline.model.name.clone()))
            }
            Profile::Fitted(fitted) => (fitted.name.clone(), None),
        };
        Self {
            device,
            model,
            seed: *seed,
            blocks: engine.total_blocks,
            block_size: engine.block_size,
            offload_blocks: engine.offload_slots,
            max_batch_size: limits.max_running,
            max_batch_tokens: limits.max_batch_tokens,
            prefill_chunk: limits.prefill_chunk,
            max_prefill_requests: limits.max_prefill_sequences,
            max_prefill_tokens: limits.max_prefill_tokens,
            max_seq_len: engine.max_seq_len,
            max_waiting_requests: engine.max_waiting,
            prefix_caching: engine.prefix_caching,
            prompt_cache_entries: engine.prompt_cache_entries,
            prompt_cache_ttl_s: count(engine.prompt_cache_ttl.0) / 1e6,
            plan_ahead: engine.plan_ahead,
            host_us: host.0,
            starvation_bound_s: count(engine.starvation_bound.0) / 1e6,
            predictions: *predictions,
            slo: *slo,
        }
    }

    /// Describes the host.
    pub(super) fn host(&self) -> String {
        let profile = match &self.model {
            Some(model) => format!("{} with a model of shape {model}", self.device),
            None => format!("{} (measured)", self.device),
        };
        let offloaded = match self.offload_blocks {
            0 => String::new(),
            more => format!(", {more} more in a second level"),
        };
        let told = match self.predictions {
            Predictions::Learned => String::new(),
            Predictions::Exact => ", requests that say how long their outputs get".to_owned(),
            Predictions::Erring(sigma) => format!(", outputs predicted with a sigma of {sigma}"),
        };
        format!(
            "{profile}, at most {} running sequences, {} tokens per step, prefill chunks of {} tokens, {} blocks of {} \
             tokens{offloaded}{}{told}",
            self.max_batch_size,
            self.max_batch_tokens,
            self.prefill_chunk,
            self.blocks,
            self.block_size,
            if self.prefix_caching { "" } else { ", no prefix caching" }
        )
    }

    /// Describes requests that met the targets.
    pub(super) fn targets(&self) -> String {
        let Slo { ttft_ms, itl_ms } = self.slo;
        format!("whose first token came within {ttft_ms} ms, then {itl_ms} ms per token")
    }
}
