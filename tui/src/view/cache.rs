//! The prefix cache: hit rates, the most used prefixes, sessions.

use infer_api::admin::{CacheReport, PrefixInfo, State};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit, padded, percent, rate};
use super::parts::{as_of, below, first_shown, framed, gauge, inset, pair, put, wrapped};
use super::tenants;
use crate::state::history::Sample;

/// Seconds over which recent rates are measured.
const RECENT_S: usize = 60;
/// Width from which all totals fit on one line.
const WIDE: u16 = 104;
/// Width from which the prefixes have all columns.
const ROOMY: usize = 60;
/// Width from which there is room to say which requests are counted.
const WORDY: u16 = 80;

/// Returns the area of the prefixes within the body of the screen.
pub(super) fn prefixes_area(body: Rect) -> Rect {
    areas(body)[1]
}

fn areas(body: Rect) -> [Rect; 3] {
    if body.height < 14 {
        let [top, prefixes] = Layout::vertical([Constraint::Length(5), Constraint::Min(0)]).areas(body);
        return [top, prefixes, Rect::default()];
    }
    let [top, rest] =
        Layout::vertical([Constraint::Length(if body.width >= WIDE { 8 } else { 9 }), Constraint::Min(0)])
            .areas(body);
    if body.width >= 110 {
        let [prefixes, sessions] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(rest);
        return [top, prefixes, sessions];
    }
    let [prefixes, sessions] = Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).areas(rest);
    [top, prefixes, sessions]
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::chrome::waiting(look, area, buffer);
        return;
    };
    let [top, prefixes, sessions] = areas(area);
    draw_hits(look, state, top, buffer);
    match (&look.app.cache.report, &look.app.cache.error) {
        (Some(report), _) => {
            draw_prefixes(look, (state, report), prefixes, buffer);
            if sessions.height > 0 {
                draw_sessions(look, report, sessions, buffer);
            }
        }
        (None, Some(error)) => wrapped(error, look.theme.bad, inset(prefixes, 2, 1), buffer),
        (None, None) => put(Line::styled(" loading ...", look.theme.label), prefixes, 0, buffer),
    }
}

/// The cache events, with their labels and whether each is a hit.
const KINDS: [(&str, &str, bool); 5] = [
    ("FULL_HIT_NO_PREFILL_NEEDED", "whole prompt", true),
    ("CONVERSATIONAL_HIT", "conversation", true),
    ("CROSS_REQUEST_HIT", "other request", true),
    ("CONVERSATIONAL_MISS_UNEXPECTED_PROMPT", "prompt diverged", false),
    ("MISS_FULL", "nothing found", false),
];

/// Requests by what their prompts found. Prompts that fill no block can't share a prefix; where the host tells them
/// apart, they are left out.
struct Found {
    /// In `KINDS` order.
    kinds: [u64; KINDS.len()],
    all: u64,
    hits: u64,
    /// Whether short prompts are left out.
    eligible: bool,
}

impl Found {
    fn of(state: &State) -> Self {
        let (events, lengths) = (&state.cache_events, &state.cache_lengths);
        let eligible = !lengths.is_empty();
        let (kinds, all) = if eligible {
            let requests = |name: &str| lengths.get(name).map_or(0, |of| of.eligible_requests);
            (KINDS.map(|kind| requests(kind.0)), lengths.values().map(|of| of.eligible_requests).sum())
        } else {
            (KINDS.map(|kind| events.get(kind.0).copied().unwrap_or(0)), events.values().sum())
        };
        // Prompts that diverged from their conversation may have found what other requests left.
        let hits = KINDS.into_iter().zip(kinds).map(|((name, _, hit), requests)| match hit {
            true => requests,
            false => lengths.get(name).map_or(0, |of| of.hit_requests),
        });
        Self { kinds, all, hits: hits.sum(), eligible }
    }

    /// Returns the hit rate in words.
    fn text(&self) -> String {
        match self.all {
            0 if self.eligible => "no prompt has filled a block yet".to_owned(),
            0 => "no requests yet".to_owned(),
            all => format!("requests with a hit {} of {}", percent(self.hits, all), count(all)),
        }
    }
}

