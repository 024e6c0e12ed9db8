//! Finds what is at a position of the screen, for the mouse.

use ratatui::layout::{Position, Rect};

use super::parts::{below, first_shown, inset};
use super::{blocks, cache, chrome, policies, regions, table};
use crate::state::keys::Hit;
use crate::state::{App, Screen};

/// Returns what is at a column and a row of the screen.
#[must_use]
pub fn at(app: &App, area: Rect, x: u16, y: u16) -> Option<Hit> {
    let [_, tabs, body, _] = regions(area);
    let point = Position::new(x, y);
    if tabs.contains(point) {
        return chrome::tab_places(tabs).find(|(.., place)| place.contains(point)).map(|(s, ..)| Hit::Tab(s));
    }
    let row_of = |rows: Rect| rows.contains(point).then(|| usize::from(y - rows.y));
    match app.screen {
        Screen::Blocks => {
            let map = blocks::map_area(body);
            let column = usize::from(x.checked_sub(map.x)?);
            map.contains(point).then(|| Hit::Cell { column, row: usize::from(y - map.y) })
        }
        Screen::Requests => table::row_at(&app.requests.table, body, point).map(Hit::Request),
        Screen::Tenants => table::row_at(&app.tenants, body, point).map(Hit::Tenant),
        Screen::Policies => row_of(policies::slot_rows(body)).map(Hit::Slot),
        Screen::Cache => {
            let rows = below(inset(cache::prefixes_area(body), 1, 1), 1);
            let shown = app.cache.report.as_ref().map_or(0, |report| report.prefixes.len());
            let first = first_shown(app.cache.selected, shown, usize::from(rows.height));
            row_of(rows).map(|row| first + row).filter(|&row| row < shown).map(Hit::Prefix)
        }
        Screen::Overview | Screen::Log => None,
    }
}
