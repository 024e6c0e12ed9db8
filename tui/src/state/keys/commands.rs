//! What each command does; one that has a key does the same as its key. How a line is parsed is not decided
//! here (`command`).

use crate::order::Order;
use crate::state::command::Command;
use crate::state::{App, Effect, Screen};

impl App {
    /// Carries out a command.
    pub(super) fn on_command(&mut self, command: Command) -> Vec<Effect> {
        match command {
            Command::Quit => return vec![Effect::Quit],
            Command::Show(screen) => self.screen = screen,
            Command::Help => self.help = Some(0),
            Command::Filter(text) => self.set_filter(&text),
            Command::Sort { by, descending } => {
                self.requests.table.sort_by = by;
                self.requests.table.descending = descending;
                self.reorder();
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
            Command::EmptyCache => self.ask_empty_cache(),
            Command::Drain => self.ask_drain(),
            Command::Undrain => self.ask_undrain(),
        }
        Vec::new()
    }
}
