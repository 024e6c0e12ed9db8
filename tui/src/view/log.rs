//! The log: events since the console connected, newest at the bottom.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit};
use super::parts::{broken, framed, inset, put, wrapped};
use crate::state::Scroll;
use crate::state::log::{Entry, FIELDS};

/// Returns how far the log can be scrolled: up to where the oldest line is fully visible.
pub(super) fn scroll(look: Look<'_>, area: Rect) -> Scroll {
    let (width, height) = room(area);
    let log = &look.app.feed().log;
    let shown = || log.shown(look.app.log.filter());
    let mut rows = 0;
    let oldest = shown().take_while(|entry| {
        rows += entry_lines(look, entry, width, height).len();
        rows <= height
    });
    let page = oldest.count().max(1);
    Scroll { most: shown().count().saturating_sub(page), page }
}

/// Returns columns and rows available for lines.
fn room(area: Rect) -> (usize, usize) {
    let width = usize::from(area.width.saturating_sub(if area.width > 60 { 4 } else { 2 }));
    (width, usize::from(area.height.saturating_sub(2)))
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let log = &look.app.feed().log;
    let pane = &look.app.log;
    let shown: Vec<&Entry> = log.shown(pane.filter()).collect();
    let (width, height) = room(area);
    let newer = pane.newer(log, scroll(look, area).most);
    let mut title = Line::from(Span::styled(" Log ", look.theme.title));
    let noun = if log.len() == 1 { "line" } else { "lines" };
    let lines = if pane.filter().is_empty() {
        format!("{} {noun} ", count(log.len() as u64))
    } else {
        format!("{} of {} {noun} ", count(shown.len() as u64), count(log.len() as u64))
    };
    title.push_span(Span::styled(lines, look.theme.label));
    if !pane.filter().is_empty() {
        title.push_span(Span::styled(format!("/{} ", fit(pane.filter().text(), 30)), look.theme.key));
    }
    if newer > 0 {
        title.push_span(Span::styled(format!("{newer} newer below "), look.theme.key));
    }
    if log.dropped() > 0 {
        title.push_span(Span::styled(format!("{} dropped ", count(log.dropped())), look.theme.warning));
    }
    let inside = inset(framed(title, look.theme, area, buffer), u16::from(area.width > 60), 0);
    if shown.is_empty() {
        let text = match pane.unknown_field() {
            _ if log.is_empty() => {
                "nothing has happened since this console connected; 4 Policies shows what changed before"
                    .to_owned()
            }
            Some(name) => format!("lines have no field `{name}`; the fields are {}", FIELDS.join(", ")),
            None => "no line matches the filter".to_owned(),
        };
        wrapped(&text, look.theme.label, inside, buffer);
        return;
    }
    let mut lines = Vec::new();
    for entry in shown[..shown.len() - newer].iter().rev() {
        lines.extend(entry_lines(look, entry, width, height).into_iter().rev());
        if lines.len() >= height {
            break;
        }
    }
    for (index, line) in (0..).zip(lines.into_iter().take(height).rev()) {
        put(line, inside, index, buffer);
    }
}

/// Lays an entry out on as many rows as it needs, at most `height`.
fn entry_lines(look: Look<'_>, entry: &Entry, width: usize, height: usize) -> Vec<Line<'static>> {
    let ago = age(look.now.saturating_sub(entry.at));
    let mut line = Line::default();
    line.push_span(Span::styled(format!("{ago:>7} "), look.theme.label));
    if width >= 60 {
        line.push_span(Span::styled(format!("{:<10} ", entry.source), look.theme.level(entry.level)));
    }
    if entry.count > 1 {
        line.push_span(Span::styled(format!("x{} ", count(entry.count)), look.theme.key));
    }
    let style = if width >= 60 { ratatui::style::Style::new() } else { look.theme.level(entry.level) };
    let indent = line.width();
    let mut parts = broken(&entry.text, width.saturating_sub(indent));
    if parts.len() > height.max(1) {
        parts.truncate(height.max(1));
        parts.last_mut().expect("at least one").push('…');
    }
    let mut lines = Vec::with_capacity(parts.len());
    for part in parts {
        line.push_span(Span::styled(part, style));
        lines.push(std::mem::replace(&mut line, Line::raw(" ".repeat(indent))));
    }
    lines
}
