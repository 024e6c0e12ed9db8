//! The frame of every screen: header with host and connection, tabs, footer with keys and notices.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};

use super::Look;
use super::format::{age, columns, count, fit};
use super::parts::{broken, inset, put, wrapped};
use crate::state::dialog::{Dialog, Prompt};
use crate::state::text::LineEdit;
use crate::state::{Link, Millis, Screen};
use crate::text::is_invisible;

/// Draws the host on the left and the connection on the right. The right side takes precedence if both don't
/// fit: a stale screen must say so.
pub(super) fn header(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Look { app, now, theme } = look;
    let status = match (&app.link, app.stale_ms(now)) {
        (Link::Live | Link::Replay, None) if app.paused() => Span::styled("⏸ PAUSED", theme.warning),
        (Link::Live, None) => Span::styled("● LIVE", theme.good),
        (Link::Replay, None) => Span::styled("▶ REPLAY", theme.warning),
        (Link::Ended, _) => Span::styled("○ END OF REPLAY", theme.warning),
        (_, Some(stale)) => Span::styled(format!("▲ STALE {}", age(stale)), theme.bad),
        (Link::Connecting, None) => Span::styled("○ CONNECTING", theme.warning),
        (Link::Lost { .. }, None) => Span::styled("▲ NO HOST", theme.bad),
    };
    let mut right = vec![];
    let mut left = vec![Span::styled(" infer ", theme.title)];
    if let Some(state) = app.state() {
        let host = &state.host;
        left.push(Span::styled(fit(&host.model, 32), theme.title));
        left.push(Span::styled(fit(&format!(" on {}, {} KV", host.device, host.kv_cache), 48), theme.label));
        if state.draining {
            right.push(Span::styled("DRAINING  ", theme.warning));
        }
        if app.recording {
            right.push(Span::styled("● REC  ", theme.bad));
        }
        let read_only = match app.viewer() {
            Some(_) => "viewer, read-only  ",
            None if app.read_only => "read-only  ",
            None => "",
        };
        if area.width >= 60 {
            right.push(Span::styled(read_only, theme.label));
        }
        if area.width >= 80 {
            let up = format!("step {}  up {}  ", count(state.step), age(state.uptime_ms));
            right.push(Span::styled(up, theme.label));
        }
    }
    if app.state().is_none() || area.width >= 100 {
        left.push(Span::styled(format!("  {}", app.address), theme.label));
    }
    right.insert(0, Span::raw("  "));
    right.push(status);
    right.push(Span::raw(" "));
    let right = Line::from(right);
    let width = u16::try_from(right.width()).unwrap_or(u16::MAX).min(area.width);
    let [left_area, right_area] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    Line::from(left).render(left_area, buffer);
    right.render(right_area, buffer);
}

/// Returns each screen's tab with its text and area. All tabs fit, whatever remains of their titles.
pub(super) fn tab_places(area: Rect) -> impl Iterator<Item = (Screen, String, Rect)> {
    let text = move |number: usize, screen: Screen| match area.width {
        72.. => format!(" {number} {} ", screen.title()),
        40.. => format!("{number} {} ", screen.short_title()),
        34.. => format!("{number} {:.2} ", screen.short_title()),
        _ => format!("{number} {:.1} ", screen.short_title()),
    };
    let mut x = area.x;
    Screen::ALL.into_iter().enumerate().map(move |(index, screen)| {
        let text = text(index + 1, screen);
        let place = Rect { x, width: text.chars().count() as u16, ..area };
        x += place.width;
        (screen, text, place)
    })
}

pub(super) fn tabs(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    for (screen, text, place) in tab_places(area) {
        let style = if screen == look.app.screen {
            look.theme.title.add_modifier(Modifier::REVERSED)
        } else {
            look.theme.label
        };
        Line::styled(text, style).render(place.intersection(area), buffer);
    }
}

/// Draws the line being typed, else the notice, else why there is no connection, else the keys.
pub(super) fn footer(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Look { app, now, theme } = look;
    let width = usize::from(area.width);
    if let Some(prompt) = &app.prompt {
        draw_prompt(look, prompt, area, buffer);
        return;
    }
    if let Some(notice) = &app.notice {
        draw_message(&notice.text, theme.level(notice.level), area, buffer);
        return;
    }
    if let Link::Lost { why, retry_at } = &app.link
        && app.state().is_some()
    {
        draw_message(&format!("{}: {why}", retry(*retry_at, now)), theme.bad, area, buffer);
        return;
    }
    let everywhere =
        [("?", "help"), ("q", "quit"), ("space", "pause"), (":", "command"), ("y", "copy"), ("+-", "window")];
    let mut line = Line::default();
    for (key, meaning) in keys(look).iter().chain(everywhere.iter().filter(|_| !is_covered(look))) {
        let more = format!(" {key} {meaning} ");
        if line.width() + more.chars().count() > width {
            break;
        }
        line.push_span(Span::styled(format!(" {key}"), theme.key));
        line.push_span(Span::styled(format!(" {meaning} "), theme.label));
    }
    line.render(area, buffer);
}

/// Whether a dialog or the help takes the keys.
fn is_covered(look: Look<'_>) -> bool {
    look.app.dialog.is_some() || look.app.help.is_some()
}

