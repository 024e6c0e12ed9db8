//! The GPU interface of a build without GPU support: every call fails.

use infer_core::Executor;
use infer_model::{AdapterLoader, AdapterSize, Model, ModelError};

use super::{Cause, Measurement, Refusal};
use crate::config::Config;

const REASON: &str = "this build has no CUDA support, which `--features cuda` adds";

/// A GPU, which can't exist in this build.
pub enum Gpu {}

/// A model on a GPU, which can't exist in this build.
pub enum Placed {}

impl Gpu {
    /// Whether this build supports GPUs.
    pub const BUILT_IN: bool = false;

    /// Always fails.
    pub fn open(_: u32) -> Result<Self, Refusal> {
        Err(Refusal { reason: REASON.to_owned(), cause: Cause::Excluded })
    }

    /// Copies the weights to the GPU.
    pub fn place(self, _: &Model, _: &Config) -> Result<Placed, ModelError> {
        match self {}
    }
}

impl Placed {
    /// Name of the device.
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// Bytes of all weight matrices on the device.
    pub fn weight_bytes(&self) -> u64 {
        match *self {}
    }

    /// What each adapter takes.
    pub fn adapter_sizes(&self, _: &Model) -> Vec<AdapterSize> {
        match *self {}
    }

    /// What loads further adapters.
    pub fn adapter_loader(&self, _: &Model) -> AdapterLoader {
        match *self {}
    }

    /// Memory left for the pool, by the maximum length of a sequence.
    pub fn pool_bytes(&self, _: &Config, _: u32) -> Result<fn(u32) -> u64, ModelError> {
        match *self {}
    }

    /// The executor that computes batches.
    pub fn executor(
        &self,
        _: &Config,
        _: u32,
        _: u32,
        _: u32,
    ) -> Result<Box<dyn Executor + Send>, ModelError> {
        match *self {}
    }
}

/// Checks a GPU.
pub fn gpu_check(_: u32, _: u64, _: Option<&std::path::Path>, _: &[String]) -> Result<(), String> {
    Err(REASON.to_owned())
}

/// Measures kernels.
pub fn measure_kernels(_: &Measurement) -> Result<(), String> {
    Err(REASON.to_owned())
}

/// Measures whole steps.
pub fn measure_engine(_: &Measurement) -> Result<(), String> {
    Err(REASON.to_owned())
}
