//! Holds the engine between steps, so that tests can fill the queue, or look at a stream in its midst, without racing the
//! model.

use std::sync::atomic::{AtomicU64, Ordering};

/// While held, commands are applied but no step begins.
#[derive(Debug)]
pub struct StepGate {
    /// Steps that may still begin.
    left: AtomicU64,
}

impl Default for StepGate {
    fn default() -> Self {
        Self { left: AtomicU64::new(Self::ALL) }
    }
}

impl StepGate {
    /// All steps to come.
    pub(super) const ALL: u64 = u64::MAX;

    /// Whether steps are on hold.
    pub fn is_held(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Holds steps once so many have begun.
    pub(super) fn allow(&self, steps: u64) {
        self.left.store(steps, Ordering::Release);
    }

    /// Counts a step that begins. Only the engine thread does.
    pub(super) fn pass(&self) {
        let left = self.left.load(Ordering::Acquire);
        if left != Self::ALL && left > 0 {
            // Fails if a test has just changed its mind.
            let _ = self.left.compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_held_once_the_allowed_ones_have_begun() {
        let gate = StepGate::default();
        gate.pass();
        assert!(!gate.is_held(), "all may begin");
        gate.allow(2);
        for is_held in [false, true, true] {
            gate.pass();
            assert_eq!(gate.is_held(), is_held);
        }
        gate.allow(StepGate::ALL);
        assert!(!gate.is_held());
    }
}
