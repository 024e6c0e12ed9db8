//! The KV pool block by block: all of it, as cells for a map, and one block in full.

use serde::{Deserialize, Serialize};

/// `GET /admin/blocks`: one entry per block of the pool, as columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Tokens in a block.
    pub block_size: u32,
    /// `f` free, `c` cached, `u` used by one sequence, `s` shared by several: one character per block.
    pub states: String,
    /// Tables that hold each block.
    pub references: Vec<u32>,
    /// One of the requests that hold it; 0 for none.
    pub owners: Vec<u64>,
    /// Position in its prefix.
    pub depths: Vec<u32>,
    /// Tenant whose prefix it is.
    pub tenants: Vec<u32>,
    /// Milliseconds since it was last touched.
    pub ages_ms: Vec<u64>,
}

/// `GET /admin/blocks/map?by=state&cells=1000`: the pool, or `count` blocks of it from block `from` on, in
/// at most so many cells. A cell is a group of neighbouring blocks and shows what most of them are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockMap {
    /// Tokens in a block.
    pub block_size: u32,
    /// The first block of the first cell.
    pub from: u32,
    /// Blocks in all cells; in the pool where no part was asked for.
    pub total: u32,
    /// Blocks in a cell; the last may have fewer.
    pub per_cell: u32,
    /// Of all blocks; they sum to `total`.
    pub counts: BlockCounts,
    /// `f` free, `c` cached, `k` cached and kept for a time that the policy gave, `u` used by one
    /// sequence, `s` shared: one character per cell.
    pub states: String,
    /// What `values` are: `state` (none), `references`, `tenant`, `age` (seconds since touched).
    pub by: String,
    /// One number per cell: of references the most, of tenants that of most, of ages the youngest.
    pub values: Vec<u32>,
}

/// Blocks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named as the states of `BlockMap`")]
pub struct BlockCounts {
    pub free: u32,
    pub cached: u32,
    pub kept: u32,
    pub used: u32,
    pub shared: u32,
}

/// `GET /admin/blocks/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockInfo {
    /// Which.
    pub id: u32,
    /// `free`, `cached`, `kept`, `used`, `shared`.
    pub state: String,
    /// Tables that hold it.
    pub references: u32,
    /// The requests whose tables they are, at most 32.
    pub holders: Vec<u64>,
    /// Whole prompts that end in it and whose last logits are kept.
    pub kept_prompts: u32,
    /// Position in its prefix.
    pub depth: u32,
    /// The block before it.
    pub parent: Option<u32>,
    /// Names its content and all before it, in hex; none while others can't find it.
    pub hash: Option<String>,
    /// Whose prefix it is.
    pub tenant: u32,
    /// Milliseconds since it was last touched.
    pub age_ms: u64,
    /// Milliseconds until it is forgotten, where it has a limit.
    pub expires_ms: Option<u64>,
    /// How often a prompt found it since it was filled.
    pub uses: u32,
    /// The end of its prefix as text; none where the host doesn't show text or others can't find it.
    pub text: Option<String>,
}
