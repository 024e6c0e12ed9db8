//! Swaps at a step boundary, and the way back.

use super::{Context, Engine, SwapReport, context};
use crate::guard::{Renewal, Slot};
use crate::ids::Micros;
use crate::policy::{AnyPolicy, CacheEvents, Policy, PolicyKind};

impl Engine {
    /// Every cached block, as a prefix-cache policy is told after a swap. Call it, let the new policy
    /// `observe` it off the engine thread, then `swap`: the engine tells it what happened in between.
    pub fn begin_priming(&mut self) -> CacheEvents {
        self.start_priming()
    }

    /// Puts a policy in force. Call it between steps.
    pub fn swap(&mut self, policy: AnyPolicy, now: Micros) -> SwapReport {
        let now = self.tick(now);
        let (kind, from, to) = (policy.kind(), self.name_of(policy.kind()), policy.info().name.clone());
        if kind == PolicyKind::PrefixCache {
            // Whoever leaves knows everything up to here, even one that came back in this very flush.
            self.flush_cache_events(now);
            if self.prefix.renewed.is_some() {
                self.flush_cache_events(now);
            }
        }
        let mut cx = context!(self, now);
        let (restored, retired) = match policy {
            AnyPolicy::Scheduler(p) => self.scheduler.replace(&mut cx, p, "swapped"),
            AnyPolicy::Admission(p) => self.admission.replace(&mut cx, p, "swapped"),
            AnyPolicy::PrefixCache(p) => self.prefix.replace(&mut cx, p, "swapped"),
        };
        match kind {
            PolicyKind::Scheduler => self.forgive(now),
            PolicyKind::Admission => self.load_changed = true,
            PolicyKind::PrefixCache => {
                self.restart_feed();
                self.prefix.renewed = Some(if self.is_primed() { Renewal::Primed } else { Renewal::Blank });
                self.flush_cache_events(now);
            }
        }
        SwapReport { kind, from, to, at_step: self.view.number, restored, retired }
    }

    /// Brings the previous policy of a slot back. `None` where there is none.
    pub fn rollback(&mut self, kind: PolicyKind, now: Micros) -> Option<SwapReport> {
        let now = self.tick(now);
        let from = self.name_of(kind);
        if kind == PolicyKind::PrefixCache {
            self.flush_cache_events(now);
        }
        let mut cx = context!(self, now);
        let (restored, retired) = match kind {
            PolicyKind::Scheduler => self.scheduler.rollback(&mut cx),
            PolicyKind::Admission => self.admission.rollback(&mut cx),
            PolicyKind::PrefixCache => self.prefix.rollback(&mut cx),
        }?;
        match kind {
            PolicyKind::Scheduler => self.forgive(now),
            PolicyKind::Admission => self.load_changed = true,
            PolicyKind::PrefixCache => self.flush_cache_events(now),
        }
        Some(SwapReport { kind, from, to: self.name_of(kind), at_step: self.view.number, restored, retired })
    }

    fn name_of(&self, kind: PolicyKind) -> String {
        fn name<P: Policy + ?Sized>(slot: &Slot<P>) -> String {
            slot.info().name.clone()
        }
        match kind {
            PolicyKind::Scheduler => name(&self.scheduler),
            PolicyKind::Admission => name(&self.admission),
            PolicyKind::PrefixCache => name(&self.prefix),
        }
    }
}
