//! Interprets PTX: what nvcc makes of the CUDA kernels runs on a machine without a GPU, with every access checked.
//!
//! `kernels/emulator` compiles the same sources with a C++ compiler and replaces everything that only a device has. This
//! crate runs the rest: inline PTX, intrinsics, and whatever nvcc made of the code. Instructions follow the PTX ISA 9.0;
//! those that our kernels don't use are unknown, and an unknown instruction, modifier or directive is an error.
//!
//! Threads run one at a time, each until it meets others or ends, in an order drawn from a seed. Errors of a kernel that
//! are found here: accesses that are unaligned or outside an allocation, the block's shared memory or the parameters; two
//! accesses to a byte of shared memory that no barrier orders; threads that wait for others that never come; lanes of a warp
//! at different instructions where they must be at the same; with early launches, writes before `griddepcontrol.wait`. The
//! owner of global memory is told of every access to it, and decides whether other threads and kernels allow it.
//!
//! Not here: speed, and what `ptxas` makes of the PTX.

mod copies;
mod decode;
mod group;
mod launch;
mod lex;
mod memory;
mod operands;
mod ops;
mod parse;
mod program;
mod race;
mod thread;
mod warp;

use std::fmt;
use std::ops::Range;

pub use launch::{Launch, Machine};
pub use program::Module;

/// What is wrong with a PTX file, a launch or a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Names the kernel and the line, and of a running kernel the block and the thread.
    pub message: String,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The device's memory, which is the host's at the same addresses. During a launch nothing else accesses it.
///
/// # Safety
/// All of a range that `allocation` returns may be read and written until the launch ends.
pub unsafe trait Global {
    /// The live allocation that contains this address.
    fn allocation(&self, at: u64) -> Option<Range<u64>>;

    /// A thread reads these bytes, which are in one allocation. `waited`: after it waited for earlier kernels.
    ///
    /// # Errors
    /// Says who else writes them, if that isn't ordered: another thread, or an earlier kernel that may still run.
    fn read(&self, at: u64, bytes: u64, who: &Party, waited: bool) -> Result<(), String>;

    /// A thread writes these bytes, which are in one allocation.
    ///
    /// # Errors
    /// If another thread wrote them and nothing orders that, unless both did so atomically, or this changes nothing.
    fn write(&mut self, at: u64, bytes: u64, who: &Party, how: Write) -> Result<(), String>;
}

/// Kinds of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Write {
    /// Of another value than the memory has.
    #[default]
    Change,
    /// Of the value that the memory has, whose order doesn't matter.
    Same,
    /// Reads and writes at once.
    Atomic,
    /// The same, and what is ordered before it is also ordered before what follows a later one of the same bytes.
    Ordering,
}

/// A thread of a launch, and the barriers that it has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// Index of its block.
    pub block: u32,
    /// Its index in the block.
    pub thread: u32,
    /// Barriers of the block.
    pub block_barriers: u32,
    /// Barriers of the warp.
    pub warp_barriers: u32,
}

impl Party {
    /// Whether what a thread of the same launch did is ordered before what this one does now.
    pub fn follows(&self, earlier: &Self) -> bool {
        if self.block != earlier.block {
            return false;
        }
        self.thread == earlier.thread
            || self.block_barriers > earlier.block_barriers
            || (self.thread / 32 == earlier.thread / 32 && self.warp_barriers > earlier.warp_barriers)
    }
}
