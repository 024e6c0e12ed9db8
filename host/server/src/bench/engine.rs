//! `infer bench engine`: steps of a model with random weights in a known shape, next to the machine's limits. No
//! server, no tokenizer, no scheduler: one prefill of 512 tokens, decodes at batch 1 and 16.
//!
//! A decode reads all weights once (of experts those that its tokens choose), so memory bandwidth limits it. A prefill
//! does two operations per weight and token, so the instruction rate limits it. Both limits are measured in the same
//! run. The cost of keys and values comes on top and is not counted. With neighbours, passes alternate between an otherwise
//! idle machine and one whose cores are shared with spinning threads; with an adapter, between rows without and with it.

use std::time::Instant;

use infer_core::AdapterId;
use infer_model::shapes::Shape;
use infer_model::walk::{Chunk, Draws, Walk};
use infer_model::{ExecutorOptions, KvCacheKind, Model, ModelConfig, ModelExecutor, WeightType};
use serde::Serialize;

use super::Machine;
use super::limits::{Conditions, Limits};
use super::neighbours::{Neighbours, fair_share};

/// Tokens of the prefill.
const PREFILL: usize = 512;
/// Sequences of the larger decode.
const BATCH: usize = 16;
/// Tokens per KV block.
const BLOCK: usize = 16;

/// A measurement to run.
#[derive(Clone, Debug)]
pub struct EnginePlan {
    /// Model shapes.
    pub shapes: Vec<Shape>,
    /// Storage types of the weights.
    pub weights: Vec<WeightType>,
    /// Compute threads.
    pub threads: usize,
    /// Tokens already in each sequence when decoding starts.
    pub context: usize,
    /// Decode steps per pass.
    pub steps: usize,
    /// Passes over all measurements.
    pub passes: usize,
    /// Spinning threads next to which everything is measured once more; 0 for none.
    pub neighbours: usize,
    /// Rank of an adapter with which everything is measured once more.
    pub lora_rank: Option<usize>,
}

/// Result of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Machine, threads and limits.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// One per shape, storage type and kind of step.
    pub runs: Vec<EngineRun>,
}

/// One kind of step.
#[derive(Clone, Debug, Serialize)]
pub struct EngineRun {
    /// Name of the shape.
    pub shape: &'static str,
    /// `f32`, `bf16`, `q8`, `q4`, `mxfp4`.
    pub weights: String,
    /// `prefill_512`, `decode_1`, `decode_16`.
    pub run: String,
    /// Throughput of the fastest step.
    pub best_tokens_per_s: f64,
    /// Throughput of the median step.
    pub median_tokens_per_s: f64,
    /// Duration of the fastest step.
    pub best_ms: f64,
    /// Weights that the fastest step read, 10^6 bytes.
    pub weights_mb: f64,
    /// Read rate of the weights alone in the fastest step.
    pub gb_per_s: f64,
    /// Rate of the matrix products alone in the fastest step.
    pub gflop_per_s: f64,
    /// The larger of two shares: of the read bandwidth with huge pages, and of the type's instruction rate.
    pub share_of_limit: f64,
    /// Which limit that is: `memory` or `arithmetic`.
    pub bound_by: &'static str,
    /// The same steps next to spinning threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crowded: Option<Crowded>,
    /// The same steps with an adapter of all projections but experts in every row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapted: Option<Adapted>,
}

/// Steps whose rows have an adapter.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Adapted {
    /// Its rank.
    pub rank: usize,
    /// Throughput of the fastest step.
    pub best_tokens_per_s: f64,
    /// Duration of the fastest step.
    pub best_ms: f64,
    /// Weights that it read, 10^6 bytes, those of the adapter included.
    pub weights_mb: f64,
    /// Share of the throughput of the fastest step without it, in the same run.
    pub share: f64,
}

/// Steps on a machine whose cores are shared with spinning threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Crowded {
    /// Number of spinning threads.
    pub neighbours: usize,
    /// Mean throughput over all steps.
    pub mean_tokens_per_s: f64,
    /// Share of the mean throughput without them, in the same run.
    pub share: f64,
    /// Share that would remain if all threads got equal time.
    pub fair_share: f64,
}

