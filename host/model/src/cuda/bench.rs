//! Whole steps of models with random weights in known shapes, relative to the device's copy and product rates: decodes over
//! batches and contexts, prompts over lengths. Times are measured on the host, from submission to tokens.

use std::sync::Arc;
use std::time::Instant;

use infer_kernels::cuda::{Device, bench};

use super::{DeviceExecutor, DeviceModel, DeviceOptions};
use crate::shapes::Shape;
use crate::walk::{Chunk, Draws, Walk};
use crate::{DType, ModelConfig};

const BLOCK_SIZE: u32 = 16;
const CHUNK: usize = 2_048;
const WARM_UP: u32 = 4;
const STEPS: u32 = 24;

/// The measured shapes.
const MEASURED: [&str; 4] = ["llama-1b", "qwen3-1.7b", "gemma3-1b", "llama-8b"];

/// The device's rates without a model.
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
/// If the device fails.
pub fn run(device: &Arc<dyn Device>, quick: bool, say: &mut dyn FnMut(String)) -> Result<(), String> {
    let rate = |rate: Result<f64, infer_kernels::cuda::CudaError>| rate.map_err(|error| error.message);
    let limits = Limits {
        bytes_per_s: rate(bench::copy_rate(device, 2 << 30))?,
        operations_per_s: rate(bench::product_rate(device, 8_192))?,
    };
    say(format!(
        "copies {:.0} GB/s (read and written), {}",
        limits.bytes_per_s / 1e9,
        bench::products_say(device.as_ref(), limits.operations_per_s)
    ));
    for shape in MEASURED.into_iter().filter_map(Shape::named) {
        measure(device, shape.name, &shape.config(), &limits, if quick { &FEW } else { &ALL }, say)?;
    }
    Ok(())
}

fn measure(
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
        max_tokens: rows.max(CHUNK as u32),
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
    say("decode, the median: batch, context, ms per step, tokens/s, of what copies allow, ms without graphs"
        .to_owned());
    let mut eager = model
        .executor(DeviceOptions { graphs: false, total_blocks: options.total_blocks.min(4_096), ..options })
        .map_err(|error| error.to_string())?;
    eager.fill_pool().map_err(|fault| fault.message)?;
    let eager_blocks = options.total_blocks.min(4_096);
    let mut eager = Walk::new(eager, BLOCK_SIZE, eager_blocks);
    let mut without = Vec::new();
    for batch in sizes.batches.iter().filter(|batch| fits(**batch, 256, eager_blocks)) {
        without.push((*batch, decode_ms(&mut eager, *batch, 256)?));
    }
    drop(eager);
    let mut executor = model.executor(options).map_err(|error| error.to_string())?;
    executor.fill_pool().map_err(|fault| fault.message)?;
    let mut executor = Walk::new(executor, BLOCK_SIZE, options.total_blocks);
    for batch in sizes.batches {
        for context in sizes.contexts.iter().filter(|context| fits(*batch, **context, options.total_blocks)) {
            let ms = decode_ms(&mut executor, *batch, *context)?;
            let seen: u64 = config
                .layers
                .iter()
                .map(|layer| u64::from(layer.window.unwrap_or(u32::MAX).min(*context)))
                .sum();
            let kv = u64::from(*batch) * seen * token_bytes / config.layers.len() as u64;
            let least_ms = (model.step_bytes() + kv) as f64 / limits.bytes_per_s * 1e3;
            let launched = without.iter().find(|(b, _)| b == batch && *context == 256);
            say(format!(
                "{batch}\t{context}\t{ms:.3}\t{:.0}\t{:.0} %\t{}",
                f64::from(*batch) / ms * 1e3,
                100.0 * least_ms / ms,
                launched.map_or("-".to_owned(), |(_, ms)| format!("{ms:.3}"))
            ));
        }
    }
    say("prefill, the best of three: tokens, ms, tokens/s, TFLOP/s, of the product rate".to_owned());
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
    let t = f64::from(tokens);
    let pairs: f64 = (config.layers.iter())
        .map(|layer| {
            let window = f64::from(layer.window.unwrap_or(tokens).min(tokens));
            window * (window + 1.0) / 2.0 + (t - window) * window
        })
        .sum();
    2.0 * (config.layer_weights() * config.layers.len()) as f64 * t
        + 2.0 * (config.hidden * config.vocab) as f64
        + 4.0 * config.q_width() as f64 * pairs
}

/// Arbitrary tokens for positions.
fn tokens(positions: std::ops::Range<u32>) -> Vec<u32> {
    positions.map(|position| position * 7 % 1_000).collect()
}

/// Median time of a decode step.
fn decode_ms(walk: &mut Walk<DeviceExecutor>, rows: u32, context: u32) -> Result<f64, String> {
    let last = tokens(context - 1..context);
    let chunk =
        |sequence: u32| Chunk { sequence: u64::from(sequence), start: context as usize - 1, tokens: &last };
    let batch = walk.batch(&(0..rows).map(chunk).collect::<Vec<_>>(), Draws::GREEDY);
    let mut times = Vec::new();
    for step in 0..WARM_UP + STEPS {
        let begun = Instant::now();
        walk.execute(&batch)?;
        if step >= WARM_UP {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    (0..rows).for_each(|sequence| walk.release(u64::from(sequence)));
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Best time of a prompt in chunks.
fn prefill_ms(walk: &mut Walk<DeviceExecutor>, count: u32) -> Result<f64, String> {
    let all = tokens(0..count);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        for (i, tokens) in all.chunks(CHUNK).enumerate() {
            let chunk = Chunk { sequence: 0, start: i * CHUNK, tokens };
            let last = chunk.start + tokens.len() == all.len();
            walk.run(&[chunk], if last { Draws::GREEDY } else { Draws::NONE })?;
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e3);
    }
    walk.release(0);
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_prompt_count_weights_and_attention() {
        let config = Shape::named("llama-8b").expect("a shape").config();
        // 7 billion weights in layers, twice, for each token; a little attention.
        let per_token = operations(&config, 512) / 512.0;
        assert!((13.9e9..14.5e9).contains(&per_token), "{per_token}");
    }
}
