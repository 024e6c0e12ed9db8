//! Newtypes for the numbers that must not be mixed.

/// Microseconds on the driver's monotonic clock; virtual time in a simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// Never, or "not promised".
    pub const NEVER: Self = Self(u64::MAX);
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// This much later, without overflow.
    pub fn plus(self, duration: Self) -> Self {
        Self(self.0.saturating_add(duration.0))
    }
}

/// Identifies a sequence. Never reused while the host runs; never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Identifies a block of the paged KV pool, `0 .. total_blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Dense number of a tenant (an API key); 0 is the anonymous tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// Number of an adapter: small matrices that change what the model computes for a request. 0 is the model as it is. An
/// adapter that is loaded while others are, or were, gets a number that none of them has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u32);

impl AdapterId {
    /// The model as it is.
    pub const NONE: Self = Self(0);
}

/// Hash of the client's conversation id; 0 means "no conversation".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Identifies a slot, `0 .. prompt_cache_entries`, in which the executor keeps the logits of a whole prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogitsSlot(pub u32);

/// Identifies a slot of the second level of the prefix cache, `0 .. offload_slots`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffloadSlot(pub u32);
