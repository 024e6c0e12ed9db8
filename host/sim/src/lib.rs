//! The simulator: the real engine and policies on a device that only takes virtual time.
//!
//! Nothing here imitates the host. `infer_core::Engine` plans, verifies, reserves and evicts; policies are the same
//! components, or native ones. Only the clock, the device (a roofline, or costs fitted to a measured run) and the
//! clients (a seeded workload, or a recorded trace) are virtual. The same arguments and seed give the same numbers on
//! every machine: transcendental functions come from `libm`, and no result depends on a map's order.
//!
//! Deliberately absent: finding and loading components, command lines, threads that share an engine.
#![forbid(unsafe_code)]

pub mod compare;
pub mod cost;
pub mod device;
pub mod fuzz;
pub mod metrics;
mod predictions;
mod random;
mod range;
pub mod report;
mod run;
mod search;
pub mod trace;
pub mod workload;

pub use compare::{Cell, Contender, Host, Pace, Progress, Subject, Sweep};
pub use cost::{Hardware, ModelShape, Profile, Roofline};
pub use metrics::{Outcome, RequestOutcome, Slo, Watch};
pub use predictions::Predictions;
pub use random::Random;
pub use run::{Settings, replay, replay_watched, simulate, simulate_watched};
pub use search::{Bracket, Found, Probe, Search};
pub use workload::{Capacity, Stream, Workload};
