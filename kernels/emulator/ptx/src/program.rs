//! A decoded program. Registers, special registers and constants of a kernel share one index space of slots, 64 bits per
//! thread each, so the interpreter reads every operand the same way.

use std::collections::HashMap;

/// Index of a slot.
pub(crate) type Slot = u16;

/// Where shared memory starts. Not 0, so that a null address is outside it; aligned as a swizzled matrix must be.
pub(crate) const SHARED_BASE: u64 = 1 << 10;
/// Names of the dynamic shared memory.
pub(crate) const SHARED: [&str; 2] = ["shared", "swizzled_shared"];
/// Where parameters start, as far from shared memory as from any allocation.
pub(crate) const PARAM_BASE: u64 = 1 << 30;
/// Content of registers that were never written: NaN as any type.
pub(crate) const POISON: u64 = u64::MAX;

/// All kernels of a PTX file.
#[derive(Debug)]
pub struct Module {
    /// Of `.target sm_N`.
    pub(crate) target: u32,
    pub(crate) kernels: HashMap<String, Kernel>,
}

impl Module {
    /// The architecture that the file is for: 80 or 90.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Whether kernels use products of warpgroups.
    pub fn has_warpgroups(&self) -> bool {
        self.kernels.values().any(|kernel| !kernel.group_products.is_empty())
    }

    /// Names of the kernels, sorted.
    pub fn kernels(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.kernels.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

/// One entry.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) param_bytes: usize,
    /// Of `.maxntid`: most threads of a block.
    pub(crate) most_threads: Option<u32>,
    /// Of `.reqntid`: threads of a block.
    pub(crate) threads: Option<u32>,
    pub(crate) instructions: Vec<Instruction>,
    /// Initial content of all slots: poison, then constants.
    pub(crate) slots: Vec<u64>,
    /// Slots of special registers.
    pub(crate) specials: Vec<(Special, Slot)>,
    /// Operands of matrix products: four of d, four of a, two of b, four of c.
    pub(crate) products: Vec<[Slot; 14]>,
    pub(crate) group_products: Vec<GroupProduct>,
    /// Whether an access to shared memory is smaller than four bytes.
    pub(crate) small_shared: bool,
    /// Where instructions come from, if the file says so.
    pub(crate) sources: Vec<Source>,
    /// Names of source files.
    pub(crate) files: HashMap<u32, String>,
}

impl Kernel {
    /// Names an instruction's line, and that of its source if known.
    pub(crate) fn place(&self, instruction: usize) -> String {
        let line = self.instructions[instruction].line;
        let known = self.sources.partition_point(|source| source.instruction <= instruction);
        let Some(source) = known.checked_sub(1).map(|index| &self.sources[index]) else {
            return format!("line {line}");
        };
        let named = |(file, line): SourceLine| {
            format!("{}:{line}", self.files.get(&file).map_or("?", String::as_str))
        };
        let caller = source.caller.map_or(String::new(), |caller| format!(", called at {}", named(caller)));
        format!("line {line} ({}{caller})", named(source.place))
    }
}

/// A file's number and a line.
pub(crate) type SourceLine = (u32, u32);

/// Where instructions from this one on come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) instruction: usize,
    pub(crate) place: SourceLine,
    /// Of a function that was inlined.
    pub(crate) caller: Option<SourceLine>,
}

/// Operands of a matrix product of a warpgroup.
#[derive(Debug)]
pub(crate) struct GroupProduct {
    pub(crate) matrix: Matrix,
    /// Half as many as the sums have columns.
    pub(crate) d: Vec<Slot>,
    pub(crate) left: Left,
    /// Descriptor of the right factor.
    pub(crate) right: Slot,
    /// Whether the sums run along its rows.
    pub(crate) transposed: bool,
    /// Whether to add to the sums.
    pub(crate) add: Slot,
}

/// Where the left factor is.
#[derive(Debug)]
pub(crate) enum Left {
    Registers([Slot; 4]),
    /// Its descriptor.
    Shared(Slot),
}

/// Special registers that kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
}

/// `@%p` or `@!%p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    None,
    If(Slot),
    Unless(Slot),
}

/// Computes on a thread's slots.
pub(crate) type Compute = fn(&mut [u64], &[Slot; 6]);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    pub(crate) guard: Guard,
    /// Operands in the order in which they are written.
    pub(crate) args: [Slot; 6],
    /// Of an address; or what the operation says.
    pub(crate) offset: i64,
    pub(crate) line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Param,
    Shared,
    Global,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Compute(Compute),
    /// A computation whose third operand must not be 0.
    Divide(Compute),
    /// To the instruction in `offset`.
    Branch,
    Return,
    /// `args`: address, values.
    Load(Space, Shape),
    /// `args`: address, values.
    Store(Space, Shape),
    /// `args`: old value, address, operand. The last: whether it orders what blocks write (`.acq_rel.gpu`).
    Atomic(Space, Shape, Combine, bool),
    /// `args`: target, source, bytes to read. The rest of these bytes is filled with zeros.
    Copy(u8),
    CommitCopies,
    /// At most `offset` groups stay in flight.
    WaitCopies,
    BlockBarrier,
    /// `args`: mask.
    WarpBarrier,
    /// `args`: value, whether the lane is in range, source, lanes, clamp, mask.
    Shuffle,
    /// `offset`: index in the kernel's products.
    Multiply(Matrix),
    /// `args`: whether any lane's is set, and a lane's; mask.
    Vote,
    /// `wgmma.fence`.
    FenceProducts,
    /// `offset`: index in the kernel's products of warpgroups.
    MultiplyGroup,
    CommitProducts,
    /// At most `offset` groups stay in flight.
    WaitProducts,
    /// `fence.proxy.async`.
    Publish,
    Trap,
    /// `griddepcontrol.wait`.
    WaitKernels,
    /// `griddepcontrol.launch_dependents`.
    LaunchNext,
}

/// Bytes of one value and number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) bytes: u8,
    pub(crate) count: u8,
}

impl Shape {
    pub(crate) fn total(self) -> u64 {
        u64::from(self.bytes) * u64::from(self.count)
    }
}

/// What an atomic operation makes of old value and operand.
pub(crate) type Combine = fn(u64, u64) -> u64;

/// Type of the factors of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrix {
    Bf16,
    F16,
}

impl Matrix {
    pub(crate) fn widen(self) -> fn(u16) -> f32 {
        match self {
            Self::Bf16 => |bits| f32::from_bits(u32::from(bits) << 16),
            Self::F16 => |bits| half::f16::from_bits(bits).to_f32(),
        }
    }
}
