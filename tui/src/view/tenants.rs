//! The table of tenants. A narrow terminal drops the less important columns; name, running and waiting always stay.

use infer_api::admin::{State, TenantRow};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{columns as width_of, count, milliseconds, rate};
use super::parts::{framed, put, wrapped};
use super::table::{self, Column};
use crate::state::table::Table;
use crate::state::tenants::{FIELDS, SortBy, unknown_field};

/// Columns that a name gets at most, where there is room.
const LONGEST_NAME: usize = 32;

/// Width that selects the columns of the table as text; token counts and weights are for the screen.
const TEXT_WIDTH: usize = 96;

const COLUMNS: [Column<SortBy>; 16] = [
    Column::left("TENANT", Some(SortBy::Name), 12, 0, |row| row.name.clone()),
    Column::right("WEIGHT", Some(SortBy::Weight), 6, 113, |row| row.weight.to_string()),
    Column::right("RUNNING", Some(SortBy::Running), 7, 0, |row| count(row.running.into())),
    Column::right("WAITING", Some(SortBy::Waiting), 7, 0, |row| count(row.waiting.into())),
    Column::right("HELD", Some(SortBy::Held), 5, 96, |row| count(row.held.into())),
    Column::right("TOK/S", Some(SortBy::Rate), 7, 37, |row| rate(row.generated_per_second)),
    Column::right("TTFT P50", Some(SortBy::TtftP50), 8, 55, |row| milliseconds(row.ttft_p50_ms)),
    Column::right("TTFT P99", Some(SortBy::TtftP99), 8, 46, |row| milliseconds(row.ttft_p99_ms)),
    Column::right("QUEUE P50", Some(SortBy::QueueP50), 9, 106, |row| milliseconds(row.queue_p50_ms)),
    Column::right("QUEUE P99", Some(SortBy::QueueP99), 9, 65, |row| milliseconds(row.queue_p99_ms)),
    Column::right("REQUESTS", Some(SortBy::Requests), 9, 90, |row| count(row.requests)),
    Column::right("REFUSED", Some(SortBy::Refused), 7, 73, |row| count(row.refused)),
    Column::right("FAILED", Some(SortBy::Failed), 6, 80, |row| count(row.failed)),
    Column::right("PROMPT", Some(SortBy::Prompt), 13, 141, |row| count(row.prompt_tokens)),
    Column::right("GENERATED", Some(SortBy::Generated), 13, 127, |row| count(row.generated_tokens)),
    Column::right("ID", None, 5, 147, |row| row.id.to_string()),
];

/// Returns the columns of a table of this width. Names get what the others leave.
fn columns(width: usize) -> Vec<Column<SortBy>> {
    let mut columns: Vec<_> = COLUMNS.into_iter().filter(|column| width >= column.from).collect();
    let used: usize = columns.iter().map(|column| column.width + 1).sum();
    columns[0].width += width.saturating_sub(used).min(LONGEST_NAME - columns[0].width);
    columns
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else {
        super::chrome::waiting(look, area, buffer);
        return;
    };
    let inside = table::inner(framed(title(look, state), look.theme, area, buffer));
    let tenants = &look.app.tenants;
    if tenants.order().is_empty() {
        wrapped(&nothing(tenants, state), look.theme.label, inside, buffer);
        return;
    }
    let columns = columns(usize::from(inside.width));
    put(columns.iter().map(|column| column.head(look, tenants)).collect(), inside, 0, buffer);
    table::rows(look, tenants, area, buffer, |at, _| {
        let row = state.tenants.get(at)?;
        let cell = |column: &Column<SortBy>| Span::styled(column.cell(row), style(look, column, row));
        Some(columns.iter().map(cell).collect())
    });
}

