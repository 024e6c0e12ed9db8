//! Start, errors, device and primary context.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUresult};

use super::put;
use crate::refusal::{Known, RESULTS, Refusal};
use crate::state::{CONTEXT, Needs, call, current, set_current};

/// The version of the API: 13.0.
const VERSION: c_int = 13_000;
const NAME: &[u8] = b"Emulated GPU\0";
/// What the emulator says, too.
const MULTIPROCESSORS: c_int = 4;
/// Shared memory of each.
const SHARED_BYTES: c_int = 228 << 10;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    call("cuInit", Needs::Nothing, |state| {
        if flags != 0 {
            return Err(Refusal::value("flags must be 0"));
        }
        state.initialized = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: the caller's promise.
    call("cuDriverGetVersion", Needs::Nothing, |_| unsafe { put(version, VERSION) })
}

/// The result of a number, which need not be one.
fn known_result(result: c_int) -> Result<&'static Known, Refusal> {
    let known = RESULTS.iter().find(|known| known.code as c_int == result);
    known.ok_or_else(|| Refusal::value(format!("{result} is no result of this library")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(result: c_int, to: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    call("cuGetErrorName", Needs::Nothing, |_| unsafe { put(to, known_result(result)?.name.as_ptr()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(result: c_int, to: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's promise.
    call("cuGetErrorString", Needs::Nothing, |_| unsafe { put(to, known_result(result)?.text.as_ptr()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: the caller's promise.
    call("cuDeviceGetCount", Needs::Start, |_| unsafe { put(count, 1) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    call("cuDeviceGet", Needs::Start, |_| {
        known(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe { put(device, ordinal) }
    })
}

fn known(device: CUdevice) -> Result<(), Refusal> {
    match device {
        0 => Ok(()),
        _ => Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_DEVICE, format!("there is no device {device}"))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CUresult {
    call("cuDeviceGetName", Needs::Start, |_| {
        known(device)?;
        let room = usize::try_from(len).unwrap_or(0);
        if name.is_null() || room < NAME.len() {
            return Err(Refusal::value("no room for the name"));
        }
        // SAFETY: there is room, by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), name, NAME.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    to: *mut c_int,
    attribute: c_int,
    device: CUdevice,
) -> CUresult {
    const MAJOR: c_int = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_int;
    const MINOR: c_int = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as c_int;
    const COUNT: c_int = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as c_int;
    const SHARED: c_int =
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR as c_int;
    call("cuDeviceGetAttribute", Needs::Start, |state| {
        known(device)?;
        let value = match attribute {
            MAJOR => state.capability.0,
            MINOR => state.capability.1,
            COUNT => MULTIPROCESSORS,
            SHARED => SHARED_BYTES,
            _ => return Err(Refusal::value(format!("attribute {attribute} isn't emulated"))),
        };
        // SAFETY: the caller's promise.
        unsafe { put(to, value) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    call("cuDevicePrimaryCtxRetain", Needs::Start, |state| {
        known(device)?;
        state.retain()?;
        // SAFETY: the caller's promise.
        unsafe { put(context, CONTEXT as CUcontext) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    call("cuDevicePrimaryCtxRelease_v2", Needs::Start, |state| {
        known(device)?;
        state.release()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    call("cuCtxSetCurrent", Needs::Start, |state| {
        let handle = context as usize;
        if handle != 0 && (handle != CONTEXT || state.device().is_err()) {
            return Err(Refusal::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                format!("{handle:#x} is no context"),
            ));
        }
        set_current(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's promise.
    call("cuCtxGetCurrent", Needs::Start, |_| unsafe { put(context, current() as CUcontext) })
}
