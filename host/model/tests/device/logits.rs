//! Golden logits of every family, and golden embeddings, with each choice of kernels.

use std::sync::Arc;

use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::{Device, Switches};
use infer_model::cuda::checks::{self, Extent};

use crate::{emulator, golden, passes};

fn golden_logits(name: &str) {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::golden(&device, &golden().join(name), Extent::UpTo(12)));
}

#[test]
fn golden_logits_of_llama() {
    golden_logits("llama-f32");
    golden_logits("llama-bf16");
}

#[test]
fn golden_logits_of_qwen2() {
    golden_logits("qwen2-bf16");
}

#[test]
fn golden_logits_of_qwen3() {
    golden_logits("qwen3-bf16");
    // Heads of a width without a fast kernel, in f16.
    golden_logits("qwen3-yarn-f16");
}

#[test]
fn golden_logits_of_mistral() {
    golden_logits("mistral-bf16");
}

#[test]
fn golden_logits_of_gemma3() {
    golden_logits("gemma3-f32");
    golden_logits("gemma3-bf16");
}

/// Layers without a position embedding have a table like the others, so they need no kernels of their own.
#[test]
fn golden_logits_of_smollm3() {
    golden_logits("smollm3-bf16");
}

/// Nor do projections that the checkpoint has in one, and heads of which a part is rotated.
#[test]
fn golden_logits_of_phi3() {
    golden_logits("phi3-bf16");
}

/// Factors of embeddings, scores, residual branches and logits.
#[test]
fn golden_logits_of_granite() {
    golden_logits("granite-bf16");
}

/// Norms of all heads together, and none before projections.
#[test]
fn golden_logits_of_olmo() {
    golden_logits("olmo2-bf16");
    golden_logits("olmo3-bf16");
}

#[test]
fn golden_logits_of_mixtral() {
    golden_logits("mixtral-bf16");
}

/// Experts, beside norms of all heads together.
#[test]
fn golden_logits_of_olmoe() {
    golden_logits("olmoe-bf16");
}

/// Sinks, biased experts of which gate and up are clamped, and windows that most of a prompt is outside of.
#[test]
fn golden_logits_of_gpt_oss() {
    golden_logits("gptoss-bf16");
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::golden(&device, &golden().join("gptoss-mxfp4"), Extent::UpTo(70)));
}

#[test]
fn golden_embeddings() {
    for fused in [true, false] {
        let Some(mut emulator) = Emulator::new(7) else { return };
        emulator.switch(Switches { fused, ..Switches::default() });
        let device: Arc<dyn Device> = Arc::new(emulator);
        passes(checks::embeddings(&device, &golden().join("qwen3-embedding-bf16"), Extent::UpTo(18)));
    }
}

/// The kernels of real models' head widths, with each kind of products in prefill.
#[test]
fn golden_logits_of_heads_as_wide_as_real_ones() {
    for name in ["llama-wide-bf16", "qwen3-wide-bf16", "gemma3-wide-bf16"] {
        for wgmma in [false, true] {
            let Some(mut emulator) = Emulator::new(7) else { return };
            emulator.switch(Switches { wgmma, ..Switches::default() });
            let emulator = Arc::new(emulator);
            let device: Arc<dyn Device> = emulator.clone();
            passes(checks::golden(&device, &golden().join(name), Extent::UpTo(70)));
            let by_warpgroups = emulator.launches().keys().any(|kernel| kernel.contains("wgmma"));
            assert_eq!(by_warpgroups, wgmma, "{name}");
        }
    }
}

#[test]
fn golden_logits_without_fusion() {
    for name in ["llama-bf16", "qwen3-bf16", "gemma3-bf16", "granite-bf16", "olmo3-bf16", "gptoss-bf16"] {
        let Some(mut emulator) = Emulator::new(7) else { return };
        emulator.switch(Switches { fused: false, ..Switches::default() });
        let device: Arc<dyn Device> = Arc::new(emulator);
        passes(checks::golden(&device, &golden().join(name), Extent::UpTo(12)));
    }
}
