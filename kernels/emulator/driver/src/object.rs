//! What handles stand for. A handle is a number that is never used twice, so one that was destroyed is recognized.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cudarc::driver::sys::CUresult;
use infer_cuda_emulator::Kernel;
use infer_kernels::cuda::{Graph, Mark};

use crate::refusal::Refusal;

pub(crate) enum Object {
    Stream,
    Module,
    Function(Function),
    Event(Event),
    /// What was captured, until it is instantiated.
    Graph(Option<Box<dyn Graph>>),
    Executable(Box<dyn Graph>),
}

pub(crate) struct Function {
    pub(crate) kernel: Kernel,
    /// The handle of its module.
    pub(crate) module: usize,
    /// Bytes of dynamic shared memory that it may use.
    pub(crate) shared_bytes: u32,
    /// Whether it was launched outside of a capture, so that the driver has loaded it.
    pub(crate) loaded: bool,
}

pub(crate) struct Event {
    pub(crate) mark: Box<dyn Mark>,
    pub(crate) timed: bool,
    pub(crate) recorded: Recorded,
    /// When the device got there.
    pub(crate) reached: Arc<Mutex<Option<Instant>>>,
}

/// Where an event was recorded last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    Never,
    InStream,
    InCapture,
}

impl Object {
    fn kind(&self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Module => "module",
            Self::Function(_) => "function",
            Self::Event(_) => "event",
            Self::Graph(_) => "graph",
            Self::Executable(_) => "executable graph",
        }
    }
}

/// All live objects by handle.
pub(crate) struct Objects {
    live: BTreeMap<usize, Object>,
    next: usize,
}

impl Objects {
    pub(crate) fn new() -> Self {
        Self { live: BTreeMap::new(), next: 0x1000 }
    }

    pub(crate) fn add(&mut self, object: Object) -> usize {
        self.next += 0x10;
        self.live.insert(self.next, object);
        self.next
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Object) -> bool) -> usize {
        self.live.values().filter(|object| wanted(object)).count()
    }

    /// The object of a handle, if `pick` accepts it.
    pub(crate) fn get<T>(
        &mut self,
        handle: usize,
        kind: &str,
        pick: impl FnOnce(&mut Object) -> Option<&mut T>,
    ) -> Result<&mut T, Refusal> {
        let Some(object) = self.live.get_mut(&handle) else { return Err(invalid(handle, kind, "nothing")) };
        let found = object.kind();
        pick(object).ok_or_else(|| invalid(handle, kind, found))
    }

    /// Ends the object of a handle, if it is `wanted`.
    pub(crate) fn remove(
        &mut self,
        handle: usize,
        kind: &str,
        wanted: impl FnOnce(&Object) -> bool,
    ) -> Result<Object, Refusal> {
        match self.live.get(&handle) {
            Some(object) if wanted(object) => {}
            Some(object) => return Err(invalid(handle, kind, object.kind())),
            None => return Err(invalid(handle, kind, "nothing")),
        }
        self.live.remove(&handle).ok_or_else(|| invalid(handle, kind, "nothing"))
    }

    /// Ends the functions of a module.
    pub(crate) fn remove_functions(&mut self, of: usize) {
        self.live.retain(|_, object| !matches!(object, Object::Function(function) if function.module == of));
    }

    /// Ends everything and names it, by kind.
    pub(crate) fn clear(&mut self) -> BTreeMap<&'static str, usize> {
        let mut left = BTreeMap::new();
        for object in std::mem::take(&mut self.live).values() {
            *left.entry(object.kind()).or_default() += 1;
        }
        left
    }
}

fn invalid(handle: usize, kind: &str, found: &str) -> Refusal {
    Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{handle:#x} is {found}, not a live {kind}"))
}