/// Measures everything; calls `progress` with what comes next.
///
/// # Errors
/// If the system has not enough memory or threads.
pub fn run(plan: &EnginePlan, progress: impl Fn(&str)) -> Result<EngineReport, String> {
    progress("the machine's limits");
    let mut conditions = Conditions::measure(plan.threads)?;
    let mut runs = Vec::new();
    for shape in &plan.shapes {
        for weights in &plan.weights {
            progress(&format!("{}, {weights}", shape.name));
            runs.extend(measure(plan, shape.name, &shape.config(), *weights, &conditions.limits)?);
        }
    }
    conditions.end();
    Ok(EngineReport { conditions, runs })
}

fn measure(
    plan: &EnginePlan,
    shape: &'static str,
    config: &ModelConfig,
    weights: WeightType,
    limits: &Limits,
) -> Result<Vec<EngineRun>, String> {
    let failed = |error: infer_model::ModelError| error.to_string();
    let mut model = Model::random(config.clone(), weights, 1).map_err(failed)?;
    let adapter = plan.lora_rank.map(|rank| model.add_random_adapter(rank, 2)).transpose().map_err(failed)?;
    let longest = (plan.context + plan.steps).max(PREFILL);
    let total_blocks = (BATCH * longest.div_ceil(BLOCK)) as u32;
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: BLOCK as u32,
        total_blocks,
        max_running: BATCH as u32,
        max_seq_len: longest as u32,
        prompt_cache_entries: 0,
        threads: plan.threads,
    };
    let walk = Walk::new(model.executor(options).map_err(failed)?, BLOCK as u32, total_blocks);
    let mut steps = Steps { vocab: config.vocab, adapter: AdapterId::NONE, walk };
    let mut kinds =
        [Kind::new("prefill_512", PREFILL), Kind::new("decode_1", 1), Kind::new("decode_16", BATCH)];
    for _ in 0..plan.passes {
        steps.adapter = AdapterId::NONE;
        kinds.iter_mut().try_for_each(|kind| steps.pass(plan, kind.tokens, &mut kind.alone))?;
        if let Some(adapter) = adapter {
            steps.adapter = adapter;
            kinds.iter_mut().try_for_each(|kind| steps.pass(plan, kind.tokens, &mut kind.adapted))?;
            steps.adapter = AdapterId::NONE;
        }
        if plan.neighbours > 0 {
            let _neighbours = Neighbours::start(plan.neighbours)?;
            kinds.iter_mut().try_for_each(|kind| steps.pass(plan, kind.tokens, &mut kind.crowded))?;
        }
    }
    let measured = Measured { plan, shape, config, weights, limits };
    Ok(kinds.into_iter().map(|kind| measured.run(kind)).collect())
}

/// What the steps of a model have in common.
struct Measured<'a> {
    plan: &'a EnginePlan,
    shape: &'static str,
    config: &'a ModelConfig,
    weights: WeightType,
    limits: &'a Limits,
}

/// A measured step.
#[derive(Clone, Copy)]
struct Step {
    seconds: f64,
    /// Bytes of weights that it read.
    bytes: u64,
}

/// One kind of step, and its steps.
struct Kind {
    name: &'static str,
    tokens: usize,
    alone: Vec<Step>,
    /// Those next to spinning threads.
    crowded: Vec<Step>,
    /// Those with an adapter.
    adapted: Vec<Step>,
}

impl Kind {
    fn new(name: &'static str, tokens: usize) -> Self {
        Self { name, tokens, alone: Vec::new(), crowded: Vec::new(), adapted: Vec::new() }
    }
}

