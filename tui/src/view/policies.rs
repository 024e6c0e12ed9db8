//! The three slots: the live policy, its latency, its faults, shadow and canary, and the history.

use infer_api::admin::{GaugeInfo, HistoryEntry, PolicySlot, PolicyState, State};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::{Map, Value};

use super::Look;
use super::format::{age, calls, count, microseconds, number, padded, rate};
use super::parts::{broken, framed, hanging, inset, put, wrapped};
use super::trial;
use crate::state::Scroll;
use crate::text::{beginning, configured};

/// Whether the slots have a frame; a small terminal needs the rows for the facts.
fn is_framed(body: Rect) -> bool {
    body.height >= 14
}

/// Splits the body into the slots and the rest below them.
fn halves(body: Rect) -> [Rect; 2] {
    let rows = if is_framed(body) { 6 } else { 4 };
    Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(body)
}

/// Returns the area of the slots' rows within the body of the screen.
pub(super) fn slot_rows(body: Rect) -> Rect {
    let [slots, _] = halves(body);
    let inside = if is_framed(body) { inset(slots, 1, 1) } else { slots };
    Rect { y: inside.y + 1, height: inside.height.saturating_sub(1).min(3), ..inside }
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::chrome::waiting(look, area, buffer);
        return;
    };
    let [slots, rest] = halves(area);
    let title = Line::from(Span::styled(" Policies ", look.theme.title));
    let inside = if is_framed(area) { framed(title, look.theme, slots, buffer) } else { slots };
    draw_slots(look, state, inside, buffer);
    let Some(slot) = selected(look, state) else { return };
    let [details, history] = parts(look, rest);
    draw_details(look, state, slot, (details, history.height == 0), buffer);
    if history.height > 0 {
        draw_history(look, state, history, buffer);
    }
}

/// Returns how far the selected slot's facts can be scrolled.
pub(super) fn scroll(look: Look<'_>, body: Rect) -> Scroll {
    let Some((state, slot)) = look.app.state().and_then(|state| Some((state, selected(look, state)?))) else {
        return Scroll::default();
    };
    let [details, history] = parts(look, halves(body)[1]);
    let inside = inset(details, 2, 1);
    let page = usize::from(inside.height);
    let lines = fact_lines(look, state, slot, (usize::from(inside.width), history.height == 0)).len();
    Scroll { most: lines.saturating_sub(page), page }
}

fn selected<'a>(look: Look<'_>, state: &'a State) -> Option<&'a PolicySlot> {
    state.policies.iter().find(|slot| slot.kind == look.app.policies.kind())
}

/// Splits the rest into facts and history: side by side if it is wide; else stacked, with no more rows for
/// the history than it needs; in a small terminal the history follows the facts in the same box.
fn parts(look: Look<'_>, rest: Rect) -> [Rect; 2] {
    if rest.height < 9 {
        [rest, Rect::default()]
    } else if rest.width >= 110 {
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(rest)
    } else {
        let entries = match look.app.policies.selected_history() {
            Some(Ok(entries)) => entries.len() as u16,
            _ => 1,
        };
        let rows = (entries + 2).clamp(3, rest.height / 3);
        Layout::vertical([Constraint::Min(0), Constraint::Length(rows)]).areas(rest)
    }
}

fn draw_slots(look: Look<'_>, state: &State, inside: Rect, buffer: &mut Buffer) {
    let table = inset(inside, u16::from(inside.width > 60), 0);
    let width = usize::from(table.width);
    put(Line::styled(slot_text(None, width), look.theme.label), table, 0, buffer);
    for (index, slot) in (0u16..).zip(&state.policies) {
        let (mark, style) = look.theme.slot(&slot.state);
        let mut line = Line::from(vec![
            Span::styled(format!("{mark} "), style),
            Span::raw(slot_text(Some(slot), width).chars().skip(2).collect::<String>()),
        ]);
        if usize::from(index) == look.app.policies.selected {
            let missing = width.saturating_sub(line.width());
            line.push_span(Span::raw(" ".repeat(missing)));
            line = line.style(look.theme.selected);
        }
        put(line, table, index + 1, buffer);
    }
}

