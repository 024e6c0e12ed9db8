//! Failures of a GPU, its libraries or its memory.

/// A device, its libraries or its memory failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// What kind of failure.
    pub kind: CudaErrorKind,
    /// What happened and, if anything helps, what to do.
    pub message: String,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaErrorKind {
    /// No driver or no such device.
    NoDevice,
    /// This program contains no kernels: it was built without a CUDA toolkit.
    NoKernels,
    /// A variable of [`super::Switches`] has a value that can't be used.
    Switch,
    /// Not enough device memory.
    OutOfMemory,
    /// A fault left the device's context unusable: every later call in this process fails.
    Lost,
    /// Anything else.
    Failed,
}

impl CudaError {
    /// A failure of no particular kind.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: CudaErrorKind::Failed, message: message.into() }
    }

    /// A variable of [`super::Switches`] with a value that can't be used.
    pub(super) fn switch(message: impl Into<String>) -> Self {
        Self { kind: CudaErrorKind::Switch, message: message.into() }
    }

    /// A failed allocation.
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Self { kind: CudaErrorKind::OutOfMemory, message: message.into() }
    }
}

impl std::fmt::Display for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CudaError {}
