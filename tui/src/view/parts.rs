//! Pieces that several screens use: a titled box, a graph, a proportional bar, wrapped text.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, BorderType, Paragraph, RenderDirection, Sparkline, SparklineBar, Widget, Wrap,
};

use super::format::{fit, split};
use super::theme::Theme;

/// Draws a titled box and gives the room inside it.
pub fn framed(title: Line<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer) -> Rect {
    let block =
        Block::bordered().border_type(BorderType::Rounded).border_style(theme.border).title_top(title);
    let inside = block.inner(area);
    block.render(area, buffer);
    inside
}

/// The part of `area` that is left after a margin.
#[must_use]
pub fn inset(area: Rect, x: u16, y: u16) -> Rect {
    let (x, y) = (x.min(area.width / 2), y.min(area.height / 2));
    Rect { x: area.x + x, y: area.y + y, width: area.width - 2 * x, height: area.height - 2 * y }
}

/// One row of `area`; empty where there is no such row.
#[must_use]
pub fn row(area: Rect, index: u16) -> Rect {
    if index >= area.height {
        return Rect { height: 0, ..area };
    }
    Rect { y: area.y + index, height: 1, ..area }
}

/// Everything below the first `rows` rows.
#[must_use]
pub fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// A line in a row of its own.
pub fn put(line: Line<'_>, area: Rect, index: u16, buffer: &mut Buffer) {
    let row = row(area, index);
    if row.height > 0 {
        line.render(row, buffer);
    }
}

/// Text broken into lines.
pub fn wrapped(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = text.lines().map(|line| Line::styled(fit(line, usize::MAX), style)).collect();
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(area, buffer);
}

/// A bar per value, the latest on the right; seconds without a value are dotted on the ground line.
/// `max` is the value of a full bar.
pub fn graph(values: &[Option<f64>], max: f64, style: Style, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    // Sparklines count in whole numbers, and latencies may be fractions.
    const SCALE: f64 = 1_000.0;
    let bars = values.iter().map(|value| match value {
        Some(value) => SparklineBar::from(Some((value.max(0.0) * SCALE) as u64)).style(Some(style)),
        None => SparklineBar::from(None),
    });
    Sparkline::default()
        .data(bars)
        .max((max * SCALE).max(1.0) as u64)
        .direction(RenderDirection::LeftToRight)
        .absent_value_style(theme.border)
        .absent_value_symbol("·")
        .render(area, buffer);
}

/// The largest value.
#[must_use]
pub fn peak(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

/// A bar of one row whose parts have the proportions of their values.
#[must_use]
pub fn bar(width: usize, parts: &[(u64, char, Style)]) -> Line<'static> {
    let values: Vec<u64> = parts.iter().map(|part| part.0).collect();
    split(width, &values)
        .into_iter()
        .zip(parts)
        .map(|(cells, &(_, glyph, style))| Span::styled(glyph.to_string().repeat(cells), style))
        .collect()
}

/// A gauge of one row, `part` of `whole`.
#[must_use]
pub fn gauge(width: usize, part: f64, whole: f64, style: Style, theme: &Theme) -> Line<'static> {
    let share = if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
    let filled = (share * width as f64).round() as usize;
    Line::from(vec![
        Span::styled("━".repeat(filled), style),
        Span::styled("─".repeat(width.saturating_sub(filled)), theme.border),
    ])
}
