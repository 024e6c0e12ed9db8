//! What each key means where. Keys go to the line being typed first, then to a dialog, the help, the global
//! bindings, and last to the screen.

use crate::input::Key;
use crate::order::{Mode, Order, Source};

use super::blocks::Under;
use super::command::{self, Command};
use super::dialog::{Dialog, Prompt};
use super::log::Level;
use super::paths;
use super::swap::{Path, Plan};
use super::text::{Filter, LineEdit};
use super::{App, Effect, Millis, Screen};

/// Rows that a page key moves by.
const PAGE: isize = 10;
/// Rows that a key scrolls the help by.
const HELP_STEP: usize = 3;

/// What the mouse clicked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// A tab.
    Tab(Screen),
    /// A row of the table of requests.
    Request(usize),
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
    /// Takes a key.
    pub fn on_key(&mut self, key: Key, now: Millis) -> Vec<Effect> {
        if key == Key::Interrupt {
            return vec![Effect::Quit];
        }
        if let Some(prompt) = self.prompt.take() {
            return self.on_prompt_key(prompt, key, now);
        }
        if let Some(dialog) = self.dialog.take() {
            let mut effects = self.on_dialog_key(dialog, key);
            effects.extend(self.on_tick(now));
            return effects;
        }
        if let Some(scroll) = self.help.take() {
            let page = self.room.help.page.max(1);
            self.help = match key.motion() {
                Key::Down => Some(scroll + HELP_STEP),
                Key::Up => Some(scroll.saturating_sub(HELP_STEP)),
                Key::PageDown => Some(scroll + page),
                Key::PageUp => Some(scroll.saturating_sub(page)),
                Key::Home => Some(0),
                Key::End => Some(self.room.help.most),
                _ => None,
            };
            return Vec::new();
        }
        if let Some(mut effects) = self.on_global_key(key) {
            effects.extend(self.on_tick(now));
            return effects;
        }
        let mut effects = self.on_screen_key(key);
        effects.extend(self.on_tick(now));
        effects
    }

    /// Takes pasted text: its first line goes into the line being typed, if there is one. It never counts as
    /// keys, because its letters would trigger their bindings.
    pub fn on_paste(&mut self, text: &str) {
        let text = text.trim().lines().next().unwrap_or_default();
        match (&mut self.prompt, &mut self.dialog) {
            (Some(Prompt::Command(line, options)), _) => {
                line.insert(text);
                options.clear();
            }
            (Some(Prompt::Filter(line)), _) => {
                line.insert(text);
                let filter = line.text();
                self.set_filter(&filter);
            }
            (None, Some(Dialog::Path(path))) => {
                path.line.insert(text);
                path.options = None;
            }
            (None, Some(Dialog::Edit(editing))) => {
                editing.form.insert(text);
                editing.faults.clear();
            }
            _ => self.notify(Level::Info, "there is no input line to paste into".to_owned()),
        }
    }

    /// Handles the global bindings; `None` if the key has none.
    fn on_global_key(&mut self, key: Key) -> Option<Vec<Effect>> {
        match key {
            Key::Char('q') => return Some(vec![Effect::Quit]),
            Key::Char('?') => self.help = Some(0),
            Key::Char(':') => return Some(self.open_command()),
            Key::Char('/') => {
                if matches!(self.screen, Screen::Requests | Screen::Log) {
                    self.prompt = Some(Prompt::Filter(LineEdit::default()));
                } else {
                    let text = "this screen has no filter; the requests and the log have one";
                    self.notify(Level::Warning, text.to_owned());
                }
            }
            Key::Char(' ') => self.toggle_pause(),
            Key::Char('+' | '=') => self.settings.zoom(1),
            Key::Char('-') => self.settings.zoom(-1),
            Key::Char('t') => {
                self.settings.next_theme();
                let text = format!("theme: {}", self.settings.theme.name());
                self.notify(Level::Info, text);
            }
            Key::Char('m') => return Some(self.toggle_mouse()),
            Key::Char('y') => return Some(self.copy()),
            Key::Char(digit @ '1'..='6') => self.screen = Screen::ALL[digit as usize - '1' as usize],
            Key::Tab => self.screen = self.screen.step(1),
            Key::BackTab => self.screen = self.screen.step(Screen::ALL.len() - 1),
            Key::Escape if self.notice.is_some() => self.notice = None,
            Key::Escape => self.set_filter(""),
            _ => return None,
        }
        Some(Vec::new())
    }

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

    /// Takes a click.
    pub fn on_hit(&mut self, hit: Hit, now: Millis) -> Vec<Effect> {
        if self.dialog.is_some() || self.prompt.is_some() || self.help.take().is_some() {
            return Vec::new();
        }
        match hit {
            Hit::Tab(screen) => self.screen = screen,
            Hit::Request(row) => {
                let feed = self.frozen.as_deref().unwrap_or(&self.live);
                let rows = feed.state.as_ref().map_or(&[][..], |state| &state.requests);
                let again = self.requests.selected_row() == row;
                self.requests.select(rows, row);
                if again && let Some(row) = self.requests.selected(rows) {
                    self.dialog = Some(Dialog::Details { id: row.id });
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

    fn on_screen_key(&mut self, key: Key) -> Vec<Effect> {
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
                    self.ask_cancel(id);
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

    /// Copies the main item of the screen: an address, a hash, an id, a digest, a line.
    fn copy(&mut self) -> Vec<Effect> {
        let feed = self.feed();
        let text = match self.screen {
            Screen::Overview => Some(self.address.clone()),
            Screen::Blocks => match self.blocks.under() {
                Some(Ok(Under::Block(block))) => block.hash.clone(),
                _ => None,
            },
            Screen::Requests => {
                let rows = feed.state.as_ref().map_or(&[][..], |state| &state.requests);
                self.requests.selected(rows).map(|row| match row.request_id.as_str() {
                    "" => row.id.to_string(),
                    name => name.to_owned(),
                })
            }
            Screen::Policies => {
                let slot = self.slot(self.policies.kind());
                slot.map(|slot| if slot.sha256.is_empty() { &slot.name } else { &slot.sha256 }.clone())
            }
            Screen::Cache => {
                let prefixes = self.cache.report.as_ref().map(|report| &report.prefixes);
                prefixes.and_then(|all| all.get(self.cache.selected)).map(|prefix| prefix.hash.clone())
            }
            Screen::Log => {
                let newer = self.log.newer(&feed.log, self.room.log.most);
                feed.log.shown(self.log.filter()).rev().nth(newer).map(|entry| entry.text.clone())
            }
        };
        let Some(text) = text else {
            self.notify(Level::Warning, "there is nothing to copy here".to_owned());
            return Vec::new();
        };
        self.notify(Level::Info, format!("copied {text}"));
        vec![Effect::Copy(text)]
    }

    pub(super) fn set_filter(&mut self, text: &str) {
        match self.screen {
            Screen::Log => self.log.set_filter(Filter::new(text)),
            _ => {
                self.requests.filter = Filter::new(text);
                self.reorder_requests();
            }
        }
    }

    fn on_prompt_key(&mut self, prompt: Prompt, key: Key, now: Millis) -> Vec<Effect> {
        match prompt {
            Prompt::Filter(mut line) => match key {
                Key::Escape => self.set_filter(""),
                Key::Enter => {}
                key => {
                    let before = line.text();
                    line.on_key(key);
                    // Until something is typed the previous filter applies.
                    if line.text() != before {
                        self.set_filter(&line.text());
                    }
                    self.prompt = Some(Prompt::Filter(line));
                }
            },
            Prompt::Command(mut line, _) => match key {
                Key::Escape => {}
                Key::Backspace if line.is_empty() => {}
                Key::Tab if command::path(&line.text()).is_some() => {
                    let folder = command::path(&line.text()).map(|path| paths::folder(path).to_owned());
                    self.prompt = Some(Prompt::Command(line, Vec::new()));
                    return folder.map(Effect::ListFolder).into_iter().collect();
                }
                Key::Tab => {
                    let (text, options) = command::complete(&line.text(), |kind| self.policies.names(kind));
                    self.prompt = Some(Prompt::Command(LineEdit::new(&text), options));
                }
                Key::Enter => match command::parse(&line.text()) {
                    Ok(command) => {
                        let mut effects = self.on_command(command);
                        effects.extend(self.on_tick(now));
                        return effects;
                    }
                    Err(wrong) => self.notify(Level::Error, wrong),
                },
                key => {
                    line.on_key(key);
                    self.prompt = Some(Prompt::Command(line, Vec::new()));
                }
            },
        }
        Vec::new()
    }

    fn on_command(&mut self, command: Command) -> Vec<Effect> {
        match command {
            Command::Quit => return vec![Effect::Quit],
            Command::Show(screen) => self.screen = screen,
            Command::Help => self.help = Some(0),
            Command::Filter(text) => self.set_filter(&text),
            Command::Sort { by, descending } => {
                self.requests.sort_by = by;
                self.requests.descending = descending;
                self.reorder_requests();
                self.screen = Screen::Requests;
            }
            Command::Colour(by) => {
                self.blocks.by = by;
                self.blocks.forget();
                self.screen = Screen::Blocks;
            }
            Command::Theme(theme) => self.settings.theme = theme,
            Command::Ascii => self.settings.ascii = !self.settings.ascii,
            Command::Mouse => return self.toggle_mouse(),
            Command::Pause => self.toggle_pause(),
            Command::Swap { kind, source, mode, config, force } => {
                self.ask_swap(Order { kind: kind.to_owned(), source, mode, config, force, of: None });
            }
            Command::Promote { kind } => self.ask_promote(kind),
            Command::Rollback { kind } => self.ask_rollback(kind),
            Command::StopShadow { kind } => self.ask_stop_shadow(kind),
            Command::Configure { kind } => return self.configure(kind),
            Command::Cancel { id } => self.ask_cancel(id),
            Command::ClearQueue => self.ask_clear_queue(),
            Command::Drain => self.ask_drain(),
        }
        Vec::new()
    }

    fn on_dialog_key(&mut self, dialog: Dialog, key: Key) -> Vec<Effect> {
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
            Dialog::Details { id } => match key {
                Key::Char('c' | 'x') | Key::Delete => self.ask_cancel(id),
                Key::Enter => {}
                _ if closes => {}
                _ => self.dialog = Some(Dialog::Details { id }),
            },
            Dialog::Pick(_) if closes => {}
            Dialog::Pick(mut picker) => {
                match key.motion() {
                    Key::Up => picker.move_by(-1),
                    Key::Down => picker.move_by(1),
                    Key::Home => picker.move_by(isize::MIN),
                    Key::End => picker.move_by(isize::MAX),
                    Key::Enter => {
                        self.picked(picker);
                        return Vec::new();
                    }
                    _ => {}
                }
                self.dialog = Some(Dialog::Pick(picker));
            }
            Dialog::Path(mut path) => match key {
                Key::Escape => {}
                Key::Enter if path.line.is_empty() => {}
                Key::Tab => {
                    let folder = paths::folder(&path.line.text()).to_owned();
                    self.dialog = Some(Dialog::Path(path));
                    return vec![Effect::ListFolder(folder)];
                }
                Key::Enter => {
                    let source = Source::File(path.line.text());
                    let mode = Mode::Now;
                    self.ask_swap(Order {
                        kind: path.kind,
                        source,
                        mode,
                        config: None,
                        force: false,
                        of: None,
                    });
                }
                key => {
                    path.line.on_key(key);
                    path.options = None;
                    self.dialog = Some(Dialog::Path(path));
                }
            },
            Dialog::Swap(plan) if !closes => return self.on_swap_key(*plan, key),
            Dialog::Swap(_) => {}
            Dialog::Edit(mut editing) => match key {
                Key::Escape => {}
                Key::Enter => match editing.form.config() {
                    Ok(config) => {
                        let mut plan = editing.plan;
                        plan.order.config = Some(config);
                        self.dialog = Some(Dialog::Swap(Box::new(plan)));
                    }
                    Err(faults) => {
                        editing.faults = faults;
                        self.dialog = Some(Dialog::Edit(editing));
                    }
                },
                key => {
                    editing.form.on_key(key);
                    editing.faults.clear();
                    self.dialog = Some(Dialog::Edit(editing));
                }
            },
        }
        Vec::new()
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