/// Formats one slot, or the column titles for `None`, leaving out columns that don't fit.
fn slot_text(slot: Option<&PolicySlot>, width: usize) -> String {
    let value = |title: &str, text: fn(&PolicySlot) -> String| slot.map_or_else(|| title.to_owned(), text);
    let columns: [(String, usize, usize); 11] = [
        (value("SLOT", |s| s.kind.clone()), 12, 0),
        // A list of policies has a long name.
        (value("POLICY", |s| s.name.clone()), if width >= 140 { 30 } else { 14 }, 0),
        (value("VERSION", |s| s.version.clone()), 8, 90),
        (value("DIGEST", |s| digest(&s.sha256)), 10, 104),
        (value("STATE", slot_state), 8, 40),
        (value("CALLS", calls), 10, 70),
        (value("P50", |s| microseconds(s.p50_us)), 8, 56),
        (value("P99", |s| microseconds(s.p99_us)), 8, 80),
        (value("FAULTS", |s| count(s.faults)), 6, 48),
        (value("FALLBACKS", |s| count(s.fallbacks)), 9, 118),
        (value("SINCE", |s| age(s.since_ms)), 8, 64),
    ];
    let mut text = "  ".to_owned();
    for (cell, cell_width, from) in columns {
        if width >= from {
            text += &format!("{} ", padded(&cell, cell_width));
        }
    }
    text
}

/// Returns a slot's state in a word; a live policy with a shadow says so.
fn slot_state(slot: &PolicySlot) -> String {
    let shadowed = slot.shadow.as_ref().is_some_and(|shadow| shadow.state == "watching");
    if slot.state == "live" && shadowed { "+shadow".to_owned() } else { slot.state.clone() }
}

/// Returns the beginning of a digest; a native policy has none.
fn digest(sha256: &str) -> String {
    if sha256.is_empty() { "native".to_owned() } else { beginning(sha256) }
}

/// A fact about a slot: label, text, style.
pub(super) type Fact = (&'static str, String, Style);

/// Lays a slot's facts out on as many lines as they need.
fn fact_lines(
    look: Look<'_>,
    state: &State,
    slot: &PolicySlot,
    (width, with_history): (usize, bool),
) -> Vec<Line<'static>> {
    const LABEL: usize = 10;
    let mut lines = Vec::new();
    let mut facts = facts(look, state, slot);
    if with_history && let Some(Ok(entries)) = look.app.policies.selected_history() {
        let mut label = "history";
        for entry in entries.iter().rev() {
            let text = history_text(entry, state.uptime_ms).trim_start().to_owned();
            facts.push((label, text, history_style(look, entry)));
            label = "";
        }
    }
    for (label, text, style) in facts {
        let mut label = label;
        for part in broken(&text, width.saturating_sub(LABEL)) {
            lines.push(Line::from(vec![
                Span::styled(format!("{label:<LABEL$}"), look.theme.label),
                Span::styled(part, style),
            ]));
            label = "";
        }
    }
    lines
}

fn draw_details(
    look: Look<'_>,
    state: &State,
    slot: &PolicySlot,
    (area, with_history): (Rect, bool),
    buffer: &mut Buffer,
) {
    let title = Line::from(Span::styled(format!(" {} ", slot.kind), look.theme.title));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let lines = fact_lines(look, state, slot, (usize::from(inside.width), with_history));
    let height = usize::from(inside.height);
    let first = look.app.policies.scroll.min(lines.len().saturating_sub(height));
    let more = lines.len().saturating_sub(first + height);
    for (index, line) in (0..inside.height).zip(lines.into_iter().skip(first)) {
        put(line, inside, index, buffer);
    }
    if more > 0 && area.width > 30 {
        let hint = Line::styled(format!(" {more} more, PgDn "), look.theme.border);
        let width = hint.width() as u16;
        let place =
            Rect { x: area.right().saturating_sub(width + 2), y: area.bottom() - 1, width, height: 1 };
        put(hint, place, 0, buffer);
    }
}

