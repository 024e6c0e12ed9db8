//! Launches of the compiled sources.

use std::ffi::CStr;
#[cfg(compiled)]
use std::ffi::{CString, c_char, c_void};

use infer_kernels::cuda::CudaError;

#[cfg(compiled)]
unsafe extern "C" {
    fn infer_emulate_launch(
        name: *const c_char,
        params: *const c_void,
        params_bytes: usize,
        grid: *const u32,
        threads: u32,
        shared_bytes: usize,
        seed: u64,
    ) -> *const c_char;
    fn infer_emulate_find(name: *const c_char, params_bytes: *mut usize, threads: *mut u32) -> *const c_char;
}

/// A kernel that the emulator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, as in the sources.
    pub name: &'static str,
    /// Bytes of its parameters.
    pub params_bytes: usize,
    /// Threads per block.
    pub threads: u32,
}

impl Kernel {
    /// Finds a kernel by its name.
    pub fn find(name: &CStr) -> Option<Self> {
        #[cfg(compiled)]
        {
            let (mut params_bytes, mut threads) = (0, 0);
            // SAFETY: `name` ends with a zero, and two numbers are written. The returned name is a literal.
            let found = unsafe {
                let found = infer_emulate_find(name.as_ptr(), &raw mut params_bytes, &raw mut threads);
                (!found.is_null()).then(|| CStr::from_ptr(found))
            };
            found.and_then(|name| name.to_str().ok()).map(|name| Self { name, params_bytes, threads })
        }
        #[cfg(not(compiled))]
        {
            let _ = name;
            None
        }
    }
}

/// Runs all blocks of a kernel.
#[cfg(compiled)]
pub(crate) fn launch(
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: usize,
    params: &[u8],
    seed: u64,
) -> Result<(), CudaError> {
    let name = CString::new(kernel).expect("kernel names hold no zero");
    // Structs contain addresses, so their bytes must be aligned like these.
    let mut aligned = vec![0_u64; params.len().div_ceil(8)];
    // SAFETY: `aligned` has room for all bytes; the device's caller guarantees the memory that kernels access.
    let fault = unsafe {
        std::ptr::copy_nonoverlapping(params.as_ptr(), aligned.as_mut_ptr().cast(), params.len());
        let params_at = aligned.as_ptr().cast();
        infer_emulate_launch(
            name.as_ptr(),
            params_at,
            params.len(),
            grid.as_ptr(),
            threads,
            shared_bytes,
            seed,
        )
    };
    if fault.is_null() {
        return Ok(());
    }
    // SAFETY: a literal.
    let fault = unsafe { CStr::from_ptr(fault) }.to_string_lossy();
    Err(CudaError::failed(format!("{kernel} (order of threads {seed}): {fault}")))
}

#[cfg(not(compiled))]
pub(crate) fn launch(_: &str, _: [u32; 3], _: u32, _: usize, _: &[u8], _: u64) -> Result<(), CudaError> {
    Err(CudaError::failed("built without a C++ compiler"))
}
