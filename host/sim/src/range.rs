//! Checks of numbers in files.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Names `field` if its value is out of `range`.
pub(crate) fn within<T: PartialOrd + Display>(
    field: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(format!("{field} is {value}, not from {least} to {most}"))
}

/// Refuses an empty name.
pub(crate) fn named(name: &str) -> Result<(), String> {
    if name.trim().is_empty() { Err("`name` is empty".to_owned()) } else { Ok(()) }
}
