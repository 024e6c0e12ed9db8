//! Sweeps for people and programs: a table, CSV, JSON.

mod table;

pub use table::{csv, table};

use crate::compare::Cell;

/// Everything, as JSON.
pub fn json(cells: &[Cell]) -> String {
    serde_json::to_string_pretty(cells).expect("outcomes are JSON")
}
