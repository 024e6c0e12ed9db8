//! From a checkpoint (Hugging Face's layout or GGUF) to an executor of batches: configuration, weights, one decoder for all
//! families, adapters beside it, KV storage (paged and contiguous), the sampler and the tokenizer. With the feature `cuda` the
//! same decoder runs on a GPU. Not here: scheduling, memory policy, chat templates and HTTP.
#![deny(unsafe_code)]

mod bytes;
mod cache;
mod checksum;
pub mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
mod decoder;
pub mod detokenizer;
pub mod error;
mod executor;
mod experts;
pub mod gguf;
mod load;
mod lora;
pub mod memory;
mod model;
mod random;
mod rows;
pub mod sampler;
pub mod shapes;
pub mod source;
pub mod stop;
pub mod tokenizer;
pub mod vector;
pub mod walk;
mod weights;

pub use config::{ModelConfig, Pooling, SamplingDefaults};
pub use detokenizer::Detokenizer;
pub use error::{ModelError, ModelErrorKind};
pub use executor::ModelExecutor;
pub use load::{LoadOptions, LoadProgress, Quantize, WeightType};
pub use lora::{AdapterFiles, AdapterLoader, AdapterSize};
pub use model::{ExecutorOptions, Model};
pub use source::Source;
pub use stop::{StopStep, StopStrings};
pub use tokenizer::Tokenizer;

/// Storage type of weights and KV cache. Activations are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// bfloat16: half the memory and bandwidth, widened in registers.
    Bf16,
    /// IEEE 754 half precision: three more bits of precision than bf16, for numbers up to 65,504. GPUs only.
    F16,
}

impl DType {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// Storage of keys and values of running sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCacheKind {
    /// Blocks of a pool, found through block tables.
    Paged,
    /// One slot of the full length per sequence: the reference backend.
    Contiguous,
}
