//! Stands in for the crate `instant` (see `[patch.crates-io]`): a clock that never moves.
//!
//! llguidance reads a clock for its statistics alone. In the sandbox there is none, and the real crate, which is
//! unmaintained, would import one from JavaScript. Only WebAssembly builds of `infer-grammar-guest` use this.
#![forbid(unsafe_code)]

use std::ops::Sub;
use std::time::Duration;

/// The only moment there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant;

impl Instant {
    /// This moment.
    pub fn now() -> Self {
        Self
    }

    /// No time.
    pub fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    /// No time.
    pub fn duration_since(&self, _earlier: Self) -> Duration {
        Duration::ZERO
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, _earlier: Self) -> Duration {
        Duration::ZERO
    }
}
