//! A loaded checkpoint, and its executors. Weights are shared; an executor owns its KV cache, buffers and threads.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use infer_core::AdapterId;
use infer_kernels::{Cpu, Element, PagedLayout};

use crate::cache::{ContiguousCache, ContiguousShape, KvStore, PagedCache};
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::executor::ModelExecutor;
use crate::load::{LoadOptions, LoadProgress};
use crate::lora::{self, Adapter, AdapterLoader, AdapterSize};
use crate::memory;
use crate::rows::Limits;
use crate::source::Source;
use crate::weights::{Loaded, Weights};
use crate::{DType, KvCacheKind, WeightType};

/// A checkpoint in memory.
#[derive(Clone)]
pub struct Model {
    /// Its configuration.
    pub config: ModelConfig,
    /// Storage type of its KV caches, and of its weights unless they are quantized.
    pub dtype: DType,
    /// Storage type of its weight matrices.
    pub weight_type: WeightType,
    /// Bytes of its weights in the file, if that stores them as quantized blocks.
    pub stored_blocks: Option<u64>,
    pub(crate) weights: Arc<Weights>,
    /// Adapters in the order of their numbers, the first of which is 1.
    pub(crate) adapters: Vec<Arc<Adapter>>,
}

/// How an executor is set up.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorOptions {
    /// Storage of keys and values.
    pub kv_cache: KvCacheKind,
    /// Tokens in a block (paged).
    pub block_size: u32,
    /// Blocks in the pool (paged).
    pub total_blocks: u32,
    /// Sequences that may run at once (contiguous).
    pub max_running: u32,
    /// Prompt plus output tokens of a sequence.
    pub max_seq_len: u32,
    /// Prompts whose last logits can be kept. With the contiguous cache the engine must use neither these nor cached prefixes:
    /// it drops the keys and values of finished sequences.
    pub prompt_cache_entries: u32,
    /// Threads that compute, including the caller's; 0 means 1.
    pub threads: usize,
}

impl Model {
    /// Loads a checkpoint; `dtype` overrides its storage type.
    ///
    /// # Errors
    /// Names the file, key or tensor at fault.
    pub fn load(source: &Source<'_>, dtype: Option<DType>) -> Result<Self, ModelError> {
        Self::load_with(source, &LoadOptions { dtype, ..LoadOptions::default() }, &mut |_| {
            ControlFlow::Continue(())
        })
    }

    /// Loads a checkpoint and reports progress after each matrix; the callback may cancel.
    ///
    /// # Errors
    /// As [`Model::load`], or if the callback cancelled.
    pub fn load_with(
        source: &Source<'_>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, ModelError> {
        let config = ModelConfig::load(source)?;
        let Loaded { weights, dtype, weight_type, stored_blocks } =
            Weights::load(source, &config, options, progress)?;
        let (weights, adapters) = (Arc::new(weights), Vec::new());
        Ok(Self { config, dtype, weight_type, stored_blocks, weights, adapters })
    }

    /// Loads an adapter in PEFT's format (`adapter_config.json`, `adapter_model.safetensors`) beside those that are there.
    /// Executors that are created from now on compute with it what requests want that name it.
    ///
    /// # Errors
    /// Names the file, key or tensor that is missing, doesn't fit the model or is not supported.
    pub fn add_adapter(&mut self, source: &Source<'_>) -> Result<AdapterId, ModelError> {
        let format = lora::format(self.weight_type);
        Ok(self.push(Adapter::load(source, &self.config, format)?))
    }

    /// Adds an adapter with random weights for all projections but experts, for benchmarks.
    ///
    /// # Errors
    /// If memory runs out or threads can't be started.
    pub fn add_random_adapter(&mut self, rank: usize, seed: u64) -> Result<AdapterId, ModelError> {
        let format = lora::format(self.weight_type);
        Ok(self.push(Adapter::random(&self.config, format, rank, seed)?))
    }

    fn push(&mut self, adapter: Adapter) -> AdapterId {
        self.adapters.push(Arc::new(adapter));
        AdapterId(self.adapters.len() as u32)
    }

    /// Checks an adapter of a model of this shape as [`Model::add_adapter`] does, without the model's weights.
    ///
    /// # Errors
    /// As [`Model::add_adapter`].
    pub fn check_adapter(source: &Source<'_>, config: &ModelConfig) -> Result<(), ModelError> {
        Adapter::check(source, config)
    }

    /// What loads further adapters for executors that run on the CPU. They have an adapter's matrices as the executor does.
    pub fn adapter_loader(&self) -> AdapterLoader {
        AdapterLoader::on_cpu(self.config.clone(), lora::format(self.weight_type))
    }

    /// What each adapter takes, in the order of their numbers.
    pub fn adapter_sizes(&self) -> impl Iterator<Item = AdapterSize> {
        self.adapters.iter().map(|adapter| adapter.size())
    }

