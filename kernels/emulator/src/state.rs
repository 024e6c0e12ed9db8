//! What a device does: its queue of steps, and how each is run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use infer_kernels::cuda::{CudaError, CudaErrorKind};

use crate::memory::Memories;
use crate::native::launch;
use crate::ptx::{Interpreter, Place as Turn};

/// The device: its memory, what was submitted, and what it did so far.
pub(crate) struct State {
    pub(crate) memories: Memories,
    pub(crate) recording: Option<Vec<Step>>,
    /// Submitted steps that have not run.
    pub(crate) queue: VecDeque<Queued>,
    /// What launches run on, if not on compiled sources.
    pub(crate) interpreter: Option<Interpreter>,
    /// Seed of the next step's order of threads.
    pub(crate) seed: u64,
    /// Number of steps run so far.
    pub(crate) done: u64,
    /// The first failure, which stays.
    pub(crate) fault: Option<CudaError>,
    /// Failures to come, each after so many operations of its kind.
    pub(crate) failures: Vec<(Operation, u32, CudaError)>,
    /// Recordings that are refused: all, or just those with early launches.
    pub(crate) refused: Option<Refused>,
    /// Whether launches in the latest recording may start early.
    pub(crate) early: bool,
    pub(crate) allocations: u64,
    pub(crate) recordings: u64,
    pub(crate) launches: BTreeMap<&'static str, u64>,
}

/// Recordings that a device refuses.
#[derive(Clone, Copy)]
pub(crate) enum Refused {
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
    pub(crate) fn fails(&mut self, operation: Operation) -> Result<(), CudaError> {
        let Some(index) = self.failures.iter().position(|(of, ..)| *of == operation) else { return Ok(()) };
        if let (_, before @ 1.., _) = &mut self.failures[index] {
            *before -= 1;
            return Ok(());
        }
        let (.., failure) = self.failures.remove(index);
        if failure.kind == CudaErrorKind::Lost {
            self.lose(failure.clone());
        }
        Err(failure)
    }

    /// Fails all work from now on.
    pub(crate) fn lose(&mut self, fault: CudaError) {
        // The caller frees its memory when it sees the fault, and the queued steps would still use it.
        self.queue.clear();
        self.fault = Some(CudaError { kind: CudaErrorKind::Lost, ..fault });
    }

    pub(crate) fn given(&self) -> u64 {
        self.done + self.queue.len() as u64
    }

    pub(crate) fn healthy(&self) -> Result<(), CudaError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn give(&mut self, step: Step) {
        self.queue.push_back(Queued { step, seed: self.seed, known: self.done });
        self.seed = self.seed.wrapping_add(1);
    }

    /// Runs all steps before this place in the order.
    pub(crate) fn catch_up(&mut self, place: u64) -> Result<(), CudaError> {
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

    pub(crate) fn finish(&mut self) -> Result<(), CudaError> {
        self.catch_up(u64::MAX)
    }
}

/// A step in the queue.
pub(crate) struct Queued {
    step: Step,
    /// Of its order of threads.
    pub(crate) seed: u64,
    /// Steps that were done when it was submitted, all because the host waited for them.
    known: u64,
}

/// A unit of work in the device's order.
#[derive(Clone)]
pub(crate) enum Step {
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
