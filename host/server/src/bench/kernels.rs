//! `infer bench kernels` on a CPU: matrix products and paged attention in the shapes of known models, each next to the
//! limit that bounds it. Repetitions cycle through more memory than caches hold, as a step of a whole model does.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use half::bf16;
use infer_kernels::{
    Arena, AttentionParams, Cpu, Format, Inputs, Matrix, OutOfMemory, Packer, PagedLayer, PagedLayout,
    PagedQuery, QueryRun, Rows, Then,
};
use infer_model::shapes::Shape;
use infer_model::{ModelConfig, WeightType};
use serde::Serialize;

use super::limits::{Conditions, Limits};

/// Rows of products: decode of one sequence, decode of 16 sequences, prefill.
const ROWS: [usize; 3] = [1, 16, 512];
/// Query tokens and context length: two decodes, and the last chunk of a prompt.
const ATTENDING: [(usize, usize); 3] = [(1, 512), (1, 4_096), (128, 512)];
/// Bytes of weights, or of keys and values, that repetitions cycle through.
const TURNS_BYTES: usize = 512 << 20;
/// Minimum time for which a kernel is repeated.
const ENOUGH: Duration = Duration::from_millis(200);
const BLOCK: usize = 16;

/// A measurement to run.
#[derive(Clone, Debug)]
pub struct KernelPlan {
    /// Model shapes.
    pub shapes: Vec<Shape>,
    /// Storage types of the weights.
    pub weights: Vec<WeightType>,
    /// Compute threads.
    pub threads: usize,
}

/// Result of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// Machine, threads and limits.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// One per kernel and shape.
    pub runs: Vec<KernelRun>,
}

/// One kernel at one shape; times are medians.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRun {
    /// Name of the model's shape.
    pub shape: &'static str,
    /// `product ROWS x OUTPUTS x INPUTS` or `attention TOKENS of CONTEXT`.
    pub kernel: String,
    /// Storage type of the weights, or of keys and values.
    pub stored: String,
    /// Microseconds per call.
    pub us: f64,
    /// Read rate of weights, or of keys and values.
    pub gb_per_s: f64,
    /// 10^9 operations per second; a multiply-add counts as two.
    pub gflop_per_s: f64,
    /// The larger of two shares: of the read bandwidth with huge pages, and of the type's instruction rate.
    pub share_of_limit: f64,
    /// Which limit that is: `memory` or `arithmetic`.
    pub bound_by: &'static str,
}

/// Measures everything; calls `progress` with what comes next.
///
/// # Errors
/// If the system has not enough memory or threads.
pub fn run(plan: &KernelPlan, progress: impl Fn(&str)) -> Result<KernelReport, String> {
    progress("the machine's limits");
    let mut conditions = Conditions::measure(plan.threads)?;
    let mut runs = Vec::new();
    for shape in &plan.shapes {
        progress(shape.name);
        let bench = Bench::new(shape.name, shape.config(), plan.threads, conditions.limits, TURNS_BYTES)?;
        for weights in &plan.weights {
            runs.extend(bench.products(*weights)?);
        }
        runs.extend(bench.attention()?);
    }
    conditions.end();
    Ok(KernelReport { conditions, runs })
}

impl KernelReport {
    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.conditions);
        _ = writeln!(
            text,
            "{:<12} {:<28} {:<5} {:>11} {:>7} {:>8}  limit",
            "shape", "kernel", "", "us", "GB/s", "GFLOP/s"
        );
        for run in &self.runs {
            _ = writeln!(
                text,
                "{:<12} {:<28} {:<5} {:>11.1} {:>7.1} {:>8.1}  {:.0} % of {}",
                run.shape,
                run.kernel,
                run.stored,
                run.us,
                run.gb_per_s,
                run.gflop_per_s,
                100.0 * run.share_of_limit,
                run.bound_by
            );
        }
        text
    }
}

/// Measures kernels in the shapes of one model.
struct Bench {
    shape: &'static str,
    config: ModelConfig,
    cpu: Cpu,
    limits: Limits,
    /// Bytes that repetitions cycle through.
    bytes: usize,
}

impl Bench {
    fn new(
        shape: &'static str,
        config: ModelConfig,
        threads: usize,
        limits: Limits,
        bytes: usize,
    ) -> Result<Self, String> {
        let cpu = Cpu::new(threads).map_err(|error| format!("--threads: {error}"))?;
        Ok(Self { shape, config, cpu, limits, bytes })
    }

