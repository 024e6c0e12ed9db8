//! candle-transformers' llama on random weights in the shapes of `infer bench engine`: the same steps, measured the same way
//! (a prefill of 512 tokens, decodes at batch 1 and 16, greedy sampling included, the fastest step counts). With
//! `--infer PROGRAM` both run in turn with the same number of threads, and their ratio is printed. candle takes the number of
//! threads from `RAYON_NUM_THREADS`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::utils::get_num_threads;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};
use clap::{Parser, ValueEnum};
use infer_model::ModelConfig;
use infer_model::shapes::{SHAPES, Shape};

/// Tokens of the prefill.
const PREFILL: usize = 512;
/// Sequences of the larger decode.
const BATCH: usize = 16;

#[derive(Parser)]
#[command(about)]
struct Args {
    /// A shape of the llama family
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(SHAPES.map(|shape| shape.name)), default_value = "smollm-135m")]
    shape: String,
    /// How weights and keys are stored
    #[arg(long, value_enum, default_value = "bf16")]
    weights: Weights,
    /// Tokens that sequences hold when decoding begins
    #[arg(long, default_value_t = 128)]
    context: usize,
    /// Decode steps of a pass
    #[arg(long, default_value_t = 16)]
    steps: usize,
    /// How often everything is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The program `infer`, to run in turn
    #[arg(long)]
    infer: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Weights {
    F32,
    Bf16,
}

/// Tokens per second of the fastest step, by kind of step.
type Best = BTreeMap<&'static str, f64>;

fn main() -> Result<()> {
    let args = Args::parse();
    let shape = Shape::named(&args.shape).context("--shape")?.config();
    ensure!(shape.model_type == "llama", "--shape must be one of the llama family");
    let (dtype, name) = match args.weights {
        Weights::F32 => (DType::F32, "f32"),
        Weights::Bf16 => (DType::BF16, "bf16"),
    };
    let mut bench = Bench::new(&shape, dtype, &args)?;
    let (mut theirs, mut ours) = (Best::new(), Best::new());
    for _ in 0..args.rounds {
        if let Some(program) = &args.infer {
            infer(program, &args, name, &mut ours)?;
        }
        bench.pass(&mut theirs)?;
    }
    for (kind, theirs) in &theirs {
        print!("{:12} {name:5} {kind:12} candle {theirs:8.1}", args.shape);
        match ours.get(kind) {
            Some(ours) => println!("  infer {ours:8.1} tok/s  {:5.2}x", ours / theirs),
            None => println!(" tok/s"),
        }
    }
    Ok(())
}

fn keep(best: &mut Best, kind: &'static str, rate: f64) {
    let entry = best.entry(kind).or_insert(rate);
    *entry = entry.max(rate);
}

/// One pass of `infer bench engine`.
fn infer(program: &PathBuf, args: &Args, weights: &str, best: &mut Best) -> Result<()> {
    let number = |n: usize| n.to_string();
    let output = Command::new(program)
        .args(["bench", "engine", "--passes", "1", "--format", "json"])
        .args(["--shape", &args.shape, "--weights", weights, "--threads", &number(get_num_threads())])
        .args(["--context", &number(args.context), "--steps", &number(args.steps)])
        .output()
        .with_context(|| format!("--infer: can't run {}", program.display()))?;
    ensure!(output.status.success(), "infer failed: {}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    for kind in ["prefill_512", "decode_1", "decode_16"] {
        let runs = report["runs"].as_array().context("no runs")?;
        let run = runs.iter().find(|run| run["run"] == kind).context("a kind of step is missing")?;
        keep(best, kind, run["best_tokens_per_s"].as_f64().context("no rate")?);
    }
    Ok(())
}

struct Bench {
    model: Llama,
    config: Config,
    dtype: DType,
    context: usize,
    steps: usize,
}