impl Measured<'_> {
    fn run(&self, mut kind: Kind) -> EngineRun {
        let Self { plan, config, limits, .. } = *self;
        let tokens = kind.tokens as f64;
        let mean =
            |steps: &[Step]| tokens * steps.len() as f64 / steps.iter().map(|step| step.seconds).sum::<f64>();
        let crowded = (plan.neighbours > 0).then(|| Crowded {
            neighbours: plan.neighbours,
            mean_tokens_per_s: mean(&kind.crowded),
            share: mean(&kind.crowded) / mean(&kind.alone),
            fair_share: fair_share(Machine::here().cores, plan.threads, plan.neighbours),
        });
        kind.alone.sort_unstable_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let Step { seconds: best, bytes } = kind.alone[0];
        let adapted = kind.adapted.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let adapted = plan.lora_rank.zip(adapted).map(|(rank, step)| Adapted {
            rank,
            best_tokens_per_s: tokens / step.seconds,
            best_ms: step.seconds * 1e3,
            weights_mb: step.bytes as f64 / 1e6,
            share: best / step.seconds,
        });
        let (median, bytes) = (kind.alone[kind.alone.len() / 2].seconds, bytes as f64);
        // A prefill computes logits of its last token only.
        let heads = if kind.tokens == PREFILL { 1 } else { kind.tokens };
        let operations =
            2.0 * (config.token_weights() * kind.tokens + config.vocab * config.hidden * heads) as f64;
        let (gb_per_s, gflop_per_s) = (bytes / best / 1e9, operations / best / 1e9);
        let (share_of_limit, bound_by) = limits.judge(self.weights, gb_per_s, gflop_per_s);
        EngineRun {
            shape: self.shape,
            weights: self.weights.to_string(),
            run: kind.name.to_owned(),
            best_tokens_per_s: tokens / best,
            median_tokens_per_s: tokens / median,
            best_ms: best * 1e3,
            weights_mb: bytes / 1e6,
            gb_per_s,
            gflop_per_s,
            share_of_limit,
            bound_by,
            crowded,
            adapted,
        }
    }
}

/// Runs steps.
struct Steps {
    vocab: usize,
    /// That of all rows.
    adapter: AdapterId,
    walk: Walk<ModelExecutor>,
}

impl Steps {
    /// Measures a prefill, or decodes of `tokens` sequences.
    fn pass(&mut self, plan: &EnginePlan, tokens: usize, steps: &mut Vec<Step>) -> Result<(), String> {
        (0..BATCH).for_each(|sequence| self.walk.adapt(sequence as u64, self.adapter));
        if tokens == PREFILL {
            steps.push(self.run(1, 0, PREFILL)?);
            return Ok(());
        }
        for sequence in 0..tokens {
            for start in (0..plan.context).step_by(PREFILL) {
                let some = self.tokens(sequence, start, PREFILL.min(plan.context - start));
                self.walk.run(&[Chunk { sequence: sequence as u64, start, tokens: &some }], Draws::NONE)?;
            }
        }
        for step in 0..plan.steps {
            steps.push(self.run(tokens, plan.context + step, 1)?);
        }
        Ok(())
    }

