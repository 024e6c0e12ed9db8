//! Loads a model: checkpoint, tokenizer, weights, sizes, executor. All of it blocks.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use infer_core::{EngineConfig, Executor, Limits, Micros};
use infer_model::config::RopeScaling;
use infer_model::{
    AdapterLoader, AdapterSize, DType, ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelConfig,
    ModelError, ModelErrorKind, SamplingDefaults, Source, Tokenizer,
};
use sha2::{Digest, Sha256};
use tracing::field;

use super::adapters::{self, Adapter};
use super::checkpoint::{self, Checkpoint, Found, Hub};
use super::device::{self, DeviceChoice, Gpu, Placed};
use super::progress::Meter;
use super::sizing::{self, Room, Shapes, Sizing};
use crate::cache_file::{self, Probed};
use crate::config::{Config, ConfigError, GenerationConfig, Origin};
use crate::faults;
use crate::offload;
use crate::policy_state;
use crate::serve::StartError;

/// A loaded model and the sizes derived from its shapes.
pub struct LoadedModel {
    /// Weights.
    pub model: Model,
    /// Its weights on the GPU, if one is used.
    placed: Option<Placed>,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The checkpoint.
    pub source: Source<'static>,
    /// Names that requests may use.
    pub names: Vec<String>,
    /// Adapters beside the model, in the order of their numbers.
    pub adapters: Vec<Adapter>,
    /// Tokens that end the output.
    pub stop_tokens: Arc<[u32]>,
    /// Sampling parameters for requests that leave them out.
    pub sampling: SamplingDefaults,
    /// Sizes of pool, sequences and steps.
    pub sizing: Sizing,
}

impl LoadedModel {
    /// Loads the model of `--model`, downloading it if necessary.
    pub fn load(config: &Config) -> Result<Self, StartError> {
        let gpu = device::choose(config)?;
        let on_gpu = gpu.is_some();
        check_dtype(config, on_gpu)?;
        let hub = Hub::from_env();
        let checkpoint = checkpoint::find(&config.model, &hub)?;
        check_names(config, &checkpoint.names)?;
        let shape = ModelConfig::load(&checkpoint.source)?;
        for setting in without_effect(config, on_gpu) {
            tracing::warn!("{setting}");
        }
        let sampling = sampling(config, &checkpoint.source)?;
        check_sizes(config, &checkpoint.source, on_gpu)?;
        let adapters = adapters::find(config, &hub)?;
        adapters::check(&adapters, &shape)?;
        let (tokenizer, mut model) = tokenizer_and_model(config, &checkpoint.source, on_gpu)?;
        adapters::load(&adapters, &mut model)?;
        let stop_tokens = stop_tokens(&model, &tokenizer, &checkpoint.source)?;
        let shapes = Shapes::of(&model.config, model.dtype);
        let mut sizing = sizing::size(config, &shapes, Room::Machine(sizing::free_memory()))?;
        let placed = gpu.map(|gpu| gpu.place(&model, config)).transpose()?;
        if let Some(placed) = &placed {
            let left = placed.pool_bytes(config, entries(config))?;
            sizing = sizing::size(config, &shapes, Room::Device(&left))?;
        }
        for rope in &model.config.ropes {
            let RopeScaling::Long(rope) = &rope.scaling else { continue };
            let factors = if rope.takes_long(sizing.max_seq_len as usize) { "long" } else { "short" };
            tracing::info!(
                factors,
                max_seq_len = sizing.max_seq_len,
                original = rope.original,
                "LongRoPE: all sequences have the same factors, by max-seq-len"
            );
        }
        let Checkpoint { source, names } = checkpoint;
        Ok(Self { model, placed, tokenizer, source, names, adapters, stop_tokens, sampling, sizing })
    }

    /// The executor that computes batches of this model.
    pub fn executor(&self, config: &Config) -> Result<Box<dyn Executor + Send>, StartError> {
        let Sizing { total_blocks, max_seq_len, .. } = self.sizing;
        if let Some(placed) = &self.placed {
            return Ok(placed.executor(config, total_blocks, max_seq_len, entries(config))?);
        }
        let executor = self.model.executor(ExecutorOptions {
            kv_cache: config.kv_cache,
            block_size: config.block_size,
            total_blocks,
            max_running: config.max_batch_size,
            max_seq_len,
            prompt_cache_entries: entries(config),
            threads: config.threads,
        });
        Ok(Box::new(executor.map_err(|error| match error.kind {
            // Sizes that settings decide.
            ModelErrorKind::Unsupported => {
                ConfigError(format!("{}: {}", size_flag(config), error.message)).into()
            }
            ModelErrorKind::Machine => {
                StartError::Machine(format!("{}: {}", size_flag(config), error.message))
            }
            _ => StartError::from(error),
        })?))
    }

