//! The stream, captures, and functions of the host in a stream.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUgraph, CUhostFn, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode};
use infer_kernels::cuda::Device;

use super::put;
use crate::object::Object;
use crate::refusal::Refusal;
use crate::state::{Capture, Needs, call, host_function};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    call("cuStreamCreate", Needs::Context, |state| {
        if flags != CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint {
            return Err(Refusal::value("only streams that don't wait for the default stream are emulated"));
        }
        if state.objects.count(|object| matches!(object, Object::Stream)) > 0 {
            return Err(Refusal::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, "only one stream is emulated"));
        }
        // SAFETY: the caller's promise.
        unsafe { put(stream, state.objects.add(Object::Stream) as CUstream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    call("cuStreamSynchronize", Needs::Context, |state| {
        state.stream(stream as usize)?;
        Ok(state.device()?.wait()?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    call("cuStreamDestroy_v2", Needs::Context, |state| {
        state.stream(stream as usize)?;
        state.objects.remove(stream as usize, "stream", |object| matches!(object, Object::Stream))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    call("cuStreamBeginCapture_v2", Needs::Context, |state| {
        let stream = stream as usize;
        state.stream(stream)?;
        if mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL {
            return Err(Refusal::value("only captures of this thread's calls are emulated"));
        }
        state.device()?.begin_recording(true)?;
        state.capture = Some(Capture { stream, thread: std::thread::current().id(), broken: false });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    call("cuStreamEndCapture", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        let none = || Refusal::value("nothing is captured on this stream");
        let capture = state.capture.take_if(|capture| capture.stream == stream as usize).ok_or_else(none)?;
        let captured = state.device()?.end_recording()?;
        // SAFETY: the caller's promise.
        unsafe {
            if capture.broken {
                put(graph, std::ptr::null_mut())?;
                return Err(Refusal::quiet(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
            }
            put(graph, state.objects.add(Object::Graph(Some(captured))) as CUgraph)
        }
    })
}

/// A function of the host with its argument, which any thread may use by the promise of whoever enqueues it.
struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: see above.
unsafe impl Send for HostFunction {}
// SAFETY: see above.
unsafe impl Sync for HostFunction {}

impl HostFunction {
    fn run(&self) {
        // SAFETY: function and argument are alive until the stream got here, by the promise of whoever enqueued it.
        host_function(|| unsafe { (self.function)(self.argument) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    argument: *mut c_void,
) -> CUresult {
    call("cuLaunchHostFunc", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        let function = function.ok_or_else(|| Refusal::value("no function"))?;
        let function = HostFunction { function, argument };
        state.device()?.call(Arc::new(move || function.run()))?;
        Ok(())
    })
}
