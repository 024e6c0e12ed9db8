//! Random checkpoints of every family, and random adapters of them, against the definitions in scalar f64.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gguf.rs"]
mod convert;
#[path = "../common/tensors.rs"]
mod tensors;

mod families;
mod lora;
mod scalar;
mod shape;

/// The relative L2 error of logits.
fn distance(got: &[f32], want: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (error / want.iter().map(|x| x.powi(2)).sum::<f64>()).sqrt()
}
