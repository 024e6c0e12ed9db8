//! What lies over a screen: the help, questions, the list of policies, one request in full.

use infer_api::admin::{AvailablePolicy, RequestRow};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};

use super::Look;
use super::format::{age, count, fit};
use super::parts::{framed, inset, put, wrapped};
use crate::state::actions::Dialog;

const HELP: [(&str, &str); 17] = [
    ("1-5, tab", "overview, blocks, requests, policies, log"),
    ("hjkl, arrows", "move"),
    ("g G, PgUp PgDn", "first, last, a page"),
    ("space", "pause the screen; the host runs on"),
    ("esc", "close, dismiss"),
    ("q, ctrl-c", "quit"),
    ("", ""),
    ("Requests", ""),
    ("s, left right", "sort by another column"),
    ("S", "reverse the order"),
    ("enter", "everything about a request"),
    ("c, x, del", "cancel it (asks first)"),
    ("", ""),
    ("Policies", ""),
    ("up down", "select a slot"),
    ("s, enter", "swap in another policy (asks first)"),
    ("r", "roll back (asks first)"),
];

/// A box in the middle, as large as wanted and possible, emptied.
fn centred(
    look: Look<'_>,
    title: &str,
    (width, height): (u16, u16),
    area: Rect,
    buffer: &mut Buffer,
) -> Rect {
    let (width, height) = ((width + 4).min(area.width), (height + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(place, buffer);
    let title = Line::from(Span::styled(format!(" {title} "), look.theme.title));
    inset(framed(title, look.theme, place, buffer), 1, 0)
}

pub(super) fn draw_help(look: Look<'_>, area: Rect, buffer: &mut Buffer) {
    let inside = centred(look, "Keys", (62, HELP.len() as u16), area, buffer);
    // A small terminal loses the empty lines first.
    let tight = usize::from(inside.height) < HELP.len();
    let lines = HELP.iter().filter(|(key, _)| !tight || !key.is_empty());
    for (index, (key, meaning)) in (0..).zip(lines) {
        let style = if meaning.is_empty() { look.theme.title } else { look.theme.key };
        let key_width = if inside.width < 50 { 7 } else { 15 };
        let key = if meaning.is_empty() { (*key).to_owned() } else { fit(key, key_width) };
        let line = Line::from(vec![Span::styled(format!("{key:<key_width$} "), style), Span::raw(*meaning)]);
        put(line, inside, index, buffer);
    }
}

pub(super) fn draw(look: Look<'_>, dialog: &Dialog, area: Rect, buffer: &mut Buffer) {
    match dialog {
        Dialog::Confirm { question, .. } => draw_question(look, question, area, buffer),
        Dialog::Pick { kind, options, selected } => {
            let title = format!("Swap {kind}");
            match options {
                None => {
                    let inside = centred(look, &title, (30, 1), area, buffer);
                    put(Line::styled("asking the host ...", look.theme.label), inside, 0, buffer);
                }
                Some(Err(error)) => {
                    let inside = centred(look, &title, (60, 4), area, buffer);
                    wrapped(error, look.theme.bad, inside, buffer);
                }
                Some(Ok(options)) => draw_options(look, &title, options, *selected, area, buffer),
            }
        }
        Dialog::Details { id } => {
            let row = look.app.state().and_then(|state| state.requests.iter().find(|row| row.id == *id));
            draw_request(look, *id, row, area, buffer);
        }
    }
}

fn draw_question(look: Look<'_>, question: &str, area: Rect, buffer: &mut Buffer) {
    let inside = centred(look, "Sure?", (56, 4), area, buffer);
    let text = Rect { height: inside.height.saturating_sub(1), ..inside };
    wrapped(question, ratatui::style::Style::new(), text, buffer);
    let answers = Line::from(vec![
        Span::styled("y", look.theme.key),
        Span::styled(" yes   ", look.theme.label),
        Span::styled("n", look.theme.key),
        Span::styled(" no", look.theme.label),
    ]);
    put(answers, inside, inside.height.saturating_sub(1), buffer);
}

fn draw_options(
    look: Look<'_>,
    title: &str,
    options: &[AvailablePolicy],
    selected: usize,
    area: Rect,
    buffer: &mut Buffer,
) {
    let rows = options.len().clamp(1, 12) as u16;
    let inside = centred(look, title, (72, rows), area, buffer);
    if options.is_empty() {
        put(Line::styled("the host carries no policy of this kind", look.theme.label), inside, 0, buffer);
        return;
    }
    let height = usize::from(inside.height).max(1);
    let offset = (selected + 1).saturating_sub(height);
    for (index, option) in options.iter().enumerate().skip(offset).take(height) {
        let text = format!("{:<16} {:<8} {}", option.name, option.version, option.description);
        let mut line = Line::raw(format!(
            "{:<width$}",
            fit(&text, usize::from(inside.width)),
            width = usize::from(inside.width)
        ));
        if index == selected {
            line = line.style(look.theme.selected);
        }
        put(line, inside, (index - offset) as u16, buffer);
    }
}

fn draw_request(look: Look<'_>, id: u64, row: Option<&RequestRow>, area: Rect, buffer: &mut Buffer) {
    let Some(row) = row else {
        let inside = centred(look, &format!("Request {id}"), (40, 1), area, buffer);
        put(Line::styled("has ended", look.theme.label), inside, 0, buffer);
        return;
    };
    let mut facts = vec![
        ("state", row.state.clone()),
        (
            "prompt",
            format!("{} tokens, {} cached", count(row.prompt_tokens.into()), count(row.cached_tokens.into())),
        ),
        ("computed", format!("{} tokens", count(row.computed_tokens.into()))),
        ("generated", format!("{} of at most {}", row.generated_tokens, row.max_tokens)),
        ("blocks", format!("{}, preempted {} times", row.blocks, row.preemptions)),
        ("age", format!("{}, {} in the queue", age(row.age_ms), age(row.queue_ms))),
        ("ttft", row.ttft_ms.map_or_else(|| "-".to_owned(), age)),
        ("priority", row.priority.to_string()),
        ("request id", row.request_id.clone()),
        ("tenant", row.tenant.to_string()),
        ("session", row.session.clone()),
        ("user", row.user.clone()),
    ];
    let metadata: Vec<String> = row.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    facts.push(("metadata", metadata.join(" ")));
    facts.retain(|(_, text)| !text.is_empty());
    let inside = centred(look, &format!("Request {id}"), (58, facts.len() as u16), area, buffer);
    for (index, (label, text)) in (0..).zip(facts) {
        let text = fit(&text, usize::from(inside.width).saturating_sub(12));
        let line = Line::from(vec![Span::styled(format!("{label:<11} "), look.theme.label), Span::raw(text)]);
        put(line, inside, index, buffer);
    }
}
