//! What each key means where. A dialog takes keys first, then the help, then the screen, then the
//! keys that work everywhere.

use crate::input::Key;

use super::actions::Dialog;
use super::{App, Effect, Millis, Screen};

/// Rows that page keys move by.
const PAGE: isize = 10;

impl App {
    /// Takes a key.
    pub fn on_key(&mut self, key: Key, now: Millis) -> Vec<Effect> {
        if key == Key::Interrupt {
            return vec![Effect::Quit];
        }
        if self.dialog.is_some() {
            return self.on_dialog_key(key, now);
        }
        if self.help {
            self.help = false;
            if key == Key::Char('q') {
                return vec![Effect::Quit];
            }
            return Vec::new();
        }
        self.on_global_key(key, now).unwrap_or_else(|| self.on_screen_key(key, now))
    }

    /// `None` where the key has no meaning everywhere.
    fn on_global_key(&mut self, key: Key, now: Millis) -> Option<Vec<Effect>> {
        match key {
            Key::Char('q') => return Some(vec![Effect::Quit]),
            Key::Char('?') => self.help = true,
            Key::Char(' ') => self.toggle_pause(),
            Key::Char(digit @ '1'..='5') => self.screen = Screen::ALL[digit as usize - '1' as usize],
            Key::Tab => self.screen = self.screen.step(1),
            Key::BackTab => self.screen = self.screen.step(Screen::ALL.len() - 1),
            Key::Escape => self.notice = None,
            _ => return None,
        }
        Some(self.on_tick(now))
    }

    fn on_screen_key(&mut self, key: Key, now: Millis) -> Vec<Effect> {
        match self.screen {
            Screen::Overview => self.on_overview_key(key),
            Screen::Blocks => self.on_blocks_key(key),
            Screen::Requests => self.on_requests_key(key, now),
            Screen::Policies => return self.on_policies_key(key, now),
            Screen::Log => self.on_log_key(key),
        }
        self.on_tick(now)
    }

    /// Nothing to select there, so the arrows lead to the neighbours.
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
            _ => {}
        }
    }

    fn on_requests_key(&mut self, key: Key, now: Millis) {
        let feed = self.frozen.as_deref().unwrap_or(&self.live);
        let rows = feed.state.as_ref().map_or(&[][..], |state| &state.requests);
        match key.motion() {
            Key::Up => self.requests.move_by(rows, -1),
            Key::Down => self.requests.move_by(rows, 1),
            Key::PageUp => self.requests.move_by(rows, -PAGE),
            Key::PageDown => self.requests.move_by(rows, PAGE),
            Key::Home => self.requests.move_by(rows, isize::MIN),
            Key::End => self.requests.move_by(rows, isize::MAX),
            Key::Char('s') | Key::Right => self.requests.next_sort(rows, 1),
            Key::Left => self.requests.next_sort(rows, -1),
            Key::Char('S') => self.requests.reverse(rows),
            Key::Enter => {
                if let Some(row) = self.requests.selected(rows) {
                    self.dialog = Some(Dialog::Details { id: row.id });
                }
            }
            Key::Char('c' | 'x') | Key::Delete => {
                if let Some(id) = self.requests.selected(rows).map(|row| row.id) {
                    self.ask_cancel(id, now);
                }
            }
            _ => {}
        }
    }

    fn on_policies_key(&mut self, key: Key, now: Millis) -> Vec<Effect> {
        match key.motion() {
            Key::Up | Key::Left => self.policies.move_by(-1),
            Key::Down | Key::Right => self.policies.move_by(1),
            Key::Char('s') | Key::Enter => return self.open_picker(now),
            Key::Char('r') => self.ask_rollback(now),
            _ => {}
        }
        self.on_tick(now)
    }

    fn on_log_key(&mut self, key: Key) {
        let log = match &mut self.frozen {
            Some(frozen) => &mut frozen.log,
            None => &mut self.live.log,
        };
        match key.motion() {
            Key::Up => log.scroll_by(1),
            Key::Down => log.scroll_by(-1),
            Key::PageUp => log.scroll_by(PAGE),
            Key::PageDown => log.scroll_by(-PAGE),
            Key::Home => log.scroll_by(isize::MAX),
            Key::End => log.scroll_by(isize::MIN),
            _ => {}
        }
    }

    fn on_dialog_key(&mut self, key: Key, now: Millis) -> Vec<Effect> {
        let closes = matches!(key, Key::Escape | Key::Char('q' | 'n'));
        match self.dialog.take() {
            Some(Dialog::Confirm { effect, question }) => {
                if matches!(key, Key::Char('y') | Key::Enter) {
                    return vec![effect];
                }
                if !closes {
                    self.dialog = Some(Dialog::Confirm { effect, question });
                }
            }
            Some(Dialog::Pick { kind, options, mut selected }) if !closes => {
                let last = match &options {
                    Some(Ok(options)) => options.len().saturating_sub(1),
                    _ => 0,
                };
                match key.motion() {
                    Key::Up => selected = selected.saturating_sub(1),
                    Key::Down => selected = (selected + 1).min(last),
                    Key::Home => selected = 0,
                    Key::End => selected = last,
                    _ => {}
                }
                self.dialog = Some(Dialog::Pick { kind, options, selected });
                if key == Key::Enter {
                    self.ask_swap();
                }
            }
            Some(Dialog::Details { id }) if !closes && key != Key::Enter => match key {
                Key::Char('c' | 'x') | Key::Delete => self.ask_cancel(id, now),
                _ => self.dialog = Some(Dialog::Details { id }),
            },
            _ => {}
        }
        Vec::new()
    }
}
