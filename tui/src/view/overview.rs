//! The overview: throughput, latencies, memory and the health of the policies. A large terminal shows graphs,
//! a small one the same numbers as text.

use infer_api::admin::{PolicySlot, State};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::Look;
use super::format::{age, bytes, calls, count, fit, microseconds, milliseconds, percent, rate};
use super::parts::{Graph, bar, below, fitting, framed, gauge, inset, pair as labelled, peak, put};
use super::theme::glyph;
use crate::state::Link;
use crate::state::blocks::BlockState;
use crate::state::history::{Join, Sample};

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::chrome::waiting(look, area, buffer);
        return;
    };
    if area.width < 76 || area.height < 19 {
        draw_compact(look, state, area, buffer);
        return;
    }
    // The lower two boxes get the rows they need; the graphs share the rest.
    let graphs = area.height.saturating_sub(10).max(10);
    let [top, latency, pool, policies] = Layout::vertical([
        Constraint::Length(graphs.div_ceil(2)),
        Constraint::Length(graphs / 2),
        Constraint::Length(4),
        Constraint::Min(5),
    ])
    .areas(area);
    let [throughput, queue] = Layout::horizontal([Constraint::Min(40), Constraint::Length(30)]).areas(top);
    draw_throughput(look, state, throughput, buffer);
    draw_queue(look, state, queue, buffer);
    let [ttft, itl] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(latency);
    let l = &state.latencies;
    let panel = |name, p50, p99, style, value| Latency { name, p50, p99, style, value };
    draw_latency(
        look,
        panel("TTFT", l.ttft_p50_ms, l.ttft_p99_ms, look.theme.ttft, |s| (s.ttft_p50_ms, s.ttft_p99_ms)),
        ttft,
        buffer,
    );
    draw_latency(
        look,
        panel("ITL", l.itl_p50_ms, l.itl_p99_ms, look.theme.itl, |s| (s.itl_p50_ms, s.itl_p99_ms)),
        itl,
        buffer,
    );
    draw_pool(look, state, pool, buffer);
    draw_policies(look, state, policies, buffer);
}

