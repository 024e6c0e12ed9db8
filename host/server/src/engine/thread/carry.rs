//! Leaves copies of what the live policies know for the next host, if it is to have them (`policy_state`).
//!
//! After a kill, the next host begins with the last copy. Exporting is the engine thread's work, as every call of a
//! policy, and so are the copies: both are bounded. Deliberately absent: files.

use infer_core::Micros;

use super::Driver;

/// Time between two copies while there is work.
const EVERY: Micros = Micros(10_000_000);

/// When a copy was left, and whether it is out of date.
#[derive(Default)]
pub(super) struct Copies {
    /// When the last one was left.
    last: Option<Micros>,
    /// Policies may have learned something since.
    is_old: bool,
}

impl Copies {
    /// Something has happened that policies are shown.
    pub(super) fn note(&mut self) {
        self.is_old = true;
    }

    /// When the next copy is due, if one is needed.
    fn due(&self) -> Option<Micros> {
        self.is_old.then(|| self.last.map_or(Micros::ZERO, |last| last.plus(EVERY)))
    }
}

impl Driver {
    /// When the next copy is due, if one is needed and wanted.
    pub(super) fn copy_due(&self) -> Option<Micros> {
        self.copies.due().filter(|_| self.shared.observer.lasting().has_heir())
    }

    /// Leaves a copy if it is time.
    pub(super) fn leave_copy_if_due(&mut self) {
        if self.copy_due().is_some_and(|due| self.now() >= due) {
            self.leave_copy();
        }
    }

    /// Leaves the last copy, if the one before is out of date.
    pub(super) fn leave_last_copy(&mut self) {
        if self.copy_due().is_some() {
            self.leave_copy();
        }
    }

    fn leave_copy(&mut self) {
        let now = self.now();
        let carried = self.engine.carry(now);
        self.copies = Copies { last: Some(now), is_old: false };
        self.shared.observer.lasting().leave(carried);
        // An export that failed is a fault.
        self.dispatch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_due_at_once_and_then_every_ten_seconds_in_which_something_happened() {
        let mut copies = Copies::default();
        assert_eq!(copies.due(), None);
        copies.note();
        assert_eq!(copies.due(), Some(Micros::ZERO));
        copies = Copies { last: Some(Micros(7)), is_old: false };
        assert_eq!(copies.due(), None);
        copies.note();
        assert_eq!(copies.due(), Some(Micros(10_000_007)));
    }
}