    /// Measures the four products of a layer.
    fn products(&self, weights: WeightType) -> Result<Vec<KernelRun>, String> {
        let format = match weights {
            WeightType::F32 | WeightType::F16 => Format::F32,
            WeightType::Bf16 => Format::Bf16,
            WeightType::Q8 => Format::Int8,
            WeightType::Q4 => Format::Int4,
            WeightType::Mxfp4 => Format::Mxfp4,
        };
        let config = &self.config;
        // An expert is a layer of its own.
        let experts = config.layers.iter().find_map(|layer| layer.experts);
        let intermediate = experts.map_or(config.intermediate, |experts| experts.intermediate);
        let products = [
            (config.q_width() + 2 * config.kv_width(), config.hidden),
            (config.hidden, config.q_width()),
            (2 * intermediate, config.hidden),
            (config.hidden, intermediate),
        ];
        let mut runs = Vec::new();
        for (outputs, inputs) in products {
            let matrices = self.matrices(format, outputs, inputs)?;
            for rows in ROWS {
                let x = numbers(rows * inputs);
                let (mut loaded, mut out) = (Inputs::default(), vec![0.0; rows * outputs]);
                let seconds = median_s(|turn| {
                    self.cpu.load(Rows::dense(black_box(&x), inputs), rows, format, &mut loaded);
                    self.cpu.matmul(&loaded, &matrices[turn % matrices.len()], None, Then::Store, &mut out);
                });
                let kernel = format!("product {rows} x {outputs} x {inputs}");
                let operations = 2.0 * (rows * outputs * inputs) as f64;
                let bytes = matrices[0].bytes() as f64;
                runs.push(self.judged(kernel, [weights; 2], seconds, bytes, operations));
            }
        }
        Ok(runs)
    }

    fn matrices(&self, format: Format, outputs: usize, inputs: usize) -> Result<Vec<Matrix>, String> {
        let mut packer = Packer::new(self.cpu.threads()).map_err(|error| format!("--threads: {error}"))?;
        let some = numbers(inputs + 31);
        let row = |row: usize, out: &mut [f32]| out.copy_from_slice(&some[row % 31..][..inputs]);
        let mut pack = || packer.matrix(format, outputs, inputs, row).map_err(|error| error.to_string());
        let first = pack()?;
        let more = self.bytes.div_ceil(first.bytes()) - 1;
        std::iter::once(Ok(first)).chain((0..more).map(|_| pack())).collect()
    }

    /// Measures attention with keys and values in bf16, in scattered blocks.
    fn attention(&self) -> Result<Vec<KernelRun>, String> {
        let config = &self.config;
        let layout = PagedLayout { block_size: BLOCK, kv_heads: config.kv_heads, head_dim: config.head_dim };
        let params = AttentionParams {
            heads: config.heads,
            scale: (config.head_dim as f32).powf(-0.5),
            soft_cap: None,
            window: None,
            sinks: None,
        };
        let mut runs = Vec::new();
        for (tokens, context) in ATTENDING {
            let bytes = 2 * context * config.kv_width() * size_of::<bf16>();
            let layers = self.layers(layout, context, self.bytes.div_ceil(bytes))?;
            let blocks = context.div_ceil(BLOCK);
            // Even blocks first, so that the block table is not the identity.
            let tables: Vec<u32> =
                (0..blocks as u32).step_by(2).chain((1..blocks as u32).step_by(2)).collect();
            let positions: Vec<u32> = (context - tokens..context).map(|position| position as u32).collect();
            let whole = QueryRun { first: 0, count: tokens as u32, table_start: 0, table_len: blocks as u32 };
            let mut queries = Vec::new();
            whole.split(&mut queries);
            let q = numbers(tokens * config.q_width());
            let (mut scratch, mut out) = (Vec::new(), vec![0.0; q.len()]);
            let seconds = median_s(|turn| {
                let query = PagedQuery {
                    q: Rows::dense(black_box(&q), config.q_width()),
                    positions: &positions,
                    runs: &queries,
                    tables: &tables,
                };
                let layer = &layers[turn % layers.len()];
                self.cpu.paged_attention(layer, &params, query, &mut scratch, &mut out);
            });
            let seen: usize = positions.iter().map(|position| *position as usize + 1).sum();
            let operations = 4.0 * (seen * config.q_width()) as f64;
            let kernel = format!("attention {tokens} of {context}");
            // Attention computes in f32, whatever type the keys are stored in.
            let types = [WeightType::Bf16, WeightType::F32];
            runs.push(self.judged(kernel, types, seconds, bytes as f64, operations));
        }
        Ok(runs)
    }

