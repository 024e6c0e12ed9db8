//! The policy author's API: traits over plain Rust types, a macro that makes a crate a component, and the
//! arithmetic that every policy needs.
//!
//! A policy is an ordinary library: its logic never touches the bindings, so the same code is tested
//! natively, tested as Wasm, and shipped. The bindings exist only where a component is built
//! (`wasm32-unknown-unknown`). There is no clock, no randomness and no I/O here, by design.
//!
//! ```
//! use infer_policy_sdk::{Plan, Planner, Policy, Scheduler, Step, export_policy};
//!
//! struct Fcfs;
//!
//! impl Policy for Fcfs {
//!     type Config = infer_policy_sdk::NoConfig;
//!     const NAME: &'static str = "fcfs";
//!     const VERSION: &'static str = "0.1.0";
//!     const DESCRIPTION: &'static str = "First come, first served.";
//!
//!     fn new(_config: Self::Config) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Scheduler for Fcfs {
//!     fn schedule(&mut self, step: &Step) -> Plan {
//!         let mut planner = Planner::new(step);
//!         planner.go_on();
//!         for sequence in step.waiting.iter() {
//!             if planner.start(sequence, u32::MAX).is_err() {
//!                 break;
//!             }
//!         }
//!         planner.finish()
//!     }
//! }
//!
//! export_policy!(scheduler: Fcfs);
//! ```

mod admission;
mod blocks;
mod config;
mod gauge;
mod idle;
mod log;
mod make_way;
mod order;
mod patience;
mod planner;
mod prefix_cache;
mod scheduler;
mod starts;
mod step_time;
pub mod testing;
mod types;

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
#[doc(hidden)]
pub mod guest;

pub use admission::{Admission, Load, Pressure, Reason, Refusal, Request, Verdict};
pub use blocks::{blocks_for, blocks_to_run, blocks_to_start, tokens_in};
pub use config::{EMPTY_SCHEMA, NoConfig, parse_config};
pub use gauge::gauge;
pub use idle::{BlockMap, IdleTree, Taken};
pub use log::{Level, log};
pub use make_way::make_way;
pub use order::Order;
pub use patience::{Patience, Turn};
pub use planner::{Planner, Short};
pub use prefix_cache::{Ended, Event, EventKind, Events, Hit, PrefixCache, Retention};
pub use scheduler::{Limits, Plan, Row, Scheduler, Sequence, Sequences, Step, Tenant, Tenants};
pub use starts::{Blocked, Starts};
pub use step_time::StepTime;
pub use types::{BlockId, Memory, Micros, SequenceId, SessionId, TenantId};

/// What all policies have in common.
pub trait Policy: Sized + 'static {
    /// Configuration, parsed from JSON. Derive `serde::Deserialize` with `#[serde(default,
    /// deny_unknown_fields)]`, so that a misspelt key is an error that names it.
    type Config: serde::de::DeserializeOwned + Default;

    /// Short name, such as `continuous`. State moves between policies of the same name.
    const NAME: &'static str;
    /// Semantic version of the policy; usually `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;
    /// One or two sentences that help people choose a policy.
    const DESCRIPTION: &'static str;
    /// JSON Schema of `Config`. `testing::check_config` holds it against the defaults.
    const CONFIG_SCHEMA: &'static str = EMPTY_SCHEMA;

    /// Makes the policy. An error names the key at fault and what would be right.
    fn new(config: Self::Config) -> Result<Self, String>;

    /// State worth carrying to the next version, over a fault and over a restart of the host, which asks for it
    /// every 1,000 steps, too. Most policies have none: the host shows everything it knows at every step.
    fn export_state(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Imports the state of the outgoing policy of the same name, or its own after a fault or a restart of the host,
    /// when every sequence has ended; the clock, ids and counts go on, but blocks and sessions have other numbers.
    /// After a rollback it replaces what this one knew. An error starts this one cold and must change nothing;
    /// operators are shown its text. What `export_state` made with the same configuration must be accepted.
    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        if state.is_empty() { Ok(()) } else { Err("this policy keeps no state".to_owned()) }
    }
}

/// Makes the crate a component of one kind: `export_policy!(scheduler: MyPolicy)`, or `admission:`, or
/// `prefix_cache:`. Expands to nothing except on `wasm32-unknown-unknown`, and in tests to `ExportedPolicy`, an alias of
/// the policy's type for the tests that `infer policy replay --as-test` writes: they look for it in the crate's root.
#[macro_export]
macro_rules! export_policy {
    (scheduler: $policy:ty) => {
        $crate::__export_policy!($policy, scheduler, SchedulerGuest);
    };
    (admission: $policy:ty) => {
        $crate::__export_policy!($policy, admission, AdmissionGuest);
    };
    (prefix_cache: $policy:ty) => {
        $crate::__export_policy!($policy, prefix_cache, PrefixCacheGuest);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_policy {
    ($policy:ty, $kind:ident, $guest:ident) => {
        #[cfg(test)]
        #[allow(dead_code, reason = "for tests made of faults")]
        type ExportedPolicy = $policy;

        #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
        const _: () = {
            ::std::thread_local! {
                static POLICY: ::std::cell::RefCell<Option<$policy>> =
                    const { ::std::cell::RefCell::new(None) };
            }
            impl $crate::guest::Slot for $policy {
                fn slot() -> &'static ::std::thread::LocalKey<::std::cell::RefCell<Option<Self>>> {
                    &POLICY
                }
            }
            type Exported = $crate::guest::$guest<$policy>;
    $crate::guest::$kind::export!(Exported with_types_in $crate::guest::$kind);
        };
    };
}
