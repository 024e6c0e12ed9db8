//! Logits of every family: prefill at once and in chunks, decode, many prompts in one batch, both KV caches, greedy text, end
//! tokens.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use infer_model::{DType, KvCacheKind, Model};
use serde_json::Value;

use crate::common::{Chunk, Driver, MAX_SEQ_LEN, golden, model};
use crate::{distance, largest};

/// Every checkpoint in every type that its weights support.
const CASES: &[(&str, DType)] = &[
    ("llama-f32", DType::F32),
    ("llama-bf16", DType::F32),
    ("llama-bf16", DType::Bf16),
    ("qwen3-bf16", DType::F32),
    ("qwen3-bf16", DType::Bf16),
    ("gemma3-f32", DType::F32),
    ("gemma3-bf16", DType::F32),
    ("gemma3-bf16", DType::Bf16),
    ("qwen2-bf16", DType::F32),
    ("qwen2-bf16", DType::Bf16),
    ("mistral-bf16", DType::F32),
    ("qwen3-yarn-f16", DType::F32),
    ("llama-wide-bf16", DType::F32),
    ("llama-wide-bf16", DType::Bf16),
    ("qwen3-wide-bf16", DType::F32),
    ("qwen3-wide-bf16", DType::Bf16),
    ("gemma3-wide-bf16", DType::F32),
    ("gemma3-wide-bf16", DType::Bf16),
    ("qwen3moe-bf16", DType::F32),
    ("qwen3moe-bf16", DType::Bf16),
    ("smollm3-bf16", DType::F32),
    ("smollm3-bf16", DType::Bf16),
    ("phi3-bf16", DType::F32),
    ("phi3-bf16", DType::Bf16),
    ("granite-bf16", DType::F32),
    ("granite-bf16", DType::Bf16),
    ("olmo2-bf16", DType::F32),
    ("olmo2-bf16", DType::Bf16),
    ("olmo3-bf16", DType::F32),
    ("olmo3-bf16", DType::Bf16),
    ("mixtral-bf16", DType::F32),
    ("mixtral-bf16", DType::Bf16),
    ("olmoe-bf16", DType::F32),
    ("olmoe-bf16", DType::Bf16),
    ("gptoss-bf16", DType::F32),
    ("gptoss-bf16", DType::Bf16),
    ("gptoss-mxfp4", DType::F32),
    ("gptoss-mxfp4", DType::Bf16),
];

const KINDS: [KvCacheKind; 2] = [KvCacheKind::Paged, KvCacheKind::Contiguous];

#[test]
fn whole_prompts_in_one_batch_match_the_reference_at_every_stored_position() {
    for case in cases() {
        for kind in KINDS {
            let mut driver = Driver::new(&case.model, kind, 16, 2);
            // The logits of a position are those of a prompt that ends there.
            let ends: Vec<(&Prompt, usize)> = case
                .prompts
                .iter()
                .flat_map(|prompt| prompt.logits.keys().map(move |position| (prompt, *position)))
                .collect();
            for (round, ends) in ends.chunks(32).enumerate() {
                let chunks: Vec<Chunk<'_>> = ends
                    .iter()
                    .enumerate()
                    .map(|(i, (prompt, position))| Chunk {
                        sequence: (1 + round * 32 + i) as u64,
                        start: 0,
                        tokens: &prompt.ids[..=*position],
                    })
                    .collect();
                let outcome = driver.run(&chunks);
                for ((prompt, position), (logits, _)) in ends.iter().zip(outcome) {
                    case.check(prompt, *position, &logits, &format!("{kind:?}, whole"));
                }
                for chunk in &chunks {
                    driver.release(chunk.sequence);
                }
            }
        }
    }
}

