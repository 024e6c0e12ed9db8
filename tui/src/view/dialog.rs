//! Dialogs over a screen: confirmations, the list of policies, a path, a configuration.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};
use serde_json::Value;

use super::Look;
use super::chrome::edited;
use super::format::{columns, fit, padded};
use super::parts::{below, broken, first_shown, framed, inset, put, wrapped};
use crate::order::{Mode, Source};
use crate::state::dialog::Dialog;
use crate::state::form::Field;
use crate::state::swap::{Editing, Path, Picker, Plan, is_default};

/// Returns the columns inside a box that would like `width`.
fn room(width: u16, area: Rect) -> u16 {
    if area.width < width + 12 { area.width.saturating_sub(4) } else { width }
}

/// Returns the place of a centred box with room for at most the given size inside. It takes the whole width rather
/// than leave narrow strips of the screen at its sides.
#[must_use]
pub(super) fn centred((width, height): (u16, u16), area: Rect) -> Rect {
    let (width, height) = (room(width, area) + 4, (height + 2).min(area.height));
    let width = width.min(area.width);
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

/// Clears and frames a box and returns the area inside.
pub(super) fn boxed(look: Look<'_>, title: &str, place: Rect, buffer: &mut Buffer) -> Rect {
    Clear.render(place, buffer);
    let title = Line::from(Span::styled(format!(" {title} "), look.theme.title));
    inset(framed(title, look.theme, place, buffer), 1, 0)
}

pub(super) fn draw(look: Look<'_>, dialog: &Dialog, area: Rect, buffer: &mut Buffer) {
    match dialog {
        Dialog::Confirm { question, .. } => draw_question(look, question, area, buffer),
        Dialog::Pick(picker) => draw_picker(look, picker, area, buffer),
        Dialog::Path(path) => draw_path(look, path, area, buffer),
        Dialog::Swap(plan) => draw_plan(look, plan, area, buffer),
        Dialog::Edit(editing) => draw_form(look, editing, area, buffer),
        Dialog::Details { id } => super::request::draw(look, *id, area, buffer),
    }
}

/// Returns keys and what they do, as many as fit.
fn hints(look: Look<'_>, keys: &[(&str, &str)], width: usize) -> Line<'static> {
    let mut line = Line::default();
    for (key, meaning) in keys {
        if line.width() + key.chars().count() + meaning.chars().count() + 1 > width {
            break;
        }
        line.push_span(Span::styled((*key).to_owned(), look.theme.key));
        line.push_span(Span::styled(format!(" {meaning}  "), look.theme.label));
    }
    line
}

fn draw_question(look: Look<'_>, question: &str, area: Rect, buffer: &mut Buffer) {
    let inside = boxed(look, "Confirm", centred((56, 4), area), buffer);
    let text = Rect { height: inside.height.saturating_sub(1), ..inside };
    wrapped(question, Style::new(), text, buffer);
    let keys = hints(look, &[("y", "yes"), ("n", "no")], usize::from(inside.width));
    put(keys, inside, inside.height.saturating_sub(1), buffer);
}

fn draw_picker(look: Look<'_>, picker: &Picker, area: Rect, buffer: &mut Buffer) {
    let title = format!("Swap {}", picker.kind);
    let options = match &picker.options {
        None => {
            let inside = boxed(look, &title, centred((44, 2), area), buffer);
            let text = "loading ...; the first time the host compiles all policies, which takes seconds";
            wrapped(text, look.theme.label, inside, buffer);
            return;
        }
        Some(Err(error)) => {
            let inside = boxed(look, &title, centred((60, 4), area), buffer);
            wrapped(error, look.theme.bad, inside, buffer);
            return;
        }
        Some(Ok(options)) => options,
    };
    let rows = (options.len() as u16 + 4).clamp(5, 18);
    let inside = boxed(look, &title, centred((88, rows), area), buffer);
    let width = usize::from(inside.width);
    let list =
        Rect { height: inside.height.saturating_sub(if inside.height >= 6 { 3 } else { 1 }), ..inside };
    let live = look.app.slot(&picker.kind).map(|slot| slot.sha256.as_str()).unwrap_or_default();
    let first = first_shown(picker.selected, options.len() + 1, usize::from(list.height));
    for (index, at) in (0..list.height).zip(first..=options.len()) {
        let text = match options.get(at) {
            Some(option) => {
                let quarantined = picker.quarantined(option).is_some();
                let mark = match (quarantined, !live.is_empty() && option.sha256 == live) {
                    (true, _) => "▲",
                    (_, true) => "●",
                    _ => " ",
                };
                // A narrow list shows the description below.
                let about = if width < 60 { "" } else { &option.description };
                format!("{mark} {} {:<7} {about}", padded(&option.name, 16), option.version)
            }
            None => "  from a .wasm file ...".to_owned(),
        };
        let mut line = Line::raw(padded(&text, width));
        if at == picker.selected {
            line = line.style(look.theme.selected);
        }
        put(line, list, index, buffer);
    }
    let rest = below(inside, list.height);
    if rest.height > 1 {
        let (about, style) = match options.get(picker.selected) {
            Some(option) => match picker.quarantined(option) {
                Some(entry) if is_default(&entry.config) => {
                    (format!("quarantined: {}", entry.reason), look.theme.bad)
                }
                Some(entry) => {
                    (format!("quarantined with {}: {}", entry.config, entry.reason), look.theme.warning)
                }
                None => (option.description.clone(), look.theme.label),
            },
            None => {
                let text = "a component on this machine; it is sent to the host, which checks it";
                (text.to_owned(), look.theme.label)
            }
        };
        for (index, line) in (0..rest.height - 1).zip(broken(&about, width)) {
            put(Line::styled(line, style), rest, index, buffer);
        }
    }
    let keys = [("enter", "choose"), ("esc", "close"), ("●", "live"), ("▲", "quarantined")];
    put(hints(look, &keys, width), rest, rest.height.saturating_sub(1), buffer);
}

fn draw_path(look: Look<'_>, path: &Path, area: Rect, buffer: &mut Buffer) {
    let width = 72.min(usize::from(area.width.saturating_sub(4)));
    let below = match path.options.as_deref() {
        None => Vec::new(),
        Some([]) => vec!["no folder or .wasm file starts with this".to_owned()],
        Some(options) => broken(&options.join("  "), width),
    };
    let rows = 3 + (below.len() as u16).min(8);
    let inside = boxed(look, &format!("Swap {} from a file", path.kind), centred((72, rows), area), buffer);
    put(
        Line::styled(fit("Path of a .wasm component on this machine:", width), look.theme.label),
        inside,
        0,
        buffer,
    );
    put(Line::from(edited(look, &path.line, width, true)), inside, 1, buffer);
    for (row, line) in (2..inside.height.saturating_sub(1)).zip(below) {
        put(Line::styled(line, look.theme.label), inside, row, buffer);
    }
    let keys = hints(look, &[("tab", "complete"), ("enter", "next"), ("esc", "close")], width);
    put(keys, inside, inside.height.saturating_sub(1), buffer);
}

fn draw_plan(look: Look<'_>, plan: &Plan, area: Rect, buffer: &mut Buffer) {
    let order = &plan.order;
    let mut texts: Vec<(String, Style)> = Vec::new();
    let live = &plan.live;
    let what = match &order.source {
        Source::Name(name) if name == live => format!("Reconfigure {} ({})?", name, order.kind),
        source => format!("Swap {} from {live} to {}?", order.kind, source.text()),
    };
    texts.push((what, Style::new()));
    if look.app.shadows_a_bundled_policy(order) {
        let text = "The live policy came from a file; this swaps in the bundled policy of that name.";
        texts.push((text.to_owned(), look.theme.warning));
    }
    if let Some(entry) = look.app.quarantined(order) {
        let force = if order.force { "it is swapped in anyway" } else { "f swaps it in anyway" };
        let text = format!("Quarantined with this configuration ({}); {force}.", entry.reason);
        texts.push((text, look.theme.bad));
    } else if order.force {
        let text = "Forced: swapped in even if quarantined with this configuration.";
        texts.push((text.to_owned(), look.theme.warning));
    }
    texts.push((
        match &order.config {
            Some(Value::Array(list)) => {
                let named = |entry: &Value| {
                    format!("{} {}", entry["name"].as_str().unwrap_or_default(), entry["config"])
                };
                format!("configuration {}", list.iter().map(named).collect::<Vec<_>>().join(", "))
            }
            Some(config) => format!("configuration {config}"),
            None => "with its default configuration".to_owned(),
        },
        look.theme.label,
    ));
    let width = room(area.width.saturating_sub(8).clamp(30, 72), area);
    let lines: Vec<(String, Style)> = texts
        .into_iter()
        .flat_map(|(text, style)| {
            broken(&text, usize::from(width)).into_iter().map(move |line| (line, style))
        })
        .collect();
    let meaning = broken(order.mode.meaning(), usize::from(width));
    let how_rows = meaning.len() as u16 + 2;
    let inside = boxed(look, "Confirm", centred((width, lines.len() as u16 + how_rows.max(4)), area), buffer);
    let width = usize::from(inside.width);
    let text_rows = (lines.len() as u16).min(inside.height.saturating_sub(how_rows));
    for (index, (text, style)) in (0..text_rows).zip(lines) {
        put(Line::styled(text, style), inside, index, buffer);
    }
    let rest = below(inside, text_rows);
    let mut modes = Line::from(Span::styled("mode ", look.theme.label));
    for mode in Mode::ALL {
        let style = if mode == order.mode { look.theme.selected } else { look.theme.label };
        modes.push_span(Span::styled(format!(" {} ", mode.name()), style));
        modes.push_span(Span::raw(" "));
    }
    put(modes, rest, 0, buffer);
    for (index, line) in (1..rest.height.saturating_sub(1)).zip(meaning) {
        put(Line::styled(line, look.theme.label), rest, index, buffer);
    }
    let mut keys = vec![("y", "yes"), ("n", "no"), ("tab", "mode")];
    if !matches!(plan.schema, Value::Null) {
        keys.push(("e", "configure"));
    }
    keys.push(("f", "force"));
    put(hints(look, &keys, width), inside, inside.height.saturating_sub(1), buffer);
}

fn draw_form(look: Look<'_>, editing: &Editing, area: Rect, buffer: &mut Buffer) {
    let form = &editing.form;
    let name = editing.plan.order.source.text();
    let rows = (form.fields.len() as u16 + 5).max(6);
    let inside = boxed(look, &format!("Configuration of {name}"), centred((76, rows), area), buffer);
    let width = usize::from(inside.width);
    // Three rows for the text about a value, as long as one is left for the value itself.
    let room = inside.height.saturating_sub(4).max(1);
    let list = Rect { height: room.min(form.fields.len() as u16), ..inside };
    let labels: Vec<String> = form.fields.iter().map(|field| form.label(field)).collect();
    let label = labels.iter().map(|label| columns(label)).max().unwrap_or(0).min(width / 2);
    let first = first_shown(form.at, form.fields.len(), usize::from(list.height));
    for (index, (at, field)) in (0..list.height).zip(form.fields.iter().enumerate().skip(first)) {
        let focused = at == form.at;
        let (mark, style) = match (form.fault(field), focused) {
            (Some(_), _) => ("▲", look.theme.bad),
            (None, true) => (" ", look.theme.key),
            (None, false) => (" ", look.theme.label),
        };
        let text = format!("{mark} {} ", padded(&labels[at], label));
        let mut line = Line::from(Span::styled(text, style));
        let room = width.saturating_sub(label + 3);
        if field.value.is_empty() && !focused {
            line.push_span(Span::styled(fit(&default_text(field), room), look.theme.border));
        } else {
            line.extend(edited(look, &field.value, room, focused));
            if field.value.is_empty() {
                line.push_span(Span::styled(format!(" {}", default_text(field)), look.theme.border));
            }
        }
        put(line, list, index, buffer);
    }
    let rest = below(inside, list.height);
    let field = &form.fields[form.at];
    let (text, style) = match (form.fault(field), editing.faults.first()) {
        (Some(fault), _) => (format!("{}: {fault}", labels[form.at]), look.theme.bad),
        (None, Some(fault)) => (fault.clone(), look.theme.bad),
        (None, None) => (about(field), look.theme.label),
    };
    for (index, line) in (0..rest.height.saturating_sub(1)).zip(broken(&text, width)) {
        put(Line::styled(line, style), rest, index, buffer);
    }
    let keys = [("enter", "next"), ("up down", "field"), ("esc", "close")];
    put(hints(look, &keys, width), inside, inside.height.saturating_sub(1), buffer);
}

fn default_text(field: &Field) -> String {
    field.schema.get("default").map_or_else(|| "not set".to_owned(), |default| format!("{default} (default)"))
}

/// Describes a field by its schema.
fn about(field: &Field) -> String {
    let schema = &field.schema;
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    let mut parts = Vec::new();
    parts.extend(text("description").map(str::to_owned));
    parts.extend(text("type").map(str::to_owned));
    for (key, words) in [("minimum", "at least"), ("maximum", "at most"), ("enum", "one of")] {
        if let Some(value) = schema.get(key) {
            parts.push(format!("{words} {value}"));
        }
    }
    if parts.is_empty() { "not described by the schema".to_owned() } else { parts.join("; ") }
}
