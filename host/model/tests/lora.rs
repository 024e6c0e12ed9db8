//! Adapters: the results of PEFT (tests/golden/README.md), those of models whose weights have the adapter added, in every
//! family, and the same bits whatever else is in the batch.

mod common;
#[path = "common/gguf.rs"]
mod convert;
#[path = "common/scalar.rs"]
mod scalar;
#[path = "common/shape.rs"]
mod shape;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use common::{Chunk, Driver, golden, model};
use infer_core::{AdapterId, SequenceId};
use infer_kernels::Random;
use infer_model::{DType, KvCacheKind, LoadOptions, Model, ModelConfig, Quantize, Source};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use shape::{FAMILIES, FUSED, Shape, Tensors};

const KINDS: [KvCacheKind; 2] = [KvCacheKind::Paged, KvCacheKind::Contiguous];
/// Adapters of the golden checkpoint `BASE`.
const ADAPTERS: [&str; 2] = ["all", "some"];
const BASE: &str = "qwen3-bf16";

fn adapter(name: &str) -> Source<'static> {
    Source::Directory(golden("qwen3-lora").join(name))
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A prompt's stored positions, with logits and margins.
struct Prompt {
    name: String,
    ids: Vec<u32>,
    positions: Vec<(usize, f64, Vec<f32>)>,
}

/// What an adapter's model is expected to compute.
struct Expected {
    prompts: Vec<Prompt>,
    safe_margin: Value,
}

impl Expected {
    fn read(adapter: &str) -> Self {
        let directory = golden("qwen3-lora").join(adapter);
        let json = std::fs::read(directory.join("expected.json")).expect("golden files are there");
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        let arrays = candle_core::safetensors::load(directory.join("expected.safetensors"), &Device::Cpu);
        let arrays: HashMap<String, Tensor> = arrays.expect("safetensors");
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
        };
        let prompt = |prompt: &Value| {
            let name = prompt["name"].as_str().expect("a name").to_owned();
            let rows = arrays[&format!("{name}.logits")].to_vec2::<f32>().expect("rows of f32");
            let positions = numbers(&prompt["positions"]).into_iter().map(|at| at as usize);
            let stored = positions.zip(numbers(&prompt["margins"])).zip(rows);
            Prompt {
                name,
                ids: numbers(&prompt["ids"]).into_iter().map(|id| id as u32).collect(),
                positions: stored.map(|((at, margin), row)| (at, margin, row)).collect(),
            }
        };
        Self {
            prompts: json["prompts"].as_array().expect("a list").iter().map(prompt).collect(),
            safe_margin: json["safe_margin"].clone(),
        }
    }
}

fn largest(logits: &[f32]) -> usize {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.expect("a vocabulary").0
}

#[test]
fn adapters_match_the_reference_beside_each_other_and_leave_the_model_as_it_is() {
    let expected = ADAPTERS.map(Expected::read);
    for (dtype, tolerance, margin) in
        [(DType::F32, 1e-4, "float32_compute"), (DType::Bf16, 2e-2, "bfloat16_compute")]
    {
        let bare = model(BASE, dtype);
        let mut adapted = bare.clone();
        let ids = ADAPTERS.map(|name| adapted.add_adapter(&adapter(name)).expect("golden adapters load"));
        assert_eq!(ids, [AdapterId(1), AdapterId(2)]);
        for kind in KINDS {
            let mut alone = Driver::new(&bare, kind, 16, 1);
            let mut driver = Driver::new(&adapted, kind, 16, 2);
            driver.walk.adapt(1, ids[0]);
            driver.walk.adapt(3, ids[1]);
            for (nth, prompt) in expected[0].prompts.iter().enumerate() {
                for (at, (position, ..)) in prompt.positions.iter().enumerate() {
                    let tokens = &prompt.ids[..=*position];
                    let chunks = [1, 2, 3].map(|sequence| Chunk { sequence, start: 0, tokens });
                    let together = driver.run(&chunks);
                    let plain = alone.run(&chunks[1..2]).remove(0).0;
                    alone.release(2);
                    chunks.iter().for_each(|chunk| driver.release(chunk.sequence));
                    let context = format!("{dtype:?}, {kind:?}, {} position {position}", prompt.name);
                    assert_eq!(bits(&together[1].0), bits(&plain), "the model itself, {context}");
                    for (which, got) in [(0, &together[0].0), (1, &together[2].0)] {
                        let Expected { prompts, safe_margin } = &expected[which];
                        let (_, apart, want) = &prompts[nth].positions[at];
                        let context = format!("{}, {context}", ADAPTERS[which]);
                        let square = |x: f32| f64::from(x).powi(2);
                        let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
                        let error = (error / want.iter().map(|x| square(*x)).sum::<f64>()).sqrt();
                        assert!(error < tolerance, "{context}: relative error {error:.2e}");
                        if *apart > safe_margin[margin].as_f64().expect("a number") {
                            assert_eq!(largest(got), largest(want), "{context}");
                        }
                    }
                }
            }
        }
    }
}

