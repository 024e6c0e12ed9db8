//! The prefix cache: the most used prefixes and the sessions in it.

use serde::{Deserialize, Serialize};

/// Response of `GET /admin/cache?top=20`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Whether prefix caching is on.
    pub enabled: bool,
    /// Blocks that prompts can reuse, whether a request uses them or not.
    pub blocks: u32,
    /// Number of distinct prefixes.
    pub prefixes_total: u32,
    /// The `top` prefixes with the most hits, the larger ones first among equals.
    pub prefixes: Vec<PrefixInfo>,
    /// Sessions whose last turn is remembered.
    pub sessions_remembered: u32,
    /// Sessions that were the last user of at least one cached block.
    pub sessions_total: u32,
    /// The `top` of them by blocks.
    pub sessions: Vec<SessionInfo>,
    /// Whole prompts whose last logits are cached.
    pub kept_prompts: u32,
    /// Most such prompts.
    pub kept_prompts_limit: u32,
}

/// A prefix: a run of blocks up to where prompts diverge or end. Its counts include everything that continues
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixInfo {
    /// The first block of the run.
    pub block: u32,
    /// The hash of that block, in hex.
    pub hash: String,
    /// The tenant it belongs to.
    pub tenant: u32,
    /// Blocks of the run and of everything that continues it.
    pub blocks: u32,
    /// Those of them that a request uses now.
    pub used: u32,
    /// Tokens from the beginning of the prompt to the end of the run, which all continuations share.
    pub shared_tokens: u32,
    /// Requests that use the first block now.
    pub references: u32,
    /// How often a prompt hit it.
    pub uses: u32,
    /// Milliseconds since any of its blocks was touched.
    pub age_ms: u64,
    /// Its first block as text; null unless the host shows text.
    pub text: Option<String>,
}

/// A session's share of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its name if a live request has it, else a hash in hex.
    pub session: String,
    /// The tenant it belongs to.
    pub tenant: u32,
    /// Blocks that it was the last to use.
    pub blocks: u32,
    /// Those of them that a request uses now.
    pub used: u32,
    /// Milliseconds since it last touched one of them.
    pub age_ms: u64,
}
