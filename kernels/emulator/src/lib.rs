//! A [`Device`] without a GPU: the `.cu` sources, compiled by the host's C++ compiler, one fiber per thread. With it, tests
//! check kernels, launch shapes, parameters and everything above them on any machine; speed they can't check.
//!
//! Device memory is host memory with guards at both ends and NaN inside. Every launch, also each repetition of a recorded
//! one, uses another order of threads. The device is maximally lazy: nothing runs until it is waited for, so reading results
//! or overwriting pinned memory too early shows. After a fault all further work is refused, as on a GPU. Tests can have it
//! refuse recordings, products of a vendor's library and single operations. Given PTX, it interprets what nvcc made of the
//! sources instead (`infer-ptx`), and refuses reads that a kernel makes too early. What only a GPU does (rounding of
//! `ex2.approx`, races between multiprocessors) is left to `gpu-check`.

mod memory;
mod native;
mod ptx;
mod state;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use infer_kernels::cuda::{
    CudaError, Device, Graph, Launch, Mark, Memory, ProductParams, Properties, Switches, Type, VendorLibrary,
};

pub use infer_ptx::Module;
use memory::Memories;
pub use native::Kernel;
use ptx::Interpreter;
pub use state::Operation;
use state::{Refused, State, Step};

/// The host as a device.
pub struct Emulator {
    state: Arc<Mutex<State>>,
    properties: Properties,
}

impl Emulator {
    /// A device whose order of threads is derived from a seed; `None` if the build found no C++ compiler.
    pub fn new(seed: u64) -> Option<Self> {
        cfg!(compiled).then(|| Self::start(seed, None))
    }

    /// A device that interprets PTX, with the compute capability that it was compiled for.
    pub fn with_ptx(seed: u64, module: Arc<Module>) -> Self {
        Self::start(seed, Some(module))
    }

    fn start(seed: u64, module: Option<Arc<Module>>) -> Self {
        let target = module.as_ref().map_or(90, |module| module.target());
        let properties = Properties {
            name: "emulated device".to_owned(),
            capability: (target / 10, target % 10),
            multiprocessors: 4,
            shared_bytes: 228 << 10,
            early: target >= 90,
            warpgroups: module.as_ref().is_none_or(|module| module.has_warpgroups()),
            vendor_products: None,
            switches: Switches::default(),
        };
        let (memories, queue) = (Memories::default(), VecDeque::new());
        let state = State {
            memories,
            recording: None,
            queue,
            interpreter: module.map(Interpreter::new),
            seed,
            done: 0,
            fault: None,
            failures: Vec::new(),
            refused: None,
            early: true,
            allocations: 0,
            recordings: 0,
            launches: BTreeMap::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), properties }
    }

    /// Limits the total of allocations to this many bytes.
    pub fn limit_memory(&self, bytes: usize) {
        self.lock().memories.limit = bytes;
    }

    /// Makes the next operation of this kind fail. If that happens within a recording, the recording goes on.
    pub fn fail_next(&self, operation: Operation, failure: CudaError) {
        self.fail_after(0, operation, failure);
    }

    /// The same of the one after so many of this kind.
    pub fn fail_after(&self, before: u32, operation: Operation, failure: CudaError) {
        self.lock().failures.push((operation, before, failure));
    }

    /// Loses the device: from now on all work fails, and nothing that was submitted is run.
    pub fn lose(&self, message: &str) {
        self.lock().lose(CudaError::failed(message));
    }

    /// Refuses all recordings at their end, as a driver does if something in them can't be recorded.
    pub fn refuse_recordings(&self) {
        self.lock().refused = Some(Refused::All);
    }

    /// Refuses recordings of early launches.
    pub fn refuse_early_recordings(&self) {
        self.lock().refused = Some(Refused::Early);
    }

    /// Has a vendor's library, which refuses all products.
    pub fn refuse_products(&mut self) {
        let library = VendorLibrary { version: 0, file: PathBuf::new(), passed_over: None };
        self.properties.vendor_products = Some(library);
    }

    /// Has these settings for experiments.
    pub fn switch(&mut self, switches: Switches) {
        self.properties.switches = switches;
    }

    /// Launches of each kernel so far, those within recordings included, but not those that graphs repeat.
    pub fn launches(&self) -> BTreeMap<&'static str, u64> {
        self.lock().launches.clone()
    }

    /// Calls a function of the host in order with the device's other work, within a recording too.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn call(&self, function: Arc<dyn Fn() + Send + Sync>) -> Result<(), CudaError> {
        self.take(Step::Call(function))
    }

    /// The allocation that contains an address.
    pub fn allocation(&self, at: u64) -> Option<Range<u64>> {
        self.lock().memories.allocation(at)
    }

    /// Number of recordings that were begun.
    pub fn recordings(&self) -> u64 {
        self.lock().recordings
    }

    /// Number of allocations so far, pinned memory included.
    pub fn allocations(&self) -> u64 {
        self.lock().allocations
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, step: Step) -> Result<(), CudaError> {
        let mut state = self.lock();
        state.healthy()?;
        match &mut state.recording {
            Some(steps) => steps.push(step),
            None => state.give(step),
        }
        Ok(())
    }
}

