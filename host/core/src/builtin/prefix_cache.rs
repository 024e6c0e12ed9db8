//! Reuses and keeps everything, and names nothing to evict, so the pool drops the least recently used blocks.
//! It needs no memory of its own and nothing from a policy that failed.

use std::sync::Arc;

use crate::ids::{BlockId, Micros};
use crate::policy::{CacheEvents, Ended, Hit, Policy, PolicyFault, PolicyInfo, PrefixCachePolicy, Retention};

/// The built-in prefix-cache policy.
pub struct KeepAll {
    info: Arc<PolicyInfo>,
}

impl Default for KeepAll {
    fn default() -> Self {
        let about =
            "Keeps everything, drops the least recently used. Stands in when a prefix-cache policy fails.";
        Self { info: super::info("builtin-lru", about) }
    }
}

impl Policy for KeepAll {
    fn info(&self) -> Arc<PolicyInfo> {
        self.info.clone()
    }
}

impl PrefixCachePolicy for KeepAll {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        Ok(hit.cached_tokens)
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        Ok(Retention { keep_tokens: ended.prompt_tokens + ended.generated_tokens, ttl: Micros::ZERO })
    }

    fn observe(&mut self, _events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        Ok(Vec::new())
    }

    fn evict(&mut self, _now: Micros, _need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        Ok(Vec::new())
    }
}
