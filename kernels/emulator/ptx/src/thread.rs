//! Runs one thread until it meets others or ends.

use crate::Write;
use crate::copies::Copies;
use crate::memory::{Memory, Refused};
use crate::program::{Guard, Kernel, Op, Space};
use crate::race::{Moment, Who};

/// Taken branches after which a thread is said not to end; our longest loops take some thousand.
const MOST_BRANCHES: u32 = 1 << 26;

#[derive(Default)]
pub(crate) struct Thread {
    /// The next instruction; after an error, the one at fault.
    pub(crate) at: usize,
    /// Executed `griddepcontrol.wait`, or need not.
    pub(crate) waited: bool,
    pub(crate) copies: Copies,
    pub(crate) state: State,
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Ready,
    /// At an instruction that all lanes of a warp execute together.
    AtWarp,
    AtBlock,
    Ended,
}

impl Thread {
    pub(crate) fn run(
        &mut self,
        kernel: &Kernel,
        slots: &mut [u64],
        memory: &mut Memory<'_>,
        index: u32,
        now: Moment,
    ) -> Result<State, Refused> {
        let mut branches = 0;
        loop {
            let instruction = &kernel.instructions[self.at];
            let args = &instruction.args;
            match instruction.guard {
                Guard::None => {}
                Guard::If(slot) if slots[usize::from(slot)] != 0 => {}
                Guard::Unless(slot) if slots[usize::from(slot)] == 0 => {}
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            let slot = |arg: usize| usize::from(args[arg]);
            let who = Who { thread: index, instruction: self.at as u32, now };
            match instruction.op {
                Op::Compute(compute) => compute(slots, args),
                Op::Branch => {
                    branches += 1;
                    if branches > MOST_BRANCHES {
                        return Err("the thread doesn't end".to_owned().into());
                    }
                    self.at = instruction.offset as usize;
                    continue;
                }
                Op::Load(space, shape) => {
                    let at = slots[slot(0)].wrapping_add_signed(instruction.offset);
                    let values = memory.load(space, at, shape, &who, self.waited)?;
                    for (arg, value) in values.iter().take(usize::from(shape.count)).enumerate() {
                        slots[slot(1 + arg)] = *value;
                    }
                }
                Op::Store(space, shape) => {
                    self.may_write(space)?;
                    let at = slots[slot(0)].wrapping_add_signed(instruction.offset);
                    let mut values = [0; 4];
                    for (arg, value) in values.iter_mut().take(usize::from(shape.count)).enumerate() {
                        *value = slots[slot(1 + arg)];
                    }
                    memory.store(space, at, shape, values, &who)?;
                }
                Op::Divide(compute) => {
                    if slots[slot(2)] == 0 {
                        return Err("a division by zero".to_owned().into());
                    }
                    compute(slots, args);
                }
                Op::Atomic(space, shape, combine, orders) => {
                    self.may_write(space)?;
                    let at = slots[slot(1)].wrapping_add_signed(instruction.offset);
                    let how = if orders { Write::Ordering } else { Write::Atomic };
                    slots[slot(0)] = memory.atomic(space, at, shape, (combine, how), slots[slot(2)], &who)?;
                }
                Op::Copy(bytes) => {
                    let [to, from, read] = [0, 1, 2].map(|arg| slots[slot(arg)]);
                    self.copies.start(memory, [to, from], [u64::from(bytes), read], &who, self.waited)?;
                }
                Op::CommitCopies => self.copies.commit(),
                Op::WaitCopies => self.copies.wait(memory, instruction.offset as u32, &who)?,
                Op::WaitKernels => self.waited = true,
                // Earlier kernels may still run from the start, whenever this one says so.
                Op::LaunchNext => {}
                Op::Publish => memory.publish(index),
                Op::Trap => return Err("a trap".to_owned().into()),
                Op::Shuffle
                | Op::Multiply(_)
                | Op::WarpBarrier
                | Op::Vote
                | Op::FenceProducts
                | Op::MultiplyGroup
                | Op::CommitProducts
                | Op::WaitProducts => return Ok(State::AtWarp),
                Op::BlockBarrier => return Ok(State::AtBlock),
                Op::Return => return self.end(),
            }
            self.at += 1;
        }
    }

    fn may_write(&self, space: Space) -> Result<(), Refused> {
        match self.waited || space == Space::Shared {
            true => Ok(()),
            false => Err("a write to global memory before `griddepcontrol.wait`".to_owned().into()),
        }
    }

    fn end(&self) -> Result<State, Refused> {
        if !self.waited {
            return Err("the thread ends without `griddepcontrol.wait`".to_owned().into());
        }
        if self.copies.are_flying() {
            return Err("the thread ends with copies in flight".to_owned().into());
        }
        Ok(State::Ended)
    }
}
