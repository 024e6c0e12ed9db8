//! The three policy slots: which one is selected, what the host offers for it, what happened in it.

use infer_api::admin::{HistoryEntry, Policies};

/// The screen's state. The slots themselves come with every snapshot.
#[derive(Clone, Debug, Default)]
pub struct PoliciesPane {
    /// Which slot is selected.
    pub selected: usize,
    /// History of a kind, and of which.
    pub history: Option<(String, Result<Vec<HistoryEntry>, String>)>,
    /// What can be swapped in and what was taken out, as the host said last.
    pub known: Option<Policies>,
    /// Lines of the slot's details that are scrolled away.
    pub scroll: usize,
    asked: Option<String>,
}

/// The kinds, in the order in which the host sends the slots.
pub const KINDS: [&str; 3] = ["scheduler", "admission", "prefix-cache"];

impl PoliciesPane {
    /// Kind of the selected slot.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        KINDS[self.selected.min(KINDS.len() - 1)]
    }

    /// Moves the selection.
    pub fn move_by(&mut self, by: isize) {
        self.select(self.selected.saturating_add_signed(by));
    }

    /// Selects a slot.
    pub fn select(&mut self, slot: usize) {
        self.selected = slot.min(KINDS.len() - 1);
        self.scroll = 0;
    }

    /// Names that can be swapped into a kind, as far as known.
    #[must_use]
    pub fn names(&self, kind: &str) -> Vec<String> {
        let all = self.known.iter().flat_map(|known| &known.available);
        all.filter(|policy| policy.kind == kind).map(|policy| policy.name.clone()).collect()
    }

    /// The kind whose history has to be fetched; then the fetch counts as begun.
    pub fn wants_history(&mut self) -> Option<String> {
        let kind = self.kind();
        if self.asked.as_deref() == Some(kind) {
            return None;
        }
        self.asked = Some(kind.to_owned());
        Some(kind.to_owned())
    }

    /// What was fetched is out of date.
    pub fn forget_history(&mut self) {
        self.asked = None;
    }

    /// Takes the host's answer.
    pub fn on_history(&mut self, kind: String, result: Result<Vec<HistoryEntry>, String>) {
        self.history = Some((kind, result));
    }

    /// History of the selected slot, where it is there.
    #[must_use]
    pub fn selected_history(&self) -> Option<&Result<Vec<HistoryEntry>, String>> {
        self.history.as_ref().filter(|(kind, _)| kind == self.kind()).map(|(_, result)| result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_fetched_once_per_selection_and_again_after_news() {
        let mut pane = PoliciesPane::default();
        assert_eq!(pane.wants_history().as_deref(), Some("scheduler"));
        assert_eq!(pane.wants_history(), None);
        pane.on_history("scheduler".into(), Ok(Vec::new()));
        assert!(pane.selected_history().is_some());
        pane.move_by(1);
        assert!(pane.selected_history().is_none());
        assert_eq!(pane.wants_history().as_deref(), Some("admission"));
        pane.forget_history();
        assert_eq!(pane.wants_history().as_deref(), Some("admission"));
        pane.move_by(9);
        assert_eq!(pane.kind(), "prefix-cache");
    }
}