/// Random matrices for some of a checkpoint's projections, with settings.
struct RandomAdapter {
    config: Value,
    tensors: Tensors,
    /// The checkpoint's tensors with what they add.
    merged: Tensors,
}

impl RandomAdapter {
    fn new(shape: &Shape, checkpoint: &Tensors, random: &mut Random) -> Self {
        let (rank, alpha, by_root) = (random.size(1, 7), random.size(1, 9), random.flag());
        let divisor = if by_root { (rank as f64).sqrt() } else { rank as f64 };
        let scale = alpha as f64 / divisor;
        let (mut tensors, mut merged) = (Tensors::new(), checkpoint.clone());
        let targets =
            ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"];
        let mut targets: Vec<(&str, Vec<&str>)> = targets.map(|target| (target, vec![target])).into();
        if shape.family == "phi3" {
            targets.retain(|(target, _)| FUSED.iter().all(|(_, parts)| !parts.contains(target)));
            targets.extend(FUSED.map(|(whole, parts)| (whole, parts.to_vec())));
        }
        for layer in 0..shape.slides.len() {
            for (target, parts) in &targets {
                let module = format!("model.layers.{layer}.{target}_proj");
                let part = |part: &&str| format!("model.layers.{layer}.{part}_proj.weight");
                let parts: Vec<String> = parts.iter().map(part).collect();
                let first = tensors.is_empty();
                if !parts.iter().all(|part| merged.contains_key(part)) {
                    // Of experts.
                    continue;
                }
                // At least one.
                if !(first || random.flag()) {
                    continue;
                }
                let inputs = merged[&parts[0]].0[1];
                let outputs = parts.iter().map(|part| merged[part].0[0]).sum::<usize>();
                let numbers = |random: &mut Random, count: usize, size: f64| -> Vec<f32> {
                    (0..count).map(|_| random.number() * size as f32).collect()
                };
                let a = numbers(random, rank * inputs, 1.0 / (inputs as f64).sqrt());
                let b = numbers(random, outputs * rank, 0.5 / scale);
                let mut rows = b.chunks(rank);
                for part in &parts {
                    let (_, weight) = merged.get_mut(part).expect("it is there");
                    for (weight, row) in weight.chunks_mut(inputs).zip(&mut rows) {
                        for (column, weight) in weight.iter_mut().enumerate() {
                            let product = |at: usize| f64::from(row[at]) * f64::from(a[at * inputs + column]);
                            *weight =
                                (f64::from(*weight) + scale * (0..rank).map(product).sum::<f64>()) as f32;
                        }
                    }
                }
                let name = |which: &str| format!("base_model.model.{module}.lora_{which}.weight");
                tensors.insert(name("A"), (vec![rank, inputs], a));
                tensors.insert(name("B"), (vec![outputs, rank], b));
            }
        }
        let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": by_root, "bias": "none"});
        Self { config, tensors, merged }
    }
}