fn draw_hits(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let found = Found::of(state);
    let wide = area.width >= WIDE;
    let has_kinds = usize::from(area.height) >= KINDS.len() + if wide { 3 } else { 4 };
    let hits = found.text();
    let mut title = Line::from(Span::styled(" Prefix cache ", look.theme.title));
    if has_kinds && found.eligible && area.width >= WORDY {
        let whose = if found.all > 0 { " whose prompt fills a block" } else { "" };
        title.push_span(Span::styled(format!("{hits}{whose} "), look.theme.label));
    }
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let c = &state.counters;
    let history = &look.app.feed().history;
    let recent = |counter: fn(&Sample) -> u64| history.growth(RECENT_S, counter);
    let mut tokens = vec![Span::styled("prompt tokens cached ", look.theme.label)];
    tokens.push(Span::styled(percent(c.prefix_hits, c.prefix_queries), look.theme.good));
    if area.width >= 60 {
        tokens.push(Span::styled(
            format!(" ({} of {})", count(c.prefix_hits), count(c.prefix_queries)),
            look.theme.label,
        ));
    }
    tokens.push(Span::raw("  "));
    if let (Some(hits), Some(queries)) = (recent(|s| s.prefix_hits), recent(|s| s.prefix_queries))
        && queries.by > 0
    {
        let minute = if area.width >= 60 { "last minute" } else { "1 min" };
        tokens.extend(pair(look.theme, minute, percent(hits.by, queries.by)));
    }
    let mut evicted = pair(look.theme, "evicted blocks", count(c.evicted_blocks));
    if let Some(pace) = recent(|s| s.evicted) {
        evicted.extend(pair(look.theme, "now", format!("{}/s", rate(pace.rate()))));
    }
    if wide {
        tokens.extend(evicted);
        put(Line::from(tokens), inside, 0, buffer);
    } else {
        put(Line::from(tokens), inside, 0, buffer);
        put(Line::from(evicted), inside, 1, buffer);
    }
    let kinds = below(inside, if wide { 1 } else { 2 });
    if !has_kinds {
        put(Line::styled(hits, look.theme.label), kinds, 0, buffer);
        return;
    }
    let room = usize::from(inside.width).saturating_sub(34).min(60);
    for (index, ((_, words, hit), requests)) in (0..).zip(KINDS.into_iter().zip(found.kinds)) {
        let style = if hit { look.theme.good } else { look.theme.label };
        let mut line = Line::from(vec![
            Span::styled(format!("{words:<16}"), style),
            Span::raw(format!("{:>9} {:>4}  ", count(requests), percent(requests, found.all))),
        ]);
        let share = requests as f64 / found.all.max(1) as f64;
        line.extend(gauge(room, share, style, look.theme));
        put(line, kinds, index, buffer);
    }
}

fn draw_prefixes(look: Look<'_>, (state, report): (&State, &CacheReport), area: Rect, buffer: &mut Buffer) {
    let mut title = Line::from(Span::styled(" Top prefixes ", look.theme.title));
    let pane = &look.app.cache;
    title.extend(as_of(look, pane.at, pane.error.as_deref()));
    let facts = format!(
        "{} in {} blocks, {} of {} whole prompts cached ",
        count(report.prefixes_total.into()),
        count(report.blocks.into()),
        report.kept_prompts,
        report.kept_prompts_limit
    );
    if area.width >= 70 {
        title.push_span(Span::styled(facts, look.theme.label));
    }
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    if report.prefixes.is_empty() {
        let text = if report.enabled { "nothing is cached yet" } else { "prefix caching is off" };
        put(Line::styled(text, look.theme.label), inside, 0, buffer);
        return;
    }
    let width = usize::from(inside.width);
    let tokens = |text: &str| if width < ROOMY { String::new() } else { format!(" {text:>13}") };
    let head = format!(
        "{:>6} {:>6} {:>6}{} {:>7}  HASH / TEXT",
        "HITS",
        "IN USE",
        "BLOCKS",
        tokens("SHARED TOKENS"),
        "AGE"
    );
    put(Line::styled(fit(&head, width), look.theme.label), inside, 0, buffer);
    let rows = below(inside, 1);
    let selected = look.app.cache.selected;
    let first = first_shown(selected, report.prefixes.len(), usize::from(rows.height));
    for (index, prefix) in (0..rows.height).zip(report.prefixes.iter().skip(first)) {
        let name = match &prefix.text {
            Some(text) => text.replace('\n', " "),
            None => format!("{} tenant {}", prefix.hash, tenants::name(state, prefix.tenant)),
        };
        let text = format!(
            "{:>6} {:>6} {:>6}{} {:>7}  {name}",
            count(prefix.uses.into()),
            count(prefix.references.into()),
            count(prefix.blocks.into()),
            tokens(&shared_tokens(prefix)),
            age(prefix.age_ms)
        );
        let mut line = Line::raw(padded(&text, width));
        if first + usize::from(index) == selected {
            line = line.style(look.theme.selected);
        }
        put(line, rows, index, buffer);
    }
}

