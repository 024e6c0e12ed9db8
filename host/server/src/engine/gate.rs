//! Holds the engine between steps, so that tests can fill the queue without racing the model.

use std::sync::atomic::{AtomicBool, Ordering};

/// While held, commands are applied but no step begins.
#[derive(Debug, Default)]
pub struct StepGate {
    held: AtomicBool,
}

impl StepGate {
    /// Whether steps are on hold.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, held: bool) {
        self.held.store(held, Ordering::Release);
    }
}