    /// Bytes of the matrices of all adapters.
    pub fn adapter_bytes(&self) -> u64 {
        self.adapters.iter().map(|adapter| adapter.bytes() as u64).sum()
    }

    /// Copies a checkpoint's matrices unchanged to new memory and drops the copies. Returns bytes and time, as a baseline for
    /// the time of a load.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn copy_weights(source: &Source<'_>) -> Result<(u64, Duration), ModelError> {
        crate::weights::copy(source, &ModelConfig::load(source)?)
    }

    /// Bytes of one token's keys and values in all layers.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.config.kv_bytes_per_token(self.dtype)
    }

    /// Bytes of all weight matrices, without those of adapters.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes() as u64
    }

    /// Bytes of the matrices that a step of one token reads. Steps of more tokens read as much, and further experts that these
    /// choose ([`ModelExecutor::read_bytes`]).
    pub fn step_bytes(&self) -> u64 {
        self.weights.step_bytes() as u64
    }

    /// Tokens that end a sequence.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.config.stop_tokens
    }

    /// Positions that the model supports.
    pub fn context_length(&self) -> u32 {
        self.config.context_length()
    }

    /// Rows of the embedding: token ids are below this.
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.config.vocab).unwrap_or(u32::MAX)
    }

    /// Creates an executor with its own KV cache.
    ///
    /// # Errors
    /// If an option is invalid or memory for the KV cache runs out.
    pub fn executor(&self, options: ExecutorOptions) -> Result<ModelExecutor, ModelError> {
        self.check(&options)?;
        let kv = match self.dtype {
            DType::F32 => self.kv::<f32>(&options)?,
            DType::Bf16 => self.kv::<bf16>(&options)?,
            DType::F16 => return Err(ModelError::unsupported("f16 is computed on GPUs only".to_owned())),
        };
        let cpu = Cpu::new(options.threads.max(1)).map_err(|error| {
            ModelError::unsupported(format!("can't start {} threads: {error}", options.threads))
        })?;
        let positions = options.max_seq_len as usize;
        let decoder = Decoder::new(self, cpu, positions);
        let limits = Limits {
            vocab: self.config.vocab,
            positions,
            prompt_cache_entries: options.prompt_cache_entries as usize,
        };
        Ok(ModelExecutor::new(decoder, kv, limits))
    }

    fn check(&self, options: &ExecutorOptions) -> Result<(), ModelError> {
        let refuse = |message: String| Err(ModelError::unsupported(message));
        if options.max_seq_len == 0 || options.max_seq_len > self.context_length() {
            let most = self.context_length();
            return refuse(format!("max-seq-len {} must be from 1 to {most}", options.max_seq_len));
        }
        let tokens = match options.kv_cache {
            KvCacheKind::Paged if options.block_size == 0 || options.total_blocks == 0 => {
                return refuse("block-size and the number of KV blocks must not be 0".to_owned());
            }
            KvCacheKind::Paged => u64::from(options.block_size) * u64::from(options.total_blocks),
            KvCacheKind::Contiguous if options.max_running == 0 => {
                return refuse("max-batch-size must not be 0".to_owned());
            }
            KvCacheKind::Contiguous => u64::from(options.max_running) * u64::from(options.max_seq_len),
        };
        if tokens > u64::from(u32::MAX) {
            return refuse(format!(
                "a KV cache of {tokens} tokens exceeds the range of indexes; lower kv-memory, max-batch-size or max-seq-len"
            ));
        }
        let cache = tokens.saturating_mul(self.kv_bytes_per_token());
        let positions = (self.config.ropes.len() * self.config.head_dim * size_of::<f32>()) as u64;
        let tables = positions.saturating_mul(options.max_seq_len.into());
        memory::check(
            &format!("a KV cache of {tokens} tokens and {} positions take", options.max_seq_len),
            cache.saturating_add(tables),
            "lower kv-memory, max-batch-size or max-seq-len",
        )
    }

    fn kv<T: Element>(&self, options: &ExecutorOptions) -> Result<Box<dyn KvStore>, ModelError> {
        let (kv_heads, head_dim) = (self.config.kv_heads, self.config.head_dim);
        let layers = self.config.layers.len();
        Ok(match options.kv_cache {
            KvCacheKind::Paged => {
                let layout = PagedLayout { block_size: options.block_size as usize, kv_heads, head_dim };
                Box::new(PagedCache::<T>::new(layout, options.total_blocks as usize, layers)?)
            }
            KvCacheKind::Contiguous => Box::new(ContiguousCache::<T>::new(ContiguousShape {
                slots: options.max_running as usize,
                positions: options.max_seq_len as usize,
                kv_heads,
                head_dim,
                layers,
            })?),
        })
    }
}
