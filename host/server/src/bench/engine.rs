//! `infer bench engine`: steps of a model with arbitrary weights in a known shape, beside what the machine can do
//! at most. No server, no tokenizer, no scheduler: one prefill of 512 tokens, decodes at batch 1 and 16.
//!
//! A decode has to read all weights once: its limit is the bandwidth at which memory is read. A prefill has to
//! do two operations per weight and token: its limit is the rate of the instructions. Both are measured in
//! the same run. What keys and values cost comes on top and is not counted.

use std::fmt::Write as _;
use std::time::Instant;

use infer_core::{Batch, BlockId, Executor, Row, SamplingParams, SequenceId, StepOutput};
use infer_kernels::{Cpu, Format, Isa, Pages};
use infer_model::{ExecutorOptions, KvCacheKind, Model, ModelConfig, ModelExecutor, WeightType};
use serde::Serialize;

use super::Machine;
use super::machine::load_average;

/// Tokens of the prefill.
const PREFILL: usize = 512;
/// Sequences of the larger decode.
const BATCH: usize = 16;
/// Tokens in a KV block.
const BLOCK: usize = 16;
/// Memory that is read to measure bandwidth: more than caches hold.
const PROBE_BYTES: usize = 1 << 30;

/// A model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineShape {
    /// As on the command line.
    pub name: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    intermediate: usize,
    vocab: usize,
    rope_theta: u32,
}

/// The shapes that can be measured.
pub const SHAPES: [EngineShape; 2] = [
    EngineShape {
        name: "smollm-135m",
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        intermediate: 1_536,
        vocab: 49_152,
        rope_theta: 10_000,
    },
    EngineShape {
        name: "llama-1b",
        hidden: 2_048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        intermediate: 8_192,
        vocab: 128_256,
        rope_theta: 500_000,
    },
];

impl EngineShape {
    fn config(&self) -> Result<ModelConfig, infer_model::ModelError> {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": self.hidden, "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": 64, "vocab_size": self.vocab,
            "max_position_embeddings": 8_192, "rms_norm_eps": 1e-5, "rope_theta": self.rope_theta,
            "tie_word_embeddings": true, "eos_token_id": 0, "torch_dtype": "bfloat16"
        });
        ModelConfig::parse(config.to_string().as_bytes(), None)
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct EnginePlan {
    /// Which shapes.
    pub shapes: Vec<EngineShape>,
    /// How weights are stored.
    pub weights: Vec<WeightType>,
    /// Threads that compute.
    pub threads: usize,
    /// Tokens that sequences hold when decoding begins.
    pub context: usize,
    /// Decode steps of a pass.
    pub steps: usize,
    /// How often everything is measured.
    pub passes: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// On what.
    pub machine: Machine,
    /// Load average of the last minute when the measurement ended.
    pub load_average_after: Option<f64>,
    /// Threads that computed.
    pub threads: usize,
    /// The widest instruction set found.
    pub instructions: String,
    /// What the machine can do at most.
    pub limits: Limits,
    /// One per shape, format and kind of step.
    pub runs: Vec<EngineRun>,
}

/// What the machine can do at most, all threads together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// 10^9 bytes a second, pages of 4 KiB.
    pub read_small_pages_gb_per_s: f64,
    /// 10^9 bytes a second, huge pages where the system has them.
    pub read_huge_pages_gb_per_s: f64,
    /// 10^9 operations a second on f32.
    pub f32_gflop_per_s: f64,
    /// 10^9 operations a second on bf16 pairs.
    pub bf16_gflop_per_s: f64,
    /// 10^9 operations a second on 8-bit integers.
    pub int8_gop_per_s: f64,
}

/// One kind of step.
#[derive(Clone, Debug, Serialize)]
pub struct EngineRun {
    /// Name of the shape.
    pub shape: &'static str,
    /// `f32`, `bf16`, `q8`.
    pub weights: String,
    /// `prefill_512`, `decode_1`, `decode_16`.
    pub run: String,
    /// Of the quickest step.
    pub best_tokens_per_s: f64,
    /// Of the step in the middle.
    pub median_tokens_per_s: f64,
    /// Of the quickest step.
    pub best_ms: f64,
    /// Weights that a step reads, 10^6 bytes.
    pub weights_mb: f64,
    /// Of the weights alone, at the quickest step.
    pub gb_per_s: f64,
    /// Of the products alone, at the quickest step.
    pub gflop_per_s: f64,
    /// The larger share: of the bandwidth with huge pages, or of the format's rate.
    pub share_of_limit: f64,
    /// `memory` or `arithmetic`: which limit that is.
    pub bound_by: &'static str,
}

