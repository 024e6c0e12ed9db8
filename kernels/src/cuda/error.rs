//! What can go wrong on the way to a GPU and on it.

/// A device, its libraries or its memory failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// What kind of failure.
    pub kind: CudaErrorKind,
    /// What happened and, where there is something, what to do.
    pub message: String,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaErrorKind {
    /// No driver or no such device.
    NoDevice,
    /// This program holds no kernels: it was built without a CUDA toolkit.
    NoKernels,
    /// The device has no memory for it.
    OutOfMemory,
    /// The device answers nothing more in this process: a fault on it left its context unusable.
    Lost,
    /// Anything else.
    Failed,
}

impl CudaError {
    /// Something that should not happen.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: CudaErrorKind::Failed, message: message.into() }
    }

    /// Memory that can't be had.
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
