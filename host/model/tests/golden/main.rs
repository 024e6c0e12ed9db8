//! Golden checkpoints against the results of Hugging Face transformers and PEFT (tests/golden/README.md): logits, embeddings,
//! and logits with adapters and with weights as integers.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gguf.rs"]
mod convert;

mod embeddings;
mod logits;
mod lora;
mod quantized;

/// The relative L2 error of logits.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    (error / want.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
}

/// The likeliest token; of equals, the lowest.
fn largest(logits: &[f32]) -> usize {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.expect("a vocabulary").0
}