/// Returns a label and a value.
fn pair(look: Look<'_>, label: &str, value: String) -> Vec<Span<'static>> {
    labelled(look.theme, label, value)
}

/// Returns the last columns of a graph, at the chosen time window.
fn series(look: Look<'_>, columns: u16, join: Join, value: impl Fn(&Sample) -> f32) -> Vec<Option<f64>> {
    let seconds = look.app.settings.seconds_per_column();
    look.app.feed().history.series(graph_end(look), usize::from(columns), seconds, join, value)
}

fn graph<'a>(look: Look<'_>, values: &'a [Option<f64>], style: Style) -> Graph<'a> {
    Graph { values, style, missing: look.theme.border }
}

/// Returns the time at which graphs end: now, or the last data of a paused screen or an ended recording.
fn graph_end(look: Look<'_>) -> u64 {
    let is_still = look.app.paused() || look.app.link == Link::Ended;
    if is_still { look.app.feed().at } else { look.now }
}

fn draw_throughput(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let mut title = Line::from(Span::styled(" Throughput ", look.theme.title));
    let seconds = look.app.settings.seconds_per_column() as u64;
    let shown = u64::from(area.width.saturating_sub(4)) * seconds;
    // A console that has just connected has less to show than there is room for.
    let span = age(shown.min(look.app.feed().history.reach(graph_end(look))) * 1_000);
    title.push_span(Span::styled(format!("last {span}, {seconds} s per column "), look.theme.label));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let rates = &state.rates;
    let values = series(look, inside.width, Join::Mean, |s| s.generated);
    let generated =
        vec![Span::styled(rate(rates.generated_tokens), look.theme.throughput), Span::raw(" tok/s  ")];
    let pieces = [
        generated,
        pair(look, "prompt", rate(rates.prompt_tokens)),
        pair(look, "peak", rate(peak(&values))),
        pair(look, "requests/s", rate(rates.requests)),
        pair(look, "steps/s", rate(rates.steps)),
    ];
    let line = fitting(usize::from(inside.width) + 2, pieces);
    put(line, inside, 0, buffer);
    graph(look, &values, look.theme.throughput).render(below(inside, 1), buffer);
}

fn draw_queue(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let mut title = Line::from(Span::styled(" Requests ", look.theme.title));
    let room = usize::from(area.width).saturating_sub(title.width() + 2);
    title.extend(device_faults(look, state, room));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let queue = &state.queue;
    let lines = vec![
        Line::from(
            [
                pair(look, "running", count(queue.running.into())),
                pair(look, "waiting", count(queue.waiting.into())),
            ]
            .concat(),
        ),
        Line::from(
            [
                pair(look, "held", count(queue.held.into())),
                pair(look, "preempted", count(queue.preempted.into())),
            ]
            .concat(),
        ),
        refusals(look, state, usize::from(inside.width)),
        Line::from(
            [
                pair(look, "finished", count(state.counters.finished.values().sum())),
                pair(look, "failed", count(state.counters.failed)),
            ]
            .concat(),
        ),
        Line::from(pair(look, "queued p99", milliseconds(state.latencies.queue_p99_ms))),
        Line::from(pair(look, "step p50", milliseconds(state.latencies.step_p50_ms))),
        Line::from(pair(look, "request p50", milliseconds(state.latencies.e2e_p50_ms))),
    ];
    let rows = lines.len() as u16;
    for (index, line) in (0..).zip(lines) {
        put(line, inside, index, buffer);
    }
    // A tall terminal has room for the queue's history.
    let rest = below(inside, rows + 1);
    if rest.height >= 4 {
        let half = rest.height / 2;
        type Value = fn(&Sample) -> f32;
        let graphs: [(&str, Style, Value); 2] =
            [("running", look.theme.good, |s| s.running), ("all waiting", look.theme.warning, |s| s.waiting)];
        for (index, (name, style, value)) in (0..).zip(graphs) {
            let values = series(look, rest.width, Join::Most, value);
            let part = Rect { y: rest.y + index * half, height: half, ..rest };
            let label = format!("{name}, peak {}", count(peak(&values) as u64));
            put(Line::styled(label, look.theme.label), part, 0, buffer);
            graph(look, &values, style).render(below(part, 1), buffer);
        }
    }
}

/// Returns the number of steps that failed on the device, if there are any; just the words where the number doesn't
/// fit.
fn device_faults(look: Look<'_>, state: &State, width: usize) -> Option<Span<'static>> {
    let faults = state.counters.device_faults;
    let texts = [format!("device faults {} ", count(faults)), "device faults ".to_owned()];
    let text = texts.into_iter().find(|text| text.len() <= width)?;
    (faults > 0).then(|| Span::styled(text, look.theme.bad))
}

/// Returns the number of refused requests and the reasons, most frequent first; without its number where a
/// reason's doesn't fit.
fn refusals(look: Look<'_>, state: &State, width: usize) -> Line<'static> {
    let refused = &state.counters.refused;
    let total: u64 = refused.values().sum();
    let mut line = Line::from(pair(look, "refused", count(total)));
    let mut reasons: Vec<(&String, &u64)> = refused.iter().filter(|(_, count)| **count > 0).collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, refusals) in reasons {
        let room = width.saturating_sub(line.width());
        let texts = [format!("{reason} {}", count(*refusals)), reason.clone()];
        let Some(text) = texts.into_iter().find(|text| text.len() <= room) else { break };
        line.push_span(Span::styled(format!("{text} "), look.theme.warning));
    }
    line
}

struct Latency {
    name: &'static str,
    p50: f64,
    p99: f64,
    style: Style,
    value: fn(&Sample) -> (f32, f32),
}

/// Draws the median above the 99th percentile, each with a graph at its own scale.
fn draw_latency(look: Look<'_>, latency: Latency, area: Rect, buffer: &mut Buffer) {
    let title = Line::from(Span::styled(format!(" {} ", latency.name), look.theme.title));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let label = 14;
    let width = inside.width.saturating_sub(label);
    let series = |pick: fn((f32, f32)) -> f32| {
        let all = series(look, width, Join::Most, |sample| pick((latency.value)(sample)));
        // Zero means not measured.
        all.into_iter().map(|value| value.filter(|value| *value > 0.0)).collect::<Vec<_>>()
    };
    let halves: [(&str, f64, Vec<Option<f64>>); 2] =
        [("p50", latency.p50, series(|v| v.0)), ("p99", latency.p99, series(|v| v.1))];
    let upper = inside.height - inside.height / 2;
    let areas = [Rect { height: upper, ..inside }, below(inside, upper)];
    for ((name, value, values), half) in halves.into_iter().zip(areas) {
        let mut line = Line::default();
        line.push_span(Span::styled(format!("{name} "), look.theme.label));
        line.push_span(Span::styled(format!("{:>8}", milliseconds(value)), latency.style));
        put(line, half, half.height.saturating_sub(1), buffer);
        let half = Rect { x: half.x + label, width, ..half };
        graph(look, &values, latency.style).render(half, buffer);
    }
}

/// Returns the three parts of the pool, in the order of the bar.
fn pool_parts(look: Look<'_>, state: &State) -> [(u64, char, Style); 3] {
    let part = |blocks: u32, kind| (u64::from(blocks), glyph(kind), look.theme.block(kind));
    [
        part(state.memory.used, BlockState::Used),
        part(state.memory.cached, BlockState::Cached),
        part(state.memory.free, BlockState::Free),
    ]
}

fn draw_pool(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let memory = &state.memory;
    let size = u64::from(memory.total) * memory.block_bytes;
    let mut title = Line::from(Span::styled(" KV pool ", look.theme.title));
    let facts = format!(
        "{} blocks x {} tokens, {} ",
        count(memory.total.into()),
        memory.block_size,
        if size > 0 { bytes(size) } else { "size unknown".to_owned() }
    );
    title.push_span(Span::styled(facts, look.theme.label));
    let room = usize::from(area.width).saturating_sub(title.width() + 5);
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let mut level = Line::from(pressure(look, state, 10));
    if level.width() + 2 <= room {
        level.spans.insert(0, Span::raw(" "));
        level.push_span(Span::raw(" "));
        let width = level.width() as u16;
        level.render(Rect { x: area.right() - 2 - width, width, height: 1, ..area }, buffer);
    }
    let parts = pool_parts(look, state);
    put(bar(usize::from(inside.width), &parts), inside, 0, buffer);
    let mut line = Line::default();
    for ((blocks, glyph, style), name) in parts.into_iter().zip(["used", "cached", "free"]) {
        line.push_span(Span::styled(format!("{glyph} "), style));
        line.extend(pair(
            look,
            name,
            format!("{} ({})", count(blocks), percent(blocks, memory.total.into())),
        ));
    }
    line.push_span(Span::styled(format!("= {}", count(memory.total.into())), look.theme.label));
    if let Some(offload) = &state.offload {
        line.push_span(Span::raw("  "));
        match offload.failed {
            true => line.push_span(Span::styled("second level failed", look.theme.warning)),
            false => {
                let blocks = format!("{} of {}", count(offload.used.into()), count(offload.total.into()));
                line.extend(pair(look, "offloaded", blocks));
            }
        }
    }
    put(line, inside, 1, buffer);
}

/// Returns the admission pressure as a gauge and a number.
fn pressure(look: Look<'_>, state: &State, width: usize) -> Vec<Span<'static>> {
    let level = state.pressure.level;
    let style = if state.pressure.backpressure { look.theme.warning } else { look.theme.good };
    let mut spans = vec![Span::styled("pressure ", look.theme.label)];
    spans.extend(gauge(width, level, style, look.theme));
    spans.push(Span::styled(format!(" {level:.2}"), style));
    if state.pressure.backpressure {
        spans.push(Span::styled(" backpressure", look.theme.warning));
    }
    spans
}

fn draw_policies(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let title = Line::from(Span::styled(" Policies ", look.theme.title));
    let inside = inset(framed(title, look.theme, area, buffer), 1, 0);
    let mut lines: Vec<Line<'_>> =
        state.policies.iter().map(|slot| health(look, slot, usize::from(inside.width))).collect();
    let last_fault =
        state.policies.iter().filter_map(|slot| slot.last_fault.as_ref()).max_by_key(|f| f.at_ms);
    lines.push(match last_fault {
        Some(fault) => Line::styled(
            fit(
                &format!(
                    "last fault: {} {} {} ago at step {}: {}",
                    fault.policy,
                    fault.reason,
                    age(state.uptime_ms.saturating_sub(fault.at_ms)),
                    count(fault.step),
                    fault.message
                ),
                usize::from(inside.width),
            ),
            look.theme.bad,
        ),
        None => Line::styled("no faults", look.theme.label),
    });
    // If not all lines fit, the fault replaces the last visible slot.
    let rows = usize::from(inside.height);
    if lines.len() > rows && last_fault.is_some() && rows > 0 {
        lines.swap_remove(rows - 1);
    }
    for (index, line) in (0..).zip(lines) {
        put(line, inside, index, buffer);
    }
}

/// Returns one slot on one line.
fn health(look: Look<'_>, slot: &PolicySlot, width: usize) -> Line<'static> {
    let (mark, style) = look.theme.slot(&slot.state);
    let mut line = Line::default();
    line.push_span(Span::styled(format!("{mark} "), style));
    line.push_span(Span::styled(format!("{:<13}", slot.kind), look.theme.label));
    line.push_span(Span::raw(format!("{:<18}", fit(&format!("{} {}", slot.name, slot.version), 18))));
    line.push_span(Span::styled(format!(" {:<9}", fit(&slot.state, 9)), style));
    let faults = if slot.faults > 0 { look.theme.warning } else { look.theme.label };
    line.push_span(Span::styled(format!(" faults {:<5}", count(slot.faults)), faults));
    let measured = [
        pair(look, "p50", format!("{:>7}", microseconds(slot.p50_us))),
        pair(look, "p99", format!("{:>7}", microseconds(slot.p99_us))),
        pair(look, "calls", calls(slot)),
    ];
    line.extend(fitting((width + 2).saturating_sub(line.width()), measured));
    line
}

/// Draws the same numbers as text, the most important first.
fn draw_compact(look: Look<'_>, state: &State, area: Rect, buffer: &mut Buffer) {
    let area = inset(area, u16::from(area.width > 60), 0);
    let width = usize::from(area.width);
    let (l, q) = (&state.latencies, &state.queue);
    let parts = pool_parts(look, state);
    let values = series(look, area.width.saturating_sub(24), Join::Mean, |s| s.generated);
    let mut first = Line::default();
    first.push_span(Span::styled(rate(state.rates.generated_tokens), look.theme.throughput));
    first.push_span(Span::raw(" tok/s "));
    first.push_span(Span::styled(format!("prompt {}", rate(state.rates.prompt_tokens)), look.theme.label));
    let latency = |name, p50, p99| {
        pair(look, name, format!("p50 {:>7}  p99 {:>7}", milliseconds(p50), milliseconds(p99)))
    };
    let faults = state.counters.device_faults;
    // What fits is shown, so the faults come before what is common.
    let who = [
        ("running", u64::from(q.running), true),
        ("waiting", q.waiting.into(), true),
        ("device faults", faults, faults > 0),
        ("held", q.held.into(), q.held > 0),
        ("preempted", q.preempted.into(), q.preempted > 0),
    ];
    let who = who.into_iter().filter(|(.., shown)| *shown);
    let mut lines = vec![
        first,
        Line::from(latency("TTFT", l.ttft_p50_ms, l.ttft_p99_ms)),
        Line::from(latency("ITL ", l.itl_p50_ms, l.itl_p99_ms)),
        fitting(width + 2, who.map(|(name, requests, _)| pair(look, name, count(requests)))),
        bar(width, &parts),
        Line::styled(
            fit(
                &format!(
                    "used {} cached {} free {} = {}",
                    state.memory.used, state.memory.cached, state.memory.free, state.memory.total
                ),
                width,
            ),
            look.theme.label,
        ),
        Line::from(pressure(look, state, 8)),
    ];
    let mut policies = Line::default();
    for slot in &state.policies {
        let (mark, style) = look.theme.slot(&slot.state);
        policies.push_span(Span::styled(format!("{mark} "), style));
        policies.push_span(Span::raw(format!("{} ", slot.name)));
    }
    lines.push(policies);
    if area.height >= 12 {
        lines.push(Line::default());
        lines.extend(state.policies.iter().map(|slot| health(look, slot, width)));
    }
    // Drops lines that other lines or screens repeat, never the last one with the policies.
    let rows = usize::from(area.height);
    for falls in [6, 4, 2] {
        if lines.len() > rows && rows > 2 {
            lines.remove(falls);
        }
    }
    for (index, line) in (0..).zip(lines) {
        put(line, area, index, buffer);
    }
    if width > 56 {
        let spark = Rect {
            x: area.x + 24 + area.width / 4,
            width: area.width - 24 - area.width / 4,
            height: 3,
            ..area
        };
        let values = &values[values.len().saturating_sub(usize::from(spark.width))..];
        graph(look, values, look.theme.throughput).render(spark, buffer);
    }
}
