//! Models that don't fit, or that have no kernels on GPUs, are refused with advice.

use std::ops::ControlFlow;
use std::sync::Arc;

use infer_kernels::cuda::Device;
use infer_model::cuda::DeviceModel;
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
fn attention_sinks_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let model = load("gptoss-mxfp4");
    let error = model.to_device(&device).err().expect("there are no kernels").to_string();
    assert!(error.contains("sinks (model_type gpt_oss)") && error.contains("--device cpu"), "{error}");
    let random = DeviceModel::random(&model.config, model.dtype, &device, 1);
    assert_eq!(random.err().expect("there are no kernels").to_string(), error);
}

#[test]
fn weights_as_integers_are_refused() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for quantize in [Quantize::Q8, Quantize::Q4] {
        let load = |for_gpu| {
            let options = LoadOptions { for_gpu, quantize, ..LoadOptions::default() };
            let source = Source::Directory(golden().join("llama-bf16"));
            Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(()))
        };
        let error = load(true).err().expect("there are no kernels").to_string();
        assert!(error.contains("on CPUs only"), "{error}");
        let model = load(false).expect("a CPU has kernels");
        let error = model.to_device(&device).err().expect("there are no kernels").to_string();
        assert!(error.contains(&format!("integers ({})", model.weight_type)), "{error}");
    }
    let model = load("llama-bf16");
    assert_eq!(model.weight_type, WeightType::Bf16);
    let placed = model.to_device(&device).expect("it fits");
    assert_eq!(placed.weight_bytes(), model.weight_bytes());
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
