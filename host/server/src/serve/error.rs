//! Why a host didn't start, and whether another command line would help.

use infer_model::{ModelError, ModelErrorKind};
use infer_wasm::LoadError;

use crate::config::ConfigError;
use crate::engine::EngineStopped;
use crate::policies::PolicyError;
use crate::startup::checkpoint::CheckpointError;

/// Why a host didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting can't be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// There is no checkpoint.
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint can't be used.
    #[error("--model: {0}")]
    Model(#[from] ModelError),
    /// An adapter can't be used.
    #[error("--lora: {0}: {1}")]
    Adapter(String, ModelError),
    /// A policy can't be used.
    #[error("--{0}: {1}")]
    Policy(&'static str, PolicyError),
    /// The WebAssembly engine can't be set up.
    #[error("{0}")]
    Wasm(#[from] LoadError),
    /// The host can't listen on an address.
    #[error("{flag}: can't listen on {address}: {error}")]
    Bind {
        /// The flag of the address.
        flag: &'static str,
        /// The address.
        address: String,
        /// The reason.
        error: std::io::Error,
    },
    /// The machine lacks something that may be there at another moment: memory that others hold, a GPU's driver.
    #[error("{0}")]
    Machine(String),
    /// The engine stopped during the start.
    #[error("{0}")]
    Stopped(#[from] EngineStopped),
    /// The operating system refused something.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
}

impl StartError {
    /// Whether another command line would help, or another file that it names: exit code 2 instead of 1. The same start at
    /// another moment wouldn't.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Checkpoint(CheckpointError::Wrong(_)) => true,
            Self::Model(error) | Self::Adapter(_, error) => match error.kind {
                ModelErrorKind::Config
                | ModelErrorKind::Adapter
                | ModelErrorKind::Weights
                | ModelErrorKind::Tokenizer
                | ModelErrorKind::Text
                | ModelErrorKind::Template
                | ModelErrorKind::Unsupported => true,
                ModelErrorKind::Io | ModelErrorKind::Device | ModelErrorKind::Machine => false,
            },
            Self::Policy(_, PolicyError::Load(LoadError::Engine(_) | LoadError::Machine(_))) => false,
            Self::Policy(_, error) => matches!(
                error,
                PolicyError::Unknown { .. }
                    | PolicyError::NoConfig
                    | PolicyError::File(..)
                    | PolicyError::Load(_)
                    | PolicyError::List(_)
                    | PolicyError::ListConfig(_)
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_files_are_wrong_usage_and_what_the_moment_decides_is_not() {
        for (kind, is_usage) in [
            (ModelErrorKind::Config, true),
            (ModelErrorKind::Adapter, true),
            (ModelErrorKind::Weights, true),
            (ModelErrorKind::Tokenizer, true),
            (ModelErrorKind::Text, true),
            (ModelErrorKind::Template, true),
            (ModelErrorKind::Unsupported, true),
            (ModelErrorKind::Io, false),
            (ModelErrorKind::Device, false),
            (ModelErrorKind::Machine, false),
        ] {
            let error = ModelError::new(kind, "why");
            assert_eq!(StartError::Model(error.clone()).is_usage(), is_usage, "{kind:?}");
            assert_eq!(StartError::Adapter("x".to_owned(), error).is_usage(), is_usage, "{kind:?}");
        }
    }
}
