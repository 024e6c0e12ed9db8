//! Models that don't fit and adapters, which have no kernels on GPUs, are refused with advice.

use std::sync::Arc;

use infer_kernels::cuda::Device;

use crate::{emulator, model};

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
fn adapters_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut model = model();
    model.add_random_adapter(4, 1).expect("it is small");
    let error = model.to_device(&device).err().expect("there are no kernels").to_string();
    assert!(error.contains("adapters have no kernels on GPUs") && error.contains("--device cpu"), "{error}");
}
