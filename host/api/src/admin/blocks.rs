//! The KV pool block by block.

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
