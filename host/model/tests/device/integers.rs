//! Weights as integers: what stays, what is widened, what it takes, and that nothing else changes.

use std::ops::ControlFlow;
use std::sync::Arc;

use infer_core::{Executor, SamplingParams, StepOutput};
use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::{Device, Switches};
use infer_model::cuda::checks;
use infer_model::{DType, LoadOptions, Model, Quantize, Source, WeightType};

use crate::steps::{executor, row};
use crate::{emulator, golden, load, passes};

fn load_as(name: &str, quantize: Quantize, for_gpu: bool) -> Model {
    let options = LoadOptions { for_gpu, quantize, ..LoadOptions::default() };
    let source = Source::Directory(golden().join(name));
    Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(())).expect("it is sound")
}

/// With what surrounds products included and apart; the last two have floats on the device, since rows are no whole groups and
/// since they are f32.
#[test]
fn logits_are_those_of_the_same_weights_widened() {
    for name in [
        "llama-bf16",
        "qwen3-bf16",
        "gemma3-bf16",
        "phi3-bf16",
        "granite-bf16",
        "qwen3-yarn-f16",
        "llama-f32",
    ] {
        for fused in [true, false] {
            let Some(mut emulator) = Emulator::new(7) else { return };
            emulator.switch(Switches { fused, ..Switches::default() });
            let device: Arc<dyn Device> = Arc::new(emulator);
            passes(
                checks::integers(&device, &golden().join(name)).map_err(|wrong| format!("{name}: {wrong}")),
            );
        }
    }
}

#[test]
fn recorded_decodes_draw_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::integers_are_recorded(&device, &golden().join("llama-bf16")));
}

#[test]
fn deterministic_tokens_depend_only_on_those_before_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::integers_stand_alone(&device, &golden().join("qwen3-bf16")));
}

/// Few rows are multiplied with integers, many with widened ones, and no matrix is there twice.
#[test]
fn products_read_integers_up_to_32_rows() {
    let Some(emulator) = Emulator::new(7) else { return };
    let emulator = Arc::new(emulator);
    let device: Arc<dyn Device> = emulator.clone();
    let model = load_as("llama-bf16", Quantize::Q4, true);
    assert_eq!(model.weight_type, WeightType::Q4);
    let mut executor = executor(&model, &device, false);
    let mut run = |first: u32, tokens: usize| {
        let mut batch = infer_core::Batch::default();
        let tokens: Vec<u32> = (0..tokens as u32).collect();
        row(&mut batch, first, &tokens, SamplingParams { temperature: 0.0, ..SamplingParams::default() });
        let before = emulator.launches();
        executor.execute(&batch, &mut StepOutput::default()).expect("the device runs");
        let mut launches = emulator.launches();
        launches.retain(|kernel, count| before.get(kernel).copied() != Some(*count));
        launches.into_keys().collect::<Vec<_>>()
    };
    let few = run(0, 3);
    for kernel in [
        "embed_int8",
        "product_rope_int4_bf16_1",
        "product_add_int4_bf16_1",
        "product_gated_int4_bf16_1",
        "product_few_int8_bf16_1",
    ] {
        assert!(few.contains(&kernel), "{few:?}");
    }
    assert!(!few.iter().any(|kernel| kernel.starts_with("widen")), "{few:?}");
    let many = run(4, 40);
    assert!(many.contains(&"widen_int4_bf16") && many.contains(&"product_tiled_bf16"), "{many:?}");
    // The head of one row.
    assert!(many.contains(&"product_few_int8_bf16_1") && !many.contains(&"widen_int8_bf16"), "{many:?}");
}

#[test]
fn bytes_on_the_device_are_those_of_integers_where_kernels_read_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let placed = |model: &Model| model.to_device(&device).expect("it fits").weight_bytes();
    // 8.5 bits a weight in place of 16, in rows of whole tiles.
    let eight = placed(&load_as("llama-bf16", Quantize::Q8, true));
    assert_eq!(eight, placed(&load("llama-bf16")) * 17 / 32);
    let four = load_as("llama-bf16", Quantize::Q4, true);
    assert_eq!(four.dtype, DType::Bf16);
    assert!(placed(&four) < eight);
    // Loaded for the CPU they are the same.
    assert_eq!(placed(&load_as("llama-bf16", Quantize::Q4, false)), placed(&four));
    // Where the model computes in f32, they are widened.
    assert_eq!(placed(&load_as("llama-f32", Quantize::Q4, true)), placed(&load("llama-f32")));
    // Experts are floats on the device whatever they are on the host, and 4-bit floats become such on the way there.
    let experts = |name: &str, quantize| {
        let model = load_as(name, quantize, true);
        (model.weight_type, placed(&model))
    };
    let (kind, widened) = experts("gptoss-mxfp4", Quantize::Auto);
    assert_eq!(kind, WeightType::Bf16);
    assert_eq!(experts("gptoss-mxfp4", Quantize::Off), (WeightType::Bf16, widened));
    let (kind, smaller) = experts("gptoss-mxfp4", Quantize::Q8);
    assert_eq!(kind, WeightType::Q8);
    // Four layers of eight experts with three matrices.
    let of_experts = 4 * 8 * 3 * 64 * 64 * 2;
    assert!((of_experts..widened).contains(&smaller), "{smaller} of {widened}");
    assert!(load("gptoss-mxfp4").to_device(&device).is_ok_and(|placed| placed.weight_bytes() == widened));
}