    /// What a cache file must match.
    pub fn probed(&self, config: &Config) -> Probed {
        let sums = self.model.checksums(config.threads);
        let digest = Sha256::digest(sums.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<_>>());
        Probed {
            weights: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            vocab: self.model.vocab_size(),
            step_tokens: config.step_tokens(self.placed.is_some()),
            max_seq_len: self.sizing.max_seq_len,
        }
    }

    /// What each adapter takes, where it is computed with, in the order of their numbers.
    pub fn adapter_sizes(&self) -> Vec<AdapterSize> {
        match &self.placed {
            Some(placed) => placed.adapter_sizes(&self.model),
            None => self.model.adapter_sizes().collect(),
        }
    }

    /// What loads further adapters while the host runs.
    pub fn adapter_loader(&self) -> AdapterLoader {
        match &self.placed {
            Some(placed) => placed.adapter_loader(&self.model),
            None => self.model.adapter_loader(),
        }
    }

    /// Bytes of all weight matrices, where they are computed with.
    pub fn weight_bytes(&self) -> u64 {
        self.placed.as_ref().map_or_else(|| self.model.weight_bytes(), Placed::weight_bytes)
    }

    /// Bytes of the machine's memory that the KV pool takes once it is used, none if it is a GPU's. What was not written
    /// yet still counts as free.
    pub fn pool_bytes(&self) -> u64 {
        let Sizing { total_blocks, block_bytes, .. } = self.sizing;
        if self.placed.is_some() { 0 } else { u64::from(total_blocks) * block_bytes }
    }

    /// Name of the device that computes.
    pub fn device(&self) -> &str {
        self.placed.as_ref().map_or("cpu", Placed::name)
    }

    /// The engine's settings.
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
            // `crate::offload` knows the size of a block.
            offload_slots: 0,
            offload_step_blocks: 1,
            prompt_cache_entries: entries(config),
            prompt_cache_ttl: micros(config.prompt_cache_ttl),
            hash_key,
            speculate: config.speculate,
            max_samples: if self.placed.is_some() { config.step_samples() } else { u32::MAX },
            plan_ahead: config.plan_ahead && self.placed.is_some(),
            max_strikes: config.policy_limits.strikes,
            strike_window: micros(config.policy_limits.strike_window),
            policy_step_budget: micros(config.policy_limits.step_budget()),
            starvation_bound: micros(config.policy_limits.starvation_bound),
        }
    }
}

fn micros(time: Duration) -> Micros {
    Micros(time.as_micros() as u64)
}

/// Checks device, checkpoint, tokenizer and sizes as far as that is possible without weights and without the network.
/// Returns the checkpoint unless it is the hub's.
pub fn check(config: &Config) -> Result<Option<Checkpoint>, StartError> {
    let on_gpu = match config.device {
        // Whether `auto` finds a GPU may depend on the moment.
        DeviceChoice::Auto => Gpu::BUILT_IN && device::excluded(config).is_none(),
        DeviceChoice::Cpu | DeviceChoice::Cuda(_) => device::choose(config)?.is_some(),
    };
    check_dtype(config, on_gpu)?;
    cache_file::check(config)?;
    policy_state::check_place(config)?;
    faults::check_place(config)?;
    offload::check(config)?;
    match checkpoint::locate(&config.model)? {
        Found::Local(checkpoint) => {
            sampling(config, &checkpoint.source)?;
            check_names(config, &checkpoint.names)?;
            let shape = ModelConfig::load(&checkpoint.source)?;
            check_sizes(config, &checkpoint.source, on_gpu)?;
            adapters::check(&adapters::find_local(config)?, &shape)?;
            Tokenizer::load(&checkpoint.source)?;
            Ok(Some(checkpoint))
        }
        Found::Repository(..) => {
            check_names(config, std::slice::from_ref(&config.model))?;
            adapters::find_local(config).map(|_| None)
        }
    }
}

/// The names that requests may use at the start: those of the model, and then those of its adapters.
pub fn all_names(config: &Config, own: &[String]) -> Vec<String> {
    let adapters = config.lora.iter().map(|adapter| adapter.name.clone());
    model_names(config, own).into_iter().chain(adapters).collect()
}

