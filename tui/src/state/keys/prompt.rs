//! The keys of the line at the bottom of the screen: a filter applies while it is typed, a command once it is
//! entered. Up brings back what is filtered by, to be edited, or the last command, which may have been refused. How a
//! command is parsed and completed is not decided here (`command`), nor what it does (`commands`).

use crate::input::Key;
use crate::state::dialog::Prompt;
use crate::state::log::Level;
use crate::state::text::{Filter, LineEdit};
use crate::state::{App, Effect, Millis, Screen, command, paths};

impl App {
    /// Handles a key of the line being typed.
    pub(super) fn on_prompt_key(&mut self, prompt: Prompt, key: Key, now: Millis) -> Vec<Effect> {
        match prompt {
            Prompt::Filter(mut line) => match key {
                Key::Escape => self.set_filter(""),
                Key::Enter => {}
                Key::Up => self.prompt = Some(Prompt::Filter(LineEdit::new(self.filter().text()))),
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
                Key::Enter => {
                    if !line.is_empty() {
                        self.last_command = line.text();
                    }
                    match command::parse(&line.text()) {
                        Ok(command) => {
                            let mut effects = self.on_command(command);
                            effects.extend(self.on_tick(now));
                            return effects;
                        }
                        Err(wrong) => self.notify(Level::Error, wrong),
                    }
                }
                // What was typed since is never replaced: the wheel is this key, too.
                Key::Up if line.is_empty() => {
                    self.prompt = Some(Prompt::Command(LineEdit::new(&self.last_command), Vec::new()));
                }
                key => {
                    line.on_key(key);
                    self.prompt = Some(Prompt::Command(line, Vec::new()));
                }
            },
        }
        Vec::new()
    }

    /// Returns the filter that `set_filter` sets.
    fn filter(&self) -> &Filter {
        match self.screen {
            Screen::Log => self.log.filter(),
            Screen::Tenants => &self.tenants.filter,
            _ => &self.requests.table.filter,
        }
    }

    /// Sets the filter of the log or of the tenants on their screens, else that of the requests.
    pub(super) fn set_filter(&mut self, text: &str) {
        match self.screen {
            Screen::Log => self.log.set_filter(Filter::new(text)),
            Screen::Tenants => self.tenants.filter = Filter::new(text),
            _ => self.requests.table.filter = Filter::new(text),
        }
        self.reorder();
    }
}
