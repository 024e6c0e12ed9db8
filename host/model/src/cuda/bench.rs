//! Whole steps of models with random weights in known shapes, beside what the device's memory and its products allow:
//! decodes over batches and contexts, prompts over lengths. Times are the host's, from submission to the tokens.

use std::sync::Arc;
use std::time::Instant;

use infer_core::{Batch, BlockId, Executor, Row, SamplingParams, SequenceId, StepOutput};
use infer_kernels::cuda::{Device, bench};

use super::{DeviceExecutor, DeviceModel, DeviceOptions};
use crate::{DType, ModelConfig};

const BLOCK_SIZE: u32 = 16;
const CHUNK: u32 = 2_048;
const WARM_UP: u32 = 4;
const STEPS: u32 = 24;

/// Names and configurations of the shapes.
const SHAPES: [(&str, &str); 4] = [
    (
        "Llama 3.2 1B",
        r#"{"model_type":"llama","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,
        "num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"vocab_size":128256,"rms_norm_eps":1e-5,
        "rope_theta":500000.0,"max_position_embeddings":131072,"tie_word_embeddings":true,"hidden_act":"silu",
        "eos_token_id":128001}"#,
    ),
    (
        "Qwen3 1.7B",
        r#"{"model_type":"qwen3","hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":28,
        "num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"vocab_size":151936,"rms_norm_eps":1e-6,
        "rope_theta":1000000.0,"max_position_embeddings":40960,"tie_word_embeddings":true,"hidden_act":"silu",
        "eos_token_id":151645}"#,
    ),
    (
        "Gemma 3 1B",
        r#"{"model_type":"gemma3_text","hidden_size":1152,"intermediate_size":6912,"num_hidden_layers":26,
        "num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"vocab_size":262144,"rms_norm_eps":1e-6,
        "rope_theta":1000000.0,"rope_local_base_freq":10000.0,"sliding_window":512,"sliding_window_pattern":6,
        "query_pre_attn_scalar":256,"max_position_embeddings":32768,"tie_word_embeddings":true,
        "hidden_activation":"gelu_pytorch_tanh","eos_token_id":1}"#,
    ),
    (
        "Llama 3.1 8B",
        r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":128256,"rms_norm_eps":1e-5,
        "rope_theta":500000.0,"max_position_embeddings":131072,"tie_word_embeddings":false,"hidden_act":"silu",
        "eos_token_id":128001}"#,
    ),
];

/// What the device reaches without a model.
struct Limits {
    bytes_per_s: f64,
    operations_per_s: f64,
}

/// What is measured.
struct Sizes {
    batches: &'static [u32],
    contexts: &'static [u32],
    prompts: &'static [u32],
}

const ALL: Sizes = Sizes {
    batches: &[1, 8, 32, 128, 256],
    contexts: &[256, 1_024, 4_096, 16_384],
    prompts: &[512, 2_048, 8_192, 16_384],
};
const FEW: Sizes = Sizes { batches: &[1, 32], contexts: &[256, 4_096], prompts: &[2_048] };

/// Measures every shape; each line goes to `say`.
///
/// # Errors
/// Where the device fails.
pub fn run(device: &Arc<dyn Device>, quick: bool, say: &mut dyn FnMut(String)) -> Result<(), String> {
    let rate = |rate: Result<f64, infer_kernels::cuda::CudaError>| rate.map_err(|error| error.message);
    let limits = Limits {
        bytes_per_s: rate(bench::copy_rate(device, 2 << 30))?,
        operations_per_s: rate(bench::product_rate(device, 8_192))?,
    };
    say(format!(
        "copies {:.0} GB/s (read and written), bf16 products {:.0} TFLOP/s",
        limits.bytes_per_s / 1e9,
        limits.operations_per_s / 1e12
    ));
    for (name, config) in SHAPES {
        let config = ModelConfig::parse(config.as_bytes(), None).map_err(|error| error.to_string())?;
        shape(device, name, &config, &limits, if quick { &FEW } else { &ALL }, say)?;
    }
    Ok(())
}

