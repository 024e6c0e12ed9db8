//! The event log, newest last. It is bounded, and an event that repeats within a short time increments a
//! counter instead of pushing everything else out: a thousand equal refusals are one line. Dropped lines and
//! events that the host left out are counted.

use std::collections::VecDeque;

use super::Millis;
use super::text::Filter;

/// Most lines kept.
pub const CAPACITY: usize = 1_000;
/// The same text within this time of its last occurrence increments that line's counter.
const SAME_WITHIN_MS: Millis = 5_000;

/// Fields of a line that a filter can name.
pub const FIELDS: [&str; 3] = ["source", "level", "text"];

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "plain words")]
pub enum Level {
    Info,
    Warning,
    Error,
}

impl Level {
    /// Returns the name that filters use.
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
    /// Time of the last occurrence.
    pub at: Millis,
    /// Its severity.
    pub level: Level,
    /// `swap`, `fault`, `canary`, `refusal`, `failure`, `preemption`, `console`.
    pub source: &'static str,
    /// What happened.
    pub text: String,
    /// Number of occurrences.
    pub count: u64,
    /// Sequence number over the whole run, including dropped lines.
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
    /// Appends a line, or counts a repetition.
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

    /// Counts events that the host left out.
    pub fn drop_events(&mut self, events: u64) {
        self.dropped += events;
    }

    /// Returns how many lines were dropped and events left out.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no lines yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the lines that match a filter, oldest first.
    pub fn shown<'a>(&'a self, filter: &'a Filter) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| {
            let values = [entry.source, entry.level.name(), entry.text.as_str()];
            filter.is_empty() || filter.matches(FIELDS.into_iter().zip(values))
        })
    }

    /// Returns the latest line.
    #[must_use]
    pub fn last(&self) -> Option<&Entry> {
        self.entries.back()
    }
}

/// The screen's state.
#[derive(Clone, Debug, Default)]
pub struct LogPane {
    filter: Filter,
    /// Number of the line at the bottom; `None` follows the latest. New lines, and old ones dropped for them,
    /// don't move an operator who has scrolled up.
    bottom: Option<u64>,
    /// The line at the bottom without a filter, restored when the filter is cleared.
    unfiltered_bottom: Option<u64>,
}

impl LogPane {
    /// Returns the filter.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Sets the filter. The scroll position starts where the unfiltered log's is.
    pub fn set_filter(&mut self, filter: Filter) {
        if self.filter.is_empty() {
            self.unfiltered_bottom = self.bottom;
        }
        self.bottom = self.unfiltered_bottom;
        self.filter = filter;
    }

    /// A field that the filter names and lines don't have.
    #[must_use]
    pub fn unknown_field(&self) -> Option<&str> {
        self.filter.unknown_field(|name| FIELDS.iter().any(|field| field.starts_with(name)))
    }

    /// Takes how many lines don't fit on the screen. If all fit, the latest is visible and is followed from
    /// then on.
    pub fn fit(&mut self, most: usize) {
        if most == 0 {
            self.bottom = None;
        }
    }

    /// Returns the number of lines newer than the one at the bottom, at most `most`.
    #[must_use]
    pub fn newer(&self, log: &Log, most: usize) -> usize {
        let Some(bottom) = self.bottom else { return 0 };
        log.shown(&self.filter).rev().take_while(|entry| entry.number > bottom).count().min(most)
    }

    /// Scrolls towards older lines (positive) or newer ones.
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
        log.shown(pane.filter()).count().saturating_sub(HEIGHT)
    }

    fn texts(log: &Log, pane: &LogPane) -> Vec<String> {
        let shown: Vec<&Entry> = log.shown(pane.filter()).collect();
        let end = shown.len() - pane.newer(log, most(log, pane));
        shown[end.saturating_sub(HEIGHT)..end].iter().map(|entry| entry.text.clone()).collect()
    }

    fn scroll(log: &Log, pane: &mut LogPane, lines: isize) {
        pane.scroll_by(lines, log, most(log, pane));
    }

    #[test]
    fn repetitions_are_counted_and_the_log_is_bounded() {
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
    fn new_lines_do_not_move_a_scrolled_log() {
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
    fn dropped_lines_and_filters_do_not_move_a_scrolled_log() {
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
        pane.set_filter(Filter::new("source:fault"));
        assert_eq!(texts(&log, &pane), ["595", "597", "599"]);
        for n in CAPACITY + 300..CAPACITY + 400 {
            push(&mut log, n);
            assert_eq!(texts(&log, &pane), ["595", "597", "599"]);
        }
        pane.set_filter(Filter::default());
        assert_eq!(texts(&log, &pane), read);
        for n in CAPACITY + 400..2 * CAPACITY {
            push(&mut log, n);
        }
        assert_eq!(texts(&log, &pane), ["1000", "1001", "1002"], "the lines being read were dropped");
    }

    #[test]
    fn a_filter_whose_lines_fit_follows_the_latest_and_clearing_it_restores_the_position() {
        let mut log = Log::default();
        let mut pane = LogPane::default();
        for n in 0..100 {
            log.push(n, Level::Info, "swap", n.to_string());
        }
        scroll(&log, &mut pane, 3);
        let read = ["94", "95", "96"];
        assert_eq!(texts(&log, &pane), read);
        pane.set_filter(Filter::new("level:error"));
        for n in 100..120 {
            pane.fit(most(&log, &pane));
            log.push(n, Level::Error, "fault", n.to_string());
            assert_eq!(texts(&log, &pane).last(), Some(&n.to_string()), "the newest error is visible");
        }
        pane.set_filter(Filter::default());
        pane.fit(most(&log, &pane));
        assert_eq!(texts(&log, &pane), read);
    }

    #[test]
    fn a_filter_matches_source_level_and_text() {
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