impl Device for Emulator {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory(&self) -> Result<Memory, CudaError> {
        let memories = &self.lock().memories;
        let total = memories.limit as u64;
        Ok(Memory { free: total - memories.used as u64, total })
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        let mut state = self.lock();
        if state.recording.is_some() {
            return Err(CudaError::failed("an allocation within a recording"));
        }
        state.allocations += 1;
        state.memories.allocate(bytes)
    }

    unsafe fn free(&self, at: u64, _bytes: usize) {
        let mut state = self.lock();
        // The next wait reports failures.
        let _ = state.finish();
        state.memories.free(at);
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError> {
        let mut state = self.lock();
        state.allocations += 1;
        Ok(state.memories.allocate_pinned(bytes)? as *mut u8)
    }

    unsafe fn free_host(&self, at: *mut u8, _bytes: usize) {
        self.lock().memories.free(at as u64);
    }

    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        let mut state = self.lock();
        state.fails(Operation::CopyIn)?;
        if state.recording.is_some() {
            return Err(CudaError::failed("a copy from the host within a recording"));
        }
        let (at, bytes) = (from.as_ptr() as u64, from.len());
        let step = match state.memories.is_pinned(at) {
            true => Step::Pinned { to, from: at, bytes },
            false => Step::Bytes { to, bytes: from.to_vec() },
        };
        drop(state);
        self.take(step)
    }

    unsafe fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        let mut state = self.lock();
        state.fails(Operation::CopyOut)?;
        if state.recording.is_some() {
            return Err(CudaError::failed("a copy to the host within a recording"));
        }
        let (at, bytes) = (to.as_mut_ptr() as u64, to.len());
        if state.memories.is_pinned(at) {
            drop(state);
            return self.take(Step::Pinned { to: at, from, bytes });
        }
        state.finish()?;
        state.memories.check(from, bytes)?;
        // SAFETY: in a live allocation, as just checked.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(from as *const u8, to.len()) });
        Ok(())
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.take(Step::Copy { to, from, bytes })
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.take(Step::Fill { at, byte, bytes })
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<(), CudaError> {
        let Launch { kernel, grid, threads, shared_bytes, params } = launch;
        let mut state = self.lock();
        state.fails(Operation::Launch)?;
        *state.launches.entry(kernel).or_default() += 1;
        let early = self.properties.early && (state.recording.is_none() || state.early);
        drop(state);
        self.take(Step::Launch { kernel, grid, threads, shared_bytes, params: params.to_vec(), early })
    }

    unsafe fn vendor_product(&self, _: Type, _: &ProductParams) -> Result<bool, CudaError> {
        Ok(false)
    }

    fn begin_recording(&self, early: bool) -> Result<(), CudaError> {
        let mut state = self.lock();
        state.recordings += 1;
        state.early = early;
        state.recording = Some(Vec::new());
        Ok(())
    }

    fn end_recording(&self) -> Result<Box<dyn Graph>, CudaError> {
        let mut state = self.lock();
        let steps = state.recording.take().ok_or_else(|| CudaError::failed("no recording"))?;
        let refused = match state.refused {
            None => false,
            Some(Refused::Early) => state.early,
            Some(Refused::All) => true,
        };
        if refused {
            return Err(CudaError::failed("a recording was refused"));
        }
        Ok(Box::new(Recorded { state: Arc::clone(&self.state), steps }))
    }

    fn mark(&self) -> Result<Box<dyn Mark>, CudaError> {
        Ok(Box::new(Place { state: Arc::clone(&self.state), place: AtomicU64::new(0) }))
    }

    fn wait(&self) -> Result<(), CudaError> {
        self.lock().finish()
    }

    fn time_us(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        self.wait()?;
        let begun = Instant::now();
        work()?;
        self.wait()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    }
}

struct Recorded {
    state: Arc<Mutex<State>>,
    steps: Vec<Step>,
}

impl Graph for Recorded {
    unsafe fn launch(&self) -> Result<(), CudaError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.fails(Operation::Graph)?;
        state.healthy()?;
        self.steps.iter().for_each(|step| state.give(step.clone()));
        Ok(())
    }
}

struct Place {
    state: Arc<Mutex<State>>,
    place: AtomicU64,
}

impl Mark for Place {
    fn set(&self) -> Result<(), CudaError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.place.store(state.given(), Ordering::Relaxed);
        Ok(())
    }

    fn wait(&self) -> Result<(), CudaError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.catch_up(self.place.load(Ordering::Relaxed))
    }
}
