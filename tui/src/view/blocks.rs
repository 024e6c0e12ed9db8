//! The block map: every block of the pool at a glance, and the one under the cursor in words.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit, percent};
use super::parts::{below, framed, inset, put, row, wrapped};
use super::theme::glyph;
use crate::state::blocks::{BlockState, Counts, Grid};

/// Rows of legend under the map.
const LEGEND_ROWS: u16 = 2;

/// Room for the map in a terminal of this size; the cursor keys compute with it.
#[must_use]
pub fn room(terminal: Rect) -> (u16, u16) {
    let map = map_area(super::regions(terminal)[2]);
    (map.width, map.height)
}

fn map_area(body: Rect) -> Rect {
    let inside = inset(body, 2, 1);
    Rect { height: inside.height.saturating_sub(LEGEND_ROWS), ..inside }
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let pane = &look.app.blocks;
    let Some(blocks) = &pane.blocks else {
        match &pane.error {
            Some(error) => wrapped(error, look.theme.bad, inset(area, 2, 1), buffer),
            None => super::draw_waiting(look, area, buffer),
        }
        return;
    };
    let map = map_area(area);
    let grid = Grid::new(pane.states.len(), (map.width, map.height));
    let mut title = Line::from(Span::styled(" KV blocks ", look.theme.title));
    let scale = if grid.per_cell == 1 {
        format!("{} of {} tokens ", count(pane.states.len() as u64), blocks.block_size)
    } else {
        format!("{}, a cell is {} of them ", count(pane.states.len() as u64), grid.per_cell)
    };
    title.push_span(Span::styled(scale, look.theme.label));
    framed(title, look.theme, area, buffer);
    for (cell, states) in pane.states.chunks(grid.per_cell).enumerate() {
        let state = Counts::of(states.iter().copied()).majority();
        let (x, y) = (cell % grid.columns * grid.cell_width, cell / grid.columns);
        let under_cursor = pane.cursor / grid.per_cell == cell;
        let style = look.theme.block(state);
        let style = if under_cursor { style.patch(look.theme.selected) } else { style };
        let at = (map.x + x as u16, map.y + y as u16);
        if let Some(target) = buffer.cell_mut(at) {
            target.set_char(glyph(state)).set_style(style);
        }
    }
    let legend = below(inset(area, 2, 1), map.height);
    put(legend_line(look, &pane.counts(), legend.width < 70), legend, 0, buffer);
    put(cursor_line(look, grid, usize::from(legend.width)), legend, 1, buffer);
    debug_assert_eq!(row(legend, 0).y, map.bottom());
}

fn legend_line(look: Look<'_>, counts: &Counts, short: bool) -> Line<'static> {
    let total = counts.total() as u64;
    let mut line = Line::default();
    for state in BlockState::ALL {
        let blocks = counts.get(state) as u64;
        line.push_span(Span::styled(format!("{} ", glyph(state)), look.theme.block(state)));
        if short {
            line.push_span(Span::raw(format!("{}  ", count(blocks))));
            continue;
        }
        line.push_span(Span::styled(format!("{} ", state.name()), look.theme.label));
        line.push_span(Span::raw(format!("{} ", count(blocks))));
        line.push_span(Span::styled(format!("{}  ", percent(blocks, total)), look.theme.label));
    }
    line.push_span(Span::styled(format!("= {}", count(total)), look.theme.label));
    line
}

/// The block under the cursor, or the group where a cell is one.
fn cursor_line(look: Look<'_>, grid: Grid, width: usize) -> Line<'static> {
    let pane = &look.app.blocks;
    let Some(blocks) = &pane.blocks else { return Line::default() };
    let Some(&state) = pane.states.get(pane.cursor) else { return Line::default() };
    let text = if grid.per_cell == 1 {
        let at = pane.cursor;
        let mut text = format!("block {at}: {}", state.name());
        let value = |column: &[u64]| column.get(at).copied().unwrap_or_default();
        if state != BlockState::Free {
            let references = blocks.references.get(at).copied().unwrap_or_default();
            let depth = blocks.depths.get(at).copied().unwrap_or_default();
            let owner = match value(&blocks.owners) {
                0 => "no request".to_owned(),
                id => format!("request {id}"),
            };
            text += &format!(
                ", {owner}, {references} tables, depth {depth}, tenant {}, touched {} ago",
                blocks.tenants.get(at).copied().unwrap_or_default(),
                age(value(&blocks.ages_ms))
            );
        }
        text
    } else {
        let first = pane.cursor / grid.per_cell * grid.per_cell;
        let last = (first + grid.per_cell).min(pane.states.len());
        let counts = Counts::of(pane.states[first..last].iter().copied());
        format!(
            "blocks {first}-{}: {} used, {} shared, {} cached, {} free",
            last - 1,
            counts.used,
            counts.shared,
            counts.cached,
            counts.free
        )
    };
    Line::styled(fit(&text, width), look.theme.label)
}
