//! What happened, newest last. Bounded, and an event that repeats within a short time counts up instead
//! of pushing everything else out: a thousand refusals are one line that says so. What is not here is
//! counted: lines that made room, and events that the host left out.

use std::collections::VecDeque;

use super::Millis;
use super::text::Filter;

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

impl Level {
    /// Its name, for filters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it last happened.
    pub at: Millis,
    /// How bad it is.
    pub level: Level,
    /// `swap`, `fault`, `canary`, `refusal`, `preemption`, `console`.
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
    dropped: u64,
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
            self.dropped += 1;
        }
        self.entries.push_back(Entry { at, level, source, text, count: 1 });
    }

    /// Counts events that are not here.
    pub fn drop_events(&mut self, events: u64) {
        self.dropped += events;
    }

    /// How many lines and events are not here.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
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

    /// The lines that a filter lets through, oldest first.
    pub fn shown<'a>(&'a self, filter: &'a Filter) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| {
            let fields =
                [("source", entry.source), ("level", entry.level.name()), ("text", entry.text.as_str())];
            filter.is_empty() || filter.matches(fields.into_iter())
        })
    }

    /// The latest line.
    #[must_use]
    pub fn last(&self) -> Option<&Entry> {
        self.entries.back()
    }
}

/// The screen's state.
#[derive(Clone, Debug, Default)]
pub struct LogPane {
    /// What is let through.
    pub filter: Filter,
    /// Lines between the latest and the last one shown; 0 follows the latest.
    scroll: usize,
    /// How many lines passed the filter when a reader went up, to stay where they are.
    seen: usize,
}

impl LogPane {
    /// Lines between the end and the last line shown, of `shown` lines on `height` rows.
    #[must_use]
    pub fn newer(&self, shown: usize, height: usize) -> usize {
        if self.scroll == 0 {
            return 0;
        }
        // Someone who reads further up must not be moved by what comes.
        let came = shown.saturating_sub(self.seen);
        (self.scroll + came).min(shown.saturating_sub(height))
    }

    /// Moves towards older lines (positive) or newer ones; `shown` lines pass the filter.
    pub fn scroll_by(&mut self, lines: isize, shown: usize) {
        let at = self.newer(shown, 1);
        self.seen = shown;
        self.scroll = at.saturating_add_signed(lines).min(shown.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(log: &Log, pane: &LogPane, height: usize) -> Vec<String> {
        let shown: Vec<&Entry> = log.shown(&pane.filter).collect();
        let end = shown.len() - pane.newer(shown.len(), height);
        shown[end.saturating_sub(height)..end].iter().map(|entry| entry.text.clone()).collect()
    }

    #[test]
    fn repeats_count_up_and_the_rest_is_bounded_and_counted() {
        let mut log = Log::default();
        for at in 0..3_000 {
            log.push(at, Level::Warning, "refusal", "queue_full: full".into());
        }
        assert_eq!((log.len(), log.last().unwrap().count, log.dropped()), (1, 3_000, 0));
        for at in 0..3_000 {
            log.push(at, Level::Info, "preemption", format!("request {at}"));
        }
        log.drop_events(7);
        assert_eq!((log.len(), log.dropped()), (CAPACITY, 2_001 + 7));
        assert_eq!(log.last().unwrap().text, "request 2999");
    }

    #[test]
    fn a_reader_further_up_stays_where_they_are() {
        let mut log = Log::default();
        let mut pane = LogPane::default();
        for at in 0..10 {
            log.push(at, Level::Info, "swap", format!("{at}"));
        }
        assert_eq!(texts(&log, &pane, 3), ["7", "8", "9"]);
        pane.scroll_by(2, log.len());
        assert_eq!(texts(&log, &pane, 3), ["5", "6", "7"]);
        log.push(11, Level::Info, "swap", "new".into());
        assert_eq!(texts(&log, &pane, 3), ["5", "6", "7"]);
        pane.scroll_by(-99, log.len());
        assert_eq!(texts(&log, &pane, 3), ["8", "9", "new"]);
        pane.scroll_by(99, log.len());
        assert_eq!(texts(&log, &pane, 3), ["0", "1", "2"]);
    }

    #[test]
    fn a_filter_looks_at_source_level_and_text() {
        let mut log = Log::default();
        log.push(0, Level::Error, "fault", "evil trapped".into());
        log.push(0, Level::Info, "swap", "lru replaced evil".into());
        let found = |text: &str| log.shown(&Filter::new(text)).count();
        assert_eq!(
            [found("evil"), found("level:error"), found("source:swap lru"), found("none")],
            [2, 1, 1, 0]
        );
    }
}
