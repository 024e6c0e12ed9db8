//! Fields of CSV as text. What has no value is empty.

use crate::metrics::present;

/// Three digits after the point.
pub(super) fn milli(value: f64) -> String {
    format!("{value:.3}")
}

/// A value of durations that is exact.
pub(super) fn time(ms: f64) -> String {
    known(present(ms), 3)
}

/// A percentile, with the digits that it has.
pub(super) fn percentile(ms: f64) -> String {
    present(ms).map_or_else(String::new, |ms| ms.to_string())
}

/// A fraction.
pub(super) fn share(value: f64) -> String {
    format!("{value:.5}")
}

/// A value that may not exist.
pub(super) fn known(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}
