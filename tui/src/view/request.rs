//! Details of one request: facts, why it waits, timeline, block table.

use infer_api::admin::{RequestDetail, RequestRow, TableBlock};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Look;
use super::dialog::{boxed, centred};
use super::format::{age, count, split};
use super::parts::{below, broken, fitting, put};
use super::theme::glyph;
use crate::state::blocks::BlockState;
use crate::state::why;

pub(super) fn draw(look: Look<'_>, id: u64, area: Rect, buffer: &mut Buffer) {
    let Some(state) = look.app.state() else { return };
    let detail = match &look.app.requests.detail {
        Some((of, Ok(detail))) if *of == id => Some(detail),
        _ => None,
    };
    let at = state.requests.iter().position(|row| row.id == id);
    // A request that has ended stays as it was last seen.
    let Some(row) = at.map(|at| &state.requests[at]).or(detail.map(|detail| &detail.row)) else {
        let inside = boxed(look, &format!("Request {id}"), centred((40, 1), area), buffer);
        put(Line::styled("has ended", look.theme.label), inside, 0, buffer);
        return;
    };
    let why = at.and_then(|at| why::waits(row, state, look.app.requests.ahead(at)).map(|why| why.full()));
    let facts = facts(row, detail, why);
    let table = detail.map_or(0, |detail| detail.table.len());
    let ended = if at.is_none() { ", ended; as last seen" } else { "" };
    let title = format!("Request {id}{ended}");
    let width = area.width.saturating_sub(8).clamp(36, 100);
    let table_rows = (table.div_ceil(usize::from(width).saturating_sub(4).max(1))).min(8) as u16;
    let mut lines = Vec::new();
    for (label, text) in facts {
        let style = if label == "waits" { look.theme.warning } else { Style::new() };
        let mut label = label;
        for part in broken(&text, usize::from(width.min(area.width.saturating_sub(4)).saturating_sub(12))) {
            let label = Span::styled(format!("{:<11} ", std::mem::take(&mut label)), look.theme.label);
            lines.push(Line::from(vec![label, Span::styled(part, style)]));
        }
    }
    let rows = lines.len() as u16 + 5 + table_rows;
    let inside = boxed(look, &title, centred((width, rows), area), buffer);
    let mut rest = inside;
    // A small terminal drops the last facts, not the timeline.
    let fact_rows = inside.height.saturating_sub(if inside.height < 12 { 2 } else { 3 });
    for line in lines.into_iter().take(usize::from(fact_rows)) {
        put(line, rest, 0, buffer);
        rest = below(rest, 1);
    }
    draw_timeline(look, row, rest, buffer);
    if let Some(detail) = detail {
        draw_table(look, detail, below(rest, 3), buffer);
    }
}

fn facts(
    row: &RequestRow,
    detail: Option<&RequestDetail>,
    why: Option<String>,
) -> Vec<(&'static str, String)> {
    let mut facts = vec![("state", row.state.clone())];
    if let Some(why) = why {
        facts.push(("waits", why));
    }
    // Of the same moment as what only the details have, and with long values whole.
    let whole = detail.map_or(row, |detail| &detail.row);
    facts.extend(progress(whole, detail));
    if let Some(detail) = detail {
        if detail.pending_tokens > 0 {
            let pending = count(detail.pending_tokens.into());
            facts.push(("pending", format!("{pending} of its tokens are being computed by other requests")));
        }
        if let Some(due) = detail.deadline_ms {
            let left = due - row.age_ms.cast_signed();
            let text = if row.ttft_ms.is_some() {
                format!("first token was due {} after arrival", age(due.unsigned_abs()))
            } else if left >= 0 {
                format!("first token is due in {}", age(left.unsigned_abs()))
            } else {
                format!("first token was due {} ago", age(left.unsigned_abs()))
            };
            facts.push(("deadline", text));
        }
        if detail.overtaken {
            facts.push(("overtaken", "a later request started before it".to_owned()));
        }
    }
    let metadata: Vec<String> = whole.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    facts.extend([
        ("priority", row.priority.to_string()),
        ("request id", row.request_id.clone()),
        ("tenant", super::requests::tenant(whole)),
        ("adapter", whole.adapter.clone().unwrap_or_default()),
        ("session", whole.session.clone()),
        ("user", whole.user.clone()),
        ("metadata", metadata.join(" ")),
    ]);
    facts.retain(|(_, text)| !text.is_empty());
    facts
}

