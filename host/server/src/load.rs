//! From configuration to a model that can run: checkpoint, tokenizer, sizes, executor. Blocks.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use infer_core::{EngineConfig, Executor, Limits, Micros};
use infer_model::{
    DType, ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelConfig, ModelError, SamplingDefaults,
    Source, Tokenizer,
};
use infer_wasm::LoadError;

use crate::checkpoint::{self, Checkpoint, CheckpointError, Hub};
use crate::config::{Config, ConfigError, GenerationConfig};
use crate::device::{self, Placed};
use crate::policies::PolicyError;
use crate::progress::Meter;
use crate::sizing::{self, Room, Shapes, Sizing};

/// Why a host didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something was asked for that can't be.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// There is no checkpoint.
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint can't be used.
    #[error("--model: {0}")]
    Model(#[from] ModelError),
    /// A policy can't be used.
    #[error("--{0}: {1}")]
    Policy(&'static str, PolicyError),
    /// The WebAssembly engine can't be set up.
    #[error("{0}")]
    Wasm(#[from] LoadError),
    /// An address can't be had.
    #[error("{flag}: can't listen on {address}: {error}")]
    Bind {
        /// Which flag.
        flag: &'static str,
        /// What it said.
        address: String,
        /// Why not.
        error: std::io::Error,
    },
    /// The engine ended as soon as it began.
    #[error("{0}")]
    Stopped(#[from] crate::engine::EngineStopped),
    /// The machine refused something.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
}

impl StartError {
    /// Whether another command line would help: exit code 2 instead of 1.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Checkpoint(CheckpointError::Wrong(_))
                | Self::Policy(
                    _,
                    PolicyError::Unknown { .. } | PolicyError::NoConfig | PolicyError::File(..)
                )
        )
    }
}

/// A loaded model and what follows from its shapes.
pub struct Loaded {
    /// Weights.
    pub model: Model,
    /// Its weights on a GPU, where one is used.
    placed: Option<Placed>,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Where all of it comes from.
    pub source: Source<'static>,
    /// Names that requests may give.
    pub names: Vec<String>,
    /// Tokens that end an answer.
    pub stop_tokens: Arc<[u32]>,
    /// How tokens are drawn where a request doesn't say.
    pub sampling: SamplingDefaults,
    /// Pool, lengths, limits.
    pub sizing: Sizing,
}

impl Loaded {
    /// Loads what `--model` names.
    pub fn load(config: &Config) -> Result<Self, StartError> {
        let gpu = device::choose(config)?;
        if config.dtype == Some(DType::F16) && gpu.is_none() {
            let advice = "`f16` is computed on GPUs only; use `f32`, `bf16` or `auto`";
            return Err(ConfigError(format!("--dtype: {advice}")).into());
        }
        let checkpoint = checkpoint::find(&config.model, &Hub::from_env())?;
        let sampling = sampling(config, &checkpoint.source)?;
        check_sizes(config, &checkpoint.source)?;
        let (tokenizer, model) = tokenizer_and_model(config, &checkpoint.source, gpu.is_some())?;
        let stop_tokens = stop_tokens(&model, &tokenizer, &checkpoint.source)?;
        let shapes = Shapes::of(&model.config, model.dtype);
        let mut sizing = sizing::size(config, &shapes, Room::Machine(sizing::free_memory()))?;
        let placed = gpu.map(|gpu| gpu.place(&model)).transpose()?;
        if let Some(placed) = &placed {
            let left = placed.pool_bytes(config, sizing.max_seq_len, entries(config))?;
            sizing = sizing::size(config, &shapes, Room::Device(left))?;
        }
        let Checkpoint { source, names } = checkpoint;
        Ok(Self { model, placed, tokenizer, source, names, stop_tokens, sampling, sizing })
    }

    /// What computes its batches.
    pub fn executor(&self, config: &Config) -> Result<Box<dyn Executor + Send>, StartError> {
        let Sizing { total_blocks, max_seq_len, .. } = self.sizing;
        if let Some(placed) = &self.placed {
            return Ok(placed.executor(config, total_blocks, max_seq_len, entries(config))?);
        }
        Ok(Box::new(self.model.executor(ExecutorOptions {
            kv_cache: config.kv_cache,
            block_size: config.block_size,
            total_blocks,
            max_running: config.max_batch_size,
            max_seq_len,
            prompt_cache_entries: entries(config),
            threads: config.threads,
        })?))
    }

    /// Where it computes.
    pub fn device(&self) -> &str {
        self.placed.as_ref().map_or("cpu", Placed::name)
    }

    /// The engine's settings. Contiguous storage has no blocks that could be shared.
    pub fn engine_config(&self, config: &Config, hash_key: [u64; 2]) -> EngineConfig {
        EngineConfig {
            limits: Limits {
                max_batch_tokens: config.step_tokens(self.placed.is_some()),
                max_running: config.max_batch_size,
                prefill_chunk: config.prefill_chunk,
                max_prefill_sequences: config.max_prefill_requests,
                max_prefill_tokens: self.sizing.max_prefill_tokens,
            },
            block_size: config.block_size,
            total_blocks: self.sizing.total_blocks,
            max_waiting: config.max_waiting_requests,
            max_seq_len: self.sizing.max_seq_len,
            prefix_caching: shares_blocks(config),
            prompt_cache_entries: entries(config),
            prompt_cache_ttl: Micros(config.prompt_cache_ttl.as_micros() as u64),
            hash_key,
            // A device answers no guesses yet, so there they would only cost.
            speculate: if self.placed.is_some() { 0 } else { config.speculate },
            plan_ahead: config.plan_ahead && self.placed.is_some(),
            ..EngineConfig::default()
        }
    }
}

/// Refuses sizes that no weights could make right, before gigabytes of them are read.
fn check_sizes(config: &Config, source: &Source<'_>) -> Result<(), StartError> {
    let model = ModelConfig::load(source)?;
    // Where nothing says how it is stored, it takes two bytes a number at least.
    let dtype = config.dtype.or(model.stored_dtype).unwrap_or(DType::Bf16);
    sizing::size(config, &Shapes::of(&model, dtype), Room::Machine(sizing::free_memory()))?;
    Ok(())
}

/// What the checkpoint wishes, unless it isn't asked.
fn sampling(config: &Config, source: &Source<'_>) -> Result<SamplingDefaults, ConfigError> {
    if config.generation_config == GenerationConfig::None {
        return Ok(SamplingDefaults::default());
    }
    let sampling = SamplingDefaults::load(source)
        .map_err(|error| ConfigError(format!("--generation-config: {error}; `none` passes it over")))?;
    if sampling != SamplingDefaults::default() {
        tracing::info!(?sampling, "generation_config.json says how tokens are drawn where a request doesn't");
    }
    Ok(sampling)
}

/// Those of the model and, as in vLLM, the tokenizer's own: fine-tunes of base models often keep the base's list, and name
/// the end of a turn here alone.
fn stop_tokens(model: &Model, tokenizer: &Tokenizer, source: &Source<'_>) -> Result<Arc<[u32]>, ModelError> {
    let mut tokens = model.stop_tokens().to_vec();
    let own = infer_model::tokenizer::eos_token(source)?.and_then(|name| tokenizer.id(&name));
    tokens.extend(own.filter(|id| !tokens.contains(id) && *id < model.vocab_size()));
    if tokens.is_empty() {
        tracing::warn!(
            "the checkpoint names no end token (eos_token_id, eos_token): answers go on until their longest length"
        );
    }
    Ok(tokens.into())
}

/// A large vocabulary keeps one core busy for a good while, so both are loaded at once.
fn tokenizer_and_model(
    config: &Config,
    source: &Source<'_>,
    on_gpu: bool,
) -> Result<(Tokenizer, Model), ModelError> {
    let options = LoadOptions { dtype: config.dtype, knows_f16: on_gpu, quantize: config.quantize };
    let given_up = AtomicBool::new(false);
    let (tokenizer, model) = std::thread::scope(|scope| {
        let tokenizer =
            scope.spawn(|| Tokenizer::load(source).inspect_err(|_| given_up.store(true, Ordering::Relaxed)));
        let mut meter = Meter::new("loading weights");
        let mut begun = false;
        let model = Model::load_with(source, &options, &mut |progress| {
            if !std::mem::replace(&mut begun, true) {
                meter.start(progress.total_bytes);
            }
            meter.set(progress.done_bytes);
            match given_up.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        (tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), model)
    });
    Ok((tokenizer?, model?))
}

fn entries(config: &Config) -> u32 {
    if shares_blocks(config) { config.prompt_cache_entries } else { 0 }
}

/// Whether equal prefixes share blocks.
pub fn shares_blocks(config: &Config) -> bool {
    config.prefix_caching && config.kv_cache == KvCacheKind::Paged
}
