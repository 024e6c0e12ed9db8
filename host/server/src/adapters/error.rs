//! Why an adapter can't be loaded or unloaded.

use infer_core::DeviceFault;
use infer_model::{ModelError, ModelErrorKind};

use crate::engine::EngineStopped;

/// Why an adapter was not loaded or unloaded. Everything is as it was then.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The name has a form that no name has.
    #[error("name: {0}")]
    Name(String),
    /// The model has this name.
    #[error("`{0}` is a name of the model itself; give the adapter another")]
    NameOfModel(String),
    /// An adapter has this name, in this state.
    #[error(
        "there is an adapter `{0}` already, which is {1}; give this one another name, or unload that one first"
    )]
    NameTaken(String, &'static str),
    /// No adapter has this name.
    #[error("there is no adapter `{0}`; `infer admin adapters list` shows which there are")]
    Unknown(String),
    /// The adapter can't be unloaded in this state.
    #[error("the adapter `{0}` is {1} at the moment; try again later")]
    Moving(String, &'static str),
    /// There are as many as there may be.
    #[error(
        "the host has {0} of at most {0} adapters; unload one first, or restart with a larger --max-adapters"
    )]
    TooMany(usize),
    /// They would take more memory than they may.
    #[error(
        "the adapter takes {bytes} bytes, and of the {most} that adapters may take {left} are left; unload one first, or \
         restart with a larger --max-adapter-memory"
    )]
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What it may take.
        left: u64,
        /// What all may take together.
        most: u64,
    },
    /// It is not there.
    #[error("path: {0}")]
    Place(String),
    /// It doesn't fit the model, or can't be read.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// The device didn't take it.
    #[error("the device doesn't take it: {}", .0.message)]
    Device(DeviceFault),
    /// The engine has ended.
    #[error("{0}")]
    Stopped(#[from] EngineStopped),
}

/// What would have to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The request names what there isn't.
    Missing,
    /// The request, or the adapter.
    Request,
    /// What the host has already.
    State,
    /// What the machine has at the moment.
    Machine,
}

impl AdapterError {
    /// A machine-readable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name(_) => "invalid_value",
            Self::NameOfModel(_) | Self::NameTaken(..) => "name_taken",
            Self::Unknown(_) => "not_found",
            Self::Moving(..) => "adapter_busy",
            Self::TooMany(_) => "too_many_adapters",
            Self::TooLarge { .. } => "adapter_memory",
            Self::Place(_) => "adapter_not_found",
            Self::Model(_) => "adapter_unfit",
            Self::Device(_) => "adapter_failed",
            Self::Stopped(_) => "engine_stopped",
        }
    }

    /// What would have to change for it to work.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Unknown(_) => Remedy::Missing,
            Self::Name(_) | Self::Place(_) => Remedy::Request,
            Self::NameOfModel(_)
            | Self::NameTaken(..)
            | Self::Moving(..)
            | Self::TooMany(_)
            | Self::TooLarge { .. } => Remedy::State,
            Self::Model(error) => match error.kind {
                ModelErrorKind::Io | ModelErrorKind::Device | ModelErrorKind::Machine => Remedy::Machine,
                _ => Remedy::Request,
            },
            Self::Device(_) | Self::Stopped(_) => Remedy::Machine,
        }
    }
}

#[cfg(test)]
mod tests {
    use infer_core::DeviceFaultKind;

    use super::*;

    /// The request was sound, and so may be the next one.
    #[test]
    fn what_a_device_refuses_is_no_fault_of_the_request() {
        for kind in [DeviceFaultKind::Failed, DeviceFaultKind::OutOfMemory, DeviceFaultKind::Lost] {
            let error =
                AdapterError::Device(DeviceFault { kind, message: "a copy failed".to_owned(), rows: None });
            assert_eq!((error.code(), error.remedy()), ("adapter_failed", Remedy::Machine), "{kind:?}");
        }
    }
}
