//! What operators look at closely: the pool as two columns, one block, one sequence, the cache's tree. Taken
//! on demand; only a count of uses per block is kept for it.

use crate::ids::{BlockId, Micros, SequenceId, SessionId, TenantId};

/// What a block is to the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockState {
    /// It holds nothing.
    #[default]
    Free,
    /// No sequence holds it, and its prefix can be found.
    Cached,
    /// Cached with a time limit from the prefix-cache policy.
    Kept,
    /// One sequence holds it.
    Used,
    /// Several sequences hold it.
    Shared,
}

/// The number that is wanted of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockColumn {
    /// Zeros.
    None,
    /// Tables that hold it.
    References,
    /// The tenant whose prefix it is.
    Tenant,
    /// Whole seconds since its last use; 0 for free ones.
    AgeSeconds,
}

/// Blocks in order of their ids; columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCells {
    /// What each is.
    pub states: Vec<BlockState>,
    /// The number that was asked for.
    pub values: Vec<u32>,
}

/// One block in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDetail {
    /// Which.
    pub id: BlockId,
    /// Its state.
    pub state: BlockState,
    /// Tables that hold it.
    pub references: u32,
    /// The sequences of these tables, in slab order; at most [`MAX_HOLDERS`].
    pub holders: Vec<SequenceId>,
    /// Kept prompts that end in it.
    pub kept_prompts: u32,
    /// Position in its prefix.
    pub depth: u32,
    /// The block before it.
    pub parent: Option<BlockId>,
    /// Identifies its content and all before it; `None` while other requests can't find it.
    pub hash: Option<u64>,
    /// The tenant whose prefix it is.
    pub tenant: TenantId,
    /// The conversation that used it last.
    pub session: SessionId,
    /// When it was last touched.
    pub last_used: Micros,
    /// When it expires, if it is cached and has a limit.
    pub expires: Option<Micros>,
    /// How often a prompt found it since it was filled.
    pub uses: u32,
    /// Its tokens, after those of at most [`PREFIX_BLOCKS`] preceding blocks, if other requests can find it.
    pub prefix: Vec<u32>,
}

/// Holders that a detail names.
pub const MAX_HOLDERS: usize = 32;
/// Preceding blocks whose tokens a detail includes.
pub const PREFIX_BLOCKS: usize = 4;

/// One live sequence in full, beside its `RequestSnapshot`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceDetail {
    /// Its block table: block, tables that hold it, whether other requests can find it.
    pub table: Vec<(BlockId, u32, bool)>,
    /// Blocks that it holds if it runs to its last token.
    pub max_blocks: u32,
    /// How many tokens it will probably generate.
    pub expected_tokens: u32,
    /// Tokens reused when it last started; while it waits, those that it would find.
    pub reusable_tokens: u32,
    /// Tokens that other sequences are computing for it now.
    pub pending_tokens: u32,
    /// When its first token is due.
    pub deadline: Micros,
    /// Whether a later one was started before it.
    pub overtaken: bool,
}

/// One block of the cache's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeBlock {
    /// Which.
    pub id: BlockId,
    /// The block before it.
    pub parent: Option<BlockId>,
    /// Tables that hold it.
    pub references: u32,
    /// How often a prompt found it.
    pub uses: u32,
    /// Position in its prefix.
    pub depth: u32,
    /// The sequence.
    pub tenant: TenantId,
    /// The conversation that used it last.
    pub session: SessionId,
    /// When it was last touched.
    pub last_used: Micros,
    /// Identifies its content and all before it; `None` while other requests can't find it.
    pub hash: Option<u64>,
}

/// The cache's tree and what hangs on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheTree {
    /// Whether content is indexed at all.
    pub enabled: bool,
    /// Every block that can be found, in order of ids.
    pub blocks: Vec<TreeBlock>,
    /// Conversations whose last turn is remembered.
    pub sessions: u32,
    /// Whole prompts whose last logits are kept.
    pub kept_prompts: u32,
}
