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
mod ptx;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
#[cfg(compiled)]
use std::ffi::{CString, c_char, c_void};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use infer_kernels::cuda::{
    CudaError, CudaErrorKind, Device, Graph, Launch, Mark, Memory, ProductParams, Properties, Switches, Type,
    VendorLibrary,
};

pub use infer_ptx::Module;
use memory::Memories;
use ptx::{Interpreter, Place as Turn};

#[cfg(compiled)]
unsafe extern "C" {
    fn infer_emulate_launch(
        name: *const c_char,
        params: *const c_void,
        params_bytes: usize,
        grid: *const u32,
        threads: u32,
        shared_bytes: usize,
        seed: u64,
    ) -> *const c_char;
    fn infer_emulate_find(name: *const c_char, params_bytes: *mut usize, threads: *mut u32) -> *const c_char;
}

/// A kernel that the emulator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, as in the sources.
    pub name: &'static str,
    /// Bytes of its parameters.
    pub params_bytes: usize,
    /// Threads per block.
    pub threads: u32,
}

impl Kernel {
    /// Finds a kernel by its name.
    pub fn find(name: &CStr) -> Option<Self> {
        #[cfg(compiled)]
        {
            let (mut params_bytes, mut threads) = (0, 0);
            // SAFETY: `name` ends with a zero, and two numbers are written. The returned name is a literal.
            let found = unsafe {
                let found = infer_emulate_find(name.as_ptr(), &raw mut params_bytes, &raw mut threads);
                (!found.is_null()).then(|| CStr::from_ptr(found))
            };
            found.and_then(|name| name.to_str().ok()).map(|name| Self { name, params_bytes, threads })
        }
        #[cfg(not(compiled))]
        {
            let _ = name;
            None
        }
    }
}

/// The host as a device.
pub struct Emulator {
    state: Arc<Mutex<State>>,
    properties: Properties,
}

struct State {
    memories: Memories,
    recording: Option<Vec<Step>>,
    /// Submitted steps that have not run.
    queue: VecDeque<Queued>,
    /// What launches run on, if not on compiled sources.
    interpreter: Option<Interpreter>,
    /// Seed of the next step's order of threads.
    seed: u64,
    /// Number of steps run so far.
    done: u64,
    /// The first failure, which stays.
    fault: Option<CudaError>,
    /// Failures to come.
    failures: Vec<(Operation, CudaError)>,
    /// Recordings that are refused: all, or just those with early launches.
    refused: Option<Refused>,
    /// Whether launches in the latest recording may start early.
    early: bool,
    allocations: u64,
    recordings: u64,
    launches: BTreeMap<&'static str, u64>,
}

/// Recordings that a device refuses.
#[derive(Clone, Copy)]
enum Refused {
    Early,
    All,
}

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A kernel launch, within a recording too.
    Launch,
    /// A copy from the host.
    CopyIn,
    /// A copy to the host.
    CopyOut,
    /// A launch of a recording.
    Graph,
}

impl State {
    /// The failure that this operation is to have, which becomes the device's own if it says that the device is lost.
    fn fails(&mut self, operation: Operation) -> Result<(), CudaError> {
        let Some(index) = self.failures.iter().position(|(of, _)| *of == operation) else { return Ok(()) };
        let (_, failure) = self.failures.remove(index);
        if failure.kind == CudaErrorKind::Lost {
            self.lose(failure.clone());
        }
        Err(failure)
    }

    /// Fails all work from now on.
    fn lose(&mut self, fault: CudaError) {
        // The caller frees its memory when it sees the fault, and the queued steps would still use it.
        self.queue.clear();
        self.fault = Some(CudaError { kind: CudaErrorKind::Lost, ..fault });
    }

    fn given(&self) -> u64 {
        self.done + self.queue.len() as u64
    }

    fn healthy(&self) -> Result<(), CudaError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn give(&mut self, step: Step) {
        self.queue.push_back(Queued { step, seed: self.seed, known: self.done });
        self.seed = self.seed.wrapping_add(1);
    }

