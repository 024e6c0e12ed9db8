//! A loaded checkpoint, and executors made from it. Weights are shared; an executor owns its KV cache,
//! buffers and threads.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use infer_kernels::{Cpu, Element, PagedLayout};

use crate::cache::{ContiguousCache, ContiguousShape, KvStore, PagedCache};
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::executor::ModelExecutor;
use crate::load::{LoadOptions, LoadProgress};
use crate::memory;
use crate::rows::Limits;
use crate::source::Source;
use crate::weights::{Loaded, Weights};
use crate::{DType, KvCacheKind, WeightType};

/// A checkpoint in memory.
#[derive(Clone)]
pub struct Model {
    /// What it is.
    pub config: ModelConfig,
    /// How its KV caches are stored, and its weights unless they are quantized.
    pub dtype: DType,
    /// How its weight matrices are stored.
    pub weight_type: WeightType,
    pub(crate) weights: Arc<Weights>,
}

/// How an executor is set up.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorOptions {
    /// Where keys and values live.
    pub kv_cache: KvCacheKind,
    /// Tokens in a block (paged).
    pub block_size: u32,
    /// Blocks in the pool (paged).
    pub total_blocks: u32,
    /// Sequences that may run at once (contiguous).
    pub max_running: u32,
    /// Prompt plus output tokens of a sequence.
    pub max_seq_len: u32,
    /// Prompts whose last logits can be kept. With the contiguous cache the engine must not answer from
    /// them, nor from cached prefixes: keys and values of a finished sequence are gone there.
    pub prompt_cache_entries: u32,
    /// Threads that compute, the caller's included; 0 is taken as 1.
    pub threads: usize,
}

impl Model {
    /// Loads a checkpoint; `dtype` overrides how it is stored.
    ///
    /// # Errors
    /// Names the file, key or tensor at fault.
    pub fn load(source: &Source<'_>, dtype: Option<DType>) -> Result<Self, ModelError> {
        Self::load_with(source, &LoadOptions { dtype, ..LoadOptions::default() }, &mut |_| {
            ControlFlow::Continue(())
        })
    }

    /// Loads a checkpoint, saying how far it is after each matrix; whoever is told may give up.
    ///
    /// # Errors
    /// As [`Model::load`]; where loading was given up.
    pub fn load_with(
        source: &Source<'_>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, ModelError> {
        let config = ModelConfig::load(source)?;
        let Loaded { weights, dtype, weight_type } = Weights::load(source, &config, options, progress)?;
        Ok(Self { config, dtype, weight_type, weights: Arc::new(weights) })
    }

    /// Copies a checkpoint's matrices to new memory as they are stored, and forgets the copies: how many bytes, and
    /// how long it took, which the time of a load can be held against.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn copy_weights(source: &Source<'_>) -> Result<(u64, Duration), ModelError> {
        crate::weights::copy(source, &ModelConfig::load(source)?)
    }

    /// Bytes that one token's keys and values take, all layers together.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.config.kv_bytes_per_token(self.dtype)
    }

    /// Bytes of all weight matrices.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes() as u64
    }

    /// Bytes of those that every step reads.
    pub fn step_bytes(&self) -> u64 {
        self.weights.step_bytes() as u64
    }

    /// Tokens that end a sequence.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.config.stop_tokens
    }

    /// Positions that the model was made for.
    pub fn context_length(&self) -> u32 {
        self.config.context_length()
    }

    /// Embedding rows: token ids are below it.
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.config.vocab).unwrap_or(u32::MAX)
    }

    /// An executor with its own KV cache.
    ///
    /// # Errors
    /// If an option is impossible or memory for the KV cache can't be had.
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
        let decoder = Decoder::new(self.config.clone(), Arc::clone(&self.weights), cpu, positions);
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
                "a KV cache of {tokens} tokens is more than can be numbered; lower kv-memory, max-batch-size or max-seq-len"
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
