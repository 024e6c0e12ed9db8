//! The block map: the whole pool at a glance, and what is under the cursor in words. The glyph always shows
//! the state; what the colour shows can be chosen.

use infer_api::admin::{BlockInfo, BlockMap};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Look;
use super::format::{age, count, fit, percent};
use super::parts::{as_of, below, broken, framed, inset, put, wrapped};
use super::tenants;
use super::theme::{Theme, glyph};
use crate::state::Link;
use crate::state::blocks::{BlockState, ColourBy, Grid, Under};

/// Returns the rows below the map: the legend and the text about the cursor.
fn rows_below(body: Rect) -> u16 {
    if body.height >= 18 { 5 } else { 2 }
}

/// Returns columns and rows of the map in a terminal of this size, which the cursor keys need.
#[must_use]
pub fn room(terminal: Rect) -> (u16, u16) {
    let map = map_area(super::regions(terminal)[2]);
    (map.width, map.height)
}

/// Returns the area of the map within the body of the screen.
pub(super) fn map_area(body: Rect) -> Rect {
    let inside = inset(body, 2, 1);
    Rect { height: inside.height.saturating_sub(rows_below(body)), ..inside }
}

pub(super) fn draw(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let pane = &look.app.blocks;
    let Some(map) = &pane.map else {
        match &pane.error {
            Some(error) => wrapped(error, look.theme.bad, inset(area, 2, 1), buffer),
            None => super::chrome::waiting(look, area, buffer),
        }
        return;
    };
    let place = map_area(area);
    let grid = Grid::new(map, (place.width, place.height));
    framed(title(look, map, grid), look.theme, area, buffer);
    draw_cells(look, map, grid, place, buffer);
    let legend = below(inset(area, 2, 1), place.height);
    put(legend_line(look, map, legend.width), legend, 0, buffer);
    let mut rest = below(legend, 1);
    if rest.height > 1 {
        put(colour_line(look, map), rest, 0, buffer);
        rest = below(rest, 1);
    }
    let text = under_cursor(look, map, grid);
    for (index, line) in (0..rest.height).zip(broken(&text, usize::from(rest.width))) {
        put(Line::styled(line, look.theme.label), rest, index, buffer);
    }
}

