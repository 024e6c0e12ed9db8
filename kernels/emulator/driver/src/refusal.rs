//! Why a call is refused, and where that is said.

use std::ffi::CStr;

use cudarc::driver::sys::CUresult;
use infer_kernels::cuda::{CudaError, CudaErrorKind};

/// What every line about a refused call begins with.
pub const MARK: &str = "emulated CUDA: ";

/// A result with its name and text.
pub(crate) struct Known {
    pub(crate) code: CUresult,
    pub(crate) name: &'static CStr,
    pub(crate) text: &'static CStr,
}

macro_rules! results {
    ($($code:ident: $text:literal),* $(,)?) => {
        /// Every result that this library returns, and those that it can be told to return.
        pub(crate) const RESULTS: &[Known] = &[$(Known {
            code: CUresult::$code,
            name: match CStr::from_bytes_with_nul(concat!(stringify!($code), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("no zero inside"),
            },
            text: $text,
        }),*];
    };
}

results! {
    CUDA_SUCCESS: c"no error",
    CUDA_ERROR_INVALID_VALUE: c"invalid argument",
    CUDA_ERROR_OUT_OF_MEMORY: c"out of memory",
    CUDA_ERROR_NOT_INITIALIZED: c"initialization error",
    CUDA_ERROR_NO_DEVICE: c"no CUDA-capable device is detected",
    CUDA_ERROR_INVALID_DEVICE: c"invalid device ordinal",
    CUDA_ERROR_INVALID_IMAGE: c"device kernel image is invalid",
    CUDA_ERROR_INVALID_CONTEXT: c"invalid device context",
    CUDA_ERROR_ECC_UNCORRECTABLE: c"uncorrectable ECC error encountered",
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION: c"the provided PTX was compiled with an unsupported toolchain.",
    CUDA_ERROR_INVALID_HANDLE: c"invalid resource handle",
    CUDA_ERROR_NOT_FOUND: c"named symbol not found",
    CUDA_ERROR_NOT_READY: c"device not ready",
    CUDA_ERROR_ILLEGAL_ADDRESS: c"an illegal memory access was encountered",
    CUDA_ERROR_LAUNCH_FAILED: c"unspecified launch failure",
    CUDA_ERROR_NOT_PERMITTED: c"operation not permitted",
    CUDA_ERROR_NOT_SUPPORTED: c"operation not supported",
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: c"operation not permitted when stream is capturing",
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: c"operation failed due to a previous error during capture",
    CUDA_ERROR_CAPTURED_EVENT: c"operation not permitted on an event last recorded in a capturing stream",
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: c"attempt to terminate a thread-local capture sequence from another thread",
}

/// A refused call.
pub(crate) struct Refusal {
    pub(crate) code: CUresult,
    /// `None` if nobody did anything wrong: memory ran out, or the device was lost before.
    pub(crate) why: Option<String>,
}

impl Refusal {
    pub(crate) fn new(code: CUresult, why: impl Into<String>) -> Self {
        Self { code, why: Some(why.into()) }
    }

    /// A failure that is no misuse.
    pub(crate) fn quiet(code: CUresult) -> Self {
        Self { code, why: None }
    }

    pub(crate) fn value(why: impl Into<String>) -> Self {
        Self::new(CUresult::CUDA_ERROR_INVALID_VALUE, why)
    }

    /// Whether the device is lost with this.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(
            self.code,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                | CUresult::CUDA_ERROR_LAUNCH_FAILED
                | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        )
    }
}

impl From<CudaError> for Refusal {
    fn from(error: CudaError) -> Self {
        match error.kind {
            CudaErrorKind::OutOfMemory => Self::quiet(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            CudaErrorKind::Lost => Self::new(CUresult::CUDA_ERROR_LAUNCH_FAILED, error.message),
            _ => Self::value(error.message),
        }
    }
}

/// Says that something is wrong.
#[expect(
    clippy::print_stderr,
    reason = "the program under test has its own log, which this library can't reach"
)]
pub(crate) fn report(what: &str) {
    eprintln!("{MARK}{what}");
}