    fn layers(
        &self,
        layout: PagedLayout,
        context: usize,
        count: usize,
    ) -> Result<Vec<PagedLayer<bf16>>, String> {
        let failed = |error: OutOfMemory| error.to_string();
        let width = layout.kv_heads * layout.head_dim;
        let slots: Vec<u32> = (0..context as u32).collect();
        let kv = numbers(context * width);
        // One for all: an arena maps at least 64 MiB, however small the layer is.
        let mut arena = Arena::default();
        let layer = |_| {
            let blocks = context.div_ceil(BLOCK);
            let mut layer = PagedLayer::new(layout, blocks, &mut arena).map_err(failed)?;
            layer.write(&slots, Rows::dense(&kv, width), Rows::dense(&kv, width));
            Ok(layer)
        };
        (0..count.max(1)).map(layer).collect()
    }

    fn judged(
        &self,
        kernel: String,
        [stored, computed]: [WeightType; 2],
        seconds: f64,
        bytes: f64,
        operations: f64,
    ) -> KernelRun {
        let (gb_per_s, gflop_per_s) = (bytes / seconds / 1e9, operations / seconds / 1e9);
        let (share_of_limit, bound_by) = self.limits.judge(computed, gb_per_s, gflop_per_s);
        KernelRun {
            shape: self.shape,
            kernel,
            stored: stored.to_string(),
            us: seconds * 1e6,
            gb_per_s,
            gflop_per_s,
            share_of_limit,
            bound_by,
        }
    }
}

/// Median duration in seconds of many calls of `work`, which receives its index. The minimum would be misleading: with
/// this many short calls, some run faster than memory can sustain.
fn median_s(mut work: impl FnMut(usize)) -> f64 {
    work(0);
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < ENOUGH || times.len() < 5 {
        let begin = Instant::now();
        work(times.len() + 1);
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Arbitrary numbers in -1..1.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7_919 % 1_000) as f32 / 500.0 - 1.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_measured_and_judged() {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 300,
            "max_position_embeddings": 1024, "tie_word_embeddings": true
        });
        let config = ModelConfig::parse(config.to_string().as_bytes(), None).unwrap();
        let limits = Limits {
            read_small_pages_gb_per_s: 1.0,
            read_huge_pages_gb_per_s: 1e9,
            f32_gflop_per_s: 4.0,
            bf16_gflop_per_s: 1.0,
            int8_gop_per_s: 2.0,
        };
        let bench = Bench::new("small", config, 2, limits, 1 << 16).unwrap();
        let mut runs = bench.products(WeightType::Q8).unwrap();
        runs.truncate(3);
        runs.extend(bench.attention().unwrap());
        let expected = [
            ("product 1 x 256 x 64", 2.0 * 256.0 * 64.0, 2.0),
            ("product 16 x 256 x 64", 16.0 * 2.0 * 256.0 * 64.0, 2.0),
            ("product 512 x 256 x 64", 512.0 * 2.0 * 256.0 * 64.0, 2.0),
            ("attention 1 of 512", 4.0 * 512.0 * 128.0, 4.0),
            ("attention 1 of 4096", 4.0 * 4_096.0 * 128.0, 4.0),
            ("attention 128 of 512", 4.0 * 128.0 * (385.0 + 512.0) / 2.0 * 128.0, 4.0),
        ];
        assert_eq!(runs.len(), expected.len());
        for (run, (kernel, operations, rate)) in runs.iter().zip(expected) {
            assert_eq!((run.kernel.as_str(), run.bound_by), (kernel, "arithmetic"));
            assert!((run.gflop_per_s * run.us * 1e3 / operations - 1.0).abs() < 1e-9, "{run:?}");
            assert!((run.share_of_limit * rate / run.gflop_per_s - 1.0).abs() < 1e-9, "{run:?}");
        }
        // Keys and values of one head, in two bytes.
        assert!((runs[3].gb_per_s * runs[3].us * 1e3 / (2.0 * 512.0 * 64.0 * 2.0) - 1.0).abs() < 1e-9);
    }
}
