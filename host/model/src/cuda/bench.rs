//! Whole steps of models with random weights in known shapes, relative to the device's copy and product rates: decodes over
//! batches and contexts, prompts over lengths. Times are measured on the host, from submission to tokens. The difference to a
//! decode in which a step is always submitted before the last one's tokens are collected is the host time of the executor
//! that overlapping hides: all of it, unless submission takes longer than the device's step. The engine's planning isn't part
//! of either.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use infer_core::{Batch, DeviceFault, Executor, StepOutput};
use infer_kernels::cuda::bench::{self, Cell, Line, Table};
use infer_kernels::cuda::{CudaError, Device};

use super::{DeviceExecutor, DeviceModel, DeviceOptions};
use crate::shapes::Shape;
use crate::walk::{Chunk, Draws, Walk};
use crate::{ModelConfig, WeightType};

const BLOCK_SIZE: u32 = 16;
const CHUNK: usize = 2_048;
const COPY_BYTES: usize = 2 << 30;
const WARM_UP: u32 = 4;
/// Blocks of the pool of decodes without graphs.
const EAGER_BLOCKS: u32 = 4_096;

/// The shapes that are measured unless others are named.
pub const MEASURED: [&str; 4] = ["llama-1b", "qwen3-1.7b", "gemma3-1b", "llama-8b"];

/// The device's rates without a model.
struct Limits {
    bytes_per_s: f64,
    operations_per_s: f64,
}

/// What is measured.
struct Sizes {
    batches: &'static [u32],
    /// The shortest first, the longest last; so are prompts.
    contexts: &'static [u32],
    prompts: &'static [u32],
    /// Measured steps of a decode.
    steps: u32,
}

/// Contexts of 300 and 5,000 end within a unit of decode attention. 8 rows are the most of our products beside cuBLASLt.
const ALL: Sizes = Sizes {
    batches: &[1, 8, 16, 32, 128, 256],
    contexts: &[256, 300, 1_024, 4_096, 5_000, 16_384],
    prompts: &[512, 2_048, 8_192, 16_384],
    steps: 24,
};
/// `stamps.cuh` of the kernels counts on these contexts and steps: it names decodes of one sequence by their number.
const FEW: Sizes = Sizes { batches: &[1, 16, 32], contexts: &[256, 4_096], prompts: &[2_048], ..ALL };

impl Sizes {
    /// Those that a model of this many positions can compute.
    fn within(&self, positions: usize) -> Self {
        let most =
            |list: &'static [u32]| &list[..list.partition_point(|tokens| *tokens as usize <= positions)];
        Self { contexts: most(self.contexts), prompts: most(self.prompts), ..*self }
    }
}

/// What to measure.
#[derive(Clone, Copy)]
pub struct Measured<'a> {
    /// Models.
    pub shapes: &'a [Shape],
    /// Types of their weights, see [`DeviceModel::random`].
    pub weights: &'a [WeightType],
    /// Fewer batches and lengths.
    pub quick: bool,
}

/// Measures every shape with every type of weights; each line goes to `say`.
///
/// # Errors
/// If the device fails.
pub fn run(
    device: &Arc<dyn Device>,
    Measured { shapes, weights, quick }: &Measured<'_>,
    say: &mut dyn FnMut(Line),
) -> Result<(), String> {
    let said = |error: CudaError| error.message;
    let bytes_per_s = bench::copy_rate(device, COPY_BYTES).map_err(said)?;
    let products = bench::product_rate(device, 8_192).map_err(said)?;
    say(Line::Note(bench::rates_say(device.as_ref(), bytes_per_s, products)));
    let limits = Limits { bytes_per_s, operations_per_s: products.operations_per_s };
    let sizes = if *quick { &FEW } else { &ALL };
    for shape in *shapes {
        for weights in *weights {
            measure(device, (shape.name, *weights), &shape.config(), (&limits, sizes), say)?;
        }
    }
    say(Line::Note(bench::copies_say(device, COPY_BYTES, bytes_per_s).map_err(said)?));
    Ok(())
}