/// Writes an adapter as PEFT does.
fn write_adapter(directory: &Path, config: &Value, tensors: &Tensors) {
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let all: Vec<_> =
        tensors.iter().map(|(name, (shape, numbers))| (name, shape.clone(), bytes(numbers))).collect();
    let views = all.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("sizes agree"))
    });
    let file = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("names are unique");
    std::fs::write(directory.join("adapter_model.safetensors"), file).expect("it can be written");
    std::fs::write(directory.join("adapter_config.json"), config.to_string()).expect("it can be written");
}

#[test]
fn random_checkpoints_of_every_family_compute_what_their_weights_with_the_adapter_added_do() {
    for family in FAMILIES {
        for seed in 0..8 {
            let mut random = Random::new(seed << 9 | family.len() as u64);
            let shape = Shape::random(family, &mut random);
            let tensors = shape.tensors(&mut random);
            let tokens: Vec<u32> =
                (0..random.size(15, 40)).map(|_| random.size(0, shape.vocab - 1) as u32).collect();
            let adapter = RandomAdapter::new(&shape, &tensors, &mut random);
            let wants = [&tensors, &adapter.merged].map(|tensors| scalar::logits(&shape, tensors, &tokens));
            let directory = tempfile::tempdir().expect("a temporary directory");
            let beside = directory.path().join("adapter");
            std::fs::create_dir(&beside).expect("it can be made");
            write_adapter(&beside, &adapter.config, &adapter.tensors);
            shape::write(directory.path(), &shape.config(), &tensors, 1);
            let mut sources = vec![Source::Directory(directory.path().to_owned())];
            if convert::can_write(&shape.config()) {
                let (from, to) = (directory.path(), directory.path());
                let path = convert::convert_in(from, "model", GgmlDType::F32, 1, to);
                sources.push(Source::gguf(&path).expect("sound"));
            }
            for source in sources {
                let context = format!("{}, seed {seed}: {shape:?}", source.name());
                let mut model =
                    Model::load(&source, None).unwrap_or_else(|error| panic!("{error}, {context}"));
                let id = model.add_adapter(&Source::Directory(beside.clone()));
                let id = id.unwrap_or_else(|error| panic!("{error}, {context}"));
                let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
                driver.walk.adapt(2, id);
                let size = random.size(1, tokens.len());
                for (nth, chunk) in tokens.chunks(size).enumerate() {
                    let start = nth * size;
                    let chunks = [1, 2].map(|sequence| Chunk { sequence, start, tokens: chunk });
                    let end = start + chunk.len() - 1;
                    for ((got, _), want) in driver.run(&chunks).iter().zip(&wants) {
                        let pairs = got.iter().zip(&want[end]);
                        let error: f64 = pairs.map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
                        let error = (error / want[end].iter().map(|x| x.powi(2)).sum::<f64>()).sqrt();
                        assert!(error < 1e-4, "position {end}: {error:.1e}, {context}");
                    }
                }
            }
        }
    }
}

/// Models of every format of weights, each with adapters of all projections and of some.
fn adapted() -> impl Iterator<Item = (String, Model, Vec<AdapterId>)> {
    let cases = [
        ("llama-f32", DType::F32, Quantize::Off),
        ("llama-bf16", DType::Bf16, Quantize::Q8),
        ("llama-bf16", DType::Bf16, Quantize::Q4),
        ("qwen3-bf16", DType::Bf16, Quantize::Off),
        ("gemma3-bf16", DType::Bf16, Quantize::Off),
        ("qwen3moe-bf16", DType::Bf16, Quantize::Off),
    ];
    cases.into_iter().map(|(name, dtype, quantize)| {
        let options = LoadOptions { dtype: Some(dtype), quantize, ..LoadOptions::default() };
        let source = Source::Directory(golden(name));
        let model = Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(()));
        let mut model = model.expect("golden checkpoints load");
        let mut ids: Vec<AdapterId> = [(6, 1), (3, 2)]
            .map(|(rank, seed)| model.add_random_adapter(rank, seed).expect("it is small"))
            .into();
        if name == BASE {
            ids.push(model.add_adapter(&adapter("some")).expect("golden adapters load"));
        }
        (format!("{name}, {quantize:?}"), model, ids)
    })
}