    /// Runs all steps before this place in the order.
    fn catch_up(&mut self, place: u64) -> Result<(), CudaError> {
        self.healthy()?;
        while self.done < place
            && let Some(queued) = self.queue.pop_front()
        {
            self.done += 1;
            if let Err(fault) = run(self, &queued) {
                self.lose(fault);
            }
            self.healthy()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), CudaError> {
        self.catch_up(u64::MAX)
    }
}

/// A step in the queue.
struct Queued {
    step: Step,
    /// Of its order of threads.
    seed: u64,
    /// Steps that were done when it was submitted, all because the host waited for them.
    known: u64,
}

/// A unit of work in the device's order.
#[derive(Clone)]
enum Step {
    Launch {
        kernel: &'static str,
        grid: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        params: Vec<u8>,
        early: bool,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        at: u64,
        byte: u8,
        bytes: usize,
    },
    /// Copy to or from pinned memory of the host.
    Pinned {
        to: u64,
        from: u64,
        bytes: usize,
    },
    /// Copy of pageable host memory, taken at submission.
    Bytes {
        to: u64,
        bytes: Vec<u8>,
    },
    /// A function of the host.
    Call(Arc<dyn Fn() + Send + Sync>),
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
            early: target >= 90,
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
        self.lock().failures.push((operation, failure));
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

/// Runs one step.
fn run(state: &mut State, queued: &Queued) -> Result<(), CudaError> {
    let seed = queued.seed;
    if let Some(interpreter) = &mut state.interpreter
        && !matches!(queued.step, Step::Launch { .. })
    {
        interpreter.settle(state.done);
    }
    match &queued.step {
        Step::Copy { to, from, bytes } | Step::Pinned { to, from, bytes } => {
            state.memories.check(*from, *bytes)?;
            state.memories.check(*to, *bytes)?;
            // SAFETY: both lie in live allocations, as just checked; the caller of the device promised no overlap.
            unsafe { std::ptr::copy_nonoverlapping(*from as *const u8, *to as *mut u8, *bytes) };
        }
        Step::Bytes { to, bytes } => {
            state.memories.check(*to, bytes.len())?;
            // SAFETY: in a live allocation, as just checked.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), *to as *mut u8, bytes.len()) };
        }
        Step::Fill { at, byte, bytes } => {
            state.memories.check(*at, *bytes)?;
            // SAFETY: in a live allocation, as just checked.
            unsafe { std::ptr::write_bytes(*at as *mut u8, *byte, *bytes) };
        }
        Step::Launch { kernel, grid, threads, shared_bytes, params, early } => {
            let (grid, threads, shared_bytes) = (*grid, *threads, *shared_bytes as usize);
            match &mut state.interpreter {
                Some(interpreter) => {
                    let launch = infer_ptx::Launch { kernel, grid, threads, shared_bytes, params, seed };
                    let turn = Turn { step: state.done, known: queued.known, early: *early };
                    interpreter.launch(&launch, &mut state.memories, turn)?;
                }
                None => {
                    launch(kernel, grid, threads, shared_bytes, params, seed)?;
                    state.memories.check_guards(kernel)?;
                }
            }
        }
        Step::Call(function) => function(),
    }
    Ok(())
}

#[cfg(compiled)]
fn launch(
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: usize,
    params: &[u8],
    seed: u64,
) -> Result<(), CudaError> {
    let name = CString::new(kernel).expect("kernel names hold no zero");
    // Structs contain addresses, so their bytes must be aligned like these.
    let mut aligned = vec![0_u64; params.len().div_ceil(8)];
    // SAFETY: `aligned` has room for all bytes; the device's caller guarantees the memory that kernels access.
    let fault = unsafe {
        std::ptr::copy_nonoverlapping(params.as_ptr(), aligned.as_mut_ptr().cast(), params.len());
        let params_at = aligned.as_ptr().cast();
        infer_emulate_launch(
            name.as_ptr(),
            params_at,
            params.len(),
            grid.as_ptr(),
            threads,
            shared_bytes,
            seed,
        )
    };
    if fault.is_null() {
        return Ok(());
    }
    // SAFETY: a literal.
    let fault = unsafe { CStr::from_ptr(fault) }.to_string_lossy();
    Err(CudaError::failed(format!("{kernel} (order of threads {seed}): {fault}")))
}

#[cfg(not(compiled))]
fn launch(_: &str, _: [u32; 3], _: u32, _: usize, _: &[u8], _: u64) -> Result<(), CudaError> {
    Err(CudaError::failed("built without a C++ compiler"))
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
