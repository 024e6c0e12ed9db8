//! What follows from the model's shapes and the machine's memory: the pool, a step's prompt tokens,
//! the longest sequence.

use infer_model::{DType, KvCacheKind, ModelConfig, memory};

use crate::config::{Config, ConfigError};

/// Sizes of a model that memory depends on.
#[derive(Clone, Copy, Debug)]
pub struct Shapes {
    /// Longest context it was made for.
    pub context_length: u32,
    /// Bytes of keys and values that one token takes in all layers.
    pub kv_bytes_per_token: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of all query heads together.
    pub query: u64,
    /// Width of all key heads together.
    pub key: u64,
    /// Width of the feed-forward layer.
    pub intermediate: u64,
}

impl Shapes {
    /// Those of a model whose keys and values are stored as `dtype`.
    pub fn of(model: &ModelConfig, dtype: DType) -> Self {
        Self {
            context_length: model.context_length(),
            kv_bytes_per_token: model.kv_bytes_per_token(dtype),
            hidden: model.hidden as u64,
            query: model.q_width() as u64,
            key: model.kv_width() as u64,
            intermediate: model.intermediate as u64,
        }
    }
}

/// What the host works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Longest prompt plus output.
    pub max_seq_len: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Prompt tokens of all sequences in one step.
    pub max_prefill_tokens: u32,
}

/// Longest sequence where nobody asked for a longer one.
const DEFAULT_MAX_SEQ_LEN: u32 = 4_096;

/// Blocks of a pool on a device beyond what the batch can fill: they hold cached prefixes, each takes the host some
/// hundred bytes of its tables, and the SDK's `IdleTree` keeps an order of so many, within a policy's memory.
const MOST_CACHED_BLOCKS: u64 = 1 << 19;

/// Memory for a pool whose size nobody named.
#[derive(Clone, Copy, Debug)]
pub enum Room {
    /// Bytes free on the machine, which others want, too.
    Machine(u64),
    /// Bytes left on a device, which are the pool's alone.
    Device(u64),
}

/// Sizes for `model` where there is so much `room`.
pub fn size(config: &Config, model: &Shapes, room: Room) -> Result<Sizing, ConfigError> {
    let max_seq_len = match config.max_seq_len {
        None => model.context_length.min(DEFAULT_MAX_SEQ_LEN),
        Some(wanted) if wanted <= model.context_length => wanted,
        Some(wanted) => {
            return Err(ConfigError(format!(
                "--max-seq-len: {wanted} is more than the model's context of {}",
                model.context_length
            )));
        }
    };
    let block_bytes = u64::from(config.block_size) * model.kv_bytes_per_token;
    let sequence_blocks = u64::from(max_seq_len.div_ceil(config.block_size));
    let batch_blocks = sequence_blocks * u64::from(config.max_batch_size);
    let blocks = match (config.kv_cache, config.kv_memory_bytes) {
        // One full-length row per sequence: that is what contiguous storage is.
        (KvCacheKind::Contiguous, _) => batch_blocks,
        (KvCacheKind::Paged, Some(bytes)) => bytes / block_bytes,
        (KvCacheKind::Paged, None) => match room {
            // Half of what is free leaves room for activations; more than full-length sequences for the
            // whole batch would only hold cached prefixes.
            Room::Machine(free) => batch_blocks.min(free / 2 / block_bytes).max(sequence_blocks),
            Room::Device(left) => {
                let cached = if config.prefix_caching { MOST_CACHED_BLOCKS } else { 0 };
                (left / block_bytes).min(batch_blocks.max(cached))
            }
        },
    };
    if blocks < sequence_blocks {
        return Err(ConfigError(format!(
            "--kv-memory: {blocks} blocks of {block_bytes} bytes can't hold one sequence of {max_seq_len} tokens; give \
             at least {} bytes, or a smaller --max-seq-len",
            sequence_blocks * block_bytes
        )));
    }
    let total_blocks = u32::try_from(blocks)
        .map_err(|_| ConfigError(format!("--kv-memory: {blocks} blocks are more than can be numbered")))?;
    let prefill = config.max_prefill_memory_bytes / prefill_bytes_per_token(model);
    if prefill == 0 {
        return Err(ConfigError(format!(
            "--max-prefill-memory: one token takes {} bytes; give more",
            prefill_bytes_per_token(model)
        )));
    }
    Ok(Sizing {
        max_seq_len,
        total_blocks,
        block_bytes,
        max_prefill_tokens: u32::try_from(prefill).unwrap_or(u32::MAX),
    })
}