fn shape(
    device: &Arc<dyn Device>,
    name: &str,
    config: &ModelConfig,
    limits: &Limits,
    sizes: &Sizes,
    say: &mut dyn FnMut(String),
) -> Result<(), String> {
    let model = DeviceModel::random(config, DType::Bf16, device, 1).map_err(|error| error.to_string())?;
    let most = |list: &[u32]| list.iter().copied().max().unwrap_or(1);
    let (rows, longest) = (most(sizes.batches), most(sizes.contexts).max(most(sizes.prompts)));
    let mut options = DeviceOptions {
        block_size: BLOCK_SIZE,
        total_blocks: 0,
        max_rows: rows,
        max_tokens: CHUNK.max(rows),
        max_seq_len: longest,
        prompt_cache_entries: 0,
        deterministic: false,
        graphs: true,
    };
    let token_bytes = (2 * config.layers.len() * config.kv_width() * 2) as u64;
    let free = device.memory().map_err(|error| error.message)?.free;
    let pool_bytes = (free as f64 * 0.9) as u64 - model.working_bytes(&options).min(free / 2);
    let wanted = u64::from(rows) * u64::from(longest).div_ceil(u64::from(BLOCK_SIZE));
    let blocks = wanted.min(pool_bytes / (token_bytes * u64::from(BLOCK_SIZE)));
    options.total_blocks = u32::try_from(blocks).map_err(|_| "too many blocks".to_owned())?;
    say(format!("{name}: {} MiB of weights, a pool of {blocks} blocks", model.weight_bytes() >> 20));
    say("decode: batch, context, ms a step, tokens/s, of what memory allows, ms without graphs".to_owned());
    let mut eager = model
        .executor(DeviceOptions { graphs: false, total_blocks: options.total_blocks.min(4_096), ..options })
        .map_err(|error| error.to_string())?;
    eager.clear_pool().map_err(|fault| fault.message)?;
    let mut without = Vec::new();
    for batch in sizes.batches.iter().filter(|batch| fits(**batch, 256, options.total_blocks.min(4_096))) {
        without.push((*batch, decode_ms(&mut eager, *batch, 256)?));
    }
    drop(eager);
    let mut executor = model.executor(options).map_err(|error| error.to_string())?;
    executor.clear_pool().map_err(|fault| fault.message)?;
    for batch in sizes.batches {
        for context in sizes.contexts.iter().filter(|context| fits(*batch, **context, options.total_blocks)) {
            let ms = decode_ms(&mut executor, *batch, *context)?;
            let seen: u64 = config
                .layers
                .iter()
                .map(|layer| u64::from(layer.window.unwrap_or(u32::MAX).min(*context)))
                .sum();
            let kv = u64::from(*batch) * seen * token_bytes / config.layers.len() as u64;
            let least_ms = (model.weight_bytes() + kv) as f64 / limits.bytes_per_s * 1e3;
            let launched = without.iter().find(|(b, _)| b == batch && *context == 256);
            say(format!(
                "{batch}\t{context}\t{ms:.3}\t{:.0}\t{:.0} %\t{}",
                f64::from(*batch) / ms * 1e3,
                100.0 * least_ms / ms,
                launched.map_or("-".to_owned(), |(_, ms)| format!("{ms:.3}"))
            ));
        }
    }
    say("prefill: tokens, ms, tokens/s, TFLOP/s, of the product rate".to_owned());
    for tokens in sizes.prompts.iter().filter(|tokens| fits(1, **tokens, options.total_blocks)) {
        let ms = prefill_ms(&mut executor, *tokens)?;
        let operations = operations(config, *tokens);
        say(format!(
            "{tokens}\t{ms:.2}\t{:.0}\t{:.0}\t{:.0} %",
            f64::from(*tokens) / ms * 1e3,
            operations / ms / 1e9,
            100.0 * operations / (ms / 1e3) / limits.operations_per_s
        ));
    }
    Ok(())
}

