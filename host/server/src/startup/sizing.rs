//! Sizes that follow from the model's shapes and the available memory: the KV pool, the prompt tokens of a
//! step, the maximum length of a sequence.

use infer_model::{DType, KvCacheKind, ModelConfig, memory};

use crate::config::{Config, ConfigError, MaxSeqLen};
use crate::serve::StartError;

/// The dimensions of a model that determine its memory use.
#[derive(Clone, Copy, Debug)]
pub struct Shapes {
    /// The model's maximum context.
    pub context_length: u32,
    /// Bytes of keys and values per token, over all layers.
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
    /// The dimensions of a model that stores keys and values as `dtype`.
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

/// The sizes that a host uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Maximum length of a sequence, prompt plus output.
    pub max_seq_len: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Bytes per block.
    pub block_bytes: u64,
    /// Maximum prompt tokens per step, over all sequences.
    pub max_prefill_tokens: u32,
}

/// Maximum length of a sequence without `--max-seq-len`.
const DEFAULT_MAX_SEQ_LEN: u32 = 4_096;

/// Maximum blocks of a device's pool that exist only for cached prefixes. Each costs the host some hundred
/// bytes of tables, and the SDK's `IdleTree` can order this many within a policy's memory.
const MOST_CACHED_BLOCKS: u64 = 1 << 19;

/// Memory available for a pool of size `auto`.
#[derive(Clone, Copy)]
pub enum Room<'a> {
    /// Free bytes of the machine, shared with other processes.
    Machine(u64),
    /// Bytes left on a device, all for the pool, by the maximum length of a sequence: working memory grows with it.
    Device(&'a dyn Fn(u32) -> u64),
}

impl Room<'_> {
    /// Blocks that it may hold beside sequences of this length. Half of a machine's memory is left for activations.
    fn blocks(self, max_seq_len: u32, block_bytes: u64) -> u64 {
        match self {
            Self::Machine(free) => free / 2 / block_bytes,
            Self::Device(left) => left(max_seq_len) / block_bytes,
        }
    }
}

/// Maximum length of a sequence of a model with this context.
fn max_seq_len(config: &Config, context: u32, room: Room<'_>, block_bytes: u64) -> Result<u32, ConfigError> {
    match (config.max_seq_len, config.kv_cache) {
        (MaxSeqLen::Usual, _) => Ok(context.min(DEFAULT_MAX_SEQ_LEN)),
        (MaxSeqLen::Tokens(wanted), _) if wanted <= context => Ok(wanted),
        (MaxSeqLen::Tokens(wanted), _) => {
            Err(ConfigError(format!("--max-seq-len: {wanted} is more than the model's context of {context}")))
        }
        (MaxSeqLen::Auto, KvCacheKind::Paged) => {
            let tokens = |blocks: u64| {
                let tokens = blocks.max(1).saturating_mul(config.block_size.into());
                u32::try_from(tokens).unwrap_or(u32::MAX).min(context)
            };
            let held = |longest| tokens(room.blocks(longest, block_bytes));
            Ok(match (room, config.kv_memory_bytes) {
                (_, Some(bytes)) => tokens(bytes / block_bytes),
                // A pool in the machine's memory holds a usual sequence in any case.
                (Room::Machine(_), None) => held(0).max(context.min(DEFAULT_MAX_SEQ_LEN)),
                (Room::Device(_), None) => longest(tokens(0), context, |tokens| held(tokens) >= tokens),
            })
        }
        (MaxSeqLen::Auto, KvCacheKind::Contiguous) => Err(ConfigError(
            "--max-seq-len: `auto` is what a paged pool holds; with --kv-cache contiguous give a number"
                .to_owned(),
        )),
    }
}

/// The largest number from `least` to `most` that fits, if larger ones don't fit where smaller ones don't; `least` if none
/// does.
fn longest(least: u32, most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut least, mut most) = (least, most);
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        match fits(middle) {
            true => least = middle,
            false => most = middle - 1,
        }
    }
    least
}

