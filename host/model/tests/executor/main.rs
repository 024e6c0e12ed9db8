//! The executor on a CPU: what it guarantees to the engine, alone and under the real one, and how it samples.

#[path = "../common/mod.rs"]
mod common;

mod engine;
mod guarantees;
mod invariance;
mod lora;
mod sampler;
mod together;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}
