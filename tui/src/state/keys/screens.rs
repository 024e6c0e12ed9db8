//! The keys of each screen. Those that mean the same on every screen are not here (`keys`).

use crate::input::Key;
use crate::state::blocks::Under;
use crate::state::dialog::Dialog;
use crate::state::swap::Path;
use crate::state::table::PAGE;
use crate::state::{App, Effect, Screen, tenants};

impl App {
    /// Handles a key that has no global binding.
    pub(super) fn on_screen_key(&mut self, key: Key) -> Vec<Effect> {
        match self.screen {
            Screen::Overview => self.on_overview_key(key),
            Screen::Blocks => self.on_blocks_key(key),
            Screen::Requests => self.on_requests_key(key),
            Screen::Policies => return self.on_policies_key(key),
            Screen::Cache => match key.motion() {
                Key::Up => self.cache.move_by(-1),
                Key::Down => self.cache.move_by(1),
                Key::Home | Key::PageUp => self.cache.move_by(isize::MIN),
                Key::End | Key::PageDown => self.cache.move_by(isize::MAX),
                _ => {}
            },
            Screen::Log => self.on_log_key(key),
            Screen::Tenants => self.on_tenants_key(key),
        }
        Vec::new()
    }

    /// Nothing can be selected there, so the arrows switch screens.
    fn on_overview_key(&mut self, key: Key) {
        match key.motion() {
            Key::Right => self.screen = self.screen.step(1),
            Key::Left => self.screen = self.screen.step(Screen::ALL.len() - 1),
            _ => {}
        }
    }

    fn on_blocks_key(&mut self, key: Key) {
        match key.motion() {
            Key::Left => self.blocks.move_cells(-1, 0),
            Key::Right => self.blocks.move_cells(1, 0),
            Key::Up => self.blocks.move_cells(0, -1),
            Key::Down => self.blocks.move_cells(0, 1),
            Key::PageUp => self.blocks.move_cells(0, -PAGE),
            Key::PageDown => self.blocks.move_cells(0, PAGE),
            Key::Home => self.blocks.move_cells(isize::MIN, 0),
            Key::End => self.blocks.move_cells(isize::MAX, 0),
            Key::Char('c') => {
                self.blocks.by = self.blocks.by.next();
                self.blocks.forget();
            }
            Key::Enter => {
                // Opens a request that holds the block under the cursor.
                let Some(Ok(Under::Block(block))) = self.blocks.under() else { return };
                if let Some(&id) = block.holders.first() {
                    self.screen = Screen::Requests;
                    self.dialog = Some(Dialog::Details { id });
                }
            }
            _ => {}
        }
    }

    fn on_requests_key(&mut self, key: Key) {
        let feed = self.frozen.as_deref().unwrap_or(&self.live);
        let rows = feed.requests();
        if self.requests.table.on_key(rows, key) {
            return;
        }
        match key {
            Key::Enter => {
                if let Some(row) = self.requests.table.selected(rows) {
                    self.dialog = Some(Dialog::Details { id: row.id });
                }
            }
            Key::Char('c' | 'x') | Key::Delete => {
                let table = &self.requests.table;
                let others = table.others(table.selected_row());
                let Some((id, first_id)) = table.selected(rows).map(|row| (row.id, row.first_id)) else {
                    return;
                };
                match first_id.filter(|_| others > 0) {
                    None => self.ask_cancel(id),
                    Some(first_id) => self.ask_cancel_all(id, first_id),
                }
            }
            _ => {}
        }
    }

    fn on_policies_key(&mut self, key: Key) -> Vec<Effect> {
        let kind = self.policies.kind();
        match key.motion() {
            Key::Up | Key::Left => self.policies.move_by(-1),
            Key::Down | Key::Right => self.policies.move_by(1),
            Key::PageDown => self.policies.scroll += self.room.facts.page.max(1),
            Key::PageUp => {
                let page = self.room.facts.page.max(1);
                self.policies.scroll = self.policies.scroll.saturating_sub(page);
            }
            Key::Char('s') | Key::Enter => return self.open_picker(),
            Key::Char('f') if self.may_change() => {
                self.dialog = Some(Dialog::Path(Path::new(kind)));
            }
            Key::Char('e') => return self.configure(kind),
            Key::Char('r') => self.ask_rollback(kind),
            Key::Char('p') => self.ask_promote(kind),
            Key::Char('x') => self.ask_stop_shadow(kind),
            _ => {}
        }
        Vec::new()
    }

    fn on_tenants_key(&mut self, key: Key) {
        let feed = self.frozen.as_deref().unwrap_or(&self.live);
        if !self.tenants.on_key(feed.tenants(), key) && key == Key::Enter {
            self.show_requests_of_tenant();
        }
    }

    /// Shows the requests of the selected tenant, by a filter.
    pub(super) fn show_requests_of_tenant(&mut self) {
        let Some(row) = self.tenants.selected(self.feed().tenants()) else { return };
        let filter = tenants::requests_of(row);
        self.screen = Screen::Requests;
        self.set_filter(&filter);
    }

    fn on_log_key(&mut self, key: Key) {
        let log = &self.frozen.as_deref().unwrap_or(&self.live).log;
        let most = self.room.log.most;
        match key.motion() {
            Key::Up => self.log.scroll_by(1, log, most),
            Key::Down => self.log.scroll_by(-1, log, most),
            Key::PageUp => self.log.scroll_by(PAGE, log, most),
            Key::PageDown => self.log.scroll_by(-PAGE, log, most),
            Key::Home => self.log.scroll_by(isize::MAX, log, most),
            Key::End => self.log.scroll_by(isize::MIN, log, most),
            _ => {}
        }
    }
}