/// Measures everything, telling `progress` what comes next.
///
/// # Errors
/// Where memory or threads can't be had.
pub fn run(plan: &EnginePlan, progress: impl Fn(&str)) -> Result<EngineReport, String> {
    let machine = Machine::here();
    progress("the machine's limits");
    let limits = limits(plan)?;
    let mut runs = Vec::new();
    for shape in &plan.shapes {
        for weights in &plan.weights {
            progress(&format!("{}, {weights}", shape.name));
            runs.extend(measure(plan, shape, *weights, &limits)?);
        }
    }
    Ok(EngineReport {
        machine,
        load_average_after: load_average(),
        threads: plan.threads,
        instructions: format!("{:?}", Isa::detect()),
        limits,
        runs,
    })
}

fn limits(plan: &EnginePlan) -> Result<Limits, String> {
    let cpu = Cpu::new(plan.threads).map_err(|error| format!("--threads: {error}"))?;
    let read = |pages| cpu.read_bandwidth(pages, PROBE_BYTES, 5).map_err(|error| error.to_string());
    let rate = |format| cpu.peak_rate(format, 9) / 1e9;
    Ok(Limits {
        read_small_pages_gb_per_s: read(Pages::Small)? / 1e9,
        read_huge_pages_gb_per_s: read(Pages::Huge)? / 1e9,
        f32_gflop_per_s: rate(Format::F32),
        bf16_gflop_per_s: rate(Format::Bf16),
        int8_gop_per_s: rate(Format::Int8),
    })
}

fn measure(
    plan: &EnginePlan,
    shape: &EngineShape,
    weights: WeightType,
    limits: &Limits,
) -> Result<Vec<EngineRun>, String> {
    let failed = |error: infer_model::ModelError| error.to_string();
    let model = Model::random(shape.config().map_err(failed)?, weights, 1).map_err(failed)?;
    let longest = (plan.context + plan.steps).max(PREFILL);
    let blocks = longest.div_ceil(BLOCK);
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: BLOCK as u32,
        total_blocks: (BATCH * blocks) as u32,
        max_running: BATCH as u32,
        max_seq_len: longest as u32,
        prompt_cache_entries: 0,
        threads: plan.threads,
    };
    let mut executor = model.executor(options).map_err(failed)?;
    let mut steps = Steps { vocab: shape.vocab, blocks, output: StepOutput::default() };
    let mut kinds =
        [(PREFILL, "prefill_512", Vec::new()), (1, "decode_1", Vec::new()), (BATCH, "decode_16", Vec::new())];
    for _ in 0..plan.passes {
        for (tokens, _, seconds) in &mut kinds {
            match *tokens {
                PREFILL => seconds.push(steps.run(&mut executor, 1, 0, PREFILL)?),
                rows => {
                    for sequence in 0..rows {
                        steps.fill(&mut executor, sequence, plan.context)?;
                    }
                    for step in 0..plan.steps {
                        seconds.push(steps.run(&mut executor, rows, plan.context + step, 1)?);
                    }
                }
            }
        }
    }
    let embedding = shape.vocab * shape.hidden;
    let products = shape.hidden
        * shape.layers
        * (shape.heads * 64 * 2 + shape.kv_heads * 64 * 2 + 3 * shape.intermediate);
    let bytes = model.weight_bytes() as f64;
    Ok(kinds
        .into_iter()
        .map(|(tokens, run, mut seconds)| {
            seconds.sort_unstable_by(f64::total_cmp);
            let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
            // A prefill computes logits of its last token only.
            let heads = if tokens == PREFILL { 1 } else { tokens };
            let operations = 2.0 * (products * tokens + embedding * heads) as f64;
            let (gb_per_s, gflop_per_s) = (bytes / best / 1e9, operations / best / 1e9);
            let rate = match weights {
                WeightType::F32 => limits.f32_gflop_per_s,
                WeightType::Bf16 => limits.bf16_gflop_per_s,
                WeightType::Q8 => limits.int8_gop_per_s,
            };
            let (memory, arithmetic) = (gb_per_s / limits.read_huge_pages_gb_per_s, gflop_per_s / rate);
            EngineRun {
                shape: shape.name,
                weights: weights.to_string(),
                run: run.to_owned(),
                best_tokens_per_s: tokens as f64 / best,
                median_tokens_per_s: tokens as f64 / median,
                best_ms: best * 1e3,
                weights_mb: bytes / 1e6,
                gb_per_s,
                gflop_per_s,
                share_of_limit: memory.max(arithmetic),
                bound_by: if memory > arithmetic { "memory" } else { "arithmetic" },
            }
        })
        .collect())
}

/// Runs steps of sequences that lie one after another in the pool.
struct Steps {
    vocab: usize,
    /// Of a sequence.
    blocks: usize,
    output: StepOutput,
}

impl Steps {
    /// Computes a sequence's first `context` tokens, a chunk at a time.
    fn fill(&mut self, executor: &mut ModelExecutor, sequence: usize, context: usize) -> Result<(), String> {
        for start in (0..context).step_by(PREFILL) {
            let batch = self.batch(sequence..sequence + 1, start, PREFILL.min(context - start));
            executor.execute(&batch, &mut self.output).map_err(|fault| fault.message)?;
        }
        Ok(())
    }

