//! Draws the state. Views borrow it and change nothing. Layout depends only on the terminal's size, so keys,
//! clicks and screens agree about what is where.

pub mod ascii;
pub mod blocks;
mod cache;
mod chrome;
mod dialog;
pub mod format;
mod help;
pub mod hit;
mod log;
mod overview;
mod parts;
mod policies;
mod request;
mod requests;
mod table;
pub(crate) mod tenants;
pub mod theme;
mod trial;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Clear, Paragraph, Widget};

use crate::state::{App, Millis, Room, Screen};
use theme::Theme;

/// Smallest terminal that shows a screen.
pub const SMALLEST: (u16, u16) = (32, 9);

/// What every view takes.
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
pub fn draw(app: &App, now: Millis, area: Rect, buffer: &mut Buffer) {
    let theme = Theme::new(&app.settings);
    let look = Look { app, now, theme: &theme };
    Clear.render(area, buffer);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(area, buffer);
        return;
    }
    let [header, tabs, body, footer] = regions(area);
    chrome::header(look, header, buffer);
    chrome::tabs(look, tabs, buffer);
    match app.screen {
        Screen::Overview => overview::draw(look, body, buffer),
        Screen::Blocks => blocks::draw(look, body, buffer),
        Screen::Requests => requests::draw(look, body, buffer),
        Screen::Policies => policies::draw(look, body, buffer),
        Screen::Cache => cache::draw(look, body, buffer),
        Screen::Log => log::draw(look, body, buffer),
        Screen::Tenants => tenants::draw(look, body, buffer),
    }
    if let Some(scroll) = app.help {
        help::draw(look, scroll, above(area, footer), buffer);
    }
    if let Some(dialog) = &app.dialog {
        dialog::draw(look, dialog, above(area, footer), buffer);
    }
    chrome::footer(look, footer, buffer);
    if app.settings.ascii {
        ascii::exchange(buffer);
    }
}

/// Computes the sizes that keys depend on, for a terminal of this size.
#[must_use]
pub fn room(app: &App, now: Millis, area: Rect) -> Room {
    let theme = Theme::new(&app.settings);
    let look = Look { app, now, theme: &theme };
    let [_, _, body, footer] = regions(area);
    let facts = (app.screen == Screen::Policies).then(|| policies::scroll(look, body));
    let help = app.help.map(|_| help::scroll(look, above(area, footer)));
    let log = (app.screen == Screen::Log).then(|| log::scroll(look, body));
    Room {
        blocks: blocks::room(area),
        facts: facts.unwrap_or_default(),
        help: help.unwrap_or_default(),
        log: log.unwrap_or_default(),
    }
}

/// Returns the area for dialogs and help: everything but the footer.
fn above(area: Rect, footer: Rect) -> Rect {
    Rect { height: area.height - footer.height, ..area }
}

/// Returns header, tabs, body and footer of a terminal of this size.
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
    let needed = format!("{}x{} needed", SMALLEST.0, SMALLEST.1);
    Paragraph::new(vec![Line::from("too small"), Line::from(needed)]).render(area, buffer);
}
