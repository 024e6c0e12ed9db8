//! Numbered lines of bounded length, and the cells of a table's lines.

use std::io::{BufRead, Read};

use super::{MAX_TOKENS, TraceError};

/// Longest line of a public format, enough for a prompt of 16 million tokens with 32,768 block ids.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// Reads lines and counts them.
#[derive(Debug)]
pub struct Lines<R> {
    file: R,
    line: u64,
    most: u64,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Lines of up to 4 MiB.
    pub fn new(file: R) -> Self {
        Self::up_to(MAX_LINE_BYTES, file)
    }

    /// Lines of up to `most` bytes.
    pub fn up_to(most: u64, file: R) -> Self {
        Self { file, line: 0, most, text: Vec::new() }
    }

    /// The next line that isn't empty, with its number from 1; `None` at the end.
    ///
    /// # Errors
    /// If the line can't be read, is too long, or is not UTF-8.
    #[expect(clippy::should_implement_trait, reason = "the line is borrowed")]
    pub fn next(&mut self) -> Result<Option<(u64, &str)>, TraceError> {
        loop {
            self.line += 1;
            let line = self.line;
            self.text.clear();
            let mut bounded = (&mut self.file).take(self.most + 1);
            let read = bounded.read_until(b'\n', &mut self.text);
            let read = read.map_err(|source| TraceError::Io { line, source })?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > self.most {
                return Err(wrong(line, 1, format!("the line is longer than {} MiB", self.most >> 20)));
            }
            if !self.text.trim_ascii().is_empty() {
                break;
            }
        }
        let line = self.line;
        let text = std::str::from_utf8(&self.text)
            .map_err(|error| wrong(line, error.valid_up_to() + 1, "the line is not UTF-8".to_owned()))?;
        Ok(Some((line, text.trim_start_matches('\u{feff}').trim_end_matches(['\n', '\r']))))
    }
}

pub(super) fn wrong(line: u64, column: usize, message: String) -> TraceError {
    TraceError::At { line, column, message }
}

/// A line of an unquoted table: the start column and the text of each cell.
pub(super) struct Cells<'a> {
    line: u64,
    cells: Vec<(usize, &'a str)>,
    end: usize,
}

impl<'a> Cells<'a> {
    pub fn of(line: u64, text: &'a str) -> Self {
        let mut column = 1;
        let cells = text.split(',').map(|cell| {
            let begins = column + cell.chars().take_while(|c| c.is_whitespace()).count();
            column += cell.chars().count() + 1;
            (begins, cell.trim())
        });
        Self { line, cells: cells.collect(), end: text.chars().count() + 1 }
    }

    /// Index of the column `name`; called on the first line.
    pub fn find(&self, name: &str) -> Result<usize, TraceError> {
        let found = self.cells.iter().position(|(_, cell)| cell.eq_ignore_ascii_case(name));
        found.ok_or_else(|| wrong(self.line, self.end, format!("missing column `{name}`")))
    }

    /// The cell at index `at`, of the column `name`.
    pub fn get(&self, at: usize, name: &str) -> Result<(usize, &'a str), TraceError> {
        let missing = || wrong(self.line, self.end, format!("the line ends before `{name}`"));
        self.cells.get(at).copied().ok_or_else(missing)
    }

    /// A number of tokens in a cell.
    pub fn tokens(&self, at: usize, name: &str) -> Result<u32, TraceError> {
        let (column, cell) = self.get(at, name)?;
        let count = cell.parse::<u64>().ok().filter(|count| *count <= MAX_TOKENS);
        let message = || format!("{name} is `{}`, not a whole number up to {MAX_TOKENS}", short(cell));
        let count = count.ok_or_else(|| wrong(self.line, column, message()))?;
        Ok(u32::try_from(count).expect("it is bounded"))
    }

    /// An error at `column`.
    pub fn wrong(&self, column: usize, message: String) -> TraceError {
        wrong(self.line, column, message)
    }
}

/// A cell, truncated for a message.
pub(super) fn short(cell: &str) -> String {
    cell.chars().take(40).collect()
}