/// Computes the sizes for `model` within `room`.
pub fn size(config: &Config, model: &Shapes, room: Room<'_>) -> Result<Sizing, StartError> {
    let block_bytes = u64::from(config.block_size) * model.kv_bytes_per_token;
    let max_seq_len = max_seq_len(config, model.context_length, room, block_bytes)?;
    let sequence_blocks = u64::from(max_seq_len.div_ceil(config.block_size));
    let batch_blocks = sequence_blocks * u64::from(config.max_batch_size);
    let blocks = match (config.kv_cache, config.kv_memory_bytes) {
        // Contiguous storage reserves one full-length row per sequence.
        (KvCacheKind::Contiguous, _) => batch_blocks,
        (KvCacheKind::Paged, Some(bytes)) => bytes / block_bytes,
        (KvCacheKind::Paged, None) => match room {
            // A pool beyond full-length sequences for the whole batch would only hold cached prefixes.
            Room::Machine(_) => batch_blocks.min(room.blocks(max_seq_len, block_bytes)).max(sequence_blocks),
            Room::Device(_) => {
                let cached = if config.prefix_caching { MOST_CACHED_BLOCKS } else { 0 };
                room.blocks(max_seq_len, block_bytes).min(batch_blocks.max(cached))
            }
        },
    };
    if blocks < sequence_blocks {
        let needed = sequence_blocks * block_bytes;
        return Err(match (config.kv_memory_bytes, room) {
            (None, Room::Device(left)) => StartError::Machine(format!(
                "--gpu-memory-utilization {}: it leaves {} bytes for the KV pool, beside the weights, working memory and \
                 what other processes hold, but one sequence of {max_seq_len} tokens needs {needed}; give a larger share, \
                 end other processes on the GPU, or take a smaller model{}",
                config.gpu_memory_utilization,
                left(max_seq_len),
                // The automatic one is the smallest already.
                if config.max_seq_len == MaxSeqLen::Auto { "" } else { " or --max-seq-len" }
            )),
            (_, Room::Machine(_) | Room::Device(_)) => ConfigError(format!(
                "--kv-memory: {blocks} blocks of {block_bytes} bytes can't hold one sequence of {max_seq_len} tokens; \
                 give at least {needed} bytes, or a smaller --max-seq-len"
            ))
            .into(),
        });
    }
    let total_blocks = u32::try_from(blocks).map_err(|_| {
        ConfigError(format!("--kv-memory: {blocks} blocks are more than the engine can number; give less"))
    })?;
    let adapters = if config.most_adapters() == 0 { 0 } else { adapter_bytes_per_token(model) };
    let token_bytes = prefill_bytes_per_token(model) + adapters;
    let prefill = config.max_prefill_memory_bytes / token_bytes;
    if prefill == 0 {
        return Err(ConfigError(format!(
            "--max-prefill-memory: too small for one token, which needs {token_bytes} bytes"
        ))
        .into());
    }
    Ok(Sizing {
        max_seq_len,
        total_blocks,
        block_bytes,
        max_prefill_tokens: u32::try_from(prefill).unwrap_or(u32::MAX),
    })
}

/// Working memory per prompt token: one layer's activations in f32 (residual and its norm, queries with
/// attention's output, keys with values, the three feed-forward buffers).
pub fn prefill_bytes_per_token(model: &Shapes) -> u64 {
    4 * (2 * model.hidden + 2 * model.query + 2 * model.key + 3 * model.intermediate)
}

/// What adapters need beside that, in f32: what they add to both projections of a gated layer, and its outputs as they
/// were. All else is of a few rows at a time.
fn adapter_bytes_per_token(model: &Shapes) -> u64 {
    4 * 3 * model.intermediate
}

