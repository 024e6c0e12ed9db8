//! Rows of text in columns, and the width of the terminal.

/// Pads the cells of rows so that columns begin below each other, two blanks apart.
pub(super) fn aligned<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> Vec<String> {
    let rows: Vec<[String; N]> = rows.into_iter().collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Cuts a line that is longer than the terminal is wide.
pub(super) fn cut(line: &str, columns: Option<usize>) -> String {
    const MORE: &str = "..";
    match columns {
        Some(columns) if line.chars().count() > columns => {
            line.chars().take(columns.saturating_sub(MORE.len())).chain(MORE.chars()).collect()
        }
        _ => line.to_owned(),
    }
}

/// The terminal's width; `None` if stdout is something else, which gets whole lines.
pub(super) fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "long", "x"], ["bcd", "e", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(rows), ["a    long  x", "bcd  e"]);
    }

    #[test]
    fn only_lines_beyond_the_terminal_are_cut() {
        assert_eq!(cut("12345678", Some(8)), "12345678");
        assert_eq!(cut("123456789", Some(8)), "123456..");
        assert_eq!(cut("123456789", None), "123456789");
    }
}
