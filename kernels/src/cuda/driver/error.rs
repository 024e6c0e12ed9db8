//! Driver errors as [`CudaError`]s.

use std::path::Path;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::image;
use crate::cuda::error::{CudaError, CudaErrorKind};

/// What failed, and with which of the driver's error codes.
pub(super) fn fault(what: &str, error: DriverError) -> CudaError {
    CudaError { kind: kind(error.0), message: format!("{what}: {}", described(error)) }
}

/// The driver's own words for an error and its code, if it knows the code.
fn described(error: DriverError) -> String {
    match error.error_string() {
        Ok(words) => format!("{} ({:?})", words.to_string_lossy(), error.0),
        Err(_) => format!("{:?}", error.0),
    }
}

fn kind(code: sys::CUresult) -> CudaErrorKind {
    match code {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaErrorKind::OutOfMemory,
        sys::CUresult::CUDA_ERROR_NO_DEVICE => CudaErrorKind::NoDevice,
        // Sticky: every later call in this process fails with the same error. An unknown one counts, too, since nothing
        // says that the context is still good.
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
        | sys::CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | sys::CUresult::CUDA_ERROR_CONTAINED
        | sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | sys::CUresult::CUDA_ERROR_UNKNOWN => CudaErrorKind::Lost,
        _ => CudaErrorKind::Failed,
    }
}

/// A failed start of the driver.
pub(super) fn no_gpu(error: DriverError) -> CudaError {
    let message = match error.0 {
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "a toolkit's stub of libcuda.so was found in place of the NVIDIA driver's: remove the toolkit's folder `stubs` \
             from LD_LIBRARY_PATH and INFER_CUDA_LIB"
                .to_owned()
        }
        _ => format!("the NVIDIA driver reports no GPU: {}", described(error)),
    };
    CudaError { kind: CudaErrorKind::NoDevice, message }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_after_which_the_context_is_unusable_count_as_lost() {
        for (code, expected) in [
            (sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, CudaErrorKind::Lost),
            (sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, CudaErrorKind::Lost),
            (sys::CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE, CudaErrorKind::Lost),
            (sys::CUresult::CUDA_ERROR_CONTAINED, CudaErrorKind::Lost),
            (sys::CUresult::CUDA_ERROR_UNKNOWN, CudaErrorKind::Lost),
            (sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY, CudaErrorKind::OutOfMemory),
            (sys::CUresult::CUDA_ERROR_INVALID_VALUE, CudaErrorKind::Failed),
        ] {
            assert_eq!(kind(code), expected, "{code:?}");
        }
    }

    #[test]
    fn toolkits_stub_in_place_of_the_driver_is_named() {
        let CudaError { kind, message } = no_gpu(DriverError(sys::CUresult::CUDA_ERROR_STUB_LIBRARY));
        assert_eq!(kind, CudaErrorKind::NoDevice);
        assert!(message.contains("stub of libcuda.so") && message.contains("LD_LIBRARY_PATH"), "{message}");
    }
}
