//! The table of live requests. Columns fall away from the right of importance when the terminal is
//! narrow; id, state and progress always stay.

use infer_api::admin::{RequestRow, State};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit};
use super::parts::{below, framed, inset, put};
use crate::state::requests::SortBy;

/// Where a column stands: its title, its width, and from which table width on it is shown.
struct Column {
    title: &'static str,
    width: usize,
    from: usize,
    text: fn(&RequestRow) -> String,
}

const COLUMNS: [Column; 10] = [
    Column { title: "ID", width: 7, from: 0, text: |row| row.id.to_string() },
    Column { title: "STATE", width: 9, from: 0, text: |row| row.state.clone() },
    Column { title: "PROMPT", width: 7, from: 60, text: |row| count(row.prompt_tokens.into()) },
    Column { title: "CACHED", width: 7, from: 70, text: |row| count(row.cached_tokens.into()) },
    Column { title: "BLOCKS", width: 6, from: 52, text: |row| count(row.blocks.into()) },
    Column { title: "AGE", width: 7, from: 40, text: |row| age(row.age_ms) },
    Column { title: "TTFT", width: 7, from: 76, text: |row| row.ttft_ms.map_or_else(|| "-".to_owned(), age) },
    Column { title: "PRIO", width: 4, from: 100, text: |row| row.priority.to_string() },
    Column { title: "SESSION", width: 12, from: 120, text: |row| row.session.clone() },
    Column { title: "USER", width: 12, from: 140, text: |row| row.user.clone() },
];

/// Columns whose numbers stand at the right.
const RIGHT: [&str; 7] = ["ID", "PROMPT", "CACHED", "BLOCKS", "AGE", "TTFT", "PRIO"];

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::draw_waiting(look, area, buffer);
        return;
    };
    let inside = framed(title(look, state, area.width < 60), look.theme, area, buffer);
    let table = inset(inside, u16::from(inside.width > 60), 0);
    let width = usize::from(table.width);
    if state.requests.is_empty() {
        put(Line::styled("no live requests", look.theme.label), table, 0, buffer);
        return;
    }
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| width >= column.from).collect();
    let fixed: usize = columns.iter().map(|column| column.width + 1).sum();
    let progress = width.saturating_sub(fixed).min(48);
    put(header(look, &columns), table, 0, buffer);
    let body = below(table, 1);
    let order = look.app.requests.order(&state.requests);
    let selected = look.app.requests.selected_row();
    let height = usize::from(body.height);
    // The selection stays in the middle, so no scroll position has to be kept.
    let offset = selected.saturating_sub(height / 2).min(order.len().saturating_sub(height));
    for (index, &at) in order.iter().enumerate().skip(offset).take(height) {
        let mut line = row(look, &state.requests[at], &columns, progress);
        if index == selected {
            line = line.style(look.theme.selected);
        }
        put(line, body, (index - offset) as u16, buffer);
    }
}

fn title(look: Look<'_>, state: &State, short: bool) -> Line<'static> {
    let queue = &state.queue;
    let mut line = Line::from(Span::styled(" Requests ", look.theme.title));
    let text = if short {
        format!("{} run, {} wait ", queue.running, queue.waiting + queue.held + queue.preempted)
    } else {
        format!(
            "{} running, {} waiting, {} held, {} preempted ",
            queue.running, queue.waiting, queue.held, queue.preempted
        )
    };
    line.push_span(Span::styled(text, look.theme.label));
    let shown = state.requests.len();
    if shown < state.requests_total as usize {
        line.push_span(Span::styled(format!("(first {shown} shown) "), look.theme.warning));
    }
    if look.app.requests.sort_by != SortBy::Engine || look.app.requests.descending {
        let arrow = if look.app.requests.descending { "▼" } else { "▲" };
        let by = look.app.requests.sort_by.name();
        line.push_span(Span::styled(format!("{arrow} by {by} "), look.theme.key));
    }
    line
}

fn cell(text: &str, column: &Column) -> String {
    let text = fit(text, column.width);
    if RIGHT.contains(&column.title) {
        format!("{text:>width$} ", width = column.width)
    } else {
        format!("{text:<width$} ", width = column.width)
    }
}

fn header(look: Look<'_>, columns: &[&Column]) -> Line<'static> {
    let mut text: String = columns.iter().map(|column| cell(column.title, column)).collect();
    text.push_str("GENERATED");
    Line::styled(text, look.theme.label)
}

fn row(look: Look<'_>, row: &RequestRow, columns: &[&Column], progress: usize) -> Line<'static> {
    let mut line = Line::default();
    for column in columns {
        let style = if column.title == "STATE" { state_style(look, &row.state) } else { Style::new() };
        line.push_span(Span::styled(cell(&(column.text)(row), column), style));
    }
    line.extend(progress_bar(look, row, progress));
    line
}

fn state_style(look: Look<'_>, state: &str) -> Style {
    match state {
        "decode" => look.theme.good,
        "prefill" => look.theme.throughput,
        "preempted" => look.theme.warning,
        _ => look.theme.label,
    }
}

/// Generated tokens of the most that may come; the prompt's share while it is still computed.
fn progress_bar(look: Look<'_>, row: &RequestRow, width: usize) -> Vec<Span<'static>> {
    let (part, whole, style) = if row.state == "prefill" {
        let done = row.cached_tokens.max(row.computed_tokens).min(row.prompt_tokens);
        (done, row.prompt_tokens, look.theme.throughput)
    } else {
        (row.generated_tokens, row.max_tokens, look.theme.good)
    };
    let numbers = format!("{}/{}", row.generated_tokens, row.max_tokens);
    let room = width.saturating_sub(numbers.len().max(9) + 1);
    if room < 4 {
        return vec![Span::raw(fit(&numbers, width))];
    }
    let filled = (room * part.min(whole) as usize).checked_div(whole as usize).unwrap_or(0);
    vec![
        Span::styled("━".repeat(filled), style),
        Span::styled("─".repeat(room - filled), look.theme.border),
        Span::raw(format!(" {numbers:>9}")),
    ]
}