fn facts(look: Look<'_>, state: &State, slot: &PolicySlot) -> Vec<Fact> {
    let plain = Style::new();
    let ago = |at_ms: u64| age(state.uptime_ms.saturating_sub(at_ms));
    let mut facts: Vec<Fact> = vec![("policy", format!("{} {}", slot.name, slot.version), plain)];
    let previous = match &slot.previous {
        Some(previous) => {
            let previous = configured(previous, &slot.previous_config_sha256);
            ("previous", format!("{previous}; r rolls back to it"), plain)
        }
        None => ("previous", "nothing to roll back to".to_owned(), look.theme.label),
    };
    if let Some(fault) = &slot.last_fault {
        // First, because the message may be long and after a fault the operator looks for the rollback.
        facts.push(previous.clone());
        let end = if fault.removed { ", removed and quarantined" } else { "" };
        let shadow = if fault.shadow { " in shadow" } else { "" };
        let text = format!(
            "{} of {}{shadow}, {} ago at step {}{end}: {}",
            fault.reason,
            fault.policy,
            ago(fault.at_ms),
            count(fault.step),
            fault.message
        );
        facts.push(("fault", text, look.theme.bad));
        if let Some(path) = &fault.artifact {
            facts.push(("replay", format!("infer policy replay {path}"), look.theme.label));
        }
    }
    // Running trials come first; ended ones come after the facts about the live policy.
    let watched = |state: Option<&str>| state == Some("watching");
    let trials = [
        (watched(slot.canary.as_ref().map(|c| c.state.as_str())), trial::canary(look, state, slot)),
        (watched(slot.shadow.as_ref().map(|s| s.state.as_str())), trial::shadow(look, state, slot)),
    ];
    let (under_way, over): (Vec<_>, Vec<_>) = trials.into_iter().partition(|(watched, _)| *watched);
    facts.extend(under_way.into_iter().flat_map(|(_, facts)| facts));
    if slot.last_fault.is_none() {
        facts.push(previous);
    }
    facts.extend(state.policy_state.iter().flat_map(kept).map(|text| ("restart", text, look.theme.warning)));
    facts.push(("does", slot.description.clone(), plain));
    facts.push(("now", at_work(state, &slot.kind), plain));
    if !slot.gauges.is_empty() {
        facts.push(("gauges", gauges(&slot.gauges), plain));
    }
    let faults = if slot.faults > 0 { look.theme.warning } else { plain };
    facts.push((
        "faults",
        format!("{}; built-in decided {} times in this slot", count(slot.faults), count(slot.fallbacks)),
        faults,
    ));
    if !slot.config.is_null() {
        facts.push(("config", config_text(slot), plain));
    }
    facts.extend(over.into_iter().flat_map(|(_, facts)| facts));
    let native = slot.sha256.is_empty();
    let digest = if native { "none, native code".to_owned() } else { slot.sha256.clone() };
    facts.push(("digest", configured(&digest, &slot.config_sha256), look.theme.label));
    facts
}

/// Returns what an operator should know of the saved state, if anything.
fn kept(state: &PolicyState) -> Vec<String> {
    let not_saved = (!state.saved).then(|| {
        let why = state.error.as_deref().unwrap_or("the host gives no reason");
        format!("would undo what was changed: {why}")
    });
    not_saved.into_iter().chain(state.not_restored.iter().cloned()).collect()
}

/// Returns what policies publish about themselves; of several, the name of each before its first.
pub(super) fn gauges(gauges: &[GaugeInfo]) -> String {
    let several = gauges.iter().any(|gauge| gauge.policy != gauges[0].policy);
    let of_one = |one: &[GaugeInfo]| {
        let parts: Vec<String> =
            one.iter().map(|gauge| format!("{} {}", gauge.name, number(gauge.value))).collect();
        let before = if several { format!("{}: ", one[0].policy) } else { String::new() };
        before + &parts.join(", ")
    };
    let each: Vec<String> = gauges.chunk_by(|a, b| a.policy == b.policy).map(of_one).collect();
    each.join("; ")
}