fn title(look: Look<'_>, state: &State) -> Line<'static> {
    let tenants = &look.app.tenants;
    let mut line = Line::from(Span::styled(" Tenants ", look.theme.title));
    let listed = state.tenants.len();
    let all = || Span::styled(format!("{} ", count(listed as u64)), look.theme.label);
    line.extend(table::first_of(look, listed, state.tenants_total).or_else(|| (listed > 0).then(all)));
    line.extend(table::filtered(look, tenants));
    line.extend(table::sorted(look, tenants));
    line
}

/// Returns why no row is shown.
fn nothing(tenants: &Table<SortBy>, state: &State) -> String {
    let counters = &state.counters;
    let idle = counters.submitted == 0 && counters.refused.values().all(|refused| *refused == 0);
    match unknown_field(tenants) {
        _ if state.tenants.is_empty() && idle => "no requests yet".to_owned(),
        _ if state.tenants.is_empty() => "this host sends no tenants".to_owned(),
        Some(name) => format!("tenants have no field `{name}`; the fields are {}", FIELDS.join(", ")),
        None => "no tenant matches the filter".to_owned(),
    }
}

fn style(look: Look<'_>, column: &Column<SortBy>, row: &TenantRow) -> Style {
    match column.sort {
        Some(SortBy::Rate) => look.theme.throughput,
        Some(SortBy::Refused) if row.refused > 0 => look.theme.warning,
        Some(SortBy::Failed) if row.failed > 0 => look.theme.bad,
        _ => Style::new(),
    }
}

/// Returns a tenant's name, or its number if the host doesn't list it. Hosts list tenants from their first request on;
/// 0 is always `default`, the tenant of a host without a tenants file, whose cached blocks may be older than that.
pub(super) fn name(state: &State, id: u32) -> String {
    match state.tenants.iter().find(|row| row.id == id) {
        Some(row) => row.name.clone(),
        None if id == 0 => "default".to_owned(),
        None => id.to_string(),
    }
}

/// Returns the table as text, with whole names; its title is a line before it if the host lists only some tenants.
pub(crate) fn text(state: &State) -> Vec<String> {
    let mut columns = columns(TEXT_WIDTH);
    let longest = state.tenants.iter().map(|row| width_of(&row.name)).max();
    columns[0].width = longest.unwrap_or(0).max(columns[0].title.len());
    let (listed, total) = (state.tenants.len(), state.tenants_total as usize);
    let some =
        (listed < total).then(|| format!("the first {} of {}", count(listed as u64), count(total as u64)));
    let head = columns.iter().map(|column| column.aligned(column.title)).collect();
    let rows = state.tenants.iter().map(|row| columns.iter().map(|column| column.cell(row)).collect());
    let lines = some.into_iter().chain([head]).chain(rows);
    lines.map(|line: String| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_wherever_they_are_shown() {
        let mut widest = 0;
        for width in 30..250 {
            let columns = columns(width);
            let used: usize = columns.iter().map(|column| column.width + 1).sum();
            // The space after the last column may be cut.
            assert!(used <= width + 1, "{width}: {used}");
            let all_fit = columns.iter().all(|column| column.title.len() <= column.width);
            assert!(all_fit && columns.len() >= widest, "{width}");
            widest = columns.len();
        }
        assert_eq!(widest, COLUMNS.len());
    }

    #[test]
    fn as_text_names_are_whole_and_columns_aligned() {
        let tenant = |name: &str| TenantRow { name: name.into(), running: 1_200, ..TenantRow::default() };
        let name = "a".repeat(64);
        let tenants = vec![tenant(&name), tenant("b")];
        let lines = text(&State { tenants, tenants_total: 70, ..State::default() });
        assert_eq!(lines[0], "the first 2 of 70");
        let ends: Vec<Option<usize>> = lines[1..]
            .iter()
            .zip(["RUNNING", "1,200", "1,200"])
            .map(|(line, text)| Some(line.find(text)? + text.len()))
            .collect();
        assert_eq!(ends, [Some(64 + 1 + 7); 3], "{lines:?}");
        assert!(lines[2].starts_with(&name));
    }

    #[test]
    fn a_tenant_has_its_name_where_the_host_lists_it() {
        let row = TenantRow { id: 3, name: "acme".into(), ..TenantRow::default() };
        let state = State { tenants: vec![row], ..State::default() };
        assert_eq!([3, 4, 0].map(|id| name(&state, id)), ["acme", "4", "default"]);
    }
}
