//! Runs a policy crate natively behind the engine's traits, to compare it with its component call by call.
//!
//! For tests only: a host always runs policies as components.
#![forbid(unsafe_code)]

mod convert;
mod shipped;

pub use convert::{step_view, to_step};
pub use shipped::Shipped;

use std::sync::Arc;

use infer_core::ids::{BlockId, Micros, SequenceId};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, CacheEvents, Ended, Hit, Load, Plan, Policy, PolicyFault, PolicyInfo,
    PrefixCachePolicy, Pressure, Retention, SchedulerPolicy, StepView, Verdict,
};
use infer_policy_sdk as sdk;

/// A native policy with the engine's interface.
pub struct Native<P>(P);

impl<P: sdk::Policy> Native<P> {
    /// Creates the policy with a JSON configuration.
    pub fn new(config: &str) -> Self {
        let config = sdk::parse_config(config).expect("a valid configuration");
        Self(P::new(config).expect("a valid configuration"))
    }
}

impl<P: sdk::Policy + Send> Policy for Native<P> {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo {
            name: P::NAME.to_owned(),
            version: P::VERSION.to_owned(),
            ..PolicyInfo::default()
        })
    }
}

impl<P: sdk::Scheduler + Send> SchedulerPolicy for Native<P> {
    fn schedule(&mut self, view: &StepView) -> Result<Plan, PolicyFault> {
        let plan = self.0.schedule(&to_step(view));
        let ids = |ids: Vec<sdk::SequenceId>| ids.into_iter().map(|id| SequenceId(id.0)).collect();
        Ok(Plan {
            run: ids(plan.run),
            tokens: plan.tokens,
            preempt: ids(plan.preempt),
            wake: Micros(plan.wake.0),
        })
    }
}

impl<P: sdk::Admission + Send> AdmissionPolicy for Native<P> {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        Ok(convert::verdict(self.0.admit(&convert::request(request), &convert::load(load))))
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        let pressure = self.0.measure(&convert::load(load));
        Ok(Pressure {
            level_permille: pressure.level_permille,
            backpressure: pressure.backpressure,
            reserved_blocks: pressure.reserved_blocks,
            available_blocks: pressure.available_blocks,
            max_sequence_tokens: pressure.max_sequence_tokens,
        })
    }
}

impl<P: sdk::PrefixCache + Send> PrefixCachePolicy for Native<P> {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        Ok(self.0.reuse(&convert::hit(hit)))
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        let retention = self.0.retain(&convert::ended(ended));
        Ok(Retention { keep_tokens: retention.keep_tokens, ttl: Micros(retention.ttl.0) })
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        Ok(names(self.0.observe(&convert::events(events))))
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        Ok(names(self.0.evict(sdk::Micros(now.0), need)))
    }
}

fn names(blocks: Vec<sdk::BlockId>) -> Vec<BlockId> {
    blocks.into_iter().map(|block| BlockId(block.0)).collect()
}
