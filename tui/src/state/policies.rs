//! The three policy slots: the selection, what can be swapped in, and each slot's history.

use std::collections::BTreeMap;

use infer_api::admin::{HistoryEntry, Policies};

use super::Millis;

/// Time until a failed fetch of a history is repeated.
const AGAIN_MS: Millis = 2_000;

/// The screen's state. The slots themselves come with every snapshot.
#[derive(Clone, Debug, Default)]
pub struct PoliciesPane {
    /// Index of the selected slot.
    pub selected: usize,
    /// Histories by kind, as far as they have arrived.
    pub histories: BTreeMap<String, Result<Vec<HistoryEntry>, String>>,
    /// The host's last response about available and quarantined policies.
    pub known: Option<Policies>,
    /// Scroll offset of the slot's details, in lines.
    pub scroll: usize,
    asked: Option<String>,
    /// When the fetch of `asked` failed.
    failed_at: Option<Millis>,
}

/// The kinds, in the order of the host's slots.
pub const KINDS: [&str; 3] = ["scheduler", "admission", "prefix-cache"];

impl PoliciesPane {
    /// Returns the kind of the selected slot.
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

    /// Returns the names that can be swapped into a kind, as far as known.
    #[must_use]
    pub fn names(&self, kind: &str) -> Vec<String> {
        let all = self.known.iter().flat_map(|known| &known.available);
        all.filter(|policy| policy.kind == kind).map(|policy| policy.name.clone()).collect()
    }

    /// Returns the kind whose history is due to be fetched and marks the fetch as started.
    pub fn wants_history(&mut self, now: Millis) -> Option<String> {
        let kind = self.kind();
        let again = self.failed_at.is_some_and(|at| now.saturating_sub(at) >= AGAIN_MS);
        if self.asked.as_deref() == Some(kind) && !again {
            return None;
        }
        self.failed_at = None;
        self.asked = Some(kind.to_owned());
        Some(kind.to_owned())
    }

    /// Makes the next fetch due, because the history is out of date.
    pub fn forget_history(&mut self) {
        self.asked = None;
    }

    /// Discards what is known: the host restarted.
    pub fn forget(&mut self) {
        self.forget_history();
        self.histories.clear();
        self.known = None;
    }

    /// Takes a response. Responses may arrive in another order than the fetches.
    pub fn on_history(&mut self, kind: String, result: Result<Vec<HistoryEntry>, String>, now: Millis) {
        if result.is_err() && self.asked.as_deref() == Some(kind.as_str()) {
            self.failed_at = Some(now);
        }
        self.histories.insert(kind, result);
    }

    /// Returns the history of the selected slot, if it has arrived.
    #[must_use]
    pub fn selected_history(&self) -> Option<&Result<Vec<HistoryEntry>, String>> {
        self.histories.get(self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_fetched_once_per_selection_and_again_after_a_change() {
        let mut pane = PoliciesPane::default();
        assert_eq!(pane.wants_history(0).as_deref(), Some("scheduler"));
        assert_eq!(pane.wants_history(0), None);
        pane.on_history("scheduler".into(), Ok(Vec::new()), 0);
        assert!(pane.selected_history().is_some());
        pane.move_by(1);
        assert!(pane.selected_history().is_none());
        assert_eq!(pane.wants_history(0).as_deref(), Some("admission"));
        pane.forget_history();
        assert_eq!(pane.wants_history(0).as_deref(), Some("admission"));
        pane.move_by(9);
        assert_eq!(pane.kind(), "prefix-cache");
    }

    #[test]
    fn late_histories_go_to_their_kind_and_failed_ones_are_fetched_again() {
        let mut pane = PoliciesPane::default();
        pane.wants_history(0);
        pane.move_by(1);
        pane.wants_history(0);
        pane.on_history("admission".into(), Ok(Vec::new()), 10);
        pane.on_history("scheduler".into(), Err("late".into()), 20);
        assert_eq!(pane.selected_history(), Some(&Ok(Vec::new())));
        assert_eq!(pane.wants_history(60_000), None, "the failure was another kind's");
        pane.forget_history();
        pane.wants_history(60_000);
        pane.on_history("admission".into(), Err("busy".into()), 60_100);
        assert_eq!(pane.wants_history(60_200), None);
        assert_eq!(pane.wants_history(62_100).as_deref(), Some("admission"));
        assert_eq!(pane.wants_history(62_200), None, "fetches don't overlap");
    }
}
