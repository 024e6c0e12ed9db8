//! Models and adapters that don't fit are refused with advice.

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
fn adapters_beyond_the_device_are_refused_with_advice() {
    let Some(device) = emulator() else { return };
    let mut model = model();
    let device: Arc<dyn Device> = device;
    for seed in 0..3 {
        model.add_random_adapter(4_000, seed).expect("a host has room");
    }
    let bytes = model.weight_bytes() + model.adapter_bytes() / 2;
    let Some(small) = emulator() else { return };
    small.limit_memory(bytes as usize);
    let small: Arc<dyn Device> = small;
    let error = model.to_device(&small).err().expect("half of them fit").to_string();
    assert!(error.contains("the adapters don't fit") && error.contains("serve fewer"), "{error}");
    assert!(model.to_device(&device).is_ok());
}
