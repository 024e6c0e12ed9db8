//! Every key and every command, and what the words on the screens mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::dialog::centred;
use super::parts::{broken, put};
use crate::state::Scroll;
use crate::state::command::COMMANDS;

const KEYS: [(&str, &str); 46] = [
    ("Everywhere", ""),
    ("1-6, tab", "overview, blocks, requests, policies, cache, log"),
    ("hjkl, arrows", "move; g G first, last; PgUp PgDn a page"),
    ("space", "pause the screen; the host runs on"),
    ("+ -", "a wider or a closer look at time"),
    ("/", "filter requests and log; field:text looks in one field"),
    (":", "a command; tab completes it"),
    ("y", "copy the id, hash, digest or line (OSC 52)"),
    ("t", "another theme"),
    ("m", "take the mouse, or leave it"),
    ("esc, q", "close what is open; esc clears the filter, too"),
    ("q, ctrl-c", "quit"),
    ("", ""),
    ("Blocks", ""),
    ("c", "colour by state, tenant, age, references"),
    ("enter", "the request that holds the block"),
    ("", ""),
    ("Requests", ""),
    ("enter", "everything about a request: why it waits, timeline, block table"),
    ("s, left right", "sort by another column; S reverses"),
    ("c, x, del", "cancel it (asks first)"),
    ("", ""),
    ("Policies", ""),
    ("up down", "select a slot; PgUp PgDn scroll its facts"),
    ("s, enter", "swap in another policy: now, in shadow, or as a canary (asks first)"),
    ("f", "the same from a .wasm file"),
    ("e", "edit the configuration, checked against the policy's schema"),
    ("p", "promote what runs in shadow or on trial"),
    ("x", "end what runs in shadow"),
    ("r", "roll back to the policy before"),
    ("", ""),
    ("Words", ""),
    ("TTFT, ITL", "time to the first token; time between two tokens"),
    ("used", "blocks that running requests hold; shared: held by several"),
    ("cached", "held by nobody, found by the next prompt that begins alike; given up when needed"),
    ("kept", "cached, for a time that the prefix-cache policy gave"),
    ("held", "the admission policy has not let it in yet"),
    ("waiting", "let in; the scheduler has not started it"),
    ("preempted", "ran, gave its blocks back, waits to go on"),
    ("pressure", "what admission measures: 0 idle, 1 nothing more fits"),
    ("fallback", "the built-in policy stands in for one that was taken out"),
    ("canary", "in force on trial; it goes back by itself if clients are worse off"),
    ("shadow", "asked what the live policy is asked, without effect"),
    ("cold", "the policy began without its predecessor's state; restored: with it"),
    ("", ""),
    ("Commands", ""),
];

pub(super) fn draw(look: Look<'_>, scroll: usize, area: Rect, buffer: &mut Buffer) {
    let lines = lines(look, width(area));
    let inside = centred(look, "Help", (WIDTH, lines.len() as u16), area, buffer);
    let height = usize::from(inside.height);
    let first = scroll.min(lines.len().saturating_sub(height));
    let more = first + height < lines.len();
    for (index, line) in (0..inside.height).zip(lines.into_iter().skip(first)) {
        put(line, inside, index, buffer);
    }
    if more {
        let hint = Line::styled(" j for more ", look.theme.key);
        let width = hint.width() as u16;
        let place = Rect {
            x: inside.right().saturating_sub(width),
            y: inside.bottom(),
            width: width.min(inside.width),
            height: 1,
        };
        put(hint, place.intersection(area), 0, buffer);
    }
}

/// How far it can be scrolled.
pub(super) fn scroll(look: Look<'_>, area: Rect) -> Scroll {
    let page = usize::from(area.height.saturating_sub(2));
    Scroll { most: lines(look, width(area)).len().saturating_sub(page), page }
}

/// Columns inside the frame, where the terminal has them.
const WIDTH: u16 = 92;

fn width(area: Rect) -> usize {
    usize::from(WIDTH.min(area.width.saturating_sub(4)))
}

fn lines(look: Look<'_>, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let key_width = if width < 60 { 13 } else { 15 };
    for (key, meaning) in KEYS {
        if meaning.is_empty() {
            lines.push(Line::styled(key, look.theme.title));
            continue;
        }
        let mut key = format!("{key:<key_width$} ");
        for part in broken(meaning, width.saturating_sub(key_width + 1)) {
            lines.push(Line::from(vec![Span::styled(key, look.theme.key), Span::raw(part)]));
            key = " ".repeat(key_width + 1);
        }
    }
    for (name, arguments, meaning) in COMMANDS {
        // Commands are longer than keys: they take what they need.
        let mut command = broken(&format!(":{name} {arguments}"), width);
        let last = command.pop().unwrap_or_default();
        lines.extend(command.into_iter().map(|part| Line::styled(part, look.theme.key)));
        let together = last.chars().count() + 1 + meaning.chars().count() <= width;
        let mut line = Line::styled(last, look.theme.key);
        if together {
            line.push_span(Span::styled(format!(" {meaning}"), look.theme.label));
        }
        lines.push(line);
        if !together {
            let parts = broken(meaning, width.saturating_sub(4));
            lines.extend(parts.into_iter().map(|part| Line::styled(format!("    {part}"), look.theme.label)));
        }
    }
    lines
}