/// Returns the current effect of a slot's decisions, in the host's numbers.
fn at_work(state: &State, kind: &str) -> String {
    let (queue, rates) = (&state.queue, &state.rates);
    match kind {
        "scheduler" if queue.running + queue.waiting + queue.preempted == 0 => {
            format!("no requests; {} preemptions so far", count(state.counters.preemptions))
        }
        "scheduler" => {
            let reading = state.requests.iter().filter(|row| row.state == "prefill").count() as u32;
            let out = if rates.steps > 0.0 { rates.generated_tokens / rates.steps } else { 0.0 };
            format!(
                "{} in decode, {} in prefill, {} waiting; {} steps/s, {} output tokens per step; {} preemptions so far",
                count(queue.running.saturating_sub(reading).into()),
                count(reading.into()),
                count((queue.waiting + queue.preempted).into()),
                rate(rates.steps),
                rate(out),
                count(state.counters.preemptions)
            )
        }
        "admission" => format!(
            "accepts requests of up to {} tokens; {} of {} blocks available, {} reserved; {} of {} batch slots \
             taken; {} held, {} refused so far; pressure {:.2}{}",
            count(state.pressure.max_sequence_tokens.into()),
            count(state.pressure.available_blocks.into()),
            count(state.memory.total.into()),
            count(state.pressure.reserved_blocks.into()),
            count(state.pressure.active_sequences.into()),
            count(state.pressure.max_sequences.into()),
            count(queue.held.into()),
            count(state.counters.refused.values().sum()),
            state.pressure.level,
            if state.pressure.backpressure { ", backpressure" } else { "" }
        ),
        _ => {
            let (asked, found) = (state.counters.prefix_queries, state.counters.prefix_hits);
            format!(
                "keeps {} blocks that no request uses; {} of {} prompt tokens cached, {} blocks evicted so far",
                count(state.memory.cached.into()),
                count(found),
                count(asked),
                count(state.counters.evicted_blocks)
            )
        }
    }
}

/// Returns the configuration, including defaults; for a list, each policy's.
fn config_text(slot: &PolicySlot) -> String {
    let Some(list) = slot.config.as_array() else {
        let parts = settings(&slot.config, &slot.config_schema);
        return if parts.is_empty() { "none".to_owned() } else { format!("{parts}; e edits it") };
    };
    let mut all = Vec::new();
    for (at, entry) in list.iter().enumerate() {
        let parts = settings(&entry["config"], &slot.config_schema["prefixItems"][at]);
        let name = entry["name"].as_str().unwrap_or_default();
        all.push(format!("{name}: {}", if parts.is_empty() { "nothing set" } else { &parts }));
    }
    format!("{}; e edits it", all.join("; "))
}

/// Formats one policy's settings, then the defaults of those that aren't set.
fn settings(config: &Value, schema: &Value) -> String {
    let empty = Map::new();
    let set = config.as_object().unwrap_or(&empty);
    let properties = schema.get("properties").and_then(|all| all.as_object());
    let mut parts: Vec<String> = set.iter().map(|(name, value)| format!("{name} {value}")).collect();
    for (name, schema) in properties.into_iter().flatten() {
        if !set.contains_key(name)
            && let Some(default) = schema.get("default")
        {
            parts.push(format!("{name} {default} (default)"));
        }
    }
    parts.join(", ")
}

fn draw_history(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    const INDENT: usize = 12;
    let title = Line::from(Span::styled(" History ", look.theme.title));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let width = usize::from(inside.width);
    match look.app.policies.selected_history() {
        None => put(Line::styled("...", look.theme.label), inside, 0, buffer),
        Some(Err(error)) => wrapped(error, look.theme.bad, inside, buffer),
        Some(Ok(entries)) => {
            let mut row = 0;
            for entry in entries.iter().rev() {
                let style = history_style(look, entry);
                let text = history_text(entry, state.uptime_ms);
                let parts = hanging(&text, width, width.saturating_sub(INDENT));
                for (index, part) in parts.into_iter().enumerate() {
                    let indent = if index > 0 { INDENT } else { 0 };
                    put(Line::styled(format!("{:indent$}{part}", ""), style), inside, row, buffer);
                    row += 1;
                }
                if row >= inside.height {
                    return;
                }
            }
        }
    }
}

