//! Models that don't fit, and weights and adapters that have no kernels on GPUs, are refused with advice.

use std::ops::ControlFlow;
use std::sync::Arc;

use infer_kernels::cuda::Device;
use infer_model::{LoadOptions, Model, Quantize, Source, WeightType};

use crate::{emulator, golden, load, model};

#[test]
fn weights_beyond_the_device_are_refused_with_other_advice_than_a_pool() {
    let Some(device) = emulator() else { return };
    device.limit_memory(1 << 10);
    let device: Arc<dyn Device> = device;
    let error = model().to_device(&device).err().expect("a kilobyte holds no model").to_string();
    assert!(error.contains("the weights don't fit: ") && error.contains("smaller model"), "{error}");
    assert!(!error.contains("kv-memory"), "{error}");
}

#[test]
fn quantized_weights_are_refused() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let load_as = |name, quantize, for_gpu| {
        let options = LoadOptions { for_gpu, quantize, ..LoadOptions::default() };
        let source = Source::Directory(golden().join(name));
        Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(()))
    };
    let refused = |model: &Model| {
        let error = model.to_device(&device).err().expect("there are no kernels").to_string();
        assert!(error.contains(&format!("quantized weights ({})", model.weight_type)), "{error}");
    };
    for quantize in [Quantize::Q8, Quantize::Q4] {
        let error = load_as("llama-bf16", quantize, true).err().expect("there are no kernels").to_string();
        assert!(error.contains("on CPUs only"), "{error}");
        refused(&load_as("llama-bf16", quantize, false).expect("a CPU has kernels"));
    }
    refused(&load("gptoss-mxfp4"));
    let model = load("llama-bf16");
    assert_eq!(model.weight_type, WeightType::Bf16);
    let placed = model.to_device(&device).expect("it fits");
    assert_eq!(placed.weight_bytes(), model.weight_bytes());
    // Loaded for a GPU, those of a file are widened: 4-bit floats on the way there, which takes no memory of the host.
    let model = load_as("gptoss-mxfp4", Quantize::Auto, true).expect("it is sound");
    assert_eq!(model.weight_type, WeightType::Bf16);
    let placed = model.to_device(&device).expect("it fits");
    assert!(model.stored_blocks.is_some_and(|bytes| bytes < placed.weight_bytes()));
    let asked = load_as("gptoss-mxfp4", Quantize::Off, true).expect("it is sound");
    assert_eq!((asked.weight_type, asked.checksums(1)), (WeightType::Bf16, model.checksums(1)));
    let widened = load_as("gptoss-mxfp4", Quantize::Off, false).expect("it is sound");
    assert!(model.weight_bytes() < widened.weight_bytes());
    let same = widened.to_device(&device).expect("it fits");
    assert_eq!(same.weight_bytes(), placed.weight_bytes());
}

#[test]
fn adapters_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut model = model();
    model.add_random_adapter(4, 1).expect("it is small");
    let error = model.to_device(&device).err().expect("there are no kernels").to_string();
    assert!(error.contains("adapters have no kernels on GPUs") && error.contains("--device cpu"), "{error}");
}
