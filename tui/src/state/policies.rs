//! The three policy slots: which one is selected, what the host offers for it, what happened in it.

use std::collections::BTreeMap;

use infer_api::admin::{HistoryEntry, Policies};

use super::Millis;

/// Time until a history that could not be had is asked for again.
const AGAIN_MS: Millis = 2_000;

/// The screen's state. The slots themselves come with every snapshot.
#[derive(Clone, Debug, Default)]
pub struct PoliciesPane {
    /// Which slot is selected.
    pub selected: usize,
    /// Histories by kind, as far as they came.
    pub histories: BTreeMap<String, Result<Vec<HistoryEntry>, String>>,
    /// What can be swapped in and what was taken out, as the host said last.
    pub known: Option<Policies>,
    /// Lines of the slot's details that are scrolled away.
    pub scroll: usize,
    asked: Option<String>,
    /// When that could not be had.
    failed_at: Option<Millis>,
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

    /// What was fetched is out of date.
    pub fn forget_history(&mut self) {
        self.asked = None;
    }

    /// What is known is of a host that is gone.
    pub fn forget(&mut self) {
        self.forget_history();
        self.histories.clear();
        self.known = None;
    }

    /// Takes the host's answer. Answers may come in another order than they were asked for.
    pub fn on_history(&mut self, kind: String, result: Result<Vec<HistoryEntry>, String>, now: Millis) {
        if result.is_err() && self.asked.as_deref() == Some(kind.as_str()) {
            self.failed_at = Some(now);
        }
        self.histories.insert(kind, result);
    }

    /// History of the selected slot, where it is there.
    #[must_use]
    pub fn selected_history(&self) -> Option<&Result<Vec<HistoryEntry>, String>> {
        self.histories.get(self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_fetched_once_per_selection_and_again_after_news() {
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
    fn a_late_history_is_its_own_kinds_and_one_that_failed_is_asked_for_again() {
        let mut pane = PoliciesPane::default();
        pane.wants_history(0);
        pane.move_by(1);
        pane.wants_history(0);
        pane.on_history("admission".into(), Ok(Vec::new()), 10);
        pane.on_history("scheduler".into(), Err("late".into()), 20);
        assert_eq!(pane.selected_history(), Some(&Ok(Vec::new())));
        assert_eq!(pane.wants_history(60_000), None, "another kind's failure is not its own");
        pane.forget_history();
        pane.wants_history(60_000);
        pane.on_history("admission".into(), Err("busy".into()), 60_100);
        assert_eq!(pane.wants_history(60_200), None);
        assert_eq!(pane.wants_history(62_100).as_deref(), Some("admission"));
        assert_eq!(pane.wants_history(62_200), None, "one at a time");
    }
}
