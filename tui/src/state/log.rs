//! What happened, newest last. Bounded, and an event that repeats within a short time counts up instead
//! of pushing everything else out: a thousand refusals are one line that says so.

use std::collections::VecDeque;

use super::Millis;

/// Lines that are kept.
pub const CAPACITY: usize = 1_000;
/// The same text within this time of its last occurrence is the same line.
const SAME_WITHIN_MS: Millis = 5_000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "plain words")]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it last happened.
    pub at: Millis,
    /// How bad it is.
    pub level: Level,
    /// `swap`, `fault`, `refusal`, `preemption`, `console`.
    pub source: &'static str,
    /// What happened.
    pub text: String,
    /// How often.
    pub count: u64,
}

/// The log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Lines between the end and the last line shown.
    scroll: usize,
}

impl Log {
    /// Takes a line.
    pub fn push(&mut self, at: Millis, level: Level, source: &'static str, text: String) {
        let same = self.entries.iter_mut().rev().take(8).find(|entry| {
            entry.source == source && entry.text == text && at.saturating_sub(entry.at) <= SAME_WITHIN_MS
        });
        if let Some(entry) = same {
            entry.at = at;
            entry.count += 1;
            return;
        }
        if self.entries.len() == CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { at, level, source, text, count: 1 });
        // Someone who reads further up must not be moved.
        if self.scroll > 0 {
            self.scroll = (self.scroll + 1).min(self.entries.len() - 1);
        }
    }

    /// How many lines there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing happened yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The lines that fit, oldest first.
    pub fn visible(&self, height: usize) -> impl Iterator<Item = &Entry> {
        let end = self.entries.len() - self.newer(height);
        self.entries.range(end.saturating_sub(height)..end)
    }

    /// Lines below the visible ones.
    #[must_use]
    pub fn newer(&self, height: usize) -> usize {
        self.scroll.min(self.entries.len().saturating_sub(height))
    }

    /// The latest line.
    #[must_use]
    pub fn last(&self) -> Option<&Entry> {
        self.entries.back()
    }

    /// Moves towards older lines (positive) or newer ones.
    pub fn scroll_by(&mut self, lines: isize) {
        let limit = self.entries.len().saturating_sub(1);
        self.scroll = self.scroll.saturating_add_signed(lines).min(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_count_up_and_the_rest_is_bounded() {
        let mut log = Log::default();
        for at in 0..3_000 {
            log.push(at, Level::Warning, "refusal", "queue_full: full".into());
        }
        assert_eq!((log.len(), log.last().unwrap().count), (1, 3_000));
        for at in 0..3_000 {
            log.push(at, Level::Info, "preemption", format!("request {at}"));
        }
        assert_eq!(log.len(), CAPACITY);
        assert_eq!(log.last().unwrap().text, "request 2999");
    }

    #[test]
    fn a_reader_further_up_stays_where_they_are() {
        let mut log = Log::default();
        for at in 0..10 {
            log.push(at, Level::Info, "swap", format!("{at}"));
        }
        let texts = |log: &Log| log.visible(3).map(|entry| entry.text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&log), ["7", "8", "9"]);
        log.scroll_by(2);
        assert_eq!(texts(&log), ["5", "6", "7"]);
        log.push(11, Level::Info, "swap", "new".into());
        assert_eq!(texts(&log), ["5", "6", "7"]);
        log.scroll_by(-99);
        assert_eq!(texts(&log), ["8", "9", "new"]);
        log.scroll_by(99);
        assert_eq!(texts(&log), ["0", "1", "2"]);
    }
}