fn fits(batch: u32, context: u32, blocks: u32) -> bool {
    u64::from(batch) * u64::from(context.div_ceil(BLOCK_SIZE)) <= u64::from(blocks)
}

/// Operations of a prompt: every layer's products, the last token's logits, attention.
fn operations(config: &ModelConfig, tokens: u32) -> f64 {
    let (q, kv, hidden) = (config.q_width(), config.kv_width(), config.hidden);
    let layer = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * config.intermediate;
    let t = f64::from(tokens);
    let pairs: f64 = (config.layers.iter())
        .map(|layer| {
            let window = f64::from(layer.window.unwrap_or(tokens).min(tokens));
            window * (window + 1.0) / 2.0 + (t - window) * window
        })
        .sum();
    2.0 * (layer * config.layers.len()) as f64 * t
        + 2.0 * (hidden * config.vocab) as f64
        + 4.0 * q as f64 * pairs
}

fn row(
    batch: &mut Batch,
    sequence: u64,
    first: u32,
    context: u32,
    tokens: std::ops::Range<u32>,
    sample: bool,
) {
    let table = context.div_ceil(BLOCK_SIZE);
    batch.rows.push(Row {
        sequence: SequenceId(sequence),
        token_start: batch.tokens.len() as u32,
        token_len: tokens.len() as u32,
        context_len: tokens.end,
        table_start: batch.block_tables.len() as u32,
        table_len: table,
        sample,
        guesses: 0,
        generated: 0,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        history_start: 0,
        history_len: 0,
        forbidden_start: 0,
        forbidden_len: 0,
        logits_to: None,
        logits_from: None,
    });
    for position in tokens {
        batch.tokens.push(position * 7 % 1_000);
        batch.positions.push(position);
        batch.slots.push((first + position / BLOCK_SIZE) * BLOCK_SIZE + position % BLOCK_SIZE);
    }
    batch.block_tables.extend((first..first + table).map(BlockId));
}

/// Median time of a decode step.
fn decode_ms(executor: &mut DeviceExecutor, rows: u32, context: u32) -> Result<f64, String> {
    let mut batch = Batch::default();
    let table = context.div_ceil(BLOCK_SIZE);
    for i in 0..rows {
        row(&mut batch, u64::from(i), i * table, context, context - 1..context, true);
    }
    let mut output = StepOutput::default();
    let mut times = Vec::new();
    for step in 0..WARM_UP + STEPS {
        let begun = Instant::now();
        executor.execute(&batch, &mut output).map_err(|fault| fault.message)?;
        if step >= WARM_UP {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Best time of a prompt in chunks.
fn prefill_ms(executor: &mut DeviceExecutor, tokens: u32) -> Result<f64, String> {
    let mut output = StepOutput::default();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        for start in (0..tokens).step_by(CHUNK as usize) {
            let end = (start + CHUNK).min(tokens);
            let mut batch = Batch::default();
            row(&mut batch, 1, 0, tokens, start..end, end == tokens);
            executor.execute(&batch, &mut output).map_err(|fault| fault.message)?;
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_sound_and_count_their_operations() {
        for (name, text) in SHAPES {
            let config = ModelConfig::parse(text.as_bytes(), None).expect(name);
            assert!(operations(&config, 512) > 2.0 * 512.0 * 0.5e9, "{name}");
        }
        let (_, llama) = SHAPES[3];
        let config = ModelConfig::parse(llama.as_bytes(), None).expect("sound");
        // 7 billion weights in layers, twice, for each token; a little attention.
        let per_token = operations(&config, 512) / 512.0;
        assert!((13.9e9..14.5e9).contains(&per_token), "{per_token}");
    }
}
