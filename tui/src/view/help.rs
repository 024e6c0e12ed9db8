//! The help: every key and command, and the terms on the screens.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::dialog::{boxed, centred};
use super::parts::{broken, put};
use crate::state::Scroll;
use crate::state::command::COMMANDS;

const KEYS: [(&str, &str); 52] = [
    ("Everywhere", ""),
    ("1-7, tab", "overview, blocks, requests, policies, cache, log, tenants"),
    ("hjkl, arrows", "move; g G first, last; PgUp PgDn a page"),
    ("space", "pause or resume the screen; the host keeps running"),
    ("+ -", "widen or narrow the time window of the graphs"),
    ("/", "filter requests, log, tenants; field:text searches one field, field=text wants all of it"),
    (":", "enter a command; tab completes it, up repeats the last one"),
    ("y", "copy the id, hash, digest or line (OSC 52)"),
    ("t", "next colour theme"),
    ("m", "capture or release the mouse"),
    ("ctrl-l", "draw the screen anew, over what others wrote on it"),
    ("esc, q", "close what is open; esc also clears the filter"),
    ("q, ctrl-c", "quit"),
    ("", ""),
    ("Blocks", ""),
    ("c", "colour by state, tenant, age, references"),
    ("enter", "open the request that uses the block"),
    ("", ""),
    ("Requests", ""),
    ("enter", "details: why it waits, timeline, block table; jk the next"),
    ("s, left right", "sort by another column; S reverses"),
    ("c, x, del", "cancel it (after confirmation), a row of several (×3) with its whole request"),
    ("", ""),
    ("Policies", ""),
    ("up down", "select a slot; PgUp PgDn scroll its facts"),
    ("s, enter", "swap in another policy: now, in shadow, or as a canary (after confirmation)"),
    ("f", "swap in a policy from a .wasm file"),
    ("e", "edit the configuration, checked against the policy's schema"),
    ("p", "promote the shadow or the canary"),
    ("x", "stop the shadow"),
    ("r", "roll back to the previous policy"),
    ("", ""),
    ("Tenants", ""),
    ("enter", "requests of the tenant"),
    ("s, left right", "sort by another column; S reverses"),
    ("", ""),
    ("Terms", ""),
    ("TTFT, ITL", "time to first token; inter-token latency"),
    ("used", "blocks of running requests; shared: used by several of them"),
    (
        "cached",
        "blocks no request uses, reused by prompts with the same beginning, evicted when space is needed",
    ),
    ("kept", "cached for a time set by the prefix-cache policy"),
    ("held", "deferred by the admission policy"),
    ("waiting", "admitted, but not yet started by the scheduler"),
    ("preempted", "stopped to free its blocks; continues later"),
    ("weight", "a tenant's share beside other tenants; 1 is the usual one"),
    ("pressure", "reported by the admission policy: 0 is idle, at 1 nothing more fits"),
    ("fallback", "the built-in policy replaces one that failed"),
    ("canary", "live on trial; rolled back automatically if clients are worse off"),
    ("shadow", "receives the live policy's calls; its answers have no effect"),
    ("restored", "the policy that became live took its predecessor's state; kept: its own; cold: none"),
    ("", ""),
    ("Commands", ""),
];

pub(super) fn draw(look: Look<'_>, scroll: usize, area: Rect, buffer: &mut Buffer) {
    let lines = lines(look, width(area));
    let inside = boxed(look, "Help", centred((WIDTH, lines.len() as u16), area), buffer);
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

/// Returns how far the help can be scrolled.
pub(super) fn scroll(look: Look<'_>, area: Rect) -> Scroll {
    let page = usize::from(area.height.saturating_sub(2));
    Scroll { most: lines(look, width(area)).len().saturating_sub(page), page }
}

/// Preferred columns inside the frame.
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
        // Commands are longer than keys, so they don't share the keys' column.
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
