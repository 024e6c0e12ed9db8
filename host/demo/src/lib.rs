//! The demo model: a small Llama checkpoint that answers questions about inference serving.
//!
//! `infer serve` embeds it, so that a fresh machine has a real model to serve and end-to-end tests can assert real text.
//! The training text is in `corpus/`, written for this project; the training code is in `train`, behind the feature of
//! that name. Serving needs neither.
#![forbid(unsafe_code)]

#[cfg(feature = "train")]
pub mod train;

/// Name of the model in requests.
pub const NAME: &str = "demo";

/// The checkpoint: file names as in Hugging Face's layout, and their bytes.
pub const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../checkpoint/config.json")),
    ("generation_config.json", include_bytes!("../checkpoint/generation_config.json")),
    ("model.safetensors", include_bytes!("../checkpoint/model.safetensors")),
    ("tokenizer.json", include_bytes!("../checkpoint/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../checkpoint/tokenizer_config.json")),
];
