//! Steps of a small random model (256 wide, 6 layers, vocabulary 2,048: the demo's size) on one thread: what a
//! decode costs at batch 1 and 16, and a prefill of 256 tokens. Numbers are in kernels/README.md.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use infer_core::{Batch, BlockId, Executor, Row, SamplingParams, SequenceId, StepOutput};
use infer_model::{DType, ExecutorOptions, KvCacheKind, Model, ModelExecutor, Source};
use safetensors::tensor::{Dtype, TensorView};

const HIDDEN: usize = 256;
const INTERMEDIATE: usize = 704;
const LAYERS: usize = 6;
const VOCAB: usize = 2_048;
const KV_WIDTH: usize = 128;
const BLOCK: usize = 16;

fn steps(criterion: &mut Criterion) {
    let (config, weights) = checkpoint();
    let files: [(&str, &[u8]); 2] = [("config.json", config.as_bytes()), ("model.safetensors", &weights)];
    for dtype in [DType::F32, DType::Bf16] {
        let model = Model::load(&Source::Embedded(&files), Some(dtype)).expect("a sound checkpoint");
        let mut executor = model.executor(options()).expect("a small KV cache fits");
        let mut group = criterion.benchmark_group(format!("{dtype:?}"));
        for (name, rows, context, tokens) in [
            ("decode, batch 1, context 256", 1, 256, 1),
            ("decode, batch 16, context 256", 16, 256, 1),
            ("prefill of 256", 1, 256, 256),
        ] {
            let batch = batch(rows, context, tokens);
            group.bench_function(name, |b| b.iter(|| run(&mut executor, black_box(&batch))));
        }
        group.finish();
    }
}

fn run(executor: &mut ModelExecutor, batch: &Batch) -> Option<u32> {
    let mut output = StepOutput::default();
    executor.execute(batch, &mut output).expect("sound batches run");
    output.sampled[0]
}

/// The last `tokens` tokens of `rows` sequences of `context` tokens.
fn batch(rows: usize, context: usize, tokens: usize) -> Batch {
    let mut batch = Batch { step: 1, ..Batch::default() };
    let blocks = context.div_ceil(BLOCK);
    for row in 0..rows {
        batch.rows.push(Row {
            sequence: SequenceId(row as u64 + 1),
            token_start: batch.tokens.len() as u32,
            token_len: tokens as u32,
            context_len: context as u32,
            table_start: batch.block_tables.len() as u32,
            table_len: blocks as u32,
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
        for position in context - tokens..context {
            batch.tokens.push((position * 7 % VOCAB) as u32);
            batch.positions.push(position as u32);
            batch.slots.push((row * blocks * BLOCK + position) as u32);
        }
        batch.block_tables.extend((0..blocks).map(|block| BlockId((row * blocks + block) as u32)));
    }
    batch
}

fn options() -> ExecutorOptions {
    ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: BLOCK as u32,
        total_blocks: 512,
        max_running: 16,
        max_seq_len: 512,
        prompt_cache_entries: 0,
        threads: 1,
    }
}

/// A config.json and its safetensors, with small arbitrary weights.
fn checkpoint() -> (String, Vec<u8>) {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": VOCAB, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "eos_token_id": 0, "torch_dtype": "float32"
    });
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![KV_WIDTH, HIDDEN]),
            ("self_attn.v_proj", vec![KV_WIDTH, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let numbers: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(_, shape)| {
            let count = shape.iter().product();
            let number = |i: usize| ((i * 7_919 % 1_009) as f32 / 1_009.0 - 0.5) * 0.1;
            (0..count).flat_map(|i| number(i).to_le_bytes()).collect()
        })
        .collect();
    let views = shapes.iter().zip(&numbers).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("sizes agree"))
    });
    let bytes = safetensors::serialize(views, None).expect("names are unique");
    (config.to_string(), bytes)
}

criterion_group!(benches, steps);
criterion_main!(benches);
