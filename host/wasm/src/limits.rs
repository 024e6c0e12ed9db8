//! Limits of one instance: memory, tables, instances. A refusal is remembered, because the guest usually
//! reacts to a failed `memory.grow` with a trap, and the fault should then say "memory".

use std::sync::Arc;

use wasmtime::{ResourceLimiter, Result};

use crate::usage::Peaks;

/// Core instances of one component: its module, the shims that `wit-component` adds, and some room.
const MAX_INSTANCES: usize = 16;
/// Tables of one component: its own and the shims'.
const MAX_TABLES: usize = 8;
/// Function pointers of a policy; a small one has a few dozen.
const MAX_TABLE_ELEMENTS: usize = 65_536;

pub(crate) struct Limits {
    max_memory_bytes: usize,
    refused_bytes: Option<usize>,
    peaks: Arc<Peaks>,
}

impl Limits {
    pub(crate) fn new(max_memory_bytes: usize, peaks: Arc<Peaks>) -> Self {
        Self { max_memory_bytes, refused_bytes: None, peaks }
    }

    /// Bytes that were requested and refused since the last call, if any.
    pub(crate) fn take_refused(&mut self) -> Option<usize> {
        self.refused_bytes.take()
    }

    pub(crate) fn max_memory_bytes(&self) -> usize {
        self.max_memory_bytes
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let allowed = desired <= self.max_memory_bytes;
        if !allowed || maximum.is_some_and(|maximum| desired > maximum) {
            self.refused_bytes = Some(desired);
        } else {
            self.peaks.saw_memory(desired);
        }
        Ok(allowed)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    /// One, so that the limit of a memory is the limit of the store.
    fn memories(&self) -> usize {
        1
    }
}