fn history_style(look: Look<'_>, entry: &HistoryEntry) -> Style {
    match entry.mode.as_str() {
        "fault" | "verdict" => look.theme.bad,
        "stays" | "promote" => look.theme.good,
        "shadow" | "canary" => look.theme.throughput,
        _ => look.theme.label,
    }
}

fn history_text(entry: &HistoryEntry, uptime_ms: u64) -> String {
    let to = configured(&entry.to, &entry.config_sha256);
    let change = if entry.from.is_empty() || entry.from == entry.to {
        to
    } else if entry.mode == "shadow" {
        format!("{to} beside {}", entry.from)
    } else {
        format!("{} -> {to}", entry.from)
    };
    // The date follows from the age, but the age of what an earlier run did is not known.
    let when = match (entry.before_restart, entry.at_utc.split_once('T')) {
        (true, _) => format!("{}, before a restart", entry.at_utc),
        (false, time) => {
            let time = time.map_or(String::new(), |(_, time)| format!("  {time}"));
            format!("{:>7} ago{time}", age(uptime_ms.saturating_sub(entry.at_ms)))
        }
    };
    let by = entry.by.as_ref().map_or(String::new(), |by| format!("by {by}: "));
    format!("{when}  step {:<9} {change}  ({by}{})", count(entry.step), entry.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_an_operator_made_has_the_operators_name() {
        let made = |by: Option<&str>| HistoryEntry {
            from: "lru".into(),
            to: "session".into(),
            reason: "swap".into(),
            by: by.map(str::to_owned),
            ..HistoryEntry::default()
        };
        assert!(history_text(&made(Some("ana")), 0).ends_with("lru -> session  (by ana: swap)"));
        assert!(history_text(&made(None), 0).ends_with("lru -> session  (swap)"));
    }

    #[test]
    fn a_state_that_is_not_saved_or_not_restored_is_told() {
        let saved = PolicyState { saved: true, ..PolicyState::default() };
        assert_eq!(kept(&saved), Vec::<String>::new());
        let lost = PolicyState {
            saved: false,
            error: Some("No space left on device".to_owned()),
            not_restored: vec!["the scheduler policy `mine` couldn't be loaded".to_owned()],
            ..PolicyState::default()
        };
        assert_eq!(
            kept(&lost),
            [
                "would undo what was changed: No space left on device",
                "the scheduler policy `mine` couldn't be loaded"
            ]
        );
    }

    #[test]
    fn a_change_before_a_restart_has_its_date_in_place_of_an_age() {
        let entry = HistoryEntry {
            at_ms: 90_000,
            at_utc: "2026-03-01T12:01:30Z".into(),
            to: "lru".into(),
            ..HistoryEntry::default()
        };
        assert!(history_text(&entry, 190_000).contains(" ago  12:01:30Z  step"));
        let before = history_text(&HistoryEntry { before_restart: true, ..entry }, 1_000);
        assert!(before.starts_with("2026-03-01T12:01:30Z, before a restart  step"), "{before}");
    }

    #[test]
    fn gauges_of_several_policies_are_told_apart() {
        let gauge = |policy: &str, name: &str, value| GaugeInfo {
            policy: policy.to_owned(),
            name: name.to_owned(),
            value,
        };
        let one = [gauge("slo", "estimated_ttft_ms", 120.53), gauge("slo", "late_requests", 3.0)];
        assert_eq!(gauges(&one), "estimated_ttft_ms 120.5, late_requests 3");
        let several = [gauge("memory-aware", "claimed_blocks", 1_318.0), one[0].clone(), one[1].clone()];
        assert_eq!(
            gauges(&several),
            "memory-aware: claimed_blocks 1,318; slo: estimated_ttft_ms 120.5, late_requests 3"
        );
    }
}
