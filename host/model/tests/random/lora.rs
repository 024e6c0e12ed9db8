//! Random adapters: a model with one computes what another does whose weights have it added.

use candle_core::quantized::GgmlDType;
use infer_kernels::Random;
use infer_model::{KvCacheKind, Model, Source};
use serde_json::{Value, json};

use crate::common::{Chunk, Driver};
use crate::shape::{FAMILIES, FUSED, Shape};
use crate::tensors::{Tensors, write_adapter};
use crate::{convert, distance, scalar, shape};

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
                        let error = distance(got, &want[end]);
                        assert!(error < 1e-4, "position {end}: {error:.1e}, {context}");
                    }
                }
            }
        }
    }
}