/// Working memory of one prompt token: the layer's activations in f32 at their widest (residual and
/// its norm, queries with attention's output, keys with values, the three feed-forward buffers).
pub fn prefill_bytes_per_token(model: &Shapes) -> u64 {
    4 * (2 * model.hidden + 2 * model.query + 2 * model.key + 3 * model.intermediate)
}

/// Bytes that this process may still take, and a guess where the system doesn't say.
pub fn free_memory() -> u64 {
    const GUESS: u64 = 2 << 30;
    memory::available().unwrap_or(GUESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Shapes = Shapes {
        context_length: 2_048,
        kv_bytes_per_token: 1_024,
        hidden: 64,
        query: 64,
        key: 32,
        intermediate: 128,
    };

    #[test]
    fn auto_takes_full_length_sequences_for_the_batch_within_half_of_memory() {
        let config = Config::default();
        let sizing = size(&config, &MODEL, Room::Machine(64 << 30)).unwrap();
        assert_eq!((sizing.max_seq_len, sizing.total_blocks), (2_048, 32 * 128));
        assert_eq!(size(&config, &MODEL, Room::Machine(16 << 20)).unwrap().total_blocks, 512);
        // Even on a full machine one sequence must fit; the kernel decides the rest.
        assert_eq!(size(&config, &MODEL, Room::Machine(0)).unwrap().total_blocks, 128);
    }

    #[test]
    fn a_device_s_pool_takes_what_is_left_as_far_as_it_can_be_used() {
        let config = Config::default();
        let blocks = |config: &Config, left| size(config, &MODEL, Room::Device(left)).unwrap().total_blocks;
        assert_eq!(blocks(&config, 1 << 30), (1 << 30) / (16 * 1_024));
        assert_eq!(
            blocks(&config, 1 << 40),
            1 << 19,
            "prefixes are worth something, but tables cost the host"
        );
        let alone = Config { max_batch_size: 1, prefix_caching: false, ..Config::default() };
        assert_eq!(
            blocks(&alone, 1 << 40),
            128,
            "a baseline leaves the rest to the server that it is compared with"
        );
        assert!(size(&config, &MODEL, Room::Device(16 * 1_024)).is_err());
    }

    #[test]
    fn impossible_sizes_name_the_flag() {
        let small = Config { kv_memory_bytes: Some(1_024), ..Config::default() };
        assert!(
            size(&small, &MODEL, Room::Machine(0))
                .unwrap_err()
                .to_string()
                .starts_with("--kv-memory: 0 blocks")
        );
        let long = Config { max_seq_len: Some(4_096), ..Config::default() };
        assert!(size(&long, &MODEL, Room::Machine(0)).unwrap_err().to_string().contains("context of 2048"));
        let tight = Config { max_prefill_memory_bytes: 10, ..Config::default() };
        assert!(
            size(&tight, &MODEL, Room::Machine(0))
                .unwrap_err()
                .to_string()
                .starts_with("--max-prefill-memory")
        );
    }

    #[test]
    fn prefill_memory_bounds_a_step_s_prompt_tokens() {
        let config = Config { max_prefill_memory_bytes: 1 << 20, ..Config::default() };
        let per_token = 4 * (128 + 128 + 64 + 384);
        assert_eq!(
            size(&config, &MODEL, Room::Machine(0)).unwrap().max_prefill_tokens,
            (1 << 20) / per_token
        );
    }
}
