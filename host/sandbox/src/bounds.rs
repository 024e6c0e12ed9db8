//! What one call may take, and the limits of the call that a store is in.

use wasmtime::{ResourceLimiter, Result};

/// Function pointers that a module may have; programs of ours have some thousand.
const MAX_TABLE_ELEMENTS: usize = 65_536;

/// What a call may take: a fixed part, and a part for each byte of its request.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Linear memory of an instance.
    pub memory_bytes: usize,
    /// Further memory per byte of the request.
    pub memory_per_byte: usize,
    /// Fuel of a call, about one machine instruction each.
    pub fuel: u64,
    /// Further fuel per byte of the request.
    pub fuel_per_byte: u64,
    /// Stack of a call. The calling thread needs this much and some 100 KiB more.
    pub stack_bytes: usize,
}

/// The limits of the call that a store is in.
#[derive(Debug)]
pub(crate) struct Limits {
    bounds: Bounds,
    memory_bytes: usize,
    refused: bool,
    lack: Option<String>,
}

impl Limits {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, memory_bytes: 0, refused: false, lack: None }
    }

    /// Begins a call with a request of `request_bytes`. Returns its fuel.
    pub(crate) fn arm(&mut self, request_bytes: usize) -> u64 {
        self.memory_bytes = self.bounds.memory_bytes + self.bounds.memory_per_byte * request_bytes;
        self.refused = false;
        self.lack = None;
        self.bounds.fuel + self.bounds.fuel_per_byte * request_bytes as u64
    }

    /// In MiB, for error messages.
    pub(crate) fn memory_mib(&self) -> usize {
        self.memory_bytes >> 20
    }

    /// Whether the call asked for more memory than it may have. The guest answers that with a trap.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }

    /// What the operating system refused when the call asked for memory that it may have.
    pub(crate) fn lack(&self) -> Option<&str> {
        self.lack.as_deref()
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let allowed = desired <= self.memory_bytes && maximum.is_none_or(|maximum| desired <= maximum);
        self.refused |= !allowed;
        Ok(allowed)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> Result<()> {
        self.lack = infer_wasm::lack(&error);
        Ok(())
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