#[test]
fn prompts_in_chunks_match_the_reference_whatever_the_chunk() {
    for case in cases() {
        for kind in KINDS {
            for size in [1, 7, 16, 17] {
                let mut driver = Driver::new(&case.model, kind, 16, 1);
                let mut done = vec![0; case.prompts.len()];
                // Each round takes one chunk of every unfinished prompt: prompts of all lengths are mixed.
                loop {
                    let mut chunks = Vec::new();
                    let mut ends = Vec::new();
                    for (i, prompt) in case.prompts.iter().enumerate() {
                        let start = done[i];
                        let stored = prompt.logits.range(start..).next().map(|(at, _)| at + 1);
                        let Some(stored) = stored else { continue };
                        done[i] = (start + size).min(stored);
                        let tokens = &prompt.ids[start..done[i]];
                        chunks.push(Chunk { sequence: i as u64 + 1, start, tokens });
                        ends.push((prompt, done[i] - 1));
                    }
                    if chunks.is_empty() {
                        break;
                    }
                    for ((prompt, position), (logits, _)) in ends.iter().zip(driver.run(&chunks)) {
                        if prompt.logits.contains_key(position) {
                            let how = format!("{kind:?}, chunks of {size}");
                            case.check(prompt, *position, &logits, &how);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn decoding_together_with_prefills_follows_the_greedy_reference() {
    for case in cases() {
        for kind in KINDS {
            let mut driver = Driver::new(&case.model, kind, 16, 2);
            // Prompts join one step after another, so that prefills and decodes share batches.
            let mut streams: Vec<Stream> = Vec::new();
            let mut round = 0;
            while round < case.prompts.len() || streams.iter().any(|stream| !stream.ended) {
                if let Some(prompt) = case.prompts.get(round) {
                    streams.push(Stream {
                        prompt,
                        input: prompt.ids.clone(),
                        start: 0,
                        step: 0,
                        ended: false,
                    });
                }
                round += 1;
                let alive: Vec<usize> = (0..streams.len()).filter(|i| !streams[*i].ended).collect();
                let chunks: Vec<Chunk<'_>> = alive
                    .iter()
                    .map(|i| Chunk {
                        sequence: *i as u64 + 1,
                        start: streams[*i].start,
                        tokens: &streams[*i].input,
                    })
                    .collect();
                let outcome = driver.run(&chunks);
                for (i, (logits, token)) in alive.into_iter().zip(outcome) {
                    case.advance(&mut streams[i], &logits, token, &format!("{kind:?}, greedy"));
                    if streams[i].ended {
                        driver.release(i as u64 + 1);
                    }
                }
            }
        }
    }
}

#[test]
fn generation_ends_at_the_tokens_of_the_generation_config() {
    for case in cases() {
        let eos = &case.golden["eos"];
        for expected in eos["cases"].as_array().expect("a list") {
            let prompt = case.prompts.iter().find(|prompt| prompt.name == expected["prompt"]);
            let prompt = prompt.expect("eos cases name a prompt");
            let wanted = ids(&expected["generated_ids"]);
            let most = expected["max_new_tokens"].as_u64().expect("a number") as usize;
            let mut driver = Driver::new(&case.model, KvCacheKind::Paged, 16, 1);
            let (mut input, mut start, mut generated) = (prompt.ids.clone(), 0, Vec::new());
            let reason = loop {
                let (_, token) = driver.run(&[Chunk { sequence: 1, start, tokens: &input }]).remove(0);
                start += input.len();
                input = vec![token];
                generated.push(token);
                if case.model.stop_tokens().contains(&token) {
                    break "stop";
                }
                if generated.len() == most {
                    break "length";
                }
            };
            // Near-ties may resolve either way; then the rest differs too.
            if expected["min_margin"].as_f64().expect("a number") > case.safe_margin {
                assert_eq!(generated, wanted, "{} {}", case.name, prompt.name);
                let wanted = expected["finish_reason"].as_str().expect("a string");
                let same = reason == wanted || (reason == "stop" && wanted == "eos");
                assert!(same, "{} {}: {reason} instead of {wanted}", case.name, prompt.name);
            }
        }
    }
}

/// A checkpoint and its expected results.
struct Case {
    name: String,
    model: Model,
    golden: Value,
    prompts: Vec<Prompt>,
    tolerance: f64,
    safe_margin: f64,
}

struct Prompt {
    name: String,
    ids: Vec<u32>,
    /// Stored positions, their logits and margins.
    logits: std::collections::BTreeMap<usize, (Vec<f32>, f64)>,
    greedy: Vec<(u32, f64)>,
    /// Logits of each greedy step, if stored.
    greedy_logits: Vec<Vec<f32>>,
}

/// A greedy generation in progress.
struct Stream<'a> {
    prompt: &'a Prompt,
    input: Vec<u32>,
    start: usize,
    step: usize,
    ended: bool,
}

impl Case {
    fn check(&self, prompt: &Prompt, position: usize, logits: &[f32], how: &str) {
        let (wanted, margin) = &prompt.logits[&position];
        let context = format!("{} {} position {position}, {how}", self.name, prompt.name);
        self.compare(logits, wanted, *margin, &context);
    }

    fn compare(&self, logits: &[f32], wanted: &[f32], margin: f64, context: &str) {
        let error = distance(logits, wanted);
        assert!(error < self.tolerance, "{context}: relative error {error:.2e}");
        if margin > self.safe_margin {
            assert_eq!(largest(logits), largest(wanted), "{context}: another token is likeliest");
        }
    }

    /// Checks a step of a stream and prepares the next, whose input is the reference's token.
    fn advance(&self, stream: &mut Stream<'_>, logits: &[f32], token: u32, how: &str) {
        let prompt = stream.prompt;
        let context = format!("{} {} step {}, {how}", self.name, prompt.name, stream.step);
        let (wanted, margin) = prompt.greedy[stream.step];
        if let Some(reference) = prompt.greedy_logits.get(stream.step) {
            self.compare(logits, reference, margin, &context);
        }
        if margin > self.safe_margin {
            assert_eq!(token, wanted, "{context}: another token was sampled");
        }
        stream.start += stream.input.len();
        stream.input = vec![wanted];
        stream.step += 1;
        let full = stream.start + 1 >= MAX_SEQ_LEN as usize;
        stream.ended = stream.step == prompt.greedy.len() || full;
    }
}

fn cases() -> impl Iterator<Item = Case> {
    CASES.iter().map(|(name, dtype)| {
        let read = |file: &str| std::fs::read(golden(name).join(file)).expect("golden files are there");
        let golden: Value = serde_json::from_slice(&read("golden.json")).expect("JSON");
        let arrays = candle_core::safetensors::load_buffer(&read("golden.safetensors"), &Device::Cpu);
        let arrays = arrays.expect("safetensors");
        let prompts = golden["prompts"].as_array().expect("a list");
        let prompts = prompts.iter().map(|prompt| read_prompt(prompt, &arrays)).collect();
        let (tolerance, margin) = match dtype {
            DType::F32 => (1e-4, "float32_compute"),
            DType::Bf16 | DType::F16 => (2e-2, "bfloat16_compute"),
        };
        let safe_margin = golden["safe_margin"][margin].as_f64().expect("a number");
        let name = format!("{name} as {dtype:?}");
        let model = model(name.split(' ').next().expect("a name"), *dtype);
        Case { name, model, golden, prompts, tolerance, safe_margin }
    })
}

fn read_prompt(prompt: &Value, arrays: &HashMap<String, Tensor>) -> Prompt {
    let name = prompt["name"].as_str().expect("a name").to_owned();
    let rows = |key: &str| {
        let tensor = arrays.get(&format!("{name}.{key}"));
        tensor.map_or_else(Vec::new, |tensor| tensor.to_vec2::<f32>().expect("rows of f32"))
    };
    let positions = ids(&prompt["positions"]).into_iter().map(|at| at as usize);
    let stored = rows("logits").into_iter().zip(numbers(&prompt["margins"]));
    let greedy = &prompt["greedy"];
    Prompt {
        ids: ids(&prompt["ids"]),
        logits: positions.zip(stored).collect(),
        greedy: ids(&greedy["ids"]).into_iter().zip(numbers(&greedy["margins"])).collect(),
        greedy_logits: rows("greedy_logits"),
        name,
    }
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}