/// Returns how far its prompt and its output are, and its memory.
fn progress(row: &RequestRow, detail: Option<&RequestDetail>) -> [(&'static str, String); 3] {
    let number = |value: u32| count(value.into());
    let found = if row.started { "cached" } else { "would be cached" };
    // The host counts all tokens whose keys and values are there: cached, computed and generated ones.
    let computed = row.computed_tokens.min(row.prompt_tokens).saturating_sub(row.cached_tokens);
    let prompt = format!(
        "{} tokens, {} {found}, {} computed",
        number(row.prompt_tokens),
        number(row.cached_tokens),
        number(computed)
    );
    let expected = detail
        .filter(|detail| detail.expected_tokens > row.generated_tokens)
        .map_or_else(String::new, |detail| format!(", {} expected", number(detail.expected_tokens)));
    let generated =
        format!("{} of at most {}{expected}", number(row.generated_tokens), number(row.max_tokens));
    let most = detail.map_or_else(String::new, |detail| format!(" of at most {}", number(detail.max_blocks)));
    let blocks = format!("{}{most}, preempted {} times", number(row.blocks), number(row.preemptions));
    [("prompt", prompt), ("generated", generated), ("blocks", blocks)]
}

/// Draws where the time went: in the queue, until the first token, since then.
fn draw_timeline(look: Look<'_>, row: &RequestRow, area: Rect, buffer: &mut Buffer) {
    let queue = row.queue_ms.min(row.age_ms);
    let first = row.ttft_ms.unwrap_or(row.age_ms).clamp(queue, row.age_ms);
    let phases = [
        ("queue", true, queue, '░', look.theme.label),
        ("prefill", row.started, first - queue, '▒', look.theme.throughput),
        ("decode", row.ttft_ms.is_some(), row.age_ms - first, '█', look.theme.good),
    ];
    let parts = phases.map(|(_, _, ms, ..)| ms);
    let width = usize::from(area.width);
    let bar: Line<'_> = split(width, &parts)
        .into_iter()
        .zip(phases)
        .map(|(cells, (.., glyph, style))| Span::styled(glyph.to_string().repeat(cells), style))
        .collect();
    put(bar, area, 0, buffer);
    let mut legend: Vec<Vec<Span<'_>>> = Vec::new();
    for (name, begun, ms, glyph, style) in phases {
        let took = match ms {
            0 if begun => "<1 ms".to_owned(),
            0 => "-".to_owned(),
            ms => age(ms),
        };
        legend.push(vec![
            Span::styled(format!("{glyph} "), style),
            Span::styled(format!("{name} "), look.theme.label),
            Span::raw(format!("{took}  ")),
        ]);
    }
    legend.push(vec![Span::styled(format!("age {}", age(row.age_ms)), look.theme.label)]);
    put(fitting(width, legend), area, 1, buffer);
}

/// Draws the block table as a strip, and the block ids as far as they fit.
fn draw_table(look: Look<'_>, detail: &RequestDetail, area: Rect, buffer: &mut Buffer) {
    if detail.table.is_empty() || area.height == 0 {
        return;
    }
    let width = usize::from(area.width).max(1);
    let state = |place: &TableBlock| if place.references > 1 { BlockState::Shared } else { BlockState::Used };
    let rows = detail.table.len().div_ceil(width).min(usize::from(area.height));
    for (index, part) in (0..rows as u16).zip(detail.table.chunks(width)) {
        let line: Line<'_> = part
            .iter()
            .map(|place| {
                let state = state(place);
                Span::styled(glyph(state).to_string(), look.theme.block(state))
            })
            .collect();
        put(line, area, index, buffer);
    }
    let shared = detail.table.iter().filter(|place| place.references > 1).count();
    let found = detail.table.iter().filter(|place| place.indexed).count();
    let ids: Vec<String> = detail.table.iter().map(|place| place.block.to_string()).collect();
    let text = format!(
        "{} blocks, {} shared, {} reusable by others: {}",
        count(detail.table.len() as u64),
        count(shared as u64),
        count(found as u64),
        ids.join(" ")
    );
    let rest = below(area, rows as u16);
    for (index, line) in (0..rest.height).zip(broken(&text, width)) {
        put(Line::styled(line, look.theme.label), rest, index, buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_tell_the_prompt_from_the_output_and_expect_only_what_is_still_to_come() {
        let row = |generated_tokens| RequestRow {
            started: true,
            prompt_tokens: 1_200,
            cached_tokens: 64,
            computed_tokens: 1_200 + generated_tokens,
            generated_tokens,
            max_tokens: 4_000,
            blocks: 308,
            ..RequestRow::default()
        };
        let detail = |generated| RequestDetail {
            row: row(generated),
            max_blocks: 325,
            expected_tokens: 3_712,
            ..RequestDetail::default()
        };
        let texts = |shown: u32, known: Option<&RequestDetail>| {
            let all = facts(&row(shown), known, None);
            ["prompt", "generated", "blocks"].map(|name| {
                all.iter().find(|(label, _)| *label == name).map(|(_, text)| text.clone()).unwrap_or_default()
            })
        };
        // The snapshot is ahead of the details.
        let [prompt, generated, blocks] = texts(3_728, Some(&detail(3_700)));
        assert_eq!(prompt, "1,200 tokens, 64 cached, 1,136 computed");
        assert_eq!(generated, "3,700 of at most 4,000, 3,712 expected");
        assert_eq!(blocks, "308 of at most 325, preempted 0 times");
        assert_eq!(texts(3_728, Some(&detail(3_712)))[1], "3,712 of at most 4,000");
        assert_eq!(texts(3_728, None)[1], "3,728 of at most 4,000");
    }
}
