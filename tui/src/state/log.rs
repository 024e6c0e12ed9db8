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
    /// Its place among all lines that there ever were.
    number: u64,
}

/// The log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next: u64,
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
        self.entries.push_back(Entry { at, level, source, text, count: 1, number: self.next });
        self.next += 1;
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
    /// Number of the line at the bottom; `None` follows the latest. What comes and what makes room for it
    /// doesn't move someone who reads further up.
    bottom: Option<u64>,
}

impl LogPane {
    /// Lines between the latest and the one at the bottom, at most `most`. Where that is less the place is kept: a
    /// filter goes again.
    #[must_use]
    pub fn newer(&self, log: &Log, most: usize) -> usize {
        let Some(bottom) = self.bottom else { return 0 };
        log.shown(&self.filter).rev().take_while(|entry| entry.number > bottom).count().min(most)
    }

    /// Moves towards older lines (positive) or newer ones.
    pub fn scroll_by(&mut self, lines: isize, log: &Log, most: usize) {
        self.stand(self.newer(log, most).saturating_add_signed(lines).min(most), log);
    }

    fn stand(&mut self, newer: usize, log: &Log) {
        let at = log.shown(&self.filter).rev().nth(newer).filter(|_| newer > 0);
        self.bottom = at.map(|entry| entry.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEIGHT: usize = 3;

    fn most(log: &Log, pane: &LogPane) -> usize {
        log.shown(&pane.filter).count().saturating_sub(HEIGHT)
    }

    fn texts(log: &Log, pane: &LogPane) -> Vec<String> {
        let shown: Vec<&Entry> = log.shown(&pane.filter).collect();
        let end = shown.len() - pane.newer(log, most(log, pane));
        shown[end.saturating_sub(HEIGHT)..end].iter().map(|entry| entry.text.clone()).collect()
    }

    fn scroll(log: &Log, pane: &mut LogPane, lines: isize) {
        pane.scroll_by(lines, log, most(log, pane));
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
        assert_eq!(texts(&log, &pane), ["7", "8", "9"]);
        scroll(&log, &mut pane, 2);
        assert_eq!(texts(&log, &pane), ["5", "6", "7"]);
        log.push(11, Level::Info, "swap", "new".into());
        assert_eq!(texts(&log, &pane), ["5", "6", "7"]);
        scroll(&log, &mut pane, -99);
        assert_eq!(texts(&log, &pane), ["8", "9", "new"]);
        scroll(&log, &mut pane, 99);
        assert_eq!(texts(&log, &pane), ["0", "1", "2"]);
        scroll(&log, &mut pane, -1);
        assert_eq!(texts(&log, &pane), ["1", "2", "3"], "the first key back moves");
    }

    #[test]
    fn a_full_log_and_a_filter_do_not_move_a_reader() {
        let mut log = Log::default();
        let mut pane = LogPane::default();
        let push = |log: &mut Log, n: usize| {
            let source = if n.is_multiple_of(2) { "swap" } else { "fault" };
            log.push(n as Millis, Level::Info, source, n.to_string());
        };
        for n in 0..CAPACITY {
            push(&mut log, n);
        }
        scroll(&log, &mut pane, 400);
        let read = ["597", "598", "599"];
        assert_eq!(texts(&log, &pane), read);
        for n in CAPACITY..CAPACITY + 300 {
            push(&mut log, n);
            assert_eq!(texts(&log, &pane), read);
        }
        pane.filter = Filter::new("source:fault");
        assert_eq!(texts(&log, &pane), ["595", "597", "599"]);
        for n in CAPACITY + 300..CAPACITY + 400 {
            push(&mut log, n);
            assert_eq!(texts(&log, &pane), ["595", "597", "599"]);
        }
        pane.filter = Filter::default();
        assert_eq!(texts(&log, &pane), read);
        for n in CAPACITY + 400..2 * CAPACITY {
            push(&mut log, n);
        }
        assert_eq!(texts(&log, &pane), ["1000", "1001", "1002"], "what was read has made room");
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
