//! The vocabulary that every policy kind shares, as newtypes so that ids can't be mixed up.
//!
//! Arithmetic saturates: a policy must survive any number that a host, a simulator or a fuzzer shows it.

/// Microseconds on the host's monotonic clock; virtual time in a simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// Never, or "not promised".
    pub const NEVER: Self = Self(u64::MAX);
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// This much later.
    pub const fn plus(self, duration: Self) -> Self {
        Self(self.0.saturating_add(duration.0))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// Identifies a sequence. Never reused while the host runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Identifies a block of the paged KV pool, `0 .. total_blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Dense number of a tenant (an API key); 0 is the anonymous tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// Hash of the client's conversation id; 0 means "no conversation".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The paged KV pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Empty blocks.
    pub free_blocks: u32,
    /// Blocks that no sequence uses but whose prefix is kept for reuse.
    pub cached_blocks: u32,
}

impl Memory {
    /// Blocks that can be allocated now: the free ones, and the cached ones that the host would evict.
    pub fn allocatable_blocks(&self) -> u32 {
        self.free_blocks.saturating_add(self.cached_blocks)
    }
}