/// Returns how many tokens the prompts that found a prefix begin with; `-` if none has found it.
fn shared_tokens(prefix: &PrefixInfo) -> String {
    if prefix.uses == 0 { "-".to_owned() } else { count(prefix.shared_tokens.into()) }
}

fn draw_sessions(look: Look<'_>, report: &CacheReport, area: Rect, buffer: &mut Buffer) {
    let mut title = Line::from(Span::styled(" Sessions ", look.theme.title));
    let facts = format!(
        "{} in the cache, {} remembered ",
        count(report.sessions_total.into()),
        count(report.sessions_remembered.into())
    );
    title.push_span(Span::styled(facts, look.theme.label));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let width = usize::from(inside.width);
    if report.sessions.is_empty() {
        let text = "no sessions yet; clients name one with `session_id`";
        wrapped(text, look.theme.label, inside, buffer);
        return;
    }
    let head = format!("{:>6} {:>6} {:>7}  SESSION", "BLOCKS", "IN USE", "AGE");
    put(Line::styled(fit(&head, width), look.theme.label), inside, 0, buffer);
    for (index, session) in (1..inside.height).zip(&report.sessions) {
        let text = format!(
            "{:>6} {:>6} {:>7}  {}",
            count(session.blocks.into()),
            count(session.used.into()),
            age(session.age_ms),
            session.session
        );
        put(Line::raw(fit(&text, width)), inside, index, buffer);
    }
}

#[cfg(test)]
mod tests {
    use infer_api::admin::CacheLengths;

    use super::*;
    use crate::state::App;
    use crate::view::theme::Theme;

    /// Returns the words drawn of a state, whatever lies between them.
    fn drawn(state: &State, width: u16, height: u16) -> String {
        let app = App::new("http://test".to_owned(), true);
        let theme = Theme::new(&app.settings);
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw_hits(Look { app: &app, now: 0, theme: &theme }, state, area, &mut buffer);
        let cells: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn before_the_first_prompt_there_is_no_rate() {
        let mut state = State::default();
        let text = drawn(&state, 40, 5);
        assert!(text.contains("no requests yet"), "{text}");
        state.cache_lengths = [("MISS_FULL".to_owned(), CacheLengths::default())].into();
        for (width, height) in [(40, 5), (80, 9)] {
            let text = drawn(&state, width, height);
            assert!(text.contains("no prompt has filled a block yet"), "{text}");
            assert!(!text.contains("requests with a hit") && !text.contains("whose"), "{text}");
        }
    }

    #[test]
    fn a_prefix_is_shared_once_a_prompt_has_found_it() {
        let prefix = |uses| PrefixInfo { uses, shared_tokens: 1_200, ..PrefixInfo::default() };
        assert_eq!([0, 1].map(|uses| shared_tokens(&prefix(uses))), ["-", "1,200"]);
    }

    #[test]
    fn prompts_without_a_full_block_are_neither_hits_nor_misses() {
        let names =
            ["FULL_HIT_NO_PREFILL_NEEDED", "CROSS_REQUEST_HIT", "CONVERSATIONAL_MISS_UNEXPECTED_PROMPT"];
        let [full, other, diverged] = names.map(str::to_owned);
        let miss = "MISS_FULL".to_owned();
        let lengths = |eligible_requests, hit_requests| CacheLengths {
            eligible_requests,
            hit_requests,
            ..CacheLengths::default()
        };
        let mut state = State {
            cache_events: [
                (full.clone(), 50),
                (other.clone(), 30),
                (diverged.clone(), 20),
                (miss.clone(), 100),
            ]
            .into(),
            ..State::default()
        };
        let text = drawn(&state, 40, 5);
        assert!(text.contains("requests with a hit 40% of 200 "), "{text}");
        let text = drawn(&state, 80, 9);
        assert!(text.contains("whole prompt 50 25% ") && !text.contains("fills a block"), "{text}");

        state.cache_lengths = [
            (full, lengths(10, 10)),
            (other, lengths(30, 30)),
            (diverged, lengths(20, 5)),
            (miss, lengths(40, 0)),
        ]
        .into();
        let text = drawn(&state, 40, 5);
        assert!(text.contains("requests with a hit 45% of 100 "), "{text}");
        let text = drawn(&state, 80, 9);
        for part in [
            " requests with a hit 45% of 100 whose prompt fills a block ",
            " whole prompt 10 10% ",
            " prompt diverged 20 20% ",
            " nothing found 40 40% ",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
