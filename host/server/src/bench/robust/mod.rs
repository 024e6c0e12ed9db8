//! Cost and robustness of the server itself, without a model: many concurrent streams, overload, hostile clients.
//!
//! The host under test is a separate process, so that its memory and processor time are measured apart from the load
//! generator's. It uses the scripted executor, whose tokens are a function of the prompt, so that a lost, repeated or
//! misplaced token is detected. Times are reported and never judged; a command fails only on what no machine excuses,
//! such as a lost token or a refusal without `Retry-After`.

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

/// Bytes in mebibytes.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
