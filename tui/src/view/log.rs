//! What happened while the console ran, newest at the bottom.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit};
use super::parts::{framed, inset, put};
use crate::state::log::Entry;

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let log = &look.app.feed().log;
    let pane = &look.app.log;
    let shown: Vec<&Entry> = log.shown(&pane.filter).collect();
    let height = usize::from(area.height.saturating_sub(2));
    let newer = pane.newer(shown.len(), height);
    let mut title = Line::from(Span::styled(" Log ", look.theme.title));
    let lines = if pane.filter.is_empty() {
        format!("{} lines ", count(log.len() as u64))
    } else {
        format!("{} of {} lines ", count(shown.len() as u64), count(log.len() as u64))
    };
    title.push_span(Span::styled(lines, look.theme.label));
    if !pane.filter.is_empty() {
        title.push_span(Span::styled(format!("/{} ", fit(pane.filter.text(), 30)), look.theme.key));
    }
    if newer > 0 {
        title.push_span(Span::styled(format!("{newer} newer below "), look.theme.key));
    }
    if log.dropped() > 0 {
        title.push_span(Span::styled(format!("{} dropped ", count(log.dropped())), look.theme.warning));
    }
    let inside = inset(framed(title, look.theme, area, buffer), u16::from(area.width > 60), 0);
    if shown.is_empty() {
        let text = if log.is_empty() { "nothing happened yet" } else { "no line passes the filter" };
        put(Line::styled(text, look.theme.label), inside, 0, buffer);
        return;
    }
    let end = shown.len() - newer;
    for (index, entry) in (0..).zip(&shown[end.saturating_sub(height)..end]) {
        put(entry_line(look, entry, usize::from(inside.width)), inside, index, buffer);
    }
}

fn entry_line(look: Look<'_>, entry: &Entry, width: usize) -> Line<'static> {
    let ago = age(look.now.saturating_sub(entry.at));
    let mut line = Line::default();
    line.push_span(Span::styled(format!("{ago:>7} "), look.theme.label));
    if width >= 60 {
        line.push_span(Span::styled(format!("{:<10} ", entry.source), look.theme.level(entry.level)));
    }
    if entry.count > 1 {
        line.push_span(Span::styled(format!("x{} ", count(entry.count)), look.theme.key));
    }
    let room = width.saturating_sub(line.width());
    let style = if width >= 60 { ratatui::style::Style::new() } else { look.theme.level(entry.level) };
    line.push_span(Span::styled(fit(&entry.text, room), style));
    line
}
