//! Driver errors as [`CudaError`]s.

use std::path::Path;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::image;
use crate::cuda::error::{CudaError, CudaErrorKind};

/// What failed, and with which of the driver's error codes.
pub(super) fn fault(what: &str, error: DriverError) -> CudaError {
    let kind = match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaErrorKind::OutOfMemory,
        sys::CUresult::CUDA_ERROR_NO_DEVICE => CudaErrorKind::NoDevice,
        // Sticky: every later call in this process fails with the same error.
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | sys::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | sys::CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | sys::CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | sys::CUresult::CUDA_ERROR_INVALID_PC
        | sys::CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | sys::CUresult::CUDA_ERROR_ASSERT
        | sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | sys::CUresult::CUDA_ERROR_LAUNCH_FAILED
        | sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => CudaErrorKind::Lost,
        _ => CudaErrorKind::Failed,
    };
    CudaError { kind, message: format!("{what}: {error:?}") }
}

/// A failed load of the kernels: those of a file, or the program's own.
pub(super) fn unloadable(file: Option<&Path>, error: DriverError) -> CudaError {
    let what = match file {
        Some(_) => {
            "the driver can't load this image, which must be for this GPU and from a toolkit no newer than the driver"
                .to_owned()
        }
        None => too_old().unwrap_or("the kernels can't be loaded".to_owned()),
    };
    image::named(file, fault(&what, error))
}

/// The message for a failed load of the program's kernels if the driver is older than the toolkit that compiled them.
fn too_old() -> Option<String> {
    let mut version = 0;
    // SAFETY: writes a number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    let (major, minor) = (version / 1_000, version % 1_000 / 10);
    let text = format!(
        "this driver supports CUDA {major}.{minor} and can't load the kernels: those compiled by a CUDA 13 toolkit \
         need driver 580 or newer"
    );
    (major < 13).then_some(text)
}
