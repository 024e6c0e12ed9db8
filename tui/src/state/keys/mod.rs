//! What each key means where. Keys go to the line being typed first, then to a dialog, the help, the global
//! bindings, and last to the screen.
//!
//! Here is that order, with the help, pasted text and the global bindings. `prompt`, `dialogs` and `screens` have the keys
//! of the other places, `commands` what can be typed after `:`, `copy` what `y` takes, `mouse` the clicks.
//! Nothing here changes the host: a key leads to a confirmation (`actions`), and that one's `y` to an effect.

mod commands;
mod copy;
mod dialogs;
mod mouse;
mod prompt;
mod screens;

use crate::input::Key;

use super::dialog::{Dialog, Prompt};
use super::log::Level;
use super::text::LineEdit;
use super::{App, Effect, Millis, Screen};
pub use mouse::Hit;

/// Rows that a key scrolls the help by.
const HELP_STEP: usize = 3;

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
                if matches!(self.screen, Screen::Requests | Screen::Log | Screen::Tenants) {
                    self.prompt = Some(Prompt::Filter(LineEdit::default()));
                } else {
                    let text = "this screen has no filter; the requests, the log and the tenants have one";
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
            Key::Char(digit @ '1'..='7') => self.screen = Screen::ALL[digit as usize - '1' as usize],
            Key::Tab => self.screen = self.screen.step(1),
            Key::BackTab => self.screen = self.screen.step(Screen::ALL.len() - 1),
            Key::Escape if self.notice.is_some() => self.notice = None,
            Key::Escape => self.set_filter(""),
            _ => return None,
        }
        Some(Vec::new())
    }
}