impl Bench {
    fn new(shape: &ModelConfig, dtype: DType, args: &Args) -> Result<Self> {
        let config = Config {
            hidden_size: shape.hidden,
            intermediate_size: shape.intermediate,
            vocab_size: shape.vocab,
            num_hidden_layers: shape.layers.len(),
            num_attention_heads: shape.heads,
            num_key_value_heads: shape.kv_heads,
            use_flash_attn: false,
            rms_norm_eps: f64::from(shape.norm_epsilon),
            rope_theta: shape.ropes[0].theta as f32,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: 8_192,
            tie_word_embeddings: shape.tied_head,
        };
        let weights = VarBuilder::from_tensors(tensors(shape, dtype)?, dtype, &Device::Cpu);
        let model = Llama::load(weights, &config)?;
        Ok(Self { model, config, dtype, context: args.context, steps: args.steps })
    }

    fn pass(&mut self, best: &mut Best) -> Result<()> {
        let mut cache = self.cache()?;
        let seconds = self.step(&mut cache, 1, 0, PREFILL)?;
        keep(best, "prefill_512", PREFILL as f64 / seconds);
        for (rows, kind) in [(1, "decode_1"), (BATCH, "decode_16")] {
            let mut cache = self.cache()?;
            self.step(&mut cache, rows, 0, self.context)?;
            for step in 0..self.steps {
                let seconds = self.step(&mut cache, rows, self.context + step, 1)?;
                keep(best, kind, rows as f64 / seconds);
            }
        }
        Ok(())
    }

    fn cache(&self) -> Result<Cache> {
        Ok(Cache::new(true, self.dtype, &self.config, &Device::Cpu)?)
    }

    /// Seconds for `count` tokens from `start` on of each row, including sampling.
    fn step(&self, cache: &mut Cache, rows: usize, start: usize, count: usize) -> Result<f64> {
        let token = |i: usize| ((start + i % count) * 7_919 + i / count * 31) % self.config.vocab_size;
        let tokens: Vec<u32> = (0..rows * count).map(|i| token(i) as u32).collect();
        let tokens = Tensor::from_vec(tokens, (rows, count), &Device::Cpu)?;
        let begin = Instant::now();
        let logits = self.model.forward(&tokens, start, cache)?;
        let drawn: Vec<u32> = logits.argmax(D::Minus1)?.to_vec1()?;
        let seconds = begin.elapsed().as_secs_f64();
        ensure!(drawn.len() == rows, "every row draws");
        Ok(seconds)
    }
}

/// Random weights by their names.
fn tensors(shape: &ModelConfig, dtype: DType) -> Result<HashMap<String, Tensor>> {
    let (hidden, intermediate) = (shape.hidden, shape.intermediate);
    let (q, kv) = (shape.q_width(), shape.kv_width());
    let mut all = HashMap::new();
    let mut put = |name: String, outputs: usize, inputs: usize| -> Result<()> {
        let most = (3.0 / inputs as f32).sqrt();
        let numbers = Tensor::rand(-most, most, (outputs, inputs), &Device::Cpu)?.to_dtype(dtype)?;
        all.insert(format!("{name}.weight"), numbers);
        Ok(())
    };
    put("model.embed_tokens".to_owned(), shape.vocab, hidden)?;
    if !shape.tied_head {
        put("lm_head".to_owned(), shape.vocab, hidden)?;
    }
    for layer in 0..shape.layers.len() {
        for (part, outputs, inputs) in [
            ("self_attn.q_proj", q, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, q),
            ("mlp.gate_proj", intermediate, hidden),
            ("mlp.up_proj", intermediate, hidden),
            ("mlp.down_proj", hidden, intermediate),
        ] {
            put(format!("model.layers.{layer}.{part}"), outputs, inputs)?;
        }
    }
    let ones = || Tensor::ones(hidden, dtype, &Device::Cpu);
    all.insert("model.norm.weight".to_owned(), ones()?);
    for layer in 0..shape.layers.len() {
        for part in ["input_layernorm", "post_attention_layernorm"] {
            all.insert(format!("model.layers.{layer}.{part}.weight"), ones()?);
        }
    }
    Ok(all)
}
