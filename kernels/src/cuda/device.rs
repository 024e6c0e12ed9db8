//! What kernels run on: memory, copies, launches in one order (a stream), and recorded launches (graphs).

use super::error::CudaError;
use super::params::ProductParams;

/// How numbers are stored on a device.
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

    /// The one of three names.
    pub(super) fn pick(self, f32: &'static str, bf16: &'static str, f16: &'static str) -> &'static str {
        match self {
            Self::F32 => f32,
            Self::Bf16 => bf16,
            Self::F16 => f16,
        }
    }

    /// A number, rounded to this type, as its bytes.
    pub fn write(self, value: f32, to: &mut Vec<u8>) {
        match self {
            Self::F32 => to.extend(value.to_ne_bytes()),
            Self::Bf16 => to.extend(half::bf16::from_f32(value).to_ne_bytes()),
            Self::F16 => to.extend(half::f16::from_f32(value).to_ne_bytes()),
        }
    }

    /// Numbers from bytes.
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
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// The kernel's parameter struct.
    pub params: &'a [u8],
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Not in use by anybody.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct Properties {
    /// As the maker calls it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors: decides how far work is split.
    pub multiprocessors: u32,
    /// Version of the vendor's library for products, where one was found.
    pub vendor_products: Option<usize>,
}

/// Launches that were recorded and can be repeated. Parameters are those of the recording.
pub trait Graph: Send {
    /// Repeats them, in order with everything else on the device.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// All memory that the recorded launches name is still allocated.
    unsafe fn launch(&self) -> Result<(), CudaError>;
}

/// A place in the order of a device's work, that can be set again and again.
pub trait Mark: Send {
    /// It is here: behind everything that the device was given so far.
    ///
    /// # Errors
    /// Where the device refuses.
    fn set(&self) -> Result<(), CudaError>;

    /// Waits until everything before it is done. What came later may still be under way.
    ///
    /// # Errors
    /// What went wrong since the last time that anybody waited.
    fn wait(&self) -> Result<(), CudaError>;
}

/// A device. Everything but [`Device::wait`] and host copies returns before it is done; the order is that of the calls.
///
/// Addresses are plain numbers because kernels read them from structs; who makes up an address breaks the process
/// (hence the `unsafe`s).
pub trait Device: Send + Sync {
    /// What it is.
    fn properties(&self) -> &Properties;

    /// What memory it has now.
    ///
    /// # Errors
    /// Where the device doesn't answer.
    fn memory(&self) -> Result<Memory, CudaError>;

    /// Memory on the device, 256-byte aligned, its content undefined.
    ///
    /// # Errors
    /// Where there is not enough.
    fn allocate(&self, bytes: usize) -> Result<u64, CudaError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// It came from `allocate`, and nothing uses it any more.
    unsafe fn free(&self, at: u64, bytes: usize);

    /// Host memory that copies to and from the device needn't wait for.
    ///
    /// # Errors
    /// Where there is not enough.
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError>;

    /// Gives host memory back.
    ///
    /// # Safety
    /// It came from `allocate_host`, and no copy is under way.
    unsafe fn free_host(&self, at: *mut u8, bytes: usize);

    /// Copies to the device. Pageable memory may be reused at once, pinned memory after a wait.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// `to` has room for it on the device.
    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), CudaError>;

    /// Copies from the device; with pinned memory complete after a wait.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// `from` has as many bytes on the device; `to` lives until the copy is complete.
    unsafe fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError>;

    /// Copies within the device.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// Both places have as many bytes and don't overlap.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError>;

    /// Sets bytes.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// The place has as many bytes.
    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<(), CudaError>;

    /// Launches a kernel.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// The parameters are the kernel's, and its reads and writes stay inside allocated memory.
    unsafe fn launch(&self, launch: Launch<'_>) -> Result<(), CudaError>;

    /// A product by the vendor's library; `false` where there is none or it won't.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// As for `launch`.
    unsafe fn vendor_product(&self, ty: Type, params: &ProductParams) -> Result<bool, CudaError>;

    /// From now on launches and device copies are recorded and not done.
    ///
    /// # Errors
    /// Where the device refuses.
    fn begin_recording(&self) -> Result<(), CudaError>;

    /// Ends the recording, also a failed one.
    ///
    /// # Errors
    /// Where something in between can't be recorded.
    fn end_recording(&self) -> Result<Box<dyn Graph>, CudaError>;

    /// A mark that was not set yet.
    ///
    /// # Errors
    /// Where the device refuses.
    fn mark(&self) -> Result<Box<dyn Mark>, CudaError>;

    /// Waits until all is done.
    ///
    /// # Errors
    /// What went wrong since the last time.
    fn wait(&self) -> Result<(), CudaError>;

    /// Time that passes on the device while `work`'s launches run, in microseconds.
    ///
    /// # Errors
    /// Where `work` fails or the device refuses.
    fn time_us(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError>;
}
