//! Events.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult, CUstream};
use infer_kernels::cuda::Device;

use super::put;
use crate::object::{Event, Object, Recorded};
use crate::refusal::Refusal;
use crate::state::{Needs, State, call};

impl State {
    fn event(&mut self, handle: CUevent) -> Result<&mut Event, Refusal> {
        self.objects.get(handle as usize, "event", |object| match object {
            Object::Event(event) => Some(event),
            _ => None,
        })
    }

    /// When the device reached an event.
    fn reached(&mut self, handle: CUevent) -> Result<Instant, Refusal> {
        let event = self.event(handle)?;
        if !event.timed || event.recorded != Recorded::InStream {
            let why = "an event without timing, or not recorded in a stream";
            return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, why));
        }
        let reached = *event.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached
            .ok_or_else(|| Refusal::new(CUresult::CUDA_ERROR_NOT_READY, "an event that was not waited for"))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    const TIMED: c_uint = CUevent_flags::CU_EVENT_DEFAULT as c_uint;
    const UNTIMED: c_uint = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
    call("cuEventCreate", Needs::ContextOrCapture, |state| {
        let timed = match flags {
            TIMED => true,
            UNTIMED => false,
            _ => return Err(Refusal::value(format!("flags {flags:#x} aren't emulated"))),
        };
        let mark = state.device()?.mark()?;
        let (recorded, reached) = (Recorded::Never, Arc::default());
        let created = state.objects.add(Object::Event(Event { mark, timed, recorded, reached }));
        // SAFETY: the caller's promise.
        unsafe { put(event, created as CUevent) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    call("cuEventRecord", Needs::ContextOrCapture, |state| {
        state.stream(stream as usize)?;
        let (device, captures) = (state.device()?, state.capture.is_some());
        let event = state.event(event)?;
        event.recorded = if captures { Recorded::InCapture } else { Recorded::InStream };
        if event.timed && !captures {
            event.reached = Arc::default();
            let reached: Arc<Mutex<Option<Instant>>> = Arc::clone(&event.reached);
            let now = move || *reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            device.call(Arc::new(now))?;
        }
        Ok(event.mark.set()?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    call("cuEventSynchronize", Needs::Context, |state| {
        let event = state.event(event)?;
        match event.recorded {
            // A driver takes it as done.
            Recorded::Never => Err(Refusal::value("an event that was not recorded")),
            Recorded::InCapture => Err(Refusal::new(
                CUresult::CUDA_ERROR_CAPTURED_EVENT,
                "an event that was recorded in a capture",
            )),
            Recorded::InStream => Ok(event.mark.wait()?),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, begin: CUevent, end: CUevent) -> CUresult {
    call("cuEventElapsedTime", Needs::ContextOrCapture, |state| {
        let (begin, end) = (state.reached(begin)?, state.reached(end)?);
        // SAFETY: the caller's promise.
        unsafe { put(ms, end.duration_since(begin).as_secs_f32() * 1e3) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    call("cuEventDestroy_v2", Needs::ContextOrCapture, |state| {
        state.objects.remove(event as usize, "event", |object| matches!(object, Object::Event(_)))?;
        Ok(())
    })
}
