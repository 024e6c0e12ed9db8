//! Device memory, pinned memory, copies.

use std::ffi::{c_uchar, c_uint, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};
use infer_kernels::cuda::Device;

use super::put;
use crate::refusal::Refusal;
use crate::state::{Needs, State, call};

/// Bytes that a driver keeps for itself.
const RESERVED: u64 = 64 << 20;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    call("cuMemGetInfo_v2", Needs::ContextOrCapture, |state| {
        let memory = state.device()?.memory()?;
        // SAFETY: the caller's promise.
        unsafe {
            put(free, memory.free as usize)?;
            put(total, (memory.total + RESERVED) as usize)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) -> CUresult {
    call("cuMemAlloc_v2", Needs::Context, |state| {
        if bytes == 0 {
            return Err(Refusal::value("an allocation of nothing"));
        }
        let start = state.device()?.allocate(bytes)?;
        state.allocations.insert(start, (bytes, false));
        // SAFETY: the caller's promise.
        unsafe { put(at, start) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    call("cuMemHostAlloc", Needs::Context, |state| {
        if bytes == 0 || flags != 0 {
            return Err(Refusal::value("an allocation of nothing, or with flags"));
        }
        let start = state.device()?.allocate_host(bytes)?;
        state.allocations.insert(start as u64, (bytes, true));
        // SAFETY: the caller's promise.
        unsafe { put(at, start.cast()) }
    })
}

fn free(state: &mut State, at: u64, of_host: bool) -> Result<(), Refusal> {
    match state.allocations.get(&at) {
        Some((bytes, host)) if *host == of_host => {
            let (device, bytes) = (state.device()?, *bytes);
            // SAFETY: allocated above and freed once, as it is removed here.
            unsafe {
                match of_host {
                    true => device.free_host(at as *mut u8, bytes),
                    false => device.free(at, bytes),
                }
            }
            state.allocations.remove(&at);
            Ok(())
        }
        _ => Err(Refusal::value(format!("{at:#x} is no allocation of this kind"))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(at: CUdeviceptr) -> CUresult {
    call("cuMemFree_v2", Needs::Context, |state| free(state, at, false))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> CUresult {
    call("cuMemFreeHost", Needs::Context, |state| free(state, at as u64, true))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut CUdeviceptr,
    bytes: *mut usize,
    at: CUdeviceptr,
) -> CUresult {
    call("cuMemGetAddressRange_v2", Needs::ContextOrCapture, |state| {
        let found = state.device()?.allocation(at);
        let range = found.ok_or_else(|| Refusal::value(format!("{at:#x} is in no allocation")))?;
        // SAFETY: the caller's promise.
        unsafe {
            put(start, range.start)?;
            put(bytes, (range.end - range.start) as usize)
        }
    })
}

/// Refuses a range of device memory that is in no allocation, as the copy would do later.
fn check(state: &State, at: u64, bytes: usize) -> Result<(), Refusal> {
    let found = state.device()?.allocation(at);
    found
        .is_some_and(|range| bytes as u64 <= range.end - at)
        .then_some(())
        .ok_or_else(|| Refusal::value(format!("{bytes} bytes at {at:#x} are in no allocation")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyHtoDAsync_v2", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        check(state, to, bytes)?;
        // SAFETY: the caller's promise; the range on the device was checked.
        unsafe { state.device()?.copy_in(to, std::slice::from_raw_parts(from.cast(), bytes)) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyDtoHAsync_v2", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        check(state, from, bytes)?;
        // SAFETY: as above.
        unsafe { state.device()?.copy_out(from, std::slice::from_raw_parts_mut(to.cast(), bytes)) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemcpyDtoDAsync_v2", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        check(state, to, bytes)?;
        check(state, from, bytes)?;
        // SAFETY: both ranges were checked.
        unsafe { state.device()?.copy(to, from, bytes) }?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    at: CUdeviceptr,
    byte: c_uchar,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call("cuMemsetD8Async", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        check(state, at, bytes)?;
        // SAFETY: the range was checked.
        unsafe { state.device()?.fill(at, byte, bytes) }?;
        Ok(())
    })
}
