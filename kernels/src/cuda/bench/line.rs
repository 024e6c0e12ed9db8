//! What a benchmark says: text for people, and rows of named cells, which programs can read as well.

use std::fmt;

/// A table of measurements.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// What is measured.
    pub title: &'static str,
    /// The name of each column for programs, and its heading.
    pub columns: &'static [(&'static str, &'static str)],
}

/// A cell of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A size or a count.
    Count(u32),
    /// A measurement, and the decimals of its text.
    Number(f64, usize),
    /// A share of 1; percent as text.
    Share(f64),
    /// Not measured.
    Absent,
}

/// A line of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Conditions: the device, its rates, the size of a pool.
    Note(String),
    /// The heading of the rows that follow.
    Head(&'static Table),
    /// A measurement, with a cell for each column.
    Row(&'static Table, Vec<Cell>),
}

impl Table {
    /// A row.
    ///
    /// # Panics
    /// If the cells aren't as many as the columns.
    pub fn row<const CELLS: usize>(&'static self, cells: [Cell; CELLS]) -> Line {
        assert_eq!(CELLS, self.columns.len(), "cells of {}", self.title);
        Line::Row(self, cells.into())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::Count(count)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Count(count) => write!(f, "{count}"),
            &Self::Number(number, decimals) => write!(f, "{number:.decimals$}"),
            Self::Share(share) => write!(f, "{:.0} %", 100.0 * share),
            Self::Absent => f.write_str("-"),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(text) => f.write_str(text),
            Self::Head(table) => {
                let headings: Vec<&str> = table.columns.iter().map(|(_, heading)| *heading).collect();
                write!(f, "{}: {}", table.title, headings.join(", "))
            }
            Self::Row(_, cells) => {
                let cells: Vec<String> = cells.iter().map(Cell::to_string).collect();
                f.write_str(&cells.join("\t"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table =
        Table { title: "things", columns: &[("thing", "thing"), ("us", "us"), ("share", "of the rate")] };

    #[test]
    fn lines_are_headings_and_tabbed_cells_as_text() {
        let lines = [
            Line::Note("warm".to_owned()),
            Line::Head(&TABLE),
            TABLE.row(["a".into(), Cell::Number(1.26, 1), Cell::Share(0.876)]),
            TABLE.row([Cell::Count(7), Cell::Absent, Cell::Number(2.4, 0)]),
        ];
        let text = lines.map(|line| line.to_string());
        assert_eq!(text, ["warm", "things: thing, us, of the rate", "a\t1.3\t88 %", "7\t-\t2"]);
    }

    #[test]
    #[should_panic(expected = "cells of things")]
    fn rows_have_a_cell_for_each_column() {
        TABLE.row([Cell::Absent, Cell::Absent]);
    }
}
