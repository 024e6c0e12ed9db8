//! Adapters compute what PEFT's do, beside each other and beside the model itself.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use infer_core::AdapterId;
use infer_model::{DType, KvCacheKind};
use serde_json::Value;

use crate::common::{ADAPTED, Chunk, Driver, adapter, golden, model};
use crate::{distance, largest};

const KINDS: [KvCacheKind; 2] = [KvCacheKind::Paged, KvCacheKind::Contiguous];
const ADAPTERS: [&str; 2] = ["all", "some"];

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

#[test]
fn adapters_match_the_reference_beside_each_other_and_leave_the_model_as_it_is() {
    let expected = ADAPTERS.map(Expected::read);
    for (dtype, tolerance, margin) in
        [(DType::F32, 1e-4, "float32_compute"), (DType::Bf16, 2e-2, "bfloat16_compute")]
    {
        let bare = model(ADAPTED, dtype);
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
                        let error = distance(got, want);
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
