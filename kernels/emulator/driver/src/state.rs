//! The driver's state: one device, its primary context, and what each thread has current.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use cudarc::driver::sys::CUresult;
use infer_cuda_emulator::{Emulator, Module};
use infer_kernels::cuda::Device;

use crate::faults::Faults;
use crate::object::{Object, Objects};
use crate::refusal::{Refusal, report};

/// The handle of the primary context.
pub(crate) const CONTEXT: usize = 0xc0de;

thread_local! {
    /// The context that is current on this thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread is running a function of the host for the device, which must call nothing here.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct State {
    pub(crate) initialized: bool,
    pub(crate) capability: (i32, i32),
    /// How often the primary context is retained.
    retained: u32,
    /// The device of the primary context.
    emulator: Option<Arc<Emulator>>,
    pub(crate) objects: Objects,
    /// Allocations, by address: bytes, and whether they are the host's.
    pub(crate) allocations: BTreeMap<u64, (usize, bool)>,
    pub(crate) capture: Option<Capture>,
    /// The result of every call since the device was lost.
    lost: Option<CUresult>,
    faults: Faults,
    memory_bytes: usize,
}

/// A capture that has begun.
pub(crate) struct Capture {
    pub(crate) stream: usize,
    pub(crate) thread: ThreadId,
    /// A call within it was refused, so it can't be completed.
    pub(crate) broken: bool,
}

/// What a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// That the driver was initialized.
    Start,
    /// A current context, and that this thread captures nothing: the call may wait, or act on other streams.
    Context,
    /// A current context, also while capturing.
    ContextOrCapture,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(|| Mutex::new(State::from_environment())).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a call: counts it, checks what it needs, does it, and reports a refusal.
pub(crate) fn call(
    name: &'static str,
    needs: Needs,
    work: impl FnOnce(&mut State) -> Result<(), Refusal>,
) -> CUresult {
    if IN_HOST_FUNCTION.get() {
        report(&format!("{name}: called by a function that the device called"));
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    let mut state = state();
    let outcome = state.enter(name, needs).and_then(|()| work(&mut state));
    let Err(refusal) = outcome else { return CUresult::CUDA_SUCCESS };
    if refusal.is_sticky() && state.lost.is_none() {
        state.lost = Some(refusal.code);
        if let Some(emulator) = &state.emulator {
            emulator.lose(name);
        }
    }
    if let Some(why) = refusal.why {
        report(&format!("{name}: {why}"));
    }
    refusal.code
}

impl State {
    fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let capability = variable("INFER_EMULATED_CAPABILITY").and_then(|text| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        Self {
            initialized: false,
            capability: capability.unwrap_or((9, 0)),
            retained: 0,
            emulator: None,
            objects: Objects::new(),
            allocations: BTreeMap::new(),
            capture: None,
            lost: None,
            faults: Faults::parse(&variable("INFER_EMULATED_FAULTS").unwrap_or_default()),
            memory_bytes: variable("INFER_EMULATED_MEMORY")
                .and_then(|text| text.parse().ok())
                .unwrap_or(2 << 30),
        }
    }

    fn enter(&mut self, name: &'static str, needs: Needs) -> Result<(), Refusal> {
        if let Err(refusal) = self.faults.count(name) {
            // Whatever a capture's end returns, the capture is over.
            if name == "cuStreamEndCapture" && self.capture.take().is_some() {
                self.device()?.end_recording()?;
            }
            return Err(refusal);
        }
        if needs == Needs::Nothing {
            return Ok(());
        }
        if !self.initialized {
            return Err(Refusal::new(CUresult::CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called"));
        }
        if needs == Needs::Start {
            return Ok(());
        }
        if self.retained == 0 || CURRENT.get() != CONTEXT {
            return Err(Refusal::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "no context is current on this thread",
            ));
        }
        if let Some(code) = self.lost {
            return Err(Refusal::quiet(code));
        }
        if needs == Needs::Context
            && let Some(capture) = &mut self.capture
            && capture.thread == std::thread::current().id()
        {
            capture.broken = true;
            let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            return Err(Refusal::new(code, "not allowed while this thread captures a stream"));
        }
        Ok(())
    }

    /// The context's device.
    pub(crate) fn device(&self) -> Result<Arc<Emulator>, Refusal> {
        let none =
            || Refusal::new(CUresult::CUDA_ERROR_INVALID_CONTEXT, "the primary context isn't retained");
        self.emulator.clone().ok_or_else(none)
    }

    /// Refuses a handle that is no live stream, and one that another thread captures.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<(), Refusal> {
        self.objects.get(handle, "stream", |object| matches!(object, Object::Stream).then_some(object))?;
        match &self.capture {
            Some(capture) if capture.thread != std::thread::current().id() => {
                let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
                Err(Refusal::new(code, "another thread captures this stream"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn retain(&mut self) -> Result<(), Refusal> {
        if self.retained == 0 {
            let emulator = match std::env::var("INFER_EMULATED_PTX") {
                Ok(file) => Emulator::with_ptx(1, Arc::new(module(&file)?)),
                Err(_) => {
                    Emulator::new(1).ok_or_else(|| unsupported("it was built without a C++ compiler"))?
                }
            };
            emulator.limit_memory(self.memory_bytes);
            self.emulator = Some(Arc::new(emulator));
        }
        self.retained += 1;
        Ok(())
    }

    /// Releases the context once. The last release ends what is in it; an orderly program has nothing left.
    pub(crate) fn release(&mut self) -> Result<(), Refusal> {
        match self.retained {
            0 => {
                return Err(Refusal::new(
                    CUresult::CUDA_ERROR_INVALID_CONTEXT,
                    "the primary context isn't retained",
                ));
            }
            1 => {}
            _ => {
                self.retained -= 1;
                return Ok(());
            }
        }
        self.retained = 0;
        let emulator = self.emulator.take();
        let mut left = self.objects.clear();
        if !self.allocations.is_empty() {
            left.insert("allocation", self.allocations.len());
        }
        self.allocations.clear();
        self.capture = None;
        // On a lost device, no call that would have ended something did.
        if self.lost.take().is_some() {
            return Ok(());
        }
        if let Some(Err(error)) = emulator.map(|emulator| emulator.wait()) {
            report(&format!("released after a fault that nobody waited for: {error}"));
        }
        let left: Vec<String> = left.iter().map(|(kind, count)| format!("{count} of kind {kind}")).collect();
        if !left.is_empty() {
            report(&format!("the context was released with {}", left.join(", ")));
        }
        Ok(())
    }
}

fn unsupported(why: impl Into<String>) -> Refusal {
    Refusal::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, why)
}

/// Reads a file of PTX.
fn module(file: &str) -> Result<Module, Refusal> {
    let text = std::fs::read_to_string(file).map_err(|error| unsupported(format!("{file}: {error}")))?;
    Module::parse(&text).map_err(|error| unsupported(format!("{file}: {error}")))
}

pub(crate) fn set_current(context: usize) {
    CURRENT.set(context);
}

pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// Runs a function of the host on behalf of the device.
pub(crate) fn host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}
