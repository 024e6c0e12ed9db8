//! Tensors as numbers, and the files of an adapter that has them.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

/// Tensors by full name: shape and numbers.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Writes an adapter as PEFT does.
pub fn write_adapter(directory: &Path, config: &Value, tensors: &Tensors) {
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
