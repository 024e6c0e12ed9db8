//! Drawing. Views borrow the state and the clock and fill a buffer; they decide nothing and change
//! nothing. A terminal too small for a screen gets a sentence instead of a torn one.

pub mod blocks;
mod dialog;
pub mod format;
mod log;
mod overview;
pub mod parts;
mod policies;
mod requests;
pub mod theme;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget};

use crate::state::{App, Link, Millis, Screen};
use format::{age, count, fit};
use theme::Theme;

/// Smallest terminal that gets a screen.
pub const SMALLEST: (u16, u16) = (32, 9);

/// What every view needs.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The state.
    pub app: &'a App,
    /// The clock.
    pub now: Millis,
    /// The colours.
    pub theme: &'a Theme,
}

/// Draws the whole console.
pub fn draw(app: &App, now: Millis, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let look = Look { app, now, theme };
    Clear.render(area, buffer);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(area, buffer);
        return;
    }
    let [header, tabs, body, footer] = regions(area);
    draw_header(look, header, buffer);
    draw_tabs(look, tabs, buffer);
    match app.screen {
        Screen::Overview => overview::draw(look, body, buffer),
        Screen::Blocks => blocks::draw(look, body, buffer),
        Screen::Requests => requests::draw(look, body, buffer),
        Screen::Policies => policies::draw(look, body, buffer),
        Screen::Log => log::draw(look, body, buffer),
    }
    draw_footer(look, footer, buffer);
    if app.help {
        dialog::draw_help(look, area, buffer);
    }
    if let Some(dialog) = &app.dialog {
        dialog::draw(look, dialog, area, buffer);
    }
}

/// Header, tabs, body and footer of a terminal of this size.
#[must_use]
pub fn regions(area: Rect) -> [Rect; 4] {
    Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area)
}

fn too_small(area: Rect, buffer: &mut Buffer) {
    let wanted = format!("{}x{} needed", SMALLEST.0, SMALLEST.1);
    Paragraph::new(vec![Line::from("too small"), Line::from(wanted)]).render(area, buffer);
}

/// Who is watched on the left, how the connection is on the right. The right side wins where both
/// don't fit, because a stale screen that doesn't say so is a lie.
fn draw_header(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Look { app, now, theme } = look;
    let status = match (&app.link, app.stale_ms(now)) {
        (Link::Live, None) if app.paused() => Span::styled("⏸ PAUSED", theme.warning),
        (Link::Live, None) => Span::styled("● LIVE", theme.good),
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

fn draw_tabs(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let short = area.width < 56;
    let mut spans = vec![];
    for (index, screen) in Screen::ALL.into_iter().enumerate() {
        let title = if short { screen.short_title() } else { screen.title() };
        let text = format!(" {} {title} ", index + 1);
        let style = if screen == look.app.screen {
            look.theme.title.add_modifier(Modifier::REVERSED)
        } else {
            look.theme.label
        };
        spans.push(Span::styled(text, style));
    }
    Line::from(spans).render(area, buffer);
}

/// The last outcome, or why there is no connection, or the keys.
fn draw_footer(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Look { app, now, theme } = look;
    let width = usize::from(area.width);
    if let Some(notice) = &app.notice {
        let text = fit(&format!(" {}", notice.text), width);
        Line::styled(text, theme.level(notice.level)).render(area, buffer);
        return;
    }
    if let Link::Lost { why, retry_at } = &app.link
        && app.state().is_some()
    {
        let text = format!(" {}: {why}", retry(*retry_at, now));
        Line::styled(fit(&text, width), theme.bad).render(area, buffer);
        return;
    }
    let keys: &[(&str, &str)] = match app.screen {
        Screen::Overview => &[],
        Screen::Blocks => &[("hjkl", "inspect")],
        Screen::Requests => &[("c", "cancel"), ("s", "sort"), ("S", "reverse"), ("⏎", "details")],
        Screen::Policies => &[("s", "swap"), ("r", "roll back")],
        Screen::Log => &[("jk", "scroll"), ("G", "latest")],
    };
    let everywhere = [("?", "help"), ("q", "quit"), ("space", "pause"), ("1-5", "screens")];
    let mut line = Line::default();
    for (key, meaning) in keys.iter().chain(&everywhere) {
        let more = format!(" {key} {meaning} ");
        if line.width() + more.chars().count() > width {
            break;
        }
        line.push_span(Span::styled(format!(" {key}"), theme.key));
        line.push_span(Span::styled(format!(" {meaning} "), theme.label));
    }
    line.render(area, buffer);
}

/// When the next attempt is made.
fn retry(retry_at: Millis, now: Millis) -> String {
    match retry_at.saturating_sub(now).div_ceil(1_000) {
        0 => "connecting".to_owned(),
        seconds => format!("trying again in {seconds} s"),
    }
}

/// What a screen shows before the first snapshot.
fn draw_waiting(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let text = match &look.app.link {
        Link::Connecting | Link::Live => format!("Waiting for {} ...", look.app.address),
        Link::Lost { why, retry_at } => {
            format!("{why}\n\n{}", retry(*retry_at, look.now))
        }
    };
    parts::wrapped(&text, look.theme.label, parts::inset(area, 2, 1), buffer);
}
