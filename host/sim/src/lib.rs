//! The simulator: the engine that serves, the policies that decide, and a device that only takes time.
//!
//! Nothing here imitates the host. `infer_core::Engine` plans, verifies, reserves and evicts; the policies
//! are the same components or native ones; what is virtual is the clock, the device (a roofline of compute,
//! bandwidth and launch overhead, or costs fitted to a measured run) and the clients (seeded arrivals,
//! lengths, conversations, or a recorded trace). The same
//! arguments and seed give the same numbers on every machine: transcendental functions come from `libm`,
//! and no map's order matters.
//!
//! Deliberately absent: finding and loading components, command lines, threads that share an engine.
#![forbid(unsafe_code)]

pub mod compare;
pub mod cost;
pub mod device;
pub mod fuzz;
pub mod metrics;
mod random;
pub mod report;
mod run;
pub mod trace;
pub mod workload;

pub use compare::{Cell, Contender, Progress, Subject, Sweep, SweepError};
pub use cost::{Hardware, ModelShape, Profile, Roofline};
pub use metrics::{Outcome, Slo};
pub use random::Random;
pub use run::{Settings, replay, simulate};
pub use workload::{Stream, Workload};
