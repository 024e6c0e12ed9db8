//! Building blocks shared by screens: a titled box, a graph, a proportional bar, wrapped text.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Widget, Wrap};

use super::Look;
use super::format::{age, beginning, columns, fit, split};
use super::theme::Theme;
use crate::state::Millis;
use crate::text::clean;

/// Draws a titled box and returns the area inside it.
pub fn framed(title: Line<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer) -> Rect {
    let block =
        Block::bordered().border_type(BorderType::Rounded).border_style(theme.border).title_top(title);
    let inside = block.inner(area);
    block.render(area, buffer);
    inside
}

/// Returns `area` without a margin.
#[must_use]
pub fn inset(area: Rect, x: u16, y: u16) -> Rect {
    let (x, y) = (x.min(area.width / 2), y.min(area.height / 2));
    Rect { x: area.x + x, y: area.y + y, width: area.width - 2 * x, height: area.height - 2 * y }
}

/// Returns one row of `area`; empty if there is no such row.
#[must_use]
pub fn row(area: Rect, index: u16) -> Rect {
    if index >= area.height {
        return Rect { height: 0, ..area };
    }
    Rect { y: area.y + index, height: 1, ..area }
}

/// Returns everything below the first `rows` rows.
#[must_use]
pub fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// Returns how old some data is and why its last fetch failed; `None` if it didn't fail.
pub fn as_of(look: Look<'_>, at: Millis, error: Option<&str>) -> Option<Span<'static>> {
    let text = format!("as of {} ago: {} ", age(look.now.saturating_sub(at)), clean(error?));
    Some(Span::styled(text, look.theme.bad))
}

/// Draws a line in a row of `area`.
pub fn put(line: Line<'_>, area: Rect, index: u16, buffer: &mut Buffer) {
    let row = row(area, index);
    if row.height > 0 {
        line.render(row, buffer);
    }
}

/// Draws text, wrapped at word boundaries.
pub fn wrapped(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = text.lines().map(|line| Line::styled(fit(line, usize::MAX), style)).collect();
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(area, buffer);
}

/// Breaks a text into lines of at most `width` columns, at spaces if possible.
#[must_use]
pub fn broken(text: &str, width: usize) -> Vec<String> {
    hanging(text, width, width)
}

/// The same, with a width of its own for the lines after the first, which are indented.
#[must_use]
pub fn hanging(text: &str, first: usize, others: usize) -> Vec<String> {
    let (mut width, others) = (first.max(1), others.max(1));
    let mut lines = vec![String::new()];
    let mut used = 0;
    for mut word in clean(text).split_inclusive(' ') {
        let bare = columns(word.strip_suffix(' ').unwrap_or(word));
        if used > 0 && used + bare > width {
            lines.push(String::new());
            (width, used) = (others, 0);
        }
        while columns(word) > width {
            // A character wider than the line is kept anyway.
            let whole = beginning(word, width).len();
            let cut = whole.max(word.chars().next().map_or(0, char::len_utf8));
            let (piece, rest) = word.split_at(cut);
            lines.last_mut().expect("there is one").push_str(piece);
            if matches!(rest, "" | " ") {
                (word, used) = ("", width);
            } else {
                (word, used, width) = (rest, 0, others);
                lines.push(String::new());
            }
        }
        used += columns(word);
        lines.last_mut().expect("there is one").push_str(word);
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// A bar per value, the latest on the right, in eighths of a cell. A missing value is a dot at the bottom; a value
/// above zero is at least one eighth, and the largest is a full bar.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'a> {
    /// The oldest first.
    pub values: &'a [Option<f64>],
    /// Of bars.
    pub style: Style,
    /// Of missing values.
    pub missing: Style,
}

impl Widget for Graph<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
        let (full, max) = (f64::from(area.height) * 8.0, peak(self.values));
        for (x, value) in (area.left()..area.right()).zip(self.values) {
            let Some(value) = value else {
                if area.height > 0 {
                    buffer.set_string(x, area.bottom() - 1, "·", self.missing);
                }
                continue;
            };
            let share = if max > 0.0 { (value / max).clamp(0.0, 1.0) } else { 0.0 };
            let mut eighths = (share * full).round() as usize;
            if *value > 0.0 {
                eighths = eighths.max(1);
            }
            for y in (area.top()..area.bottom()).rev() {
                buffer.set_string(x, y, EIGHTHS[eighths.min(8)], self.style);
                eighths = eighths.saturating_sub(8);
            }
        }
    }
}

/// Joins as many of the pieces to a line as fit entirely.
#[must_use]
pub fn fitting(width: usize, pieces: impl IntoIterator<Item = Vec<Span<'static>>>) -> Line<'static> {
    let mut line = Line::default();
    for piece in pieces {
        let more: usize = piece.iter().map(Span::width).sum();
        if line.width() + more > width {
            break;
        }
        line.extend(piece);
    }
    line
}

/// Returns a label and a value.
#[must_use]
pub fn pair(theme: &Theme, label: &str, value: String) -> Vec<Span<'static>> {
    vec![Span::styled(format!("{label} "), theme.label), Span::raw(format!("{value}  "))]
}

/// Returns the largest value, or 0.
#[must_use]
pub fn peak(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

/// Returns a one-row bar whose parts are proportional to their values.
#[must_use]
pub fn bar(width: usize, parts: &[(u64, char, Style)]) -> Line<'static> {
    let values: Vec<u64> = parts.iter().map(|part| part.0).collect();
    split(width, &values)
        .into_iter()
        .zip(parts)
        .map(|(cells, &(_, glyph, style))| Span::styled(glyph.to_string().repeat(cells), style))
        .collect()
}

/// Returns a one-row gauge, filled by a share of 1.
#[must_use]
pub fn gauge(width: usize, share: f64, style: Style, theme: &Theme) -> Line<'static> {
    let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    Line::from(vec![
        Span::styled("━".repeat(filled), style),
        Span::styled("─".repeat(width.saturating_sub(filled)), theme.border),
    ])
}

/// Returns the first row to show so that the selected one is visible, near the middle if possible.
#[must_use]
pub fn first_shown(selected: usize, rows: usize, height: usize) -> usize {
    selected.saturating_sub(height / 2).min(rows.saturating_sub(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_breaks_at_spaces_and_within_long_words() {
        assert_eq!(broken("one two three", 8), ["one two", "three"]);
        assert_eq!(broken("0123456789 ab", 4), ["0123", "4567", "89", "ab"]);
        assert_eq!(broken("", 5), [""]);
        assert_eq!(broken("12345678", 8), ["12345678"]);
        assert_eq!(broken("12345678 9", 8), ["12345678", "9"]);
        assert_eq!(broken("会话 会话会", 5), ["会话", "会话", "会"]);
        assert_eq!(broken("会话", 1), ["会", "话"]);
    }

    #[test]
    fn the_first_line_is_filled_and_the_others_leave_room_for_their_indent() {
        assert_eq!(hanging("one two three", 13, 5), ["one two three"]);
        assert_eq!(hanging("one two three four", 8, 5), ["one two", "three", "four"]);
        assert_eq!(hanging("0123456789ab", 6, 4), ["012345", "6789", "ab"]);
    }

    #[test]
    fn the_selected_row_is_always_visible() {
        for rows in 0..30 {
            for selected in 0..rows {
                let first = first_shown(selected, rows, 7);
                assert!(first <= selected && selected < first + 7, "{selected} of {rows}: {first}");
            }
        }
    }
}
