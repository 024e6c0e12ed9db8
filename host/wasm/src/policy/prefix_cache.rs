//! `reuse`, `retain`, `observe`, `evict`. What blocks an answer names is the engine's to check, but for their number:
//! an answer may hold millions.

use infer_core::ids::{BlockId, Micros};
use infer_core::policy::{CacheEvents, Ended, FaultKind, Hit, PolicyFault, PrefixCachePolicy, Retention};

use crate::bindings::prefix_cache as world;
use crate::bindings::prefix_cache::exports::infer::policy::prefix_cache as wit;
use crate::instance::Instance;

impl PrefixCachePolicy for Instance<world::PrefixCachePolicy> {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        let hit = wit::Hit {
            now: hit.now.0,
            id: hit.id.0,
            tenant: hit.tenant.0,
            session: hit.session.0,
            prompt_tokens: hit.prompt_tokens,
            cached_tokens: hit.cached_tokens,
            same_session: hit.same_session,
        };
        self.decide("reuse", |exports, store| exports.infer_policy_prefix_cache().call_reuse(store, hit))
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        let ended = wit::Ended {
            now: ended.now.0,
            id: ended.id.0,
            tenant: ended.tenant.0,
            session: ended.session.0,
            prompt_tokens: ended.prompt_tokens,
            generated_tokens: ended.generated_tokens,
            reused_tokens: ended.reused_tokens,
            memory: super::memory(&ended.memory),
        };
        let retention = self.decide("retain", |exports, store| {
            exports.infer_policy_prefix_cache().call_retain(store, ended)
        })?;
        Ok(Retention { keep_tokens: retention.keep_tokens, ttl: Micros(retention.ttl) })
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        let events = wit::Events {
            memory: super::memory(&events.memory),
            at: &events.at,
            kind: &events.kind,
            block: &events.block,
            parent: &events.parent,
            depth: &events.depth,
            tenant: &events.tenant,
            session: &events.session,
        };
        self.pool_blocks = events.memory.total_blocks;
        let dropped = self.decide("observe", |exports, store| {
            exports.infer_policy_prefix_cache().call_observe(store, events)
        })?;
        self.named("observe", dropped)
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        let dropped = self.decide("evict", |exports, store| {
            exports.infer_policy_prefix_cache().call_evict(store, now.0, need)
        })?;
        self.named("evict", dropped)
    }
}

impl Instance<world::PrefixCachePolicy> {
    fn named(&self, function: &str, blocks: Vec<u32>) -> Result<Vec<BlockId>, PolicyFault> {
        let (named, pool) = (blocks.len(), self.pool_blocks);
        if named > pool as usize {
            let message = format!("{function}() named {named} blocks of a pool of {pool}");
            return Err(PolicyFault::new(FaultKind::InvalidDecision, message));
        }
        Ok(blocks.into_iter().map(BlockId).collect())
    }
}
