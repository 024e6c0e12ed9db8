//! The KV pool by block: all blocks, the cells of a map, and one block in detail.

use serde::{Deserialize, Serialize};

/// Response of `GET /admin/blocks`: one entry per block of the pool, as columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Tokens in a block.
    pub block_size: u32,
    /// One character per block: `f` free, `c` cached, `u` used by one sequence, `s` shared by several.
    pub states: String,
    /// Number of block tables that contain each block.
    pub references: Vec<u32>,
    /// One of the requests that use it; 0 for none.
    pub owners: Vec<u64>,
    /// Its position within its prefix, in blocks.
    pub depths: Vec<u32>,
    /// The tenant that its prefix belongs to.
    pub tenants: Vec<u32>,
    /// Milliseconds since it was last touched.
    pub ages_ms: Vec<u64>,
}

/// Response of `GET /admin/blocks/map?by=state&cells=1000`: the pool, or `count` blocks from block `from` on,
/// in at most `cells` cells. A cell is a group of adjacent blocks and shows the state of most of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockMap {
    /// Tokens in a block.
    pub block_size: u32,
    /// The first block of the first cell.
    pub from: u32,
    /// Blocks in all cells; the size of the pool if no part was requested.
    pub total: u32,
    /// Blocks per cell; the last cell may have fewer.
    pub per_cell: u32,
    /// Number of blocks by state; they sum to `total`.
    pub counts: BlockCounts,
    /// One character per cell: `f` free, `c` cached, `k` cached and kept for a time set by the policy, `u`
    /// used by one sequence, `s` shared.
    pub states: String,
    /// What `values` are: `state` (no values), `references`, `tenant`, `age` (seconds since touched).
    pub by: String,
    /// One number per cell: the most references, the tenant of most blocks, or the smallest age.
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

/// Response of `GET /admin/blocks/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockInfo {
    /// The block.
    pub id: u32,
    /// `free`, `cached`, `kept`, `used`, `shared`.
    pub state: String,
    /// Number of block tables that contain it.
    pub references: u32,
    /// The requests of those tables, at most 32.
    pub holders: Vec<u64>,
    /// Whole prompts that end in it and whose last logits are cached.
    pub kept_prompts: u32,
    /// Its position within its prefix, in blocks.
    pub depth: u32,
    /// The block before it.
    pub parent: Option<u32>,
    /// Hash of its content and everything before it, in hex; null while other requests can't reuse it.
    pub hash: Option<String>,
    /// The tenant that its prefix belongs to.
    pub tenant: u32,
    /// Milliseconds since it was last touched.
    pub age_ms: u64,
    /// Milliseconds until it expires; null if it doesn't.
    pub expires_ms: Option<u64>,
    /// How often a prompt hit it since it was filled.
    pub uses: u32,
    /// The end of its prefix as text; null if the host doesn't show text or other requests can't reuse the
    /// block.
    pub text: Option<String>,
}