/// Names of the model in requests, without duplicates: those of the configuration, else the checkpoint's own.
pub fn model_names(config: &Config, own: &[String]) -> Vec<String> {
    let chosen = &config.served_model_names;
    let mut seen = BTreeSet::new();
    let all: &[String] = if chosen.is_empty() { own } else { chosen };
    all.iter().filter(|name| seen.insert(*name)).cloned().collect()
}

/// Checks that no adapter has a name of the model.
fn check_names(config: &Config, own: &[String]) -> Result<(), ConfigError> {
    config.check_names(&model_names(config, own), &Origin::Default("lora"))
}

/// Settings that the device leaves without effect, and why.
fn without_effect(config: &Config, on_gpu: bool) -> Vec<&'static str> {
    let mut settings = Vec::new();
    if config.plan_ahead && !on_gpu {
        settings.push("--plan-ahead has no effect on the CPU, which plans and computes in turn");
    }
    if config.kv_memory_bytes.is_some() && config.kv_cache == KvCacheKind::Contiguous {
        settings.push("--kv-memory has no effect with --kv-cache contiguous, which holds --max-batch-size full-length rows");
    }
    if config.cache_file.is_some() && !shares_blocks(config) {
        settings.push("--cache-file has no effect without shared prefixes (--prefix-caching off or --kv-cache contiguous)");
    }
    if config.kv_offloading_bytes.is_some() && !shares_blocks(config) {
        settings.push("--kv-offloading-size has no effect without shared prefixes (--prefix-caching off or --kv-cache contiguous)");
    }
    if config.plan_ahead && on_gpu && config.speculate > 0 {
        settings.push("--plan-ahead has no effect with --speculate, whose draft tokens continue the tokens of the last step");
    }
    settings
}

fn check_dtype(config: &Config, on_gpu: bool) -> Result<(), ConfigError> {
    if config.dtype == Some(DType::F16) && !on_gpu {
        let advice = "`f16` works only on GPUs; use `f32`, `bf16` or `auto`";
        return Err(ConfigError(format!("--dtype: {advice}")));
    }
    Ok(())
}

/// Refuses impossible sizes before gigabytes of weights are read.
fn check_sizes(config: &Config, source: &Source<'_>, on_gpu: bool) -> Result<(), StartError> {
    let model = ModelConfig::load(source)?;
    let stored = match model.stored_dtype {
        // The CPU widens f16.
        Some(DType::F16) if !on_gpu => Some(DType::F32),
        stored => stored,
    };
    // If the type is unknown, assume the smallest: two bytes per number.
    let dtype = config.dtype.or(stored).unwrap_or(DType::Bf16);
    let free = sizing::free_memory();
    sizing::size(config, &Shapes::of(&model, dtype), Room::Machine(free))?;
    match config.kv_memory_bytes {
        Some(bytes) if bytes > free && !on_gpu && config.kv_cache == KvCacheKind::Paged => {
            let (wanted, free) = (bytes.div_ceil(1 << 20), free >> 20);
            let message =
                format!("--kv-memory: {wanted} MiB are more than the {free} MiB that are available");
            Err(StartError::Machine(message))
        }
        _ => Ok(()),
    }
}

/// The setting that decides the size of the KV cache.
fn size_flag(config: &Config) -> &'static str {
    match (config.kv_cache, config.kv_memory_bytes) {
        (KvCacheKind::Contiguous, _) => "--max-batch-size",
        (KvCacheKind::Paged, Some(_)) => "--kv-memory",
        (KvCacheKind::Paged, None) => "--max-seq-len",
    }
}

/// The checkpoint's sampling parameters, unless the configuration ignores them.
fn sampling(config: &Config, source: &Source<'_>) -> Result<SamplingDefaults, ConfigError> {
    if config.generation_config == GenerationConfig::None {
        return Ok(SamplingDefaults::default());
    }
    let sampling = SamplingDefaults::load(source)
        .map_err(|error| ConfigError(format!("--generation-config: {error}; `none` ignores the file")))?;
    if sampling != SamplingDefaults::default() {
        let SamplingDefaults { temperature, top_p, top_k, min_p, repetition_penalty } = sampling;
        tracing::info!(
            temperature = temperature.map(field::display),
            top_p = top_p.map(field::display),
            top_k,
            min_p = min_p.map(field::display),
            repetition_penalty = repetition_penalty.map(field::display),
            "sampling defaults come from generation_config.json"
        );
    }
    Ok(sampling)
}

