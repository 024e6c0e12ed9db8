//! What one render may take. Honest renders are far from all of it; `tests/memory.rs` measures their memory.

use wasmtime::{ResourceLimiter, Result};

/// Memory of an instance, besides what the request makes it need.
const MEMORY_BYTES: usize = 64 << 20;
/// Memory for each byte of a request: its values, the prompt, and what filters make on the way.
const MEMORY_PER_BYTE: usize = 8;
/// Fuel of a call, about as many instructions of the machine: a few tenths of a second.
const FUEL: u64 = 2_000_000_000;
/// Fuel for each byte of a request.
const FUEL_PER_BYTE: u64 = 2_000;
/// Function pointers of the renderer; it has some thousand.
const MAX_TABLE_ELEMENTS: usize = 65_536;

/// The limits of the call that a store is in.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    memory_bytes: usize,
    refused: bool,
}

impl Limits {
    /// Begins a call with a request of so many bytes.
    pub(crate) fn arm(&mut self, request_bytes: usize) {
        self.memory_bytes = MEMORY_BYTES + MEMORY_PER_BYTE * request_bytes;
        self.refused = false;
    }

    /// Fuel for a request of so many bytes.
    pub(crate) fn fuel(request_bytes: usize) -> u64 {
        FUEL + FUEL_PER_BYTE * request_bytes as u64
    }

    /// In MiB, as errors tell it.
    pub(crate) fn memory_mib(&self) -> usize {
        self.memory_bytes >> 20
    }

    /// Whether the call asked for more memory than it may have. The renderer answers that with a trap.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let allowed = desired <= self.memory_bytes && maximum.is_none_or(|maximum| desired <= maximum);
        self.refused |= !allowed;
        Ok(allowed)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }
}
