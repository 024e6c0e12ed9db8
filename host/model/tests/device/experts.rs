//! Layers of experts: golden logits, and the same tokens in each way that a step multiplies them.

use std::ops::ControlFlow;
use std::sync::Arc;

use infer_core::{Batch, Executor, SamplingExtras, SamplingParams, StepOutput};
use infer_kernels::cuda::{Device, Switches};
use infer_model::cuda::checks::{self, Extent};
use infer_model::{DType, LoadOptions, Model, Source};

use crate::steps::{beside, executor, row};
use crate::{emulator, golden, passes, seeded};

const CHECKPOINT: &str = "qwen3moe-bf16";

/// With few rows, the sums and norms around layers of experts are part of them, if that is not switched off.
#[test]
fn golden_logits_of_experts() {
    for fused in [true, false] {
        let Some(mut emulator) = seeded(7) else { return };
        emulator.switch(Switches { fused, ..Switches::default() });
        let emulator = Arc::new(emulator);
        let device: Arc<dyn Device> = emulator.clone();
        passes(checks::golden(&device, &golden().join(CHECKPOINT), Extent::UpTo(12)));
        assert_eq!(emulator.launches().contains_key("combine_add_bf16"), fused);
    }
}

/// Rows that pad a recorded decode choose no expert, and the rows beside a token decide the tiles that it is multiplied in.
/// Those of gpt-oss have biases, beside attention with sinks.
#[test]
fn tokens_of_layers_of_experts_are_the_same_if_recorded_and_alone() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for name in [CHECKPOINT, "gptoss-bf16"] {
        passes(checks::graphs_are_eager(&device, &golden().join(name)));
        passes(checks::tokens_stand_alone(&device, &golden().join(name)));
    }
}

/// The golden logits of such layers are in bf16.
#[test]
fn layers_of_experts_in_other_types_are_those_of_the_cpu() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let load = |dtype| {
        let options = LoadOptions { dtype: Some(dtype), for_gpu: true, ..LoadOptions::default() };
        let source = Source::Directory(golden().join(CHECKPOINT));
        Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(())).expect("it loads")
    };
    let wide = load(DType::F32);
    let wanted = logprobs_of_prompts(&mut beside(&wide));
    for (model, tolerance) in [(&wide, 1e-3), (&load(DType::F16), 2e-2)] {
        for deterministic in [false, true] {
            let got = logprobs_of_prompts(&mut executor(model, &device, deterministic));
            assert!(
                wanted.iter().zip(&got).all(|(a, b)| (a - b).abs() < tolerance),
                "{:?}: {got:?} for {wanted:?}",
                model.dtype
            );
        }
    }
}

/// Log-probabilities of two prompts' tokens.
fn logprobs_of_prompts(executor: &mut dyn Executor) -> Vec<f32> {
    let extras = SamplingExtras { prompt_logprobs: Some(0), ..SamplingExtras::default() };
    let asks = SamplingParams { extras: Some(Arc::new(extras)), ..SamplingParams::default() };
    let mut batch = Batch::default();
    for (first, count) in [(0, 20), (5, 31)] {
        let tokens: Vec<u32> = (0..count).map(|token| 7 + 11 * token + first).collect();
        row(&mut batch, first, &tokens, asks.clone());
    }
    let mut output = StepOutput::default();
    executor.execute(&batch, &mut output).expect("it runs");
    let tokens = output.prompt_logprobs.iter().flat_map(|(_, tokens)| tokens);
    let logprobs: Vec<f32> = tokens.map(|token| token.logprob).collect();
    assert_eq!(logprobs.len(), 19 + 30);
    logprobs
}
