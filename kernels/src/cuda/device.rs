//! The device interface: memory, copies, launches in one order (a stream), and recorded launches (graphs).

use std::path::PathBuf;

use super::error::CudaError;
use super::params::ProductParams;
use super::switches::Switches;

/// Storage type of numbers on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// 32-bit floats: no tensor cores.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
}

impl Type {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Selects the name for this type.
    pub(super) fn pick(self, f32: &'static str, bf16: &'static str, f16: &'static str) -> &'static str {
        match self {
            Self::F32 => f32,
            Self::Bf16 => bf16,
            Self::F16 => f16,
        }
    }

    /// Appends a number, rounded to this type, as bytes.
    pub fn write(self, value: f32, to: &mut Vec<u8>) {
        match self {
            Self::F32 => to.extend(value.to_ne_bytes()),
            Self::Bf16 => to.extend(half::bf16::from_f32(value).to_ne_bytes()),
            Self::F16 => to.extend(half::f16::from_f32(value).to_ne_bytes()),
        }
    }

    /// Reads numbers from bytes.
    pub fn read(self, bytes: &[u8]) -> Vec<f32> {
        let pair = |b: &[u8]| [b[0], b[1]];
        match self {
            Self::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Self::Bf16 => {
                bytes.chunks_exact(2).map(|b| half::bf16::from_ne_bytes(pair(b)).to_f32()).collect()
            }
            Self::F16 => bytes.chunks_exact(2).map(|b| half::f16::from_ne_bytes(pair(b)).to_f32()).collect(),
        }
    }
}

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel's name in `cuda/*.cu`.
    pub kernel: &'static str,
    /// Number of blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// The kernel's parameter struct.
    pub params: &'a [u8],
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Not in use by any process.
    pub free: u64,
    /// Total.
    pub total: u64,
}

/// Properties of a device.
#[derive(Clone, Debug)]
pub struct Properties {
    /// The vendor's name for it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Number of multiprocessors; decides how far work is split.
    pub multiprocessors: u32,
    /// Bytes of shared memory of a multiprocessor, of which each block takes what it asks for and 1 KiB.
    pub shared_bytes: u32,
    /// Whether a kernel may start before the one ahead of it is done (programmatic dependent launch).
    pub early: bool,
    /// Whether it has products of warpgroups (`wgmma`, compute capability 9.0), and its kernels are compiled for them.
    pub warpgroups: bool,
    /// The vendor's library for products, if found.
    pub vendor_products: Option<VendorLibrary>,
    /// Settings for experiments.
    pub switches: Switches,
}

/// Shared memory of a block that the system takes.
pub(super) const RESERVED_BYTES: u32 = 1_024;

impl Properties {
    /// Blocks that run at once: on each multiprocessor as many as are wanted, if it has shared memory for them, and one at
    /// least.
    pub(super) fn blocks_at_once(&self, wanted: u32, shared_bytes: u32) -> u32 {
        let fit = self.shared_bytes / (shared_bytes + RESERVED_BYTES);
        self.multiprocessors * wanted.clamp(1, fit.max(1))
    }

    /// A device of compute capability 9.0.
    #[cfg(test)]
    pub(super) fn hopper(multiprocessors: u32, shared_kib: u32, switches: Switches) -> Self {
        Self {
            name: String::new(),
            capability: (9, 0),
            multiprocessors,
            shared_bytes: shared_kib << 10,
            early: true,
            warpgroups: true,
            vendor_products: None,
            switches,
        }
    }
}

/// A library of the vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorLibrary {
    /// Its own number: 130000 is 13.0.
    pub version: usize,
    /// The file that calls go to; a mere name if the loader found it and doesn't tell its file.
    pub file: PathBuf,
    /// A file that was found first and is not used, because the loader prefers `file` to it.
    pub passed_over: Option<PathBuf>,
}

/// Recorded launches that can be repeated, with the parameters of the recording.
pub trait Graph: Send {
    /// Repeats the launches, in order with everything else on the device.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// All memory that the recorded launches refer to is still allocated.
    unsafe fn launch(&self) -> Result<(), CudaError>;
}

/// A reusable marker in a device's order of work (an event).
pub trait Mark: Send {
    /// Places the mark after all work submitted so far.
    ///
    /// # Errors
    /// If the device refuses.
    fn set(&self) -> Result<(), CudaError>;

    /// Waits until everything before the mark is done. Later work may still be in flight.
    ///
    /// # Errors
    /// The first failure since the last wait of any kind.
    fn wait(&self) -> Result<(), CudaError>;
}

/// A device. Work runs in the order of the calls, and all calls but [`Device::wait`] and copies to and from pageable host
/// memory return before it is done.
///
/// Addresses are plain numbers because kernels read them from structs. A made-up address is undefined behaviour, hence the
/// `unsafe` methods.
pub trait Device: Send + Sync {
    /// What kind of device it is.
    fn properties(&self) -> &Properties;

    /// Its current memory.
    ///
    /// # Errors
    /// If the query fails.
    fn memory(&self) -> Result<Memory, CudaError>;

    /// Allocates memory on the device, 256-byte aligned, with undefined content.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn allocate(&self, bytes: usize) -> Result<u64, CudaError>;

    /// Frees memory.
    ///
    /// # Safety
    /// It came from `allocate` and is not used after this.
    unsafe fn free(&self, at: u64, bytes: usize);

    /// Allocates pinned host memory, with which copies are asynchronous.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError>;

    /// Frees host memory.
    ///
    /// # Safety
    /// It came from `allocate_host`, and no copy is in flight.
    unsafe fn free_host(&self, at: *mut u8, bytes: usize);

    /// Copies to the device. Pageable memory may be reused on return, pinned memory after a wait.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// `to` has room for the bytes on the device.
    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), CudaError>;

    /// Copies from the device. A copy to pinned memory is complete after a wait.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// `from` has `to.len()` bytes on the device; `to` lives until the copy is complete.
    unsafe fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError>;

    /// Copies within the device.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// Both ranges are allocated and don't overlap.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError>;

    /// Sets bytes.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// The range is allocated.
    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<(), CudaError>;

    /// Launches a kernel.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// The parameters are the kernel's, and its reads and writes stay inside allocated memory.
    unsafe fn launch(&self, launch: Launch<'_>) -> Result<(), CudaError>;

    /// Computes a product with the vendor's library. Returns `false` if there is none or it refuses the shape.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// As for `launch`.
    unsafe fn vendor_product(&self, ty: Type, params: &ProductParams) -> Result<bool, CudaError>;

    /// Starts recording: launches and copies within the device are recorded instead of run. `early` says whether kernels in
    /// the recording may start early, where [`Properties::early`] says that they do outside it.
    ///
    /// # Errors
    /// If the device refuses.
    fn begin_recording(&self, early: bool) -> Result<(), CudaError>;

    /// Ends the recording. Must be called even after a failure within it.
    ///
    /// # Errors
    /// If something in between can't be recorded.
    fn end_recording(&self) -> Result<Box<dyn Graph>, CudaError>;

    /// Creates a mark.
    ///
    /// # Errors
    /// If the device refuses.
    fn mark(&self) -> Result<Box<dyn Mark>, CudaError>;

    /// Waits until all work is done.
    ///
    /// # Errors
    /// The first failure since the last wait.
    fn wait(&self) -> Result<(), CudaError>;

    /// Time on the device of the launches in `work`, in microseconds.
    ///
    /// # Errors
    /// If `work` fails or the device refuses.
    fn time_us(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError>;
}
