//! Results of a sweep as a table, CSV, JSON, or a page with charts.

pub mod chart;
mod html;
mod table;

pub use html::html;
pub use table::{csv, table};

use crate::compare::Cell;

/// All results as JSON.
pub fn json(cells: &[Cell]) -> String {
    serde_json::to_string_pretty(cells).expect("outcomes are JSON")
}