    /// Runs one step of `count` tokens from `start` on for each of `rows` sequences, sampling included.
    fn run(&mut self, rows: usize, start: usize, count: usize) -> Result<Step, String> {
        let tokens: Vec<Vec<u32>> = (0..rows).map(|row| self.tokens(row, start, count)).collect();
        let chunks: Vec<Chunk<'_>> = tokens
            .iter()
            .enumerate()
            .map(|(row, tokens)| Chunk { sequence: row as u64, start, tokens })
            .collect();
        let batch = self.walk.batch(&chunks, Draws::GREEDY);
        let begin = Instant::now();
        self.walk.execute(&batch)?;
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Step { seconds, bytes: self.walk.executor.read_bytes() })
    }

    /// Arbitrary token ids.
    fn tokens(&self, sequence: usize, start: usize, count: usize) -> Vec<u32> {
        let token = |position: usize| ((position * 7_919 + sequence * 31) % self.vocab) as u32;
        (start..start + count).map(token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: EnginePlan = EnginePlan {
        shapes: Vec::new(),
        weights: Vec::new(),
        threads: 2,
        context: 20,
        steps: 3,
        passes: 1,
        neighbours: 1,
        lora_rank: None,
    };

    const LIMITS: Limits = Limits {
        read_small_pages_gb_per_s: 1.0,
        read_huge_pages_gb_per_s: 1e9,
        f32_gflop_per_s: 1.0,
        bf16_gflop_per_s: 1.0,
        int8_gop_per_s: 2.0,
    };

    fn small() -> ModelConfig {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 300, "max_position_embeddings": 1024,
            "tie_word_embeddings": true
        });
        ModelConfig::parse(config.to_string().as_bytes(), None).unwrap()
    }

    #[test]
    fn every_kind_of_step_is_measured_and_judged() {
        let config = small();
        let runs = measure(&PLAN, "small", &config, WeightType::Q8, &LIMITS).unwrap();
        let names: Vec<_> = runs.iter().map(|run| run.run.as_str()).collect();
        assert_eq!(names, ["prefill_512", "decode_1", "decode_16"]);
        for (run, tokens) in runs.iter().zip([512.0, 1.0, 16.0]) {
            assert!((run.best_tokens_per_s * run.best_ms / 1e3 / tokens - 1.0).abs() < 1e-9);
            assert!(run.median_tokens_per_s <= run.best_tokens_per_s);
            assert!((run.share_of_limit * 2.0 / run.gflop_per_s - 1.0).abs() < 1e-9, "{run:?}");
            assert_eq!(run.bound_by, "arithmetic");
        }
        // Weights per token: queries, output, keys, values and the three matrices of the feed-forward layer.
        let products = 2 * 64 * (2 * 64 * 2 + 64 * 2 + 3 * 96);
        let decode = 2.0 * f64::from(products + 300 * 64);
        assert!((runs[1].gflop_per_s * runs[1].best_ms * 1e6 / decode - 1.0).abs() < 1e-9);
    }

    #[test]
    fn steps_with_an_adapter_are_measured_beside_those_without() {
        let config = small();
        let mut model = Model::random(config.clone(), WeightType::Bf16, 1).unwrap();
        model.add_random_adapter(8, 2).unwrap();
        let plan = EnginePlan { lora_rank: Some(8), neighbours: 0, ..PLAN };
        for run in measure(&plan, "small", &config, WeightType::Bf16, &LIMITS).unwrap() {
            let adapted = run.adapted.expect("it was asked for");
            assert_eq!(adapted.rank, 8);
            assert!((adapted.share * adapted.best_ms / run.best_ms - 1.0).abs() < 1e-9);
            let more = (adapted.weights_mb - run.weights_mb) * 1e6;
            assert_eq!(more.round() as u64, model.adapter_bytes(), "{}", run.run);
        }
    }

    #[test]
    fn of_experts_only_those_count_that_a_step_reads_and_a_token_uses() {
        let config = serde_json::json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 300, "max_position_embeddings": 1024,
            "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "tie_word_embeddings": true
        });
        let config = ModelConfig::parse(config.to_string().as_bytes(), None).unwrap();
        let runs = measure(&PLAN, "small", &config, WeightType::Q8, &LIMITS).unwrap();
        let model = Model::random(config, WeightType::Q8, 1).unwrap();
        let [prefill, decode, decodes] =
            [0, 1, 2].map(|run: usize| (runs[run].weights_mb * 1e6).round() as u64);
        assert_eq!(decode, model.step_bytes());
        assert!(decode < decodes && decodes <= model.weight_bytes(), "{decodes} bytes");
        assert!(decode < prefill && prefill <= model.weight_bytes(), "{prefill} bytes");
        let products = 2 * 64 * (2 * 64 * 2 + 64 * 2 + 16 + 2 * 3 * 32);
        let operations = 2.0 * f64::from(products + 300 * 64);
        assert!((runs[1].gflop_per_s * runs[1].best_ms * 1e6 / operations - 1.0).abs() < 1e-9);
    }
}