fn measure(
    device: &Arc<dyn Device>,
    (name, weights): (&str, WeightType),
    config: &ModelConfig,
    (limits, sizes): (&Limits, &Sizes),
    say: &mut dyn FnMut(Line),
) -> Result<(), String> {
    let sizes = &sizes.within(config.max_positions);
    let model = DeviceModel::random(config, weights, device, 1).map_err(|error| error.to_string())?;
    // What is usual needs no name.
    let name = &match weights {
        WeightType::Bf16 => name.to_owned(),
        other => format!("{name} {other}"),
    };
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
    let mib = model.weight_bytes() >> 20;
    say(Line::Note(format!("{name}: {mib} MiB of weights, a pool of {blocks} blocks")));
    say(Line::Head(&DECODE));
    let ends = [sizes.contexts[0], sizes.contexts[sizes.contexts.len() - 1]];
    let eager =
        DeviceOptions { graphs: false, total_blocks: options.total_blocks.min(EAGER_BLOCKS), ..options };
    let eager = column(&model, eager, sizes, &ends[..1])?;
    let deterministic = column(&model, DeviceOptions { deterministic: true, ..options }, sizes, &ends)?;
    let mut executor = walk(&model, options)?;
    for batch in sizes.batches {
        for context in sizes.contexts.iter().filter(|context| fits(*batch, **context, options.total_blocks)) {
            let ms = decode_ms(&mut executor, *batch, *context, sizes.steps)?;
            let overlapped_ms = overlapped_ms(&mut executor, *batch, *context, sizes.steps)?;
            let seen: u64 = config
                .layers
                .iter()
                .map(|layer| u64::from(layer.window.unwrap_or(u32::MAX).min(*context)))
                .sum();
            let kv = u64::from(*batch) * seen * token_bytes / config.layers.len() as u64;
            let least_ms = (model.step_bytes(*batch) + kv) as f64 / limits.bytes_per_s * 1e3;
            let beside = |column: &Column| {
                column.get(&(*batch, *context)).map_or(Cell::Absent, |ms| Cell::Number(*ms, 3))
            };
            say(DECODE.row([
                Cell::Text(name.clone()),
                (*batch).into(),
                (*context).into(),
                Cell::Number(ms, 3),
                Cell::Number(f64::from(*batch) / ms * 1e3, 0),
                Cell::Share(least_ms / ms),
                Cell::Number(ms - overlapped_ms, 3),
                beside(&eager),
                beside(&deterministic),
            ]));
        }
    }
    say(Line::Head(&PREFILL));
    for tokens in sizes.prompts.iter().filter(|tokens| fits(1, **tokens, options.total_blocks)) {
        let ms = prefill_ms(&mut executor, *tokens)?;
        let operations = operations(config, *tokens);
        say(PREFILL.row([
            Cell::Text(name.clone()),
            (*tokens).into(),
            Cell::Number(ms, 2),
            Cell::Number(f64::from(*tokens) / ms * 1e3, 0),
            Cell::Number(operations / ms / 1e9, 0),
            Cell::Share(operations / (ms / 1e3) / limits.operations_per_s),
        ]));
    }
    Ok(())
}

/// What overlapping hides is of one step.
static DECODE: Table = Table {
    title: "decode, the median",
    columns: &[
        ("model", "model"),
        ("batch", "batch"),
        ("context", "context"),
        ("ms", "ms per step"),
        ("tokens_per_s", "tokens/s"),
        ("share_of_copies", "of what copies allow"),
        ("hidden_ms", "ms of the executor that overlapping hides"),
        ("eager_ms", "ms without graphs"),
        ("deterministic_ms", "ms if deterministic"),
    ],
};
static PREFILL: Table = Table {
    title: "prefill, the best of three",
    columns: &[
        ("model", "model"),
        ("tokens", "tokens"),
        ("ms", "ms"),
        ("tokens_per_s", "tokens/s"),
        ("tflop_per_s", "TFLOP/s"),
        ("share_of_products", "of the product rate"),
    ],
};

/// Milliseconds of a decode step by batch and context.
type Column = HashMap<(u32, u32), f64>;

/// Decodes with other options, beside those with the usual ones.
fn column(
    model: &DeviceModel,
    options: DeviceOptions,
    sizes: &Sizes,
    contexts: &[u32],
) -> Result<Column, String> {
    let mut walk = walk(model, options)?;
    let mut column = Column::new();
    for batch in sizes.batches {
        for context in contexts.iter().filter(|context| fits(*batch, **context, options.total_blocks)) {
            column.insert((*batch, *context), decode_ms(&mut walk, *batch, *context, sizes.steps)?);
        }
    }
    Ok(column)
}

/// An executor with a pool of random numbers.
fn walk(model: &DeviceModel, options: DeviceOptions) -> Result<Walk<DeviceExecutor>, String> {
    let mut executor = model.executor(options).map_err(|error| error.to_string())?;
    executor.fill_pool().map_err(|fault| fault.message)?;
    Ok(Walk::new(executor, BLOCK_SIZE, options.total_blocks))
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
    2.0 * config.token_weights() as f64 * t
        + 2.0 * (config.hidden * config.vocab) as f64
        + 4.0 * config.q_width() as f64 * pairs
}

/// Arbitrary tokens for positions.
fn tokens(positions: std::ops::Range<u32>) -> Vec<u32> {
    positions.map(|position| position * 7 % 1_000).collect()
}

/// Median time of a decode step.
fn decode_ms(walk: &mut Walk<DeviceExecutor>, rows: u32, context: u32, steps: u32) -> Result<f64, String> {
    let batch = decode_batch(walk, rows, context);
    let ms = median_ms(steps, || walk.execute(&batch).map(|_| ()));
    (0..rows).for_each(|sequence| walk.release(u64::from(sequence)));
    ms
}

