//! Which launches are saved where products include what surrounds them, and that results stay the same.

use std::sync::Arc;

use infer_core::{Batch, Executor, SamplingExtras, SamplingParams, StepOutput};
use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::{Device, Switches};

use crate::load;
use crate::steps::{executor, row};

/// What products of few rows include isn't launched by itself, and makes no difference but in the last places.
#[test]
fn products_of_few_rows_include_what_surrounds_them() {
    // Per layer two norms, a gate and a KV write. The first layer's norm stays; the last norm is of chosen rows, with or
    // without a sum. Gemma 3 has norms of heads and behind its projections, which need whole rows.
    for (name, layers, saved) in [("llama-bf16", 4, 4 * 4 - 1), ("gemma3-bf16", 8, 8)] {
        let model = load(name);
        let run = |fused: bool| {
            let mut emulator = Emulator::new(7)?;
            emulator.switch(Switches { fused, ..Switches::default() });
            let emulator = Arc::new(emulator);
            let device: Arc<dyn Device> = emulator.clone();
            let mut executor = executor(&model, &device, false);
            let launched = || emulator.launches().values().sum::<u64>();
            let ask = |prompt_logprobs| {
                let extras = SamplingExtras { prompt_logprobs, ..SamplingExtras::default() };
                let mut batch = Batch::default();
                for first in [0, 4] {
                    let extras = prompt_logprobs.map(|_| Arc::new(extras.clone()));
                    let wish = SamplingParams { temperature: 0.0, extras, ..SamplingParams::default() };
                    row(&mut batch, first, &[5, 9, 2, 7, 5 + first, 1], wish);
                }
                batch
            };
            let mut outputs = [StepOutput::default(), StepOutput::default()];
            let before = launched();
            executor.execute(&ask(None), &mut outputs[0]).expect("the device runs");
            let launches = launched() - before;
            executor.execute(&ask(Some(0)), &mut outputs[1]).expect("the device runs");
            Some((launches, emulator.launches(), outputs))
        };
        let (Some(fused), Some(apart)) = (run(true), run(false)) else { return };
        assert_eq!(model.config.layers.len(), layers, "{name}");
        assert_eq!(fused.0 + saved, apart.0, "{name}");
        let has = |kernel: &str| [&fused.1, &apart.1].map(|launches| launches.contains_key(kernel));
        assert_eq!(has("product_gated_bf16_2"), [true, false], "{name}");
        assert_eq!(has("product_add_bf16_2"), [name == "llama-bf16", false], "{name}");
        assert_eq!(has("product_rope_bf16_2"), [name == "llama-bf16", false], "{name}");
        assert_eq!(has("gated_bf16"), [false, true], "{name}");
        assert_eq!(has("kv_write_bf16"), [name != "llama-bf16", true], "{name}");
        for (fused, apart) in fused.2.iter().zip(&apart.2) {
            assert_eq!(fused.sampled, apart.sampled, "{name}");
            let tokens = |output: &StepOutput| -> Vec<f32> {
                output
                    .prompt_logprobs
                    .iter()
                    .flat_map(|(_, tokens)| tokens.iter().map(|t| t.logprob))
                    .collect()
            };
            let (fused, apart) = (tokens(fused), tokens(apart));
            assert_eq!(fused.len(), apart.len());
            assert!(
                fused.iter().zip(&apart).all(|(a, b)| (a - b).abs() < 0.1),
                "{name}: {fused:?} {apart:?}"
            );
        }
        assert_eq!(tokens_asked_about(&fused.2[1]), 2 * 5, "{name}");
    }
}

fn tokens_asked_about(output: &StepOutput) -> usize {
    output.prompt_logprobs.iter().map(|(_, tokens)| tokens.len()).sum()
}
