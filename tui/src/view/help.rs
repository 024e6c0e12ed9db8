//! Every key and every command, and what the words on the screens mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Look;
use super::dialog::centred;
use super::format::fit;
use super::parts::put;
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
    ("esc", "close, dismiss, clear the filter"),
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
    let commands = COMMANDS.map(|(name, arguments, meaning)| (format!(":{name} {arguments}"), meaning));
    let keys = KEYS.iter().map(|(key, meaning)| ((*key).to_owned(), *meaning));
    let lines: Vec<(String, &str)> = keys.chain(commands).collect();
    let inside = centred(look, "Help", (92, lines.len() as u16), area, buffer);
    let height = usize::from(inside.height);
    let first = (scroll * 3).min(lines.len().saturating_sub(height));
    let key_width = if inside.width < 60 { 9 } else { 15 };
    for (index, (key, meaning)) in (0..inside.height).zip(&lines[first..]) {
        let line = if meaning.is_empty() {
            Line::styled(key.clone(), look.theme.title)
        } else if key.starts_with(':') && key.len() > 1 && key.chars().nth(1) != Some(' ') {
            // Commands are longer than keys: they take what they need.
            let room = usize::from(inside.width).saturating_sub(key.chars().count() + 1);
            Line::from(vec![
                Span::styled(fit(key, usize::from(inside.width)), look.theme.key),
                Span::styled(format!(" {}", fit(meaning, room)), look.theme.label),
            ])
        } else {
            let room = usize::from(inside.width).saturating_sub(key_width + 1);
            Line::from(vec![
                Span::styled(format!("{:<key_width$} ", fit(key, key_width)), look.theme.key),
                Span::raw(fit(meaning, room)),
            ])
        };
        put(line, inside, index, buffer);
    }
    if first + height < lines.len() {
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
