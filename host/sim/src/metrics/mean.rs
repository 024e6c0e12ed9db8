//! The mean of values that come one by one.

use super::count;

/// Their sum and their number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    pub sum: f64,
    pub count: u64,
}

impl Mean {
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// The mean, or `None` without values.
    pub fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / count(self.count))
    }
}
