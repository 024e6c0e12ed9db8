//! Launches of kernels.

use std::ffi::c_void;

use cudarc::driver::sys::{CUfunction, CUlaunchAttributeID, CUlaunchConfig, CUresult};
use infer_kernels::cuda::{Device, Launch};

use crate::refusal::Refusal;
use crate::state::{Needs, State, call};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    call("cuLaunchKernelEx", Needs::ContextOrCapture, |state| {
        if config.is_null() || params.is_null() || !extra.is_null() {
            return Err(Refusal::value(
                "a configuration and a list of parameters are needed, and nothing else",
            ));
        }
        // SAFETY: not null, so valid by the caller's promise.
        let config = unsafe { &*config };
        state.stream(config.hStream as usize)?;
        // SAFETY: the caller's promise.
        unsafe { check_attributes(state, config) }?;
        let captures = state.capture.is_some();
        let function = state.function(function as usize)?;
        let kernel = function.kernel;
        let limits = [
            config.gridDimX == 0 || config.gridDimX > 0x7fff_ffff,
            config.gridDimY == 0 || config.gridDimY > 0xffff,
            config.gridDimZ == 0 || config.gridDimZ > 0xffff,
            config.blockDimX != kernel.threads || config.blockDimY != 1 || config.blockDimZ != 1,
            config.sharedMemBytes > function.shared_bytes,
        ];
        if limits.contains(&true) {
            let allowed = function.shared_bytes;
            return Err(Refusal::value(format!(
                "{}: {config:?} is beyond {} threads or {allowed} bytes of shared memory",
                kernel.name, kernel.threads
            )));
        }
        if captures && !function.loaded {
            let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            return Err(Refusal::new(code, format!("{} would be loaded within a capture", kernel.name)));
        }
        function.loaded = true;
        // SAFETY: the list has one pointer, to as many bytes as the kernel takes, by the caller's promise.
        let params = unsafe { std::slice::from_raw_parts((*params).cast::<u8>(), kernel.params_bytes) };
        let launch = Launch {
            kernel: kernel.name,
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            threads: config.blockDimX,
            shared_bytes: config.sharedMemBytes,
            params,
        };
        // SAFETY: what the kernel accesses is the caller's promise.
        unsafe { state.device()?.launch(launch) }?;
        Ok(())
    })
}

/// # Safety
/// The configuration has as many attributes as it says.
unsafe fn check_attributes(state: &State, config: &CUlaunchConfig) -> Result<(), Refusal> {
    let serialized = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    for index in 0..config.numAttrs as usize {
        // SAFETY: the caller's promise.
        let attribute = unsafe { &*config.attrs.add(index) };
        if attribute.id != serialized {
            return Err(Refusal::value(format!("attribute {:?} isn't emulated", attribute.id)));
        }
        if state.capability.0 < 9 {
            let code = CUresult::CUDA_ERROR_NOT_SUPPORTED;
            return Err(Refusal::new(code, "no launch is early before compute capability 9.0"));
        }
    }
    Ok(())
}
