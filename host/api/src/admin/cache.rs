//! The prefix cache: what it holds, for whom, and how often that was of use.

use serde::{Deserialize, Serialize};

/// `GET /admin/cache?top=20`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Whether prompts share blocks at all.
    pub enabled: bool,
    /// Blocks that can be found, held or not.
    pub blocks: u32,
    /// Prefixes that are told apart.
    pub prefixes_total: u32,
    /// Those most often found, and of equals the larger ones.
    pub prefixes: Vec<PrefixInfo>,
    /// Conversations whose last turn is remembered.
    pub sessions_remembered: u32,
    /// Conversations that used a block of the cache last.
    pub sessions_total: u32,
    /// Those of them with the most blocks.
    pub sessions: Vec<SessionInfo>,
    /// Whole prompts whose last logits are kept.
    pub kept_prompts: u32,
    /// How many of them there may be.
    pub kept_prompts_limit: u32,
}

/// A run of blocks that all go on alike, up to where prompts part or end, and everything after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixInfo {
    /// The first block of the run.
    pub block: u32,
    /// Its hash, in hex.
    pub hash: String,
    /// Whose.
    pub tenant: u32,
    /// Its blocks and all after it.
    pub blocks: u32,
    /// Those of them that some request holds now.
    pub used: u32,
    /// Tokens from the beginning of the prompt to the end of the run: what all of them share.
    pub shared_tokens: u32,
    /// Requests that hold it now.
    pub references: u32,
    /// How often a prompt found it.
    pub uses: u32,
    /// Milliseconds since any of it was touched.
    pub age_ms: u64,
    /// Its first block as text; none where the host doesn't show text.
    pub text: Option<String>,
}

/// One conversation's share of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its name where a live request has it, else a hash in hex.
    pub session: String,
    /// Whose.
    pub tenant: u32,
    /// Blocks that it used last.
    pub blocks: u32,
    /// Those of them that some request holds now.
    pub used: u32,
    /// Milliseconds since it touched one.
    pub age_ms: u64,
}
