//! `reuse`, `retain`, `observe`, `evict`. The engine checks which blocks an answer names.

use infer_core::ids::{BlockId, Micros};
use infer_core::policy::{CacheEvents, Ended, Hit, PolicyFault, PrefixCachePolicy, Retention};

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
        let dropped = self.decide("observe", |exports, store| {
            exports.infer_policy_prefix_cache().call_observe(store, events)
        })?;
        Ok(dropped.into_iter().map(BlockId).collect())
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        let dropped = self.decide("evict", |exports, store| {
            exports.infer_policy_prefix_cache().call_evict(store, now.0, need)
        })?;
        Ok(dropped.into_iter().map(BlockId).collect())
    }
}