/// Bytes of memory available to this process, or an assumed number if the system doesn't report it.
pub fn free_memory() -> u64 {
    const ASSUMED: u64 = 2 << 30;
    memory::available().unwrap_or(ASSUMED)
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
    fn auto_pool_holds_the_full_batch_within_half_of_free_memory() {
        let config = Config::default();
        let sizing = size(&config, &MODEL, Room::Machine(64 << 30)).unwrap();
        assert_eq!((sizing.max_seq_len, sizing.total_blocks), (2_048, 32 * 128));
        assert_eq!(size(&config, &MODEL, Room::Machine(16 << 20)).unwrap().total_blocks, 512);
        // One sequence must fit even if no memory is free; the kernel decides the rest.
        assert_eq!(size(&config, &MODEL, Room::Machine(0)).unwrap().total_blocks, 128);
    }

    #[test]
    fn automatic_length_is_the_models_or_what_the_pool_holds() {
        let auto = Config { max_seq_len: MaxSeqLen::Auto, ..Config::default() };
        let long = Shapes { context_length: 131_072, ..MODEL };
        let sizes = |config: &Config, model, room| {
            let Sizing { max_seq_len, total_blocks, .. } = size(config, model, room).unwrap();
            (max_seq_len, total_blocks)
        };
        assert_eq!(sizes(&Config::default(), &long, Room::Device(&|_| 1 << 30)).0, 4_096);
        for (room, expected) in [
            (Room::Device(&|_| 1 << 30), (131_072, 65_536)),
            (Room::Device(&|_| 100 << 20), (102_400, 6_400)),
            (Room::Machine(100 << 20), (51_200, 3_200)),
            // As without the flag.
            (Room::Machine(0), (4_096, 256)),
        ] {
            assert_eq!(sizes(&auto, &long, room), expected);
        }
        assert_eq!(sizes(&auto, &MODEL, Room::Device(&|_| 1 << 30)).0, 2_048, "the model's context");
        let given = Config { kv_memory_bytes: Some(20 << 20), ..auto.clone() };
        assert_eq!(sizes(&given, &long, Room::Device(&|_| 1 << 30)), (20_480, 1_280));
        let none = size(&auto, &long, Room::Device(&|_| 0)).unwrap_err().to_string();
        assert!(none.contains("one sequence of 16 tokens") && !none.contains("--max-seq-len"), "{none}");
        let rows = Config { kv_cache: KvCacheKind::Contiguous, ..auto };
        assert!(
            size(&rows, &long, Room::Machine(1 << 30)).unwrap_err().to_string().contains("give a number")
        );
    }

    #[test]
    fn automatic_length_reserves_the_working_memory_of_that_length_alone() {
        let auto = Config { max_seq_len: MaxSeqLen::Auto, ..Config::default() };
        let long = Shapes { context_length: 131_072, ..MODEL };
        // A token of a sequence's length takes 1 KiB of the pool, and as much working memory beside what any takes.
        let memory =
            |bytes: u64| move |longest: u32| bytes.saturating_sub((u64::from(longest) + 1_024) << 10);
        for (bytes, expected) in [
            // With the whole context's working memory nothing would be left.
            (101 << 20, (51_200, 3_200)),
            (3 << 20, (1_024, 64)),
            // The pool that the whole context leaves holds less than this.
            (201 << 20, (102_400, 6_400)),
            (257 << 20, (131_072, 8_192)),
            (300 << 20, (131_072, 10_944)),
        ] {
            let left = memory(bytes);
            let sizing = size(&auto, &long, Room::Device(&left)).unwrap();
            assert_eq!((sizing.max_seq_len, sizing.total_blocks), expected, "{bytes} bytes");
            let pool_bytes = u64::from(sizing.total_blocks) * sizing.block_bytes;
            assert!(pool_bytes <= left(sizing.max_seq_len), "{bytes} bytes hold the working memory, too");
        }
        let none = size(&auto, &long, Room::Device(&memory((1 << 20) + 20_000))).unwrap_err().to_string();
        assert!(
            none.contains("it leaves 3616 bytes") && none.contains("one sequence of 16 tokens"),
            "{none}"
        );
        // A number is kept, with its own working memory.
        let given = Config { max_seq_len: MaxSeqLen::Tokens(60_000), ..Config::default() };
        let said = size(&given, &long, Room::Device(&memory(101 << 20))).unwrap_err().to_string();
        assert!(said.contains("of 60000 tokens") && said.ends_with(" or --max-seq-len"), "{said}");
    }

    #[test]
    fn pool_of_a_device_takes_the_rest_of_its_memory_up_to_a_bound() {
        let config = Config::default();
        let blocks =
            |config: &Config, left| size(config, &MODEL, Room::Device(&|_| left)).unwrap().total_blocks;
        assert_eq!(blocks(&config, 1 << 30), (1 << 30) / (16 * 1_024));
        assert_eq!(blocks(&config, 1 << 40), 1 << 19, "tables for cached prefixes cost host memory");
        let alone = Config { max_batch_size: 1, prefix_caching: false, ..Config::default() };
        assert_eq!(
            blocks(&alone, 1 << 40),
            128,
            "a baseline leaves the rest to the server it is compared with"
        );
        assert!(size(&config, &MODEL, Room::Device(&|_| 16 * 1_024)).is_err());
    }

    /// Of a pool that is what the weights and others left, the flag of its size is no remedy.
    #[test]
    fn pool_that_is_too_small_names_the_flag_that_decides_its_size() {
        let refused = |config: &Config| size(config, &MODEL, Room::Device(&|_| 4_096)).unwrap_err();
        let error = refused(&Config { gpu_memory_utilization: 0.5, ..Config::default() });
        assert!(!error.is_usage(), "others may leave more later");
        let automatic = error.to_string();
        for part in ["--gpu-memory-utilization 0.5: ", "leaves 4096 bytes", "weights", "other processes"] {
            assert!(automatic.contains(part), "`{part}` isn't in: {automatic}");
        }
        assert!(!automatic.contains("--kv-memory"), "{automatic}");
        let error = refused(&Config { kv_memory_bytes: Some(1_024), ..Config::default() });
        assert!(error.is_usage());
        let given = error.to_string();
        assert!(given.starts_with("--kv-memory: 0 blocks") && given.contains("2097152 bytes"), "{given}");
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
        let long = Config { max_seq_len: MaxSeqLen::Tokens(4_096), ..Config::default() };
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
    fn prefill_memory_bounds_prompt_tokens_per_step() {
        let config = Config { max_prefill_memory_bytes: 1 << 20, ..Config::default() };
        let per_token = 4 * (128 + 128 + 64 + 384);
        assert_eq!(
            size(&config, &MODEL, Room::Machine(0)).unwrap().max_prefill_tokens,
            (1 << 20) / per_token
        );
    }
}