    /// Seconds that `count` tokens from `start` on of each of `rows` sequences take, drawing included.
    fn run(
        &mut self,
        executor: &mut ModelExecutor,
        rows: usize,
        start: usize,
        count: usize,
    ) -> Result<f64, String> {
        let batch = self.batch(0..rows, start, count);
        let begin = Instant::now();
        executor.execute(&batch, &mut self.output).map_err(|fault| fault.message)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    fn batch(&self, sequences: std::ops::Range<usize>, start: usize, count: usize) -> Batch {
        let mut batch = Batch { step: 1, ..Batch::default() };
        for sequence in sequences {
            batch.rows.push(Row {
                sequence: SequenceId(sequence as u64 + 1),
                token_start: batch.tokens.len() as u32,
                token_len: count as u32,
                context_len: (start + count) as u32,
                table_start: batch.block_tables.len() as u32,
                table_len: self.blocks as u32,
                sample: true,
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
            for position in start..start + count {
                batch.tokens.push(((position * 7_919 + sequence * 31) % self.vocab) as u32);
                batch.positions.push(position as u32);
                batch.slots.push((sequence * self.blocks * BLOCK + position) as u32);
            }
            let first = sequence * self.blocks;
            batch.block_tables.extend((first..first + self.blocks).map(|block| BlockId(block as u32)));
        }
        batch
    }
}

impl EngineReport {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let Limits { read_small_pages_gb_per_s, read_huge_pages_gb_per_s, .. } = self.limits;
        let Limits { f32_gflop_per_s, bf16_gflop_per_s, int8_gop_per_s, .. } = self.limits;
        let load = |load: Option<f64>| load.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"));
        let (before, after) = (load(self.machine.load_average_before), load(self.load_average_after));
        let (cpu, cores, threads) = (&self.machine.cpu, self.machine.cores, self.threads);
        let instructions = &self.instructions;
        _ = writeln!(
            text,
            "{cpu}, {cores} cores, {instructions}; {threads} threads; load {before} before, {after} after"
        );
        _ = writeln!(
            text,
            "limits: read {read_small_pages_gb_per_s:.1} GB/s (4 KiB pages), {read_huge_pages_gb_per_s:.1} GB/s \
             (huge pages); f32 {f32_gflop_per_s:.0}, bf16 {bf16_gflop_per_s:.0}, int8 {int8_gop_per_s:.0} \
             billion operations/s\n"
        );
        _ = writeln!(
            text,
            "{:<12} {:<5} {:<12} {:>9} {:>9} {:>9} {:>7} {:>8}  limit",
            "shape", "", "", "tok/s", "median", "ms", "GB/s", "GFLOP/s"
        );
        for run in &self.runs {
            _ = writeln!(
                text,
                "{:<12} {:<5} {:<12} {:>9.1} {:>9.1} {:>9.2} {:>7.1} {:>8.1}  {:.0} % of {}",
                run.shape,
                run.weights,
                run.run,
                run.best_tokens_per_s,
                run.median_tokens_per_s,
                run.best_ms,
                run.gb_per_s,
                run.gflop_per_s,
                100.0 * run.share_of_limit,
                run.bound_by
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_shape_is_measured_in_every_kind_of_step() {
        let shape = EngineShape {
            name: "small",
            hidden: 64,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            intermediate: 96,
            vocab: 300,
            rope_theta: 10_000,
        };
        let plan = EnginePlan {
            shapes: vec![shape],
            weights: vec![WeightType::Q8],
            threads: 2,
            context: 20,
            steps: 3,
            passes: 1,
        };
        let limits = Limits {
            read_small_pages_gb_per_s: 1.0,
            read_huge_pages_gb_per_s: 1e9,
            f32_gflop_per_s: 1.0,
            bf16_gflop_per_s: 1.0,
            int8_gop_per_s: 2.0,
        };
        let runs = measure(&plan, &shape, WeightType::Q8, &limits).unwrap();
        let names: Vec<_> = runs.iter().map(|run| run.run.as_str()).collect();
        assert_eq!(names, ["prefill_512", "decode_1", "decode_16"]);
        for (run, tokens) in runs.iter().zip([512.0, 1.0, 16.0]) {
            assert!((run.best_tokens_per_s * run.best_ms / 1e3 / tokens - 1.0).abs() < 1e-9);
            assert!(run.median_tokens_per_s <= run.best_tokens_per_s);
            assert!((run.share_of_limit * 2.0 / run.gflop_per_s - 1.0).abs() < 1e-9, "{run:?}");
            assert_eq!(run.bound_by, "arithmetic");
        }
        // What a token multiplies: queries, output, keys, values and the three of the feed-forward layer.
        let products = 2 * 64 * (2 * 64 * 2 + 64 * 2 + 3 * 96);
        let decode = 2.0 * f64::from(products + 300 * 64);
        assert!((runs[1].gflop_per_s * runs[1].best_ms * 1e6 / decode - 1.0).abs() < 1e-9);
    }
}
