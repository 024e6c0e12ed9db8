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

/// Makes adapters ready for executors of a model ([`infer_core::Executor::load_adapter`]).
pub struct AdapterLoader {
    config: ModelConfig,
    format: Format,
    make: Box<Make>,
}

/// Makes of an adapter what an executor takes, of so many bytes.
type Make = dyn Fn(Adapter) -> (AdapterWeights, u64) + Send + Sync;

/// An adapter's files in memory, not checked but for what they are.
pub struct AdapterFiles(Files<'static>);

impl AdapterLoader {
    pub(crate) fn new(
        config: ModelConfig,
        format: Format,
        make: impl Fn(Adapter) -> (AdapterWeights, u64) + Send + Sync + 'static,
    ) -> Self {
        Self { config, format, make: Box::new(make) }
    }

    /// For executors on the CPU.
    pub(crate) fn on_cpu(config: ModelConfig, format: Format) -> Self {
        Self::new(config, format, |adapter| {
            let bytes = adapter.bytes() as u64;
            (boxed(Arc::new(adapter)), bytes)
        })
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
        Ok(self.made(files.0.load(&self.config, self.format, 1)?))
    }

    /// Makes an adapter with random weights, for checks. Returns what it takes.
    ///
    /// # Errors
    /// As [`crate::Model::add_random_adapter`].
    pub fn random(&self, rank: usize, seed: u64) -> Result<(AdapterWeights, AdapterSize), ModelError> {
        Ok(self.made(Adapter::random(&self.config, self.format, rank, seed)?))
    }

    fn made(&self, adapter: Adapter) -> (AdapterWeights, AdapterSize) {
        let AdapterSize { rank, .. } = adapter.size();
        let (weights, bytes) = (self.make)(adapter);
        (weights, AdapterSize { rank, bytes })
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
