//! The log: what happened on the host while this console watched, newest at the bottom.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit};
use super::parts::{framed, inset, put};

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let log = &look.app.feed().log;
    let mut title = Line::from(Span::styled(" Log ", look.theme.title));
    if let Some(state) = look.app.state() {
        let refused: u64 = state.counters.refused.values().sum();
        let faults: u64 = state.policies.iter().map(|slot| slot.faults).sum();
        let text = format!(
            "{} refused, {} preempted, {} policy faults, {} device faults ",
            count(refused),
            count(state.counters.preemptions),
            count(faults),
            count(state.counters.device_faults)
        );
        title.push_span(Span::styled(text, look.theme.label));
    }
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    if log.is_empty() {
        put(Line::styled("nothing happened yet", look.theme.label), inside, 0, buffer);
        return;
    }
    let width = usize::from(inside.width);
    for (index, entry) in (0..).zip(log.visible(usize::from(inside.height))) {
        let ago = age(look.now.saturating_sub(entry.at));
        let times = if entry.count > 1 { format!(" (x{})", count(entry.count)) } else { String::new() };
        let room = width.saturating_sub(20 + times.len());
        let line = Line::from(vec![
            Span::styled(format!("{ago:>7} "), look.theme.label),
            Span::styled(format!("{:<11} ", entry.source), look.theme.level(entry.level)),
            Span::raw(fit(&entry.text, room)),
            Span::styled(times, look.theme.key),
        ]);
        put(line, inside, index, buffer);
    }
    let newer = log.newer(usize::from(inside.height));
    if newer > 0 {
        let text = format!(" {newer} newer, G ");
        let at = Rect {
            y: area.bottom().saturating_sub(1),
            height: 1,
            x: area.x + 2,
            width: area.width.saturating_sub(4),
        };
        put(Line::styled(text, look.theme.key), at, 0, buffer);
    }
}
