//! The error type of this crate. Its message names the file or key at fault and what would be valid; the kind is for
//! programs. Faults of a running model are `infer_core::DeviceFault`s instead.

use std::fmt;
use std::path::Path;

/// What is wrong with a checkpoint, an adapter, a tokenizer or a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct ModelError {
    /// Which part is at fault.
    pub kind: ModelErrorKind,
    /// Names the file or key, and what would be valid.
    pub message: String,
}

/// Which part is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// `config.json` or `generation_config.json`.
    Config,
    /// An adapter's `adapter_config.json`.
    Adapter,
    /// A safetensors file, its index, or a tensor in it.
    Weights,
    /// `tokenizer.json` or `tokenizer_config.json`; or the tokenizer failed.
    Tokenizer,
    /// A text that the vocabulary can't express.
    Text,
    /// The chat template.
    Template,
    /// Valid, but not supported by this host.
    Unsupported,
    /// A file that can't be read at the moment.
    Io,
    /// The device that was to hold the model.
    Device,
    /// The operating system refused something, such as memory; it may not at another moment.
    Machine,
}

impl ModelError {
    /// An error of a kind.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// `config.json` or `generation_config.json` is at fault.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Config, message)
    }

    /// `adapter_config.json` is at fault.
    pub fn adapter(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Adapter, message)
    }

    /// Weights are at fault.
    pub fn weights(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Weights, message)
    }

    /// The tokenizer is at fault.
    pub fn tokenizer(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Tokenizer, message)
    }

    /// The text is at fault.
    pub fn text(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Text, message)
    }

    /// The chat template is at fault.
    pub fn template(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Template, message)
    }

    /// Valid, but not supported by this host.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Unsupported, message)
    }

    /// The operating system refused something.
    pub fn machine(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Machine, message)
    }

    /// A file can't be read.
    pub fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::new(ModelErrorKind::Io, format!("can't read {}: {error}", path.display()))
    }
}

impl fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "model configuration",
            Self::Adapter => "adapter configuration",
            Self::Weights => "weights",
            Self::Tokenizer => "tokenizer",
            Self::Text => "text",
            Self::Template => "chat template",
            Self::Unsupported => "unsupported",
            Self::Io => "file",
            Self::Device => "the device",
            Self::Machine => "this machine",
        })
    }
}