/// Returns the keys of what is shown. Confirmations and forms show their own.
fn keys(look: Look<'_>) -> &'static [(&'static str, &'static str)] {
    if let Some(dialog) = &look.app.dialog {
        return match dialog {
            Dialog::Details { .. } => {
                &[("c", "cancel request"), ("jk", "next"), ("esc", "close"), ("ctrl-c", "quit")]
            }
            _ => &[("esc", "close"), ("ctrl-c", "quit")],
        };
    }
    if look.app.help.is_some() {
        return &[("jk", "scroll"), ("PgDn", "page"), ("esc", "close"), ("ctrl-c", "quit")];
    }
    match look.app.screen {
        Screen::Overview => &[("2", "memory"), ("3", "requests"), ("4", "swap policies")],
        Screen::Blocks => &[("hjkl", "inspect"), ("c", "colour by"), ("enter", "owner")],
        Screen::Requests => &[("enter", "details"), ("s", "sort"), ("/", "filter"), ("c", "cancel")],
        Screen::Policies => {
            &[("s", "swap"), ("r", "roll back"), ("e", "configure"), ("p", "promote"), ("x", "stop shadow")]
        }
        Screen::Cache => &[("jk", "select")],
        Screen::Log => &[("/", "filter"), ("jk", "scroll"), ("G", "latest")],
        Screen::Tenants => &[("enter", "requests"), ("s", "sort"), ("/", "filter")],
    }
}

/// Most rows of a message; why something failed matters more than what the message covers.
const MESSAGE_ROWS: usize = 5;

/// Draws a message in full; a long one takes rows above the footer.
fn draw_message(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    let mut lines = broken(text, usize::from(area.width).saturating_sub(2));
    if lines.len() > MESSAGE_ROWS {
        lines.truncate(MESSAGE_ROWS);
        lines.last_mut().expect("at least one").push('…');
    }
    let rows = (lines.len() as u16).min(area.y + 1);
    let place = Rect { y: area.y + 1 - rows, height: rows, ..area };
    Clear.render(place, buffer);
    for (index, line) in (0..rows).zip(lines) {
        put(Line::styled(format!(" {line}"), style), place, index, buffer);
    }
}

/// Draws the line being typed with its cursor, and a hint if there is room.
fn draw_prompt(look: Look<'_>, prompt: &Prompt, area: Rect, buffer: &mut Buffer) {
    let filters = "enter keeps it, up edits the last, esc clears it; field:text searches one field";
    let completes = "tab completes, up repeats the last one; help lists all";
    let (mark, line, hint) = match prompt {
        Prompt::Filter(line) => ("/", line, filters.to_owned()),
        Prompt::Command(line, options) if options.is_empty() => (":", line, completes.to_owned()),
        Prompt::Command(line, options) => (":", line, options.join(" ")),
    };
    let mut spans = vec![Span::styled(mark, look.theme.key)];
    spans.extend(edited(look, line, usize::from(area.width).saturating_sub(2), true));
    let mut shown = Line::from(spans);
    let room = usize::from(area.width).saturating_sub(shown.width() + 3);
    if room > 8 {
        shown.push_span(Span::styled(format!("  {}", fit(&hint, room)), look.theme.label));
    }
    shown.render(area, buffer);
}

/// Returns the part of an edited line around the cursor that fits.
pub(super) fn edited(look: Look<'_>, line: &LineEdit, width: usize, focused: bool) -> Vec<Span<'static>> {
    if !focused {
        return vec![Span::raw(fit(&line.text(), width))];
    }
    // Invisible characters can be typed and deleted, so they need a visible cell.
    let visible = |c| if is_invisible(c) { char::REPLACEMENT_CHARACTER } else { c };
    let text: Vec<char> = line.text().chars().map(visible).collect();
    let wide = |at: usize| text.get(at).map_or(1, |c| columns(c.encode_utf8(&mut [0; 4])));
    let (mut first, mut end) = (line.cursor(), line.cursor() + 1);
    let mut used = wide(line.cursor());
    while first > 0 && used + wide(first - 1) <= width {
        first -= 1;
        used += wide(first);
    }
    while end < text.len() && used + wide(end) <= width {
        used += wide(end);
        end += 1;
    }
    let part = |from: usize, to: usize| text[from..to.min(text.len()).max(from)].iter().collect::<String>();
    let under = text.get(line.cursor()).copied().unwrap_or(' ');
    vec![
        Span::raw(part(first, line.cursor())),
        Span::styled(under.to_string(), look.theme.selected),
        Span::raw(part((line.cursor() + 1).min(text.len()), end)),
    ]
}

/// Returns when the next attempt is made.
fn retry(retry_at: Millis, now: Millis) -> String {
    match retry_at.saturating_sub(now).div_ceil(1_000) {
        0 => "connecting".to_owned(),
        seconds => format!("retrying in {seconds} s"),
    }
}

/// Draws what a screen shows before the first snapshot.
pub(super) fn waiting(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let text = match &look.app.link {
        Link::Connecting | Link::Live | Link::Replay => format!("Waiting for {} ...", look.app.address),
        Link::Ended => "The recording has ended without a snapshot.".to_owned(),
        Link::Lost { why, retry_at } => {
            format!("{why}\n\n{}", retry(*retry_at, look.now))
        }
    };
    wrapped(&text, look.theme.label, inset(area, 2, 1), buffer);
}
