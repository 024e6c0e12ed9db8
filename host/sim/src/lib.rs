//! The simulator: the engine that serves, the policies that decide, and a device that only takes time.
//!
//! Nothing here imitates the host. `infer_core::Engine` plans, verifies, reserves and evicts; the policies
//! are the same components or native ones; what is virtual is the clock, the device (a roofline of compute,
//! bandwidth and launch overhead) and the clients (seeded arrivals, lengths, conversations). The same
//! arguments and seed give the same numbers on every machine: transcendental functions come from `libm`,
//! and no map's order matters.
//!
//! Deliberately absent: finding and loading components, command lines, threads that share an engine.
#![forbid(unsafe_code)]

pub mod compare;
pub mod device;
pub mod hardware;
pub mod metrics;
mod random;
pub mod report;
mod run;
pub mod workload;

pub use compare::{Cell, Contender, Sweep, SweepError};
pub use hardware::{Hardware, ModelShape, Profile};
pub use metrics::Outcome;
pub use random::Random;
pub use run::{Settings, simulate};
pub use workload::{Stream, Workload};