/// Prompts of ragged lengths, of arbitrary tokens.
fn prompts() -> Vec<Vec<u32>> {
    let lengths = [1_u32, 5, 17, 63, 130];
    lengths.into_iter().map(|len| (0..len).map(|i| (i * i * 31 + i * 7 + len) % 300).collect()).collect()
}

/// Each prompt alone in one step, then one decode of token 3.
fn alone(model: &Model, kind: KvCacheKind, adapter: AdapterId) -> Vec<[Vec<u32>; 2]> {
    let mut driver = Driver::new(model, kind, 16, 1);
    driver.walk.adapt(1, adapter);
    let run = |prompt: &Vec<u32>| {
        let prefill = driver.run(&[Chunk { sequence: 1, start: 0, tokens: prompt }]).remove(0).0;
        let decode = driver.run(&[Chunk { sequence: 1, start: prompt.len(), tokens: &[3] }]).remove(0).0;
        driver.release(1);
        [bits(&prefill), bits(&decode)]
    };
    prompts().iter().map(run).collect()
}

#[test]
fn logits_have_the_same_bits_whichever_adapters_the_other_rows_have() {
    for (name, model, ids) in adapted() {
        let mut all = vec![AdapterId::NONE];
        all.extend(&ids);
        for kind in KINDS {
            let want: Vec<_> = all.iter().map(|id| alone(&model, kind, *id)).collect();
            for (one, other) in (0..all.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                assert_ne!(want[one], want[other], "{name}: adapters {one} and {other} change nothing");
            }
            for (size, threads, block_size) in [(400, 1, 16), (1, 2, 16), (7, 2, 8), (17, 1, 5)] {
                let how = format!("{name}, {kind:?}, chunks of {size}, {threads} threads");
                let mut driver = Driver::new(&model, kind, block_size, threads);
                let prompts = prompts();
                // Neighbours have different adapters.
                let streams: Vec<(usize, usize)> = (0..prompts.len())
                    .flat_map(|i| (0..all.len()).map(move |adapter| (i, adapter)))
                    .collect();
                for (at, (_, adapter)) in streams.iter().enumerate() {
                    driver.walk.adapt(at as u64 + 1, all[*adapter]);
                }
                let mut done = vec![0; streams.len()];
                // All advance together; finished ones decode while the others continue.
                while done.iter().zip(&streams).any(|(done, (i, _))| *done <= prompts[*i].len()) {
                    let (mut chunks, mut ends) = (Vec::new(), Vec::new());
                    for (at, (i, _)) in streams.iter().enumerate() {
                        let (prompt, start) = (&prompts[*i], done[at]);
                        let tokens: &[u32] = if start < prompt.len() {
                            &prompt[start..(start + size).min(prompt.len())]
                        } else if start == prompt.len() {
                            &[3]
                        } else {
                            continue;
                        };
                        chunks.push(Chunk { sequence: at as u64 + 1, start, tokens });
                        done[at] += tokens.len();
                        ends.push((at, done[at]));
                    }
                    for ((at, end), (logits, _)) in ends.into_iter().zip(driver.run(&chunks)) {
                        let (i, adapter) = streams[at];
                        if end >= prompts[i].len() {
                            let step = end - prompts[i].len();
                            assert_eq!(
                                bits(&logits),
                                want[adapter][i][step],
                                "{how}: {i} of {adapter}, {step}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_without_an_adapter_are_those_of_a_model_that_has_none() {
    for (name, dtype) in [("llama-f32", DType::F32), ("gemma3-bf16", DType::Bf16)] {
        let bare = model(name, dtype);
        let mut with = bare.clone();
        with.add_random_adapter(4, 1).expect("it is small");
        let wants = alone(&bare, KvCacheKind::Paged, AdapterId::NONE);
        assert_eq!(alone(&with, KvCacheKind::Paged, AdapterId::NONE), wants, "{name}");
        assert_eq!(with.weight_bytes(), bare.weight_bytes());
        assert!(with.adapter_bytes() > 0 && bare.adapter_bytes() == 0);
    }
}

#[test]
fn steps_read_the_adapters_of_their_rows() {
    let mut model = model(BASE, DType::Bf16);
    model.add_random_adapter(4, 1).expect("it is small");
    let first = model.adapter_bytes();
    model.add_random_adapter(16, 2).expect("it is small");
    let second = model.adapter_bytes() - first;
    let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
    driver.walk.adapt(2, AdapterId(2));
    driver.walk.adapt(3, AdapterId(1));
    for (sequences, bytes) in [(vec![1], 0), (vec![1, 2], second), (vec![3, 2], first + second)] {
        let chunks: Vec<_> =
            sequences.iter().map(|sequence| Chunk { sequence: *sequence, start: 0, tokens: &[7] }).collect();
        driver.run(&chunks);
        assert_eq!(driver.walk.executor.read_bytes(), model.step_bytes() + bytes, "{sequences:?}");
    }
}

#[test]
fn a_row_with_an_adapter_that_is_not_there_is_a_fault_of_its_row() {
    let mut model = model(BASE, DType::Bf16);
    let there = model.add_random_adapter(4, 1).expect("it is small");
    for kind in KINDS {
        let mut driver = Driver::new(&model, kind, 16, 1);
        driver.walk.adapt(1, there);
        driver.walk.adapt(2, AdapterId(2));
        let batch = driver.batch(&[1, 2].map(|sequence| Chunk { sequence, start: 0, tokens: &[5] }));
        assert_eq!(batch.rows[1].sequence, SequenceId(2));
        let (_, result) = driver.try_run(&batch);
        assert_eq!(result.expect_err("there is one adapter").rows, Some(vec![1]), "{kind:?}");
    }
}

/// A golden adapter that loads, as numbers.
fn sound() -> (Value, Tensors) {
    let directory = golden("qwen3-lora").join("some");
    let config = std::fs::read(directory.join("adapter_config.json")).expect("it is there");
    let tensors = candle_core::safetensors::load(directory.join("adapter_model.safetensors"), &Device::Cpu);
    let tensors = tensors.expect("sound").into_iter().map(|(name, tensor)| {
        let wide = tensor.to_dtype(candle_core::DType::F32).expect("numbers");
        let numbers = wide.flatten_all().and_then(|wide| wide.to_vec1::<f32>()).expect("numbers");
        (name, (tensor.dims().to_vec(), numbers))
    });
    (serde_json::from_slice(&config).expect("JSON"), tensors.collect())
}

/// The tensor of a layer's projection.
fn name(layer: usize, target: &str, which: &str) -> String {
    format!("base_model.model.model.layers.{layer}.{target}_proj.lora_{which}.weight")
}

#[test]
fn adapters_that_do_not_fit_are_refused_with_the_fault_named() {
    let base = golden(BASE);
    let config = ModelConfig::load(&Source::Directory(base)).expect("sound");
    type Change = fn(&mut Value, &mut Tensors);
    let cases: [(Change, &str); 13] = [
        (|_, _| (), ""),
        (
            |config, _| config["r"] = json!(7),
            "has shape [8, 64], the model and adapter_config.json require [7, 64]",
        ),
        (|config, _| config["rank_pattern"] = json!({}), "down_proj.lora_A.weight has shape [5, 192]"),
        (
            |_, tensors| {
                tensors.remove(&name(1, "self_attn.q", "B"));
            },
            "model.layers.1.self_attn.q_proj has no lora_B.weight",
        ),
        (
            |_, tensors| {
                tensors.remove(&name(3, "mlp.down", "A"));
            },
            "model.layers.3.mlp.down_proj has no lora_A.weight",
        ),
        (
            |_, tensors| {
                let tensor = tensors.get_mut(&name(1, "self_attn.v", "A")).expect("it is there");
                tensor.0 = vec![tensor.1.len()];
            },
            "has shape [512]",
        ),
        (
            |_, tensors| {
                let tensor = tensors.get_mut(&name(1, "self_attn.v", "B")).expect("it is there");
                tensor.1[9] = f32::NAN;
            },
            "self_attn.v_proj.lora_B.weight has numbers that are infinite or not a number",
        ),
        (|_, tensors| tensors.clear(), "has no tensors"),
        (
            |_, tensors| {
                tensors.insert("base_model.model.lm_head.weight".to_owned(), (vec![1], vec![0.0]));
            },
            "lm_head.weight changes the embedding or the head",
        ),
        (
            |_, tensors| {
                tensors.insert(name(0, "self_attn.qkv", "A"), (vec![1], vec![0.0]));
            },
            "changes self_attn.qkv_proj; supported are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        ),
        (
            |_, tensors| {
                let one = tensors[&name(1, "self_attn.q", "A")].clone();
                tensors.insert("base_model.model.layers.1.self_attn.q_proj.lora_A.weight".to_owned(), one);
            },
            "are the same matrix",
        ),
        (|config, _| config["use_dora"] = json!(true), "use_dora is not supported"),
        (|config, _| config["peft_type"] = json!("LOHA"), "peft_type \"LOHA\" is not supported"),
    ];
    for (change, said) in cases {
        let (mut settings, mut tensors) = sound();
        change(&mut settings, &mut tensors);
        let directory = tempfile::tempdir().expect("a temporary directory");
        write_adapter(directory.path(), &settings, &tensors);
        let source = Source::Directory(directory.path().to_owned());
        let checked = Model::check_adapter(&source, &config);
        let loaded = model(BASE, DType::F32).add_adapter(&source).map(|_| ());
        assert_eq!(checked, loaded);
        match checked {
            Ok(()) => assert_eq!(said, "", "it is refused"),
            Err(error) => {
                let error = error.to_string();
                assert!(!said.is_empty() && error.contains(said), "{said}: {error}");
            }
        }
    }
}

#[test]
fn adapters_of_other_models_and_other_folders_are_refused() {
    let load = |name: &str| ModelConfig::load(&Source::Directory(golden(name))).expect("sound");
    let refused = |source: &Source<'_>, config: &ModelConfig| {
        Model::check_adapter(source, config).expect_err("it is refused").to_string()
    };
    // The first layer of these consists of experts.
    for name in ["qwen3moe-bf16", "gptoss-bf16"] {
        let of_experts = refused(&adapter("all"), &load(name));
        assert!(of_experts.contains("and layer 0 consists of experts"), "{name}: {of_experts}");
    }
    let of_another = refused(&adapter("all"), &load("gemma3-bf16"));
    assert!(of_another.contains("the model and adapter_config.json require"), "{of_another}");
    let checkpoint = refused(&Source::Directory(golden(BASE)), &load(BASE));
    assert!(checkpoint.contains("has no adapter_config.json; is it an adapter of PEFT?"), "{checkpoint}");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (config, tensors) = sound();
    write_adapter(directory.path(), &config, &tensors);
    let [whole, pickled] =
        ["adapter_model.safetensors", "adapter_model.bin"].map(|file| directory.path().join(file));
    let source = Source::Directory(directory.path().to_owned());
    std::fs::write(&whole, &std::fs::read(&whole).expect("it is there")[..500]).expect("it can be written");
    let truncated = refused(&source, &load(BASE));
    assert!(truncated.contains("is not safetensors, or truncated"), "{truncated}");
    std::fs::rename(&whole, &pickled).expect("it can be moved");
    let only_pickled = refused(&source, &load(BASE));
    assert!(only_pickled.contains("adapter_model.bin is not read"), "{only_pickled}");
    std::fs::remove_file(&pickled).expect("it can be removed");
    let missing = refused(&source, &load(BASE));
    assert!(missing.contains("has no adapter_model.safetensors; is it an adapter of PEFT?"), "{missing}");
}
