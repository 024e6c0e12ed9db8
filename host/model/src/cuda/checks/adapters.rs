//! Logits of the golden adapters, beside each other and beside the model itself, against what PEFT computed.

use std::path::Path;
use std::sync::Arc;

use infer_kernels::cuda::Device;

use super::golden::{Case, Extent, limits, load, read_prompts};
use crate::{DType, ModelError, Source};

/// The golden checkpoint that has adapters, and their folder.
const MODEL: &str = "qwen3-bf16";
const ADAPTERS: &str = "qwen3-lora";

/// Checks the golden adapters in every type: prompts of both and of the model share batches, in chunks of mixed lengths.
///
/// # Errors
/// Names the adapter, prompt and position that differs, or the file that can't be read.
pub fn adapters(device: &Arc<dyn Device>, directory: &Path, extent: Extent) -> Result<String, String> {
    let mut covered = Vec::new();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let name = format!("{ADAPTERS} in {dtype:?}");
        let wrong = |error: ModelError| format!("{name}: {error}");
        let path = directory.join(MODEL);
        let mut model = load(&path, Some(dtype)).map_err(wrong)?;
        let (tolerance, margin) = limits(dtype);
        let files = ["golden.json", "golden.safetensors"];
        let (mut prompts, mut safe_margin) = read_prompts(&path, files, margin, extent)?;
        for adapter in ["all", "some"] {
            let path = directory.join(ADAPTERS).join(adapter);
            let files = ["expected.json", "expected.safetensors"];
            let (mut own, own_margin) = read_prompts(&path, files, margin, extent)?;
            let id = model.add_adapter(&Source::Directory(path)).map_err(wrong)?;
            for prompt in &mut own {
                prompt.adapter = id;
                prompt.name = format!("{adapter}, {}", prompt.name);
            }
            prompts.append(&mut own);
            safe_margin = safe_margin.max(own_margin);
        }
        let on_device = model.to_device(device).map_err(wrong)?;
        let case = Case { name: name.clone(), prompts, tolerance, safe_margin };
        let worst = case.prompts_in_chunks(&on_device)?;
        covered.push(format!("{dtype:?} {worst:.1e} of {tolerance:.0e}"));
    }
    Ok(format!("two adapters beside the model, relative error up to {}", covered.join(", ")))
}
