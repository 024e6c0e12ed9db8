//! Which first tokens came by their deadlines.

use infer_core::ids::Micros;
use infer_core::request::Usage;

use super::super::count;

/// Deadlines of requests that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promises {
    given: u64,
    kept: u64,
}

impl Promises {
    /// `in_time`: whether the first token came by the deadline, if there was one.
    pub fn add(&mut self, in_time: Option<bool>) {
        self.given += u64::from(in_time.is_some());
        self.kept += u64::from(in_time == Some(true));
    }

    /// The fraction that was kept; `None` if there was none to keep.
    pub fn kept_share(self) -> Option<f64> {
        (self.given > 0).then(|| count(self.kept) / count(self.given))
    }
}

/// Whether the first token came by `deadline`; `None` if there was none to keep.
pub(crate) fn in_time(usage: &Usage, deadline: Micros) -> Option<bool> {
    (deadline != Micros::NEVER).then_some(usage.first_token <= deadline)
}
