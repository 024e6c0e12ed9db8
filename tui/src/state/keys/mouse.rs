//! What a click does, and whether clicks are captured. What is drawn where is not known here: the view says
//! what was hit.

use crate::state::dialog::Dialog;
use crate::state::log::Level;
use crate::state::{App, Effect, Millis, Screen};

/// What the mouse clicked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// A tab.
    Tab(Screen),
    /// A row of the table of requests.
    Request(usize),
    /// A row of the table of tenants.
    Tenant(usize),
    /// A policy slot.
    Slot(usize),
    /// A row of the table of prefixes.
    Prefix(usize),
    /// A position on the block map, relative to its upper left corner.
    Cell {
        /// In columns of the screen.
        column: usize,
        /// In rows.
        row: usize,
    },
}

impl App {
    /// Takes a click.
    pub fn on_hit(&mut self, hit: Hit, now: Millis) -> Vec<Effect> {
        if self.dialog.is_some() || self.prompt.is_some() || self.help.take().is_some() {
            return Vec::new();
        }
        match hit {
            Hit::Tab(screen) => self.screen = screen,
            Hit::Request(row) => {
                let feed = self.frozen.as_deref().unwrap_or(&self.live);
                let rows = feed.requests();
                let again = self.requests.table.selected_row() == row;
                self.requests.table.select(rows, row);
                if again && let Some(row) = self.requests.table.selected(rows) {
                    self.dialog = Some(Dialog::Details { id: row.id });
                }
            }
            Hit::Tenant(row) => {
                let again = self.tenants.selected_row() == row;
                let feed = self.frozen.as_deref().unwrap_or(&self.live);
                self.tenants.select(feed.tenants(), row);
                if again {
                    self.show_requests_of_tenant();
                }
            }
            Hit::Slot(slot) => self.policies.select(slot),
            Hit::Prefix(prefix) => {
                self.cache.selected = 0;
                self.cache.move_by(prefix.cast_signed());
            }
            Hit::Cell { column, row } => self.blocks.point_at(column, row),
        }
        self.on_tick(now)
    }

    /// Captures the mouse, or releases it.
    pub(super) fn toggle_mouse(&mut self) -> Vec<Effect> {
        self.settings.mouse = !self.settings.mouse;
        let text = if self.settings.mouse {
            "mouse captured: click and scroll; hold shift to select text"
        } else {
            "mouse released to the terminal"
        };
        self.notify(Level::Info, text.to_owned());
        vec![Effect::Mouse(self.settings.mouse)]
    }
}
