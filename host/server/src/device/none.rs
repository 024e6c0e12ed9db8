//! A build without GPUs. Everything is there and says so.

use infer_core::Executor;
use infer_model::{Model, ModelError};

use crate::config::Config;

const REASON: &str = "this build has no CUDA support (the feature `cuda` is off)";

/// A GPU that can't be.
pub enum Gpu {}

/// A model on a GPU that can't be.
pub enum Placed {}

impl Gpu {
    /// Whether this build can use GPUs.
    pub const BUILT_IN: bool = false;

    /// Never opens one.
    pub fn open(_: u32) -> Result<Self, String> {
        Err(REASON.to_owned())
    }

    /// Copies the weights.
    pub fn place(self, _: &Model) -> Result<Placed, ModelError> {
        match self {}
    }
}

impl Placed {
    /// What it is.
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// Memory for the pool.
    pub fn pool_bytes(&self, _: &Config, _: u32, _: u32) -> Result<u64, ModelError> {
        match *self {}
    }

    /// What computes batches.
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

/// Checks of a GPU.
pub fn gpu_check(_: u32, _: u64, _: Option<&std::path::Path>) -> Result<(), String> {
    Err(REASON.to_owned())
}

/// Speed of kernels.
pub fn measure_kernels(_: u32, _: bool) -> Result<(), String> {
    Err(REASON.to_owned())
}

/// Speed of whole steps.
pub fn measure_engine(_: u32, _: bool) -> Result<(), String> {
    Err(REASON.to_owned())
}