/// Returns the title: first that the map is outdated, if it is, because the end of a title may be cut.
fn title(look: Look<'_>, map: &BlockMap, grid: Grid) -> Line<'static> {
    let pane = &look.app.blocks;
    let mut title = Line::from(Span::styled(" KV blocks ", look.theme.title));
    title.extend(as_of(look, pane.at, pane.error.as_deref()));
    let scale = if grid.per_cell == 1 {
        format!("{} of {} tokens ", count(map.total.into()), map.block_size)
    } else {
        format!("{}, {} per cell ", count(map.total.into()), grid.per_cell)
    };
    title.push_span(Span::styled(scale, look.theme.label));
    if pane.by != ColourBy::State && is_for(map, pane.by) {
        title.push_span(Span::styled(format!("coloured by {} ", pane.by.name()), look.theme.key));
    }
    title
}

fn draw_cells(look: Look<'_>, map: &BlockMap, grid: Grid, place: Rect, buffer: &mut Buffer) {
    let states: Vec<BlockState> = map.states.chars().map(BlockState::of).collect();
    let oldest = map.values.iter().copied().max().unwrap_or(0);
    for (cell, group) in states.chunks(grid.fold).enumerate() {
        // Right after the window has shrunk, the host's cells are folded once more until the next map
        // arrives.
        let state = *group.iter().max_by_key(|&&state| state as u8).expect("a chunk is not empty");
        let value = map.values.get(cell * grid.fold).copied().unwrap_or(0);
        let by = look.app.blocks.by;
        let (mark, style) = if by == ColourBy::State || !is_for(map, by) || state == BlockState::Free {
            (glyph(state), look.theme.block(state))
        } else {
            let class = class(by, value, oldest);
            (mark(look.theme, class).unwrap_or(glyph(state)), class_style(look.theme, by, class))
        };
        let (x, y) = (cell % grid.columns * grid.cell_width, cell / grid.columns);
        let under_cursor = look.app.blocks.cursor as usize / grid.per_cell == cell;
        let style = if under_cursor { style.patch(look.theme.selected) } else { style };
        if let Some(target) = buffer.cell_mut((place.x + x as u16, place.y + y as u16)) {
            target.set_char(mark).set_style(style);
        }
    }
}

/// Whether a map was fetched for a colouring; for another one it has no values.
fn is_for(map: &BlockMap, by: ColourBy) -> bool {
    by.name() == map.by
}

/// Returns the class, and so the colour, of a value.
fn class(by: ColourBy, value: u32, oldest: u32) -> usize {
    match by {
        ColourBy::State => 0,
        ColourBy::Tenant => value as usize,
        // From just touched to the oldest.
        ColourBy::Age => (u64::from(value) * 4 / u64::from(oldest.max(1))) as usize,
        ColourBy::References => match value {
            0..=2 => value as usize,
            3..=7 => 3,
            _ => 4,
        },
    }
}

fn class_style(theme: &Theme, by: ColourBy, class: usize) -> Style {
    let ages = [theme.shared, theme.throughput, theme.used, theme.label, theme.free];
    let references = [theme.free, theme.used, theme.good, theme.ttft, theme.bad];
    match by {
        ColourBy::State => Style::new(),
        ColourBy::Tenant => theme.series[class % theme.series.len()],
        ColourBy::Age => ages[class],
        ColourBy::References => references[class],
    }
}

/// Returns the digit or letter that replaces a class's colour if there are no colours.
fn mark(theme: &Theme, class: usize) -> Option<char> {
    const MARKS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    (!theme.has_colours).then(|| char::from(MARKS[class % MARKS.len()]))
}

/// Returns the totals, with fewer words if they don't fit; they always sum to the pool.
fn legend_line(look: Look<'_>, map: &BlockMap, width: u16) -> Line<'static> {
    let line = |names: bool, shares: bool| {
        let mut line = Line::default();
        for state in BlockState::ALL {
            let blocks = u64::from(state.count(&map.counts));
            if state == BlockState::Kept && blocks == 0 {
                continue;
            }
            line.push_span(Span::styled(format!("{} ", glyph(state)), look.theme.block(state)));
            if names {
                line.push_span(Span::styled(format!("{} ", state.name()), look.theme.label));
            }
            line.push_span(Span::raw(count(blocks)));
            if shares {
                let share = format!(" {}", percent(blocks, map.total.into()));
                line.push_span(Span::styled(share, look.theme.label));
            }
            line.push_span(Span::raw(if names { "  " } else { " " }));
        }
        line.push_span(Span::styled(format!("= {}", count(map.total.into())), look.theme.label));
        line
    };
    let forms = [line(true, true), line(true, false), line(false, false)];
    let fits = forms.iter().position(|form| form.width() <= usize::from(width));
    forms.into_iter().nth(fits.unwrap_or(2)).expect("three forms")
}

/// Returns the meaning of the colours.
fn colour_line(look: Look<'_>, map: &BlockMap) -> Line<'static> {
    let (theme, by) = (look.theme, look.app.blocks.by);
    if by != ColourBy::State && !is_for(map, by) {
        let why = match &look.app.link {
            Link::Replay | Link::Ended => ": the recording has none",
            _ if look.app.paused() => ": the paused screen has none; space resumes",
            Link::Live => " yet",
            Link::Connecting | Link::Lost { .. } => ": there is no connection to the host",
        };
        return Line::styled(format!("no colours by {}{why}", by.name()), theme.label);
    }
    let classes: Vec<(usize, String)> = match by {
        ColourBy::State => {
            let text = "kept: cached for a time set by the policy; c: colour by tenant, age, ...";
            return Line::styled(text, theme.border);
        }
        ColourBy::Tenant => {
            let mut tenants: Vec<u32> = map.values.clone();
            tenants.sort_unstable();
            tenants.dedup();
            let class = |tenant| (class(by, tenant, 0), format!("tenant {}", tenant_name(look, tenant)));
            tenants.into_iter().take(12).map(class).collect()
        }
        ColourBy::Age => {
            let oldest = u64::from(map.values.iter().copied().max().unwrap_or(0));
            (0..5).map(|step| (step, format!("from {}", age(oldest * step as u64 * 1_000 / 4)))).collect()
        }
        ColourBy::References => {
            [(1, "held by 1"), (2, "by 2"), (3, "by 3 to 7"), (4, "by more"), (0, "by none")]
                .map(|(class, text)| (class, text.to_owned()))
                .into()
        }
    };
    let mut line = Line::default();
    for (class, text) in classes {
        let mark = mark(theme, class).unwrap_or('■');
        line.push_span(Span::styled(format!("{mark} "), class_style(theme, by, class)));
        line.push_span(Span::styled(format!("{text}  "), theme.label));
    }
    line
}

/// Describes the block under the cursor, or the group if a cell is several blocks.
fn under_cursor(look: Look<'_>, map: &BlockMap, grid: Grid) -> String {
    let pane = &look.app.blocks;
    match pane.under() {
        Some(Ok(Under::Block(block))) => block_text(look, block),
        Some(Ok(Under::Group(group))) => {
            let last = group.from + group.total.saturating_sub(1);
            let c = &group.counts;
            let [used, shared, cached, kept, free] =
                [c.used, c.shared, c.cached, c.kept, c.free].map(|blocks| count(blocks.into()));
            let from = group.from;
            format!(
                "blocks {from}-{last}: {used} used, {shared} shared, {cached} cached, {kept} kept, {free} free"
            )
        }
        Some(Err(error)) => error.clone(),
        None => {
            let cell = pane.cursor as usize / grid.per_cell * grid.fold;
            let state = map.states.chars().nth(cell).map_or("", |c| BlockState::of(c).name());
            if grid.per_cell == 1 {
                format!("block {}: {state}", pane.cursor)
            } else {
                let first = pane.cursor as usize / grid.per_cell * grid.per_cell;
                let last = (first + grid.per_cell).min(map.total as usize) - 1;
                format!("blocks {first}-{last}: mostly {state}")
            }
        }
    }
}

/// Returns a tenant's name, cut if it is long.
fn tenant_name(look: Look<'_>, id: u32) -> String {
    look.app.state().map_or_else(|| id.to_string(), |state| fit(&tenants::name(state, id), 24))
}

fn block_text(look: Look<'_>, block: &BlockInfo) -> String {
    let mut text = format!("block {}: {}", block.id, block.state);
    if block.state == "free" {
        return text;
    }
    let rows = look.app.state().map_or(&[][..], |state| &state.requests);
    let holder = |id: &u64| match rows.iter().find(|row| row.id == *id) {
        Some(row) if !row.session.is_empty() => format!("{id} ({})", fit(&row.session, 24)),
        _ => id.to_string(),
    };
    if !block.holders.is_empty() {
        let shown: Vec<String> = block.holders.iter().take(4).map(holder).collect();
        let more = (block.references as usize).saturating_sub(shown.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text += &format!(", held by request {}{more}", shown.join(", "));
    }
    let tenant = tenant_name(look, block.tenant);
    text += &format!(", depth {}, tenant {tenant}, touched {} ago", block.depth, age(block.age_ms));
    if let Some(ms) = block.expires_ms {
        text += &format!(", kept for {} more", age(ms));
    }
    if block.kept_prompts > 0 {
        let (prompts, end) = if block.kept_prompts == 1 { ("prompt", "ends") } else { ("prompts", "end") };
        text += &format!(", {} cached whole {prompts} {end} here", block.kept_prompts);
    }
    if let Some(hash) = &block.hash {
        text += &format!(", {} hits, hash {hash}", count(block.uses.into()));
    }
    if let Some(prefix) = &block.text {
        text += &format!(", text ...{}", fit(&prefix.replace('\n', " "), 512));
    }
    text
}
