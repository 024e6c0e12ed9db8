//! The keys of each dialog. Only `y` confirms. What a dialog asks, and whether it may, is not decided here
//! (`actions`).

use crate::input::Key;
use crate::order::{Mode, Order, Source};
use crate::state::dialog::Dialog;
use crate::state::swap::{Editing, Path, Picker, Plan};
use crate::state::{App, Effect, paths};

impl App {
    /// Handles a key of a dialog, which was taken off the screen and stays closed unless it is put back.
    pub(super) fn on_dialog_key(&mut self, dialog: Dialog, key: Key) -> Vec<Effect> {
        let closes = matches!(key, Key::Escape | Key::Char('q' | 'n'));
        match dialog {
            Dialog::Confirm { effect, question } => {
                // Enter doesn't confirm: pressed twice by mistake it would, before the confirmation is read.
                if key == Key::Char('y') {
                    return if self.may_change() { vec![effect] } else { Vec::new() };
                }
                if !closes {
                    self.dialog = Some(Dialog::Confirm { effect, question });
                }
            }
            Dialog::Details { id } => match key.motion() {
                Key::Char('c' | 'x') | Key::Delete => self.ask_cancel(id),
                Key::Enter => {}
                _ if closes => {}
                Key::Up => self.open_beside(id, -1),
                Key::Down => self.open_beside(id, 1),
                Key::Char('y') => {
                    self.dialog = Some(Dialog::Details { id });
                    return self.copy_request(id);
                }
                _ => self.dialog = Some(Dialog::Details { id }),
            },
            Dialog::Pick(_) | Dialog::Swap(_) if closes => {}
            Dialog::Pick(picker) => self.on_pick_key(picker, key),
            Dialog::Path(path) => return self.on_path_key(path, key),
            Dialog::Swap(plan) => return self.on_swap_key(*plan, key),
            Dialog::Edit(editing) => self.on_edit_key(editing, key),
        }
        Vec::new()
    }

    /// Opens the details of the request before or after one in the table, and selects it there. Of one that has ended the
    /// neighbour is the selected one, which took its place.
    fn open_beside(&mut self, id: u64, by: isize) {
        let rows = self.frozen.as_deref().unwrap_or(&self.live).requests();
        let table = &mut self.requests.table;
        if let Some(row) = table.order().iter().position(|&at| rows[at].id == id) {
            table.select(rows, row.saturating_add_signed(by));
        }
        let id = table.selected(rows).map_or(id, |row| row.id);
        self.dialog = Some(Dialog::Details { id });
    }

    fn on_pick_key(&mut self, mut picker: Picker, key: Key) {
        match key.motion() {
            Key::Up => picker.move_by(-1),
            Key::Down => picker.move_by(1),
            Key::Home => picker.move_by(isize::MIN),
            Key::End => picker.move_by(isize::MAX),
            Key::Enter => return self.picked(picker),
            _ => {}
        }
        self.dialog = Some(Dialog::Pick(picker));
    }

    fn on_path_key(&mut self, mut path: Path, key: Key) -> Vec<Effect> {
        match key {
            Key::Escape => {}
            Key::Enter if path.line.is_empty() => {}
            Key::Tab => {
                let folder = paths::folder(&path.line.text()).to_owned();
                self.dialog = Some(Dialog::Path(path));
                return vec![Effect::ListFolder(folder)];
            }
            Key::Enter => {
                let (source, mode) = (Source::File(path.line.text()), Mode::Now);
                self.ask_swap(Order { kind: path.kind, source, mode, config: None, force: false, of: None });
            }
            key => {
                path.line.on_key(key);
                path.options = None;
                self.dialog = Some(Dialog::Path(path));
            }
        }
        Vec::new()
    }

    fn on_edit_key(&mut self, mut editing: Box<Editing>, key: Key) {
        match key {
            Key::Escape => return,
            Key::Enter => match editing.form.config() {
                Ok(config) => {
                    let mut plan = editing.plan;
                    plan.order.config = Some(config);
                    self.dialog = Some(Dialog::Swap(Box::new(plan)));
                    return;
                }
                Err(faults) => editing.faults = faults,
            },
            key => {
                editing.form.on_key(key);
                editing.faults.clear();
            }
        }
        self.dialog = Some(Dialog::Edit(editing));
    }

    fn on_swap_key(&mut self, mut plan: Plan, key: Key) -> Vec<Effect> {
        let order = &mut plan.order;
        match key.motion() {
            Key::Char('y') => {
                return if self.may_change() { vec![Effect::Swap(plan.order)] } else { Vec::new() };
            }
            Key::Right | Key::Tab | Key::Down => order.mode = order.mode.step(1),
            Key::Left | Key::BackTab | Key::Up => order.mode = order.mode.step(-1),
            Key::Char('f') => order.force = !order.force,
            Key::Char('e') => {
                self.edit(plan);
                return Vec::new();
            }
            _ => {}
        }
        self.dialog = Some(Dialog::Swap(Box::new(plan)));
        Vec::new()
    }
}
