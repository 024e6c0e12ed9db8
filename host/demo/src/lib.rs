//! The demo model: a small Llama checkpoint that answers questions about inference serving.
//!
//! `infer serve` embeds it, so a fresh machine has something real to serve, and end-to-end tests
//! can assert real text. The text it learned is in `corpus/`, written for this project; the code
//! that trained it is in `train`, behind the feature of that name. Serving it needs neither.
#![forbid(unsafe_code)]

#[cfg(feature = "train")]
pub mod train;

/// What requests call the model.
pub const NAME: &str = "demo";

/// The checkpoint: file names as in Hugging Face's layout, and their bytes.
pub const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../checkpoint/config.json")),
    ("generation_config.json", include_bytes!("../checkpoint/generation_config.json")),
    ("model.safetensors", include_bytes!("../checkpoint/model.safetensors")),
    ("tokenizer.json", include_bytes!("../checkpoint/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../checkpoint/tokenizer_config.json")),
];