/// What ends an output of models that reply in several messages (gpt-oss), each of which but the last ends with
/// `END_OF_MESSAGE`.
const ENDS_OF_REPLIES: [&str; 2] = ["<|return|>", "<|call|>"];
const END_OF_MESSAGE: &str = "<|end|>";

/// The end tokens of the model and, as in vLLM, the tokenizer's own: fine-tuned models often keep the list of
/// their base model and name the end of a turn only in the tokenizer.
fn stop_tokens(model: &Model, tokenizer: &Tokenizer, source: &Source<'_>) -> Result<Arc<[u32]>, ModelError> {
    let mut tokens = model.stop_tokens().to_vec();
    let own = infer_model::tokenizer::eos_token(source)?.and_then(|name| tokenizer.id(&name));
    tokens.extend(own.filter(|id| !tokens.contains(id) && *id < model.vocab_size()));
    let special =
        |name: &str| tokenizer.id(name).filter(|id| tokenizer.is_special(name) && *id < model.vocab_size());
    let tokens = of_replies(tokens, special);
    if tokens.is_empty() {
        tracing::warn!(
            "the checkpoint names no end token (eos_token_id, eos_token): every output runs to its maximum length"
        );
    }
    Ok(tokens.into())
}

/// These end tokens, or those of replies of several messages where a vocabulary has both, which `special` finds. A
/// checkpoint may name only one of them, and a GGUF file also the end of a message, as the end of a turn.
fn of_replies(mut tokens: Vec<u32>, special: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let Some(ends) = ENDS_OF_REPLIES.into_iter().map(&special).collect::<Option<Vec<u32>>>() else {
        return tokens;
    };
    let of_message = special(END_OF_MESSAGE);
    tokens.retain(|&token| Some(token) != of_message);
    let missing: Vec<u32> = ends.into_iter().filter(|end| !tokens.contains(end)).collect();
    tokens.extend(missing);
    tokens
}

/// Loads both concurrently: a tokenizer with a large vocabulary keeps one core busy for seconds.
fn tokenizer_and_model(
    config: &Config,
    source: &Source<'_>,
    on_gpu: bool,
) -> Result<(Tokenizer, Model), ModelError> {
    let options = LoadOptions { dtype: config.dtype, for_gpu: on_gpu, quantize: config.quantize };
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

/// Whether requests share the blocks of common prefixes. Contiguous storage has no blocks to share.
pub fn shares_blocks(config: &Config) -> bool {
    config.prefix_caching && config.kv_cache == KvCacheKind::Paged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_of_several_messages_ends_where_no_other_follows() {
        let vocabulary = [("<|return|>", 1), ("<|end|>", 2), ("<|call|>", 3)];
        for (named, lacking, ends) in [
            // As gpt-oss has it, with the end of a text.
            (&[1, 0, 3][..], "", &[1, 0, 3][..]),
            (&[1], "", &[1, 3]),
            (&[2, 1], "", &[1, 3]),
            (&[2], "<|call|>", &[2]),
            (&[2, 1], "<|call|>", &[2, 1]),
            (&[1], "<|end|>", &[1, 3]),
        ] {
            let known = vocabulary.iter().filter(|(name, _)| *name != lacking);
            let special = |name: &str| known.clone().find(|(known, _)| *known == name).map(|(_, id)| *id);
            assert_eq!(of_replies(named.to_vec(), special), ends, "{named:?} without {lacking:?}");
        }
    }

    #[test]
    fn settings_that_the_device_ignores_are_named() {
        for (plan_ahead, speculate, on_gpu, named) in [
            (true, 0, false, Some("--plan-ahead")),
            (true, 0, true, None),
            (true, 4, true, Some("--plan-ahead")),
            (false, 4, true, None),
            (false, 4, false, None),
        ] {
            let config = Config { plan_ahead, speculate, ..Config::default() };
            let ignored = without_effect(&config, on_gpu).into_iter();
            let flags: Vec<&str> = ignored.filter_map(|text| text.split(' ').next()).collect();
            assert_eq!(flags, Vec::from_iter(named));
        }
        let config =
            Config { kv_cache: KvCacheKind::Contiguous, kv_memory_bytes: Some(1 << 30), ..Config::default() };
        assert!(without_effect(&config, false)[0].starts_with("--kv-memory "));
        let config =
            Config { prefix_caching: false, kv_offloading_bytes: Some(1 << 30), ..Config::default() };
        assert!(without_effect(&config, false)[0].starts_with("--kv-offloading-size "));
    }
}
