//! Loads adapters for an executor that runs, on other threads than its own.
//!
//! Their files are copied to memory, not mapped: somebody may be writing one, and truncating a file that is mapped kills the
//! process.

use std::path::Path;
use std::sync::Arc;

use infer_core::AdapterWeights;
use infer_kernels::Format;

use super::Adapter;
use super::load::Files;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::source::Source;

/// What an adapter takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterSize {
    /// The highest rank of its matrices.
    pub rank: u32,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Makes adapters ready for executors of a model on the CPU ([`infer_core::Executor::load_adapter`]).
#[derive(Clone)]
pub struct AdapterLoader {
    config: ModelConfig,
    format: Format,
}

/// An adapter's files in memory, not checked but for what they are.
pub struct AdapterFiles(Files<'static>);

impl AdapterLoader {
    pub(crate) fn new(config: ModelConfig, format: Format) -> Self {
        Self { config, format }
    }

    /// Reads the files in a directory, of up to so many bytes.
    ///
    /// # Errors
    /// Names the file that is missing, too large or can't be read, or a setting that is not supported.
    pub fn read(&self, directory: &Path, most: u64) -> Result<AdapterFiles, ModelError> {
        Files::copy(&Source::Directory(directory.to_owned()), most).map(AdapterFiles)
    }

    /// Checks names and shapes of an adapter's tensors, but not their numbers. Returns what it will take, but for what fills
    /// matrices up.
    ///
    /// # Errors
    /// As [`crate::Model::add_adapter`].
    pub fn measure(&self, files: &AdapterFiles) -> Result<AdapterSize, ModelError> {
        files.0.measure(&self.config, self.format)
    }

    /// Loads an adapter. Returns what it takes.
    ///
    /// # Errors
    /// As [`crate::Model::add_adapter`].
    pub fn load(&self, files: &AdapterFiles) -> Result<(AdapterWeights, AdapterSize), ModelError> {
        // The other threads are the steps'.
        let adapter = Arc::new(files.0.load(&self.config, self.format, 1)?);
        let size = adapter.size();
        Ok((boxed(adapter), size))
    }
}

/// An adapter on its way to or from an executor.
pub(crate) fn boxed(adapter: Arc<Adapter>) -> AdapterWeights {
    Box::new(adapter)
}

/// What [`boxed`] has boxed.
pub(crate) fn unboxed(weights: AdapterWeights) -> Option<Arc<Adapter>> {
    weights.downcast::<Arc<Adapter>>().ok().map(|adapter| *adapter)
}
