//! The three slots: who decides, how long it takes, what went wrong, what was there before.

use infer_api::admin::{HistoryEntry, PolicySlot, State};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit, microseconds};
use super::parts::{below, framed, inset, put, wrapped};

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::draw_waiting(look, area, buffer);
        return;
    };
    // A small terminal spends its rows on the facts and not on frames.
    let framed_slots = area.height >= 14;
    let rows = if framed_slots { 6 } else { 4 };
    let [slots, rest] = Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
    draw_slots(look, state, framed_slots, slots, buffer);
    let slot = state.policies.iter().find(|slot| slot.kind == look.app.policies.kind());
    if rest.height < 9 {
        if let Some(slot) = slot {
            draw_details(look, state, slot, rest, buffer);
        }
        return;
    }
    let wide = rest.width >= 110;
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    let [details, history] =
        if wide { Layout::horizontal(halves).areas(rest) } else { Layout::vertical(halves).areas(rest) };
    if let Some(slot) = slot {
        draw_details(look, state, slot, details, buffer);
    }
    draw_history(look, state, history, buffer);
}

fn draw_slots(look: Look<'_>, state: &State, with_frame: bool, area: Rect, buffer: &mut Buffer) {
    let title = Line::from(Span::styled(" Policies ", look.theme.title));
    let inside = if with_frame { framed(title, look.theme, area, buffer) } else { area };
    let table = inset(inside, u16::from(inside.width > 60), 0);
    let width = usize::from(table.width);
    put(Line::styled(slot_text(None, width), look.theme.label), table, 0, buffer);
    for (index, slot) in (0u16..).zip(&state.policies) {
        let style = if slot.state == "live" { look.theme.good } else { look.theme.bad };
        let mut line = Line::from(vec![
            Span::styled(if slot.state == "live" { "● " } else { "▲ " }, style),
            Span::raw(slot_text(Some(slot), width).chars().skip(2).collect::<String>()),
        ]);
        if usize::from(index) == look.app.policies.selected {
            line = line.style(look.theme.selected);
        }
        put(line, table, index + 1, buffer);
    }
}

/// One slot as text, or the titles; the columns that a narrow terminal has no room for are left out.
fn slot_text(slot: Option<&PolicySlot>, width: usize) -> String {
    let value = |title: &str, text: fn(&PolicySlot) -> String| slot.map_or_else(|| title.to_owned(), text);
    let columns: [(String, usize, usize); 10] = [
        (value("KIND", |s| s.kind.clone()), 12, 0),
        (value("POLICY", |s| s.name.clone()), 14, 0),
        (value("VERSION", |s| s.version.clone()), 8, 90),
        (value("DIGEST", |s| digest(&s.sha256)), 10, 104),
        (value("STATE", |s| s.state.clone()), 8, 40),
        (value("CALLS", |s| count(s.calls)), 10, 70),
        (value("P50", |s| microseconds(s.p50_us)), 8, 56),
        (value("P99", |s| microseconds(s.p99_us)), 8, 78),
        (value("FAULTS", |s| count(s.faults)), 6, 48),
        (value("SINCE", |s| age(s.since_ms)), 8, 64),
    ];
    let mut text = "  ".to_owned();
    for (cell, cell_width, from) in columns {
        if width >= from {
            text += &format!("{:<cell_width$} ", fit(&cell, cell_width));
        }
    }
    text
}

/// The first characters of a digest; a native policy has none.
fn digest(sha256: &str) -> String {
    if sha256.is_empty() { "native".to_owned() } else { sha256.chars().take(10).collect() }
}

fn draw_details(look: Look<'_>, state: &State, slot: &PolicySlot, area: Rect, buffer: &mut Buffer) {
    let title = Line::from(Span::styled(format!(" {} ", slot.kind), look.theme.title));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let mut facts = vec![
        ("policy", format!("{} {}", slot.name, slot.version)),
        ("says", slot.description.clone()),
        ("before", slot.previous.clone().unwrap_or_else(|| "nothing to roll back to".to_owned())),
        ("faults", format!("{}, built-in decided {} times", count(slot.faults), count(slot.fallbacks))),
    ];
    if let Some(fault) = &slot.last_fault {
        let ago = age(state.uptime_ms.saturating_sub(fault.at_ms));
        let end = if fault.removed { ", taken out" } else { "" };
        let text = format!(
            "{} of {}, {ago} ago at step {}{end}: {}",
            fault.reason,
            fault.policy,
            count(fault.step),
            fault.message
        );
        facts.insert(1, ("fault", text));
    }
    let native = slot.sha256.is_empty();
    facts.push(("digest", if native { "none, native code".to_owned() } else { slot.sha256.clone() }));
    if !slot.config.is_null() {
        facts.push(("config", slot.config.to_string()));
    }
    let mut rest = inside;
    for (label, text) in facts {
        let width = usize::from(rest.width).saturating_sub(8);
        // Only the fault may take more than a line: it is what one comes here to read.
        let lines =
            if label == "fault" { text.chars().count().div_ceil(width.max(1)).min(4) as u16 } else { 1 };
        let style = if label == "fault" { look.theme.bad } else { ratatui::style::Style::new() };
        put(Line::styled(label, look.theme.label), rest, 0, buffer);
        let column = Rect {
            x: rest.x + 8.min(rest.width),
            width: width as u16,
            height: lines.min(rest.height),
            ..rest
        };
        let text = if lines == 1 { fit(&text, width) } else { text };
        wrapped(&text, style, column, buffer);
        rest = below(rest, lines);
    }
}

fn draw_history(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let title = Line::from(Span::styled(" History ", look.theme.title));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let width = usize::from(inside.width);
    match look.app.policies.selected_history() {
        None => put(Line::styled("...", look.theme.label), inside, 0, buffer),
        Some(Err(error)) => wrapped(error, look.theme.bad, inside, buffer),
        Some(Ok(entries)) => {
            for (index, entry) in (0..inside.height).zip(entries.iter().rev()) {
                let text = fit(&history_text(entry, state.uptime_ms), width);
                let fault = !matches!(entry.reason.as_str(), "start" | "swap" | "rollback");
                let style = if fault { look.theme.bad } else { look.theme.label };
                put(Line::styled(text, style), inside, index, buffer);
            }
        }
    }
}

fn history_text(entry: &HistoryEntry, uptime_ms: u64) -> String {
    let ago = age(uptime_ms.saturating_sub(entry.at_ms));
    let change =
        if entry.from.is_empty() { entry.to.clone() } else { format!("{} -> {}", entry.from, entry.to) };
    format!("{ago:>7} ago  step {:<9} {change}  ({})", count(entry.step), entry.reason)
}
