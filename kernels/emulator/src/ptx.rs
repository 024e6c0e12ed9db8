//! Launches that interpret PTX instead of running the compiled sources, and which writes of others a kernel may not rely on.
//!
//! Blocks of a launch have no order, so none may read or overwrite what another wrote, unless both write atomically. That a
//! block reads what another writes later shows in the opposite order of blocks, which other seeds take.
//!
//! Every kernel lets the next one start when all its blocks have begun, before it waits itself (`take_turn` in
//! `device.cuh`). So the wait of a kernel says nothing about what was done when it began: a chain of kernels may all have
//! begun while the first one still runs. Before it waited, a kernel may read what an earlier one wrote only if something
//! else ended that one: the host waited for it before this launch was submitted, or a copy or a launch that isn't early
//! stands between, which begins when all before it is done. Copies themselves are such steps, so what they write is always
//! there. Once a kernel has waited, all before it are done, as none is done before it waited for those before itself.

use std::ops::Range;
use std::sync::Arc;

use infer_kernels::cuda::CudaError;
use infer_ptx::{Global, Launch, Machine, Module};

use crate::memory::{Memories, Writer};

pub(crate) struct Interpreter {
    pub(crate) module: Arc<Module>,
    machine: Machine,
    /// All steps up to this one are done when the next launch begins, even if it is early.
    settled: u64,
}

/// A launch's place in the order of steps, counted from 1.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) step: u64,
    /// Steps that the host had waited for when it submitted this one.
    pub(crate) known: u64,
    /// Whether it may begin before the steps ahead of it are done.
    pub(crate) early: bool,
}

impl Interpreter {
    pub(crate) fn new(module: Arc<Module>) -> Self {
        Self { module, machine: Machine::default(), settled: 0 }
    }

    /// A step that begins when all before it are done, and ends before the next begins.
    pub(crate) fn settle(&mut self, step: u64) {
        self.settled = step;
    }

    pub(crate) fn launch(
        &mut self,
        launch: &Launch<'_>,
        memories: &mut Memories,
        place: Place,
    ) -> Result<(), CudaError> {
        if !place.early {
            self.settled = place.step - 1;
        }
        let [step, done] = [place.step, self.settled.max(place.known)].map(|step| step as u32);
        let mut view = View { memories, step, done };
        let run = self.machine.run(&self.module, launch, &mut view);
        run.map_err(|error| CudaError::failed(error.message))
    }
}

/// Memory as one launch sees it.
struct View<'a> {
    memories: &'a mut Memories,
    step: u32,
    /// Steps that were done when the launch began.
    done: u32,
}

impl View<'_> {
    /// Whether another block of this launch wrote a byte.
    fn is_foreign(&self, writer: &Writer, block: u64, atomic: bool) -> bool {
        writer.step == self.step && u64::from(writer.block) != block && !(atomic && writer.atomic)
    }
}

// SAFETY: ranges are those of live allocations, none of which is freed while the launch borrows them.
unsafe impl Global for View<'_> {
    fn allocation(&self, at: u64) -> Option<Range<u64>> {
        self.memories.allocation(at)
    }

    fn read(&self, at: u64, bytes: u64, block: u64, waited: bool) -> Result<(), String> {
        let writers = self.memories.writers(at, bytes);
        if let Some(writer) = writers.iter().find(|writer| self.is_foreign(writer, block, false)) {
            return Err(format!("a read of {bytes} bytes at {at:#x}, which block {} wrote", writer.block));
        }
        match writers.iter().find(|writer| !waited && writer.step > self.done) {
            None => Ok(()),
            Some(writer) => Err(format!(
                "a read of {bytes} bytes at {at:#x} before `griddepcontrol.wait`, which a kernel wrote {} steps ahead \
                 that may still be running",
                self.step - writer.step
            )),
        }
    }

    fn write(&mut self, at: u64, bytes: u64, block: u64, atomic: bool) -> Result<(), String> {
        let writers = self.memories.writers(at, bytes);
        if let Some(writer) = writers.iter().find(|writer| self.is_foreign(writer, block, atomic)) {
            return Err(format!(
                "a write of {bytes} bytes at {at:#x}, which block {} wrote, too",
                writer.block
            ));
        }
        let writer = Writer { step: self.step, block: block as u32, atomic };
        self.memories.writers_mut(at, bytes).fill(writer);
        Ok(())
    }
}