/// The same with the next step submitted before a step's tokens are collected: the longer of the device's time and the host's.
fn overlapped_ms(
    walk: &mut Walk<DeviceExecutor>,
    rows: u32,
    context: u32,
    steps: u32,
) -> Result<f64, String> {
    let batch = decode_batch(walk, rows, context);
    let said = |fault: DeviceFault| fault.message;
    let (executor, mut output) = (&mut walk.executor, StepOutput::default());
    executor.submit(&batch).map_err(said)?;
    let ms = median_ms(steps, || {
        executor.submit(&batch).map_err(said)?;
        executor.collect(&batch, &mut output).map_err(said)
    })?;
    executor.collect(&batch, &mut output).map_err(said)?;
    (0..rows).for_each(|sequence| walk.release(u64::from(sequence)));
    Ok(ms)
}

/// The last token of each of `rows` contexts.
fn decode_batch(walk: &mut Walk<DeviceExecutor>, rows: u32, context: u32) -> Batch {
    let last = tokens(context - 1..context);
    let chunk =
        |sequence: u32| Chunk { sequence: u64::from(sequence), start: context as usize - 1, tokens: &last };
    walk.batch(&(0..rows).map(chunk).collect::<Vec<_>>(), Draws::GREEDY)
}

/// Median time of a step after some that don't count.
fn median_ms(steps: u32, mut step: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut times = Vec::new();
    for index in 0..WARM_UP + steps {
        let begun = Instant::now();
        step()?;
        if index >= WARM_UP {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
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
    use infer_cuda_emulator::Emulator;

    use super::*;

    const TINY: &str = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,
        "num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"vocab_size":256,"rms_norm_eps":1e-5,
        "rope_theta":10000.0,"max_position_embeddings":64,"tie_word_embeddings":true}"#;

    fn tiny() -> ModelConfig {
        ModelConfig::parse(TINY.as_bytes(), None).expect("sound")
    }

    fn emulator() -> Option<Arc<dyn Device>> {
        let Some(emulator) = Emulator::new(5) else {
            eprintln!("skipped: no C++ compiler");
            return None;
        };
        Some(Arc::new(emulator))
    }

    #[test]
    fn decodes_fill_all_columns_of_the_heading() {
        let Some(device) = emulator() else { return };
        let limits = Limits { bytes_per_s: 1e9, operations_per_s: 1e9 };
        let sizes = Sizes { batches: &[2], contexts: &[18, 20, 33, 65], prompts: &[5, 65], steps: 2 };
        let mut lines = Vec::new();
        let named = ("tiny", WeightType::Q4);
        measure(&device, named, &tiny(), (&limits, &sizes), &mut |line| lines.push(line)).expect("it runs");
        let rows: Vec<&Vec<Cell>> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Row(table, cells) if *table == &DECODE => Some(cells),
                _ => None,
            })
            .collect();
        let measured =
            |row: usize| -> Vec<bool> { rows[row].iter().map(|cell| *cell != Cell::Absent).collect() };
        for (row, eager, deterministic) in [(0, true, true), (1, false, false), (2, false, true)] {
            let cells = measured(row);
            assert_eq!(cells.len(), DECODE.columns.len(), "{lines:?}");
            assert_eq!(cells[cells.len() - 2..], [eager, deterministic], "{lines:?}");
        }
        assert_eq!(rows.len(), 3, "a context is longer than the model's: {lines:?}");
    }

    #[test]
    fn overlapped_decodes_are_all_collected() {
        let Some(device) = emulator() else { return };
        let model = DeviceModel::random(&tiny(), WeightType::Bf16, &device, 1).expect("it fits");
        let options = DeviceOptions {
            block_size: BLOCK_SIZE,
            total_blocks: 4,
            max_rows: 2,
            max_tokens: 8,
            max_seq_len: 32,
            prompt_cache_entries: 0,
            deterministic: false,
            graphs: true,
        };
        let mut walk = walk(&model, options).expect("a small executor");
        assert!(overlapped_ms(&mut walk, 2, 20, 3).expect("it runs") > 0.0);
        // One step more than were timed is under way until the end.
        assert_eq!(walk.executor.forward_passes(), u64::from(WARM_UP) + 3 + 1);
        assert!(decode_ms(&mut walk, 2, 32, 1).expect("blocks were released") > 0.0);
    }

    #[test]
    fn operations_of_a_prompt_count_weights_and_attention() {
        let config = Shape::named("llama-8b").expect("a shape").config();
        // 7 billion weights in layers, twice, for each token; a little attention.
        let per_token = operations(&config, 512) / 512.0;
        assert!((13.9e9..14.5e9).contains(&per_token), "{per_token}");
    }
}
