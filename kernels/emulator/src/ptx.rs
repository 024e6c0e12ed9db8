//! Launches that interpret PTX instead of running the compiled sources, and which writes of others a kernel may not rely on.
//!
//! Blocks of a launch have no order, and threads of a block only that of barriers. So none may read or overwrite what another
//! wrote without one between, unless both write atomically or the value that is there. Blocks that take tickets from the same
//! counter (`take_ticket`) are ordered by these: what a block wrote before a barrier before its ticket is there behind a
//! barrier after a later ticket. That a thread reads what another writes later shows in the
//! opposite order, which other seeds take.
//!
//! Every kernel lets the next one start when all its blocks have begun, before it waits itself (`let_next_start` in
//! `device.cuh`). So the wait of a kernel says nothing about what was done when it began: a chain of kernels may all have
//! begun while the first one still runs. Before it waited, a kernel may read what an earlier one wrote only if something
//! else ended that one: the host waited for it before this launch was submitted, or a copy or a launch that isn't early
//! stands between, which begins when all before it is done. Copies themselves are such steps, so what they write is always
//! there. Once a kernel has waited, all before it are done, as none is done before it waited for those before itself.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use infer_kernels::cuda::CudaError;
use infer_ptx::{Global, Launch, Machine, Module, Party, Write};

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
        let mut view = View { memories, step, done, tickets: BTreeMap::new() };
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
    /// By block, the tickets that it took so far: each thread's latest of a counter, and the counter's address.
    tickets: BTreeMap<u32, Vec<(u64, Party)>>,
}

impl View<'_> {
    /// What another thread of this launch wrote, if nothing orders that before what `who` does.
    fn racing(&self, at: u64, bytes: u64, who: &Party, atomic: bool) -> Result<(), String> {
        let ordered = |writer: &Writer| {
            let both_atomic = atomic && matches!(writer.how, Write::Atomic | Write::Ordering);
            both_atomic || who.follows(&writer.who) || self.met(&writer.who, who)
        };
        let wrong = |writer: &&Writer| writer.step == self.step && !ordered(writer);
        match self.memories.writers(at, bytes).iter().find(wrong) {
            None => Ok(()),
            Some(Writer { who: Party { block, thread, .. }, .. }) => Err(format!(
                "{bytes} bytes at {at:#x}, which thread {thread} of block {block} wrote with no barrier since"
            )),
        }
    }
}

impl View<'_> {
    /// Whether tickets order what a thread of another block wrote before what `who` does now.
    fn met(&self, writer: &Party, who: &Party) -> bool {
        let taken = |block| self.tickets.get(&block).into_iter().flatten();
        // Blocks run one after another, so the writer's took its tickets first.
        taken(writer.block).any(|(counter, release)| {
            release.block_barriers > writer.block_barriers
                && taken(who.block).any(|(other, acquire)| other == counter && who.follows(acquire))
        })
    }
}

// SAFETY: ranges are those of live allocations, none of which is freed while the launch borrows them.
unsafe impl Global for View<'_> {
    fn allocation(&self, at: u64) -> Option<Range<u64>> {
        self.memories.allocation(at)
    }

    fn read(&self, at: u64, bytes: u64, who: &Party, waited: bool) -> Result<(), String> {
        self.racing(at, bytes, who, false).map_err(|wrong| format!("a read of {wrong}"))?;
        let writers = self.memories.writers(at, bytes);
        match writers.iter().find(|writer| !waited && writer.step > self.done) {
            None => Ok(()),
            Some(writer) => Err(format!(
                "a read of {bytes} bytes at {at:#x} before `griddepcontrol.wait`, which a kernel wrote {} steps ahead \
                 that may still be running",
                self.step - writer.step
            )),
        }
    }

    fn write(&mut self, at: u64, bytes: u64, who: &Party, how: Write) -> Result<(), String> {
        if how != Write::Same {
            let racing = self.racing(at, bytes, who, matches!(how, Write::Atomic | Write::Ordering));
            racing.map_err(|wrong| format!("a write of {wrong}"))?;
        }
        if how == Write::Ordering {
            self.tickets.entry(who.block).or_default().push((at, *who));
        }
        self.memories.writers_mut(at, bytes).fill(Writer { step: self.step, who: *who, how });
        Ok(())
    }
}
