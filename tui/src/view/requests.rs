//! The table of live requests. A narrow terminal drops the less important columns; id, state and progress
//! always stay. A row that stands for several sequences has their number before its progress.

use infer_api::admin::{RequestRow, State};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit, milliseconds};
use super::parts::{framed, put, wrapped};
use super::table::{self, Column};
use crate::state::requests::{FIELDS, RequestsPane, SortBy};
use crate::state::why;

const COLUMNS: [Column<SortBy>; 11] = [
    Column::right("ID", Some(SortBy::Id), 7, 0, |row| row.id.to_string()),
    Column::left("STATE", Some(SortBy::State), 9, 0, |row| row.state.clone()),
    Column::right("AGE", Some(SortBy::Age), 7, 40, |row| age(row.age_ms)),
    Column::right("PROMPT", Some(SortBy::Prompt), 7, 60, |row| count(row.prompt_tokens.into())),
    Column::right("CACHED", Some(SortBy::Cached), 7, 70, |row| count(row.cached_tokens.into())),
    Column::right("BLOCKS", Some(SortBy::Blocks), 6, 52, |row| count(row.blocks.into())),
    Column::right("TTFT", Some(SortBy::Ttft), 7, 76, ttft),
    Column::right("PRIO", None, 4, 104, |row| row.priority.to_string()),
    Column::left("TENANT", None, 8, 112, tenant),
    Column::left("SESSION", None, 12, 124, |row| row.session.clone()),
    Column::left("USER", None, 12, 140, |row| row.user.clone()),
];

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

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::chrome::waiting(look, area, buffer);
        return;
    };
    let inside = table::inner(framed(title(look, state, area.width < 60), look.theme, area, buffer));
    let pane = &look.app.requests;
    if pane.table.order().is_empty() {
        wrapped(&nothing(pane, state), look.theme.label, inside, buffer);
        return;
    }
    let width = usize::from(inside.width);
    let columns: Vec<&Column<SortBy>> = COLUMNS.iter().filter(|column| width >= column.from).collect();
    let fixed: usize = columns.iter().map(|column| column.width + 1).sum();
    let last = width.saturating_sub(fixed);
    put(header(look, &columns, last), inside, 0, buffer);
    table::rows(look, &pane.table, area, buffer, |at, others| {
        let request = state.requests.get(at)?;
        let mut line = Line::default();
        let why = why::waits(request, state, pane.ahead(at));
        for column in &columns {
            // A waiting request has no blocks and no TTFT; the reason gets their columns.
            if why.is_some() && matches!(column.title, "BLOCKS" | "TTFT") && width < 104 {
                continue;
            }
            let style =
                if column.title == "STATE" { state_style(look, &request.state) } else { Style::new() };
            line.push_span(Span::styled(column.cell(request), style));
        }
        if others > 0 {
            line.push_span(Span::styled(format!("×{} ", count(others as u64 + 1)), look.theme.key));
        }
        let room = width.saturating_sub(line.width());
        match why {
            Some(why) => line.push_span(Span::styled(fit(&why.within(room), room), look.theme.label)),
            None => line.extend(progress_bar(look, request, room.min(48))),
        }
        Some(line)
    });
}

/// Returns why no row is shown.
fn nothing(pane: &RequestsPane, state: &State) -> String {
    match pane.unknown_field(&state.requests) {
        _ if state.requests.is_empty() => "no live requests".to_owned(),
        Some(name) => {
            let fields = FIELDS.join(", ");
            format!("no request has a field `{name}`; the fields are {fields} and the keys of the metadata")
        }
        None => "no request matches the filter".to_owned(),
    }
}

fn title(look: Look<'_>, state: &State, short: bool) -> Line<'static> {
    let queue = &state.queue;
    let mut line = Line::from(Span::styled(" Requests ", look.theme.title));
    let [running, waiting, held, preempted] =
        [queue.running, queue.waiting, queue.held, queue.preempted].map(|requests| count(requests.into()));
    let text = if short {
        let all = count((queue.waiting + queue.held + queue.preempted).into());
        format!("{running} run, {all} wait ")
    } else {
        format!("{running} running, {waiting} waiting, {held} held, {preempted} preempted ")
    };
    line.push_span(Span::styled(text, look.theme.label));
    let table = &look.app.requests.table;
    line.extend(table::filtered(look, table));
    line.extend(table::first_of(look, state.requests.len(), state.requests_total));
    line.extend(table::sorted(look, table));
    line
}

fn header(look: Look<'_>, columns: &[&Column<SortBy>], room: usize) -> Line<'static> {
    let table = &look.app.requests.table;
    let mut line: Line<'_> = columns.iter().map(|column| column.head(look, table)).collect();
    let sorted = table.sort_by == SortBy::Generated;
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
    let numbers = format!("{}/{}", count(part.into()), count(whole.into()));
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
