//! The table of live requests. A narrow terminal drops the less important columns; id, state and progress
//! always stay. Only visible rows are formatted.

use infer_api::admin::{RequestRow, State};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit, milliseconds, padded};
use super::parts::{below, first_shown, framed, inset, put, wrapped};
use crate::state::requests::{FIELDS, SortBy};
use crate::state::why;

/// A column: its title, its sort key, its width, and from which table width it is shown.
struct Column {
    title: &'static str,
    sort: Option<SortBy>,
    width: usize,
    from: usize,
    text: fn(&RequestRow) -> String,
}

const fn column(
    title: &'static str,
    sort: Option<SortBy>,
    width: usize,
    from: usize,
    text: fn(&RequestRow) -> String,
) -> Column {
    Column { title, sort, width, from, text }
}

const COLUMNS: [Column; 11] = [
    column("ID", Some(SortBy::Id), 7, 0, |row| row.id.to_string()),
    column("STATE", Some(SortBy::State), 9, 0, |row| row.state.clone()),
    column("AGE", Some(SortBy::Age), 7, 40, |row| age(row.age_ms)),
    column("PROMPT", Some(SortBy::Prompt), 7, 60, |row| count(row.prompt_tokens.into())),
    column("CACHED", Some(SortBy::Cached), 7, 70, |row| count(row.cached_tokens.into())),
    column("BLOCKS", Some(SortBy::Blocks), 6, 52, |row| count(row.blocks.into())),
    column("TTFT", Some(SortBy::Ttft), 7, 76, ttft),
    column("PRIO", None, 4, 104, |row| row.priority.to_string()),
    column("TENANT", None, 8, 112, tenant),
    column("SESSION", None, 12, 124, |row| row.session.clone()),
    column("USER", None, 12, 140, |row| row.user.clone()),
];

/// Right-aligned columns.
const RIGHT: [&str; 7] = ["ID", "PROMPT", "CACHED", "BLOCKS", "AGE", "TTFT", "PRIO"];

/// Returns a tenant's name, or its number if the host sends no names.
pub(super) fn tenant(row: &RequestRow) -> String {
    if row.tenant_name.is_empty() { row.tenant.to_string() } else { row.tenant_name.clone() }
}

/// The host reports whole milliseconds.
fn ttft(row: &RequestRow) -> String {
    match row.ttft_ms {
        None => "-".to_owned(),
        Some(0) => "<1 ms".to_owned(),
        Some(ms) => milliseconds(ms as f64),
    }
}

/// Returns the area of the rows within the body of the screen.
pub(super) fn rows_area(body: Rect) -> Rect {
    let inside = inset(body, 1, 1);
    below(inset(inside, u16::from(inside.width > 60), 0), 1)
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::chrome::waiting(look, area, buffer);
        return;
    };
    let inside = framed(title(look, state, area.width < 60), look.theme, area, buffer);
    let table = inset(inside, u16::from(inside.width > 60), 0);
    let width = usize::from(table.width);
    let pane = &look.app.requests;
    let order = pane.order();
    if order.is_empty() {
        let text = match pane.unknown_field(&state.requests) {
            _ if state.requests.is_empty() => "no live requests".to_owned(),
            Some(name) => {
                let fields = FIELDS.join(", ");
                format!(
                    "no request has a field `{name}`; the fields are {fields} and the keys of the metadata"
                )
            }
            None => "no request matches the filter".to_owned(),
        };
        wrapped(&text, look.theme.label, table, buffer);
        return;
    }
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| width >= column.from).collect();
    let fixed: usize = columns.iter().map(|column| column.width + 1).sum();
    let last = width.saturating_sub(fixed);
    put(header(look, &columns, last), table, 0, buffer);
    let body = rows_area(area);
    let selected = pane.selected_row();
    let height = usize::from(body.height);
    let first = first_shown(selected, order.len(), height);
    for (index, &at) in order.iter().enumerate().skip(first).take(height) {
        let Some(request) = state.requests.get(at) else { continue };
        let mut line = Line::default();
        let why = why::waits(request, state, pane.ahead(at));
        for column in &columns {
            // A waiting request has no blocks and no TTFT; the reason gets their columns.
            if why.is_some() && matches!(column.title, "BLOCKS" | "TTFT") && width < 104 {
                continue;
            }
            let style =
                if column.title == "STATE" { state_style(look, &request.state) } else { Style::new() };
            line.push_span(Span::styled(cell(&(column.text)(request), column), style));
        }
        match why {
            Some(why) => {
                let room = width.saturating_sub(line.width());
                line.push_span(Span::styled(fit(&why.within(room), room), look.theme.label));
            }
            None => line.extend(progress_bar(look, request, last.min(48))),
        }
        if index == selected {
            // Highlight the row up to its last column.
            let missing = width.saturating_sub(line.width());
            line.push_span(Span::raw(" ".repeat(missing)));
            line = line.style(look.theme.selected);
        }
        put(line, body, (index - first) as u16, buffer);
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
    let pane = &look.app.requests;
    if !pane.filter.is_empty() {
        let text = format!("{} match /{} ", count(pane.order().len() as u64), fit(pane.filter.text(), 30));
        line.push_span(Span::styled(text, look.theme.key));
    }
    let listed = state.requests.len();
    if listed < state.requests_total as usize {
        line.push_span(Span::styled(
            format!("(first {} of {}) ", count(listed as u64), count(state.requests_total.into())),
            look.theme.warning,
        ));
    }
    if pane.sort_by != SortBy::Engine || pane.descending {
        let arrow = if pane.descending { "▼" } else { "▲" };
        line.push_span(Span::styled(format!("{arrow} by {} ", pane.sort_by.name()), look.theme.key));
    }
    line
}

fn cell(text: &str, column: &Column) -> String {
    let text = padded(text, column.width);
    if RIGHT.contains(&column.title) {
        // Only numbers are right-aligned.
        format!("{:>width$} ", text.trim_end(), width = column.width)
    } else {
        format!("{text} ")
    }
}

fn header(look: Look<'_>, columns: &[&Column], room: usize) -> Line<'static> {
    let mut line = Line::default();
    for column in columns {
        let sorted = column.sort == Some(look.app.requests.sort_by);
        let style = if sorted { look.theme.key } else { look.theme.label };
        line.push_span(Span::styled(cell(column.title, column), style));
    }
    let sorted = look.app.requests.sort_by == SortBy::Generated;
    let style = if sorted { look.theme.key } else { look.theme.label };
    let title = if room < 25 { "PROGRESS OR REASON" } else { "PROGRESS, OR WHY IT WAITS" };
    line.push_span(Span::styled(title, style));
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

/// Draws the progress: generated tokens of the maximum, or computed prompt tokens during prefill.
fn progress_bar(look: Look<'_>, row: &RequestRow, width: usize) -> Vec<Span<'static>> {
    let (part, whole, style) = if row.state == "prefill" {
        let done = row.cached_tokens.max(row.computed_tokens).min(row.prompt_tokens);
        (done, row.prompt_tokens, look.theme.throughput)
    } else {
        (row.generated_tokens, row.max_tokens, look.theme.good)
    };
    let numbers = format!("{part}/{whole}");
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
