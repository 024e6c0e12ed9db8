//! Sweeps for people and programs: a table, CSV, JSON, and a page with charts.

pub mod chart;
mod html;
mod table;

pub use html::html;
pub use table::{csv, table};

use crate::compare::Cell;

/// Everything, as JSON.
pub fn json(cells: &[Cell]) -> String {
    serde_json::to_string_pretty(cells).expect("outcomes are JSON")
}
