//! What the server itself costs and withstands, without a model: many streams at once, far more load than it
//! can serve, peers that mean harm.
//!
//! The host under test is a process of its own, so that its memory and processor time can be told from the
//! load generator's. It computes with the scripted executor, whose tokens are a function of the prompt: a
//! token that is lost, doubled or out of order is seen. Nothing here judges a time; what must hold whatever
//! the machine (no token lost, no refusal without `Retry-After`, bounded memory) is in `Verdict`s.

mod abuse;
mod bare;
mod host;
mod overload;
mod raw;
mod streams;

pub use abuse::{AbuseReport, abuse};
pub use bare::serve_bare;
pub use host::{HostKind, HostOptions, run_host};
pub use overload::{OverloadReport, Storm, overload};
pub use streams::{Side, StreamsReport, streams};

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RobustError(pub String);

impl RobustError {
    fn of(what: &str) -> impl Fn(std::io::Error) -> Self + '_ {
        move |error| Self(format!("{what}: {error}"))
    }
}

/// Mebibytes, for people.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
