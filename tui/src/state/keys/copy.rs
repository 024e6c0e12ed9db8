//! What `y` copies on each screen. The clipboard is not reached from here: the text is an effect.

use infer_api::admin::RequestRow;

use crate::state::blocks::Under;
use crate::state::log::Level;
use crate::state::{App, Effect, Screen};

impl App {
    /// Copies the main item of the screen: an address, a hash, an id, a digest, a line.
    pub(super) fn copy(&mut self) -> Vec<Effect> {
        let feed = self.feed();
        let text = match self.screen {
            Screen::Overview => Some(self.address.clone()),
            Screen::Blocks => match self.blocks.under() {
                Some(Ok(Under::Block(block))) => block.hash.clone(),
                _ => None,
            },
            Screen::Requests => self.requests.table.selected(feed.requests()).map(name),
            Screen::Policies => {
                let slot = self.slot(self.policies.kind());
                slot.map(|slot| if slot.sha256.is_empty() { &slot.name } else { &slot.sha256 }.clone())
            }
            Screen::Cache => {
                let prefixes = self.cache.report.as_ref().map(|report| &report.prefixes);
                prefixes.and_then(|all| all.get(self.cache.selected)).map(|prefix| prefix.hash.clone())
            }
            Screen::Tenants => self.tenants.selected(feed.tenants()).map(|row| row.name.clone()),
            Screen::Log => {
                let newer = self.log.newer(&feed.log, self.room.log.most);
                feed.log.shown(self.log.filter()).rev().nth(newer).map(|entry| entry.text.clone())
            }
        };
        self.copy_text(text)
    }

    /// Copies what a request is called, whether it is in the table or not.
    pub(super) fn copy_request(&mut self, id: u64) -> Vec<Effect> {
        let row = self.feed().requests().iter().find(|row| row.id == id);
        let text = row.map_or_else(|| id.to_string(), name);
        self.copy_text(Some(text))
    }

    fn copy_text(&mut self, text: Option<String>) -> Vec<Effect> {
        let Some(text) = text else {
            self.notify(Level::Warning, "there is nothing to copy here".to_owned());
            return Vec::new();
        };
        self.notify(Level::Info, format!("copied {text}"));
        vec![Effect::Copy(text)]
    }
}

/// The name that the client knows a request by, or else its number.
fn name(row: &RequestRow) -> String {
    match row.request_id.as_str() {
        "" => row.id.to_string(),
        name => name.to_owned(),
    }
}
