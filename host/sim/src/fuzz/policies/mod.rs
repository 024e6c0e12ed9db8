//! Policies of every style, made from a case's scripts. While they keep the rules they differ in taste; a
//! given share of their answers breaks the rules, in every way that the component boundary lets through.
//! Their speed is independent of that: faults within a step's budget differ from those beyond it.
//!
//! They also check their views: an inconsistent view is the engine's fault, and they panic.

mod admission;
mod prefix_cache;
mod scheduler;

use std::sync::Arc;

use infer_core::Micros;
use infer_core::policy::{AnyPolicy, CacheEvents, FaultKind, Policy, PolicyFault, PolicyInfo};
use infer_core::testing::SplitMix;

use super::case::{Script, Slot, Style};
use admission::Gate;
pub(super) use admission::Shown;
use prefix_cache::Cache;
use scheduler::Planner;

/// Makes a policy. `cached` is what a prefix cache is primed with; `shown` collects the loads that admission
/// is shown.
pub(super) fn make(script: &Script, cached: Option<&CacheEvents>, shown: &Shown) -> AnyPolicy {
    let temper = Temper::new(script);
    match script.slot {
        Slot::Scheduler => AnyPolicy::Scheduler(Box::new(Planner(temper))),
        Slot::Admission => AnyPolicy::Admission(Box::new(Gate { temper, shown: Arc::clone(shown) })),
        Slot::PrefixCache => AnyPolicy::PrefixCache(Box::new(Cache::new(temper, cached))),
    }
}

/// What all of them share: a name, a style, dice.
struct Temper {
    info: Arc<PolicyInfo>,
    style: Style,
    dice: SplitMix,
    evil: u64,
    slow_us: u64,
    /// Time that its calls report.
    spent: Micros,
}

impl Temper {
    fn new(script: &Script) -> Self {
        let name = format!("{:?} {:?}", script.style, script.slot).to_lowercase();
        let info = Arc::new(PolicyInfo { name, ..PolicyInfo::default() });
        Self {
            info,
            style: script.style,
            dice: SplitMix(script.seed),
            evil: u64::from(script.evil),
            slow_us: u64::from(script.slow_us),
            spent: Micros::ZERO,
        }
    }

    /// Whether this answer breaks the rules. It takes time either way.
    fn sins(&mut self) -> bool {
        // No random number is drawn: answers don't depend on the speed.
        self.spent = self.spent.plus(Micros(self.dice.0.checked_rem(self.slow_us).unwrap_or(0)));
        self.evil > 0 && self.dice.chance(self.evil)
    }

    fn fault(&mut self) -> PolicyFault {
        let kinds = [FaultKind::Trap, FaultKind::Deadline, FaultKind::Memory, FaultKind::InvalidDecision];
        PolicyFault::new(kinds[self.dice.below(4) as usize], "it fell over")
    }
}

/// The `Policy` trait, the same for all of them.
macro_rules! lifecycle {
    ($policy:ty, $temper:ident => $at:expr, $($reset:tt)*) => {
        impl Policy for $policy {
            fn info(&self) -> Arc<PolicyInfo> {
                let $temper = self;
                Arc::clone(&$at.info)
            }

            fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
                let $temper = self;
                if $at.sins() { Err($at.fault()) } else { Ok($at.info.name.clone().into_bytes()) }
            }

            fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
                let $temper = self;
                assert_eq!(state, $at.info.name.as_bytes(), "a state goes to the policy that exported it");
                if $at.sins() { Err($at.fault()) } else { Ok(()) }
            }

            fn restart(&mut self) -> Result<(), PolicyFault> {
                let $temper = self;
                $($reset)*
                if $at.sins() { Err($at.fault()) } else { Ok(()) }
            }

            fn spent(&self) -> Micros {
                let $temper = self;
                $at.spent
            }
        }
    };
}

lifecycle!(Planner, it => it.0,);
lifecycle!(Gate, it => it.temper,);
lifecycle!(Cache, it => it.temper, it.forget(););
