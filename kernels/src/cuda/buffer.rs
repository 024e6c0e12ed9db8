//! Owned memory: on the device, and pinned memory of the host.

use std::sync::Arc;

use super::device::{Device, Type};
use super::error::CudaError;

/// Memory on a device; freed on drop.
pub struct Buffer {
    device: Arc<dyn Device>,
    at: u64,
    bytes: usize,
}

impl Buffer {
    /// Allocates memory with undefined content.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Self, CudaError> {
        let bytes = bytes.max(16);
        let at = device.allocate(bytes)?;
        Ok(Self { device: Arc::clone(device), at, bytes })
    }

    /// Allocates memory with these bytes.
    ///
    /// # Errors
    /// If there is not enough memory, or the copy fails.
    pub fn from_bytes(device: &Arc<dyn Device>, bytes: &[u8]) -> Result<Self, CudaError> {
        let buffer = Self::new(device, bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Allocates memory with these numbers, rounded to `ty`.
    ///
    /// # Errors
    /// As [`Buffer::from_bytes`].
    pub fn from_numbers(device: &Arc<dyn Device>, ty: Type, numbers: &[f32]) -> Result<Self, CudaError> {
        let mut bytes = Vec::with_capacity(numbers.len() * ty.bytes());
        numbers.iter().for_each(|number| ty.write(*number, &mut bytes));
        Self::from_bytes(device, &bytes)
    }

    /// Allocates memory with these indexes.
    ///
    /// # Errors
    /// As [`Buffer::from_bytes`].
    pub fn from_indexes(device: &Arc<dyn Device>, indexes: &[u32]) -> Result<Self, CudaError> {
        let bytes: Vec<u8> = indexes.iter().flat_map(|index| index.to_ne_bytes()).collect();
        Self::from_bytes(device, &bytes)
    }

    /// Its address on the device.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Overwrites the bytes from `start` on.
    ///
    /// # Errors
    /// If the copy fails.
    ///
    /// # Panics
    /// If they don't fit.
    pub fn write(&self, start: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(start + bytes.len() <= self.bytes, "{} bytes at {start} of {}", bytes.len(), self.bytes);
        // SAFETY: inside this allocation.
        unsafe { self.device.copy_in(self.at + start as u64, bytes) }
    }

    /// Waits for all earlier work, then returns the first `bytes` bytes.
    ///
    /// # Errors
    /// If earlier work or the copy failed.
    ///
    /// # Panics
    /// If the buffer is smaller.
    pub fn read(&self, bytes: usize) -> Result<Vec<u8>, CudaError> {
        let mut data = vec![0; bytes];
        self.read_into(0, &mut data)?;
        Ok(data)
    }

    /// Waits for all earlier work, then copies the bytes from `start` on.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    ///
    /// # Panics
    /// If the buffer has fewer.
    pub fn read_into(&self, start: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(start + bytes.len() <= self.bytes, "{} bytes at {start} of {}", bytes.len(), self.bytes);
        // SAFETY: inside this allocation; the borrow outlives the wait.
        unsafe { self.device.copy_out(self.at + start as u64, bytes) }?;
        self.device.wait()
    }

    /// Returns the first `count` numbers.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    pub fn read_numbers(&self, ty: Type, count: usize) -> Result<Vec<f32>, CudaError> {
        Ok(ty.read(&self.read(count * ty.bytes())?))
    }

    /// Sets all bytes.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn fill(&self, byte: u8) -> Result<(), CudaError> {
        // SAFETY: inside this allocation.
        unsafe { self.device.fill(self.at, byte, self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by this device. All launches that use it are earlier in the device's order.
        unsafe { self.device.free(self.at, self.bytes) };
    }
}

/// Pinned memory of the host; freed on drop.
pub struct HostBuffer {
    device: Arc<dyn Device>,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Self, CudaError> {
        let bytes = bytes.max(16);
        let at = device.allocate_host(bytes)?;
        // SAFETY: just allocated with this size.
        unsafe { std::ptr::write_bytes(at, 0, bytes) };
        Ok(Self { device: Arc::clone(device), at, bytes })
    }

    /// Its address on the device, whose kernels may access it, too.
    pub fn at(&self) -> u64 {
        self.at as u64
    }

    /// The memory. Wait for copies and kernels in flight before using it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size and initialized.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// The memory, mutable. As for [`HostBuffer::bytes`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size and initialized; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let _ = self.device.wait();
        // SAFETY: allocated by this device; no copy is in flight after the wait.
        unsafe { self.device.free_host(self.at, self.bytes) };
    }
}
