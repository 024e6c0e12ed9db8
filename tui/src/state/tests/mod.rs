//! Tests of the state as lists of messages and keys, with an explicit clock; one file per screen.

mod host;
mod keys;
mod log;
mod policies;
mod requests;
mod tenants;

use std::time::Duration;

use infer_api::admin::{AdminEvent, AvailablePolicy, HostInfo, Memory, PolicySlot, RequestRow};
use ratatui::layout::Rect;
use serde_json::json;

use super::*;
use crate::input::Key;
use crate::order::{Mode, Order, Source};
use crate::print;

fn event(app: &mut App, event: AdminEvent, now: Millis) -> Vec<Effect> {
    app.on_message(Message::Feed(Report::Event(event)), now)
}

fn snapshot(uptime_ms: u64) -> AdminEvent {
    snapshot_of("first", uptime_ms)
}

fn snapshot_of(run: &str, uptime_ms: u64) -> AdminEvent {
    let slot = |kind: &str, name: &str, previous: Option<&str>| PolicySlot {
        kind: kind.into(),
        name: name.into(),
        previous: previous.map(Into::into),
        ..PolicySlot::default()
    };
    AdminEvent::Snapshot(Box::new(State {
        host: HostInfo { run: run.into(), ..HostInfo::default() },
        uptime_ms,
        memory: Memory { total: 10, free: 10, ..Memory::default() },
        policies: vec![
            slot("scheduler", "continuous", Some("static-batch")),
            slot("admission", "memory-aware", None),
            slot("prefix-cache", "lru", None),
        ],
        requests: vec![
            RequestRow { id: 4, ..Default::default() },
            RequestRow { id: 9, ..Default::default() },
        ],
        ..State::default()
    }))
}

fn app() -> App {
    let mut app = App::new("http://test".into(), false);
    app.on_message(Message::Feed(Report::Connected), 0);
    event(&mut app, snapshot(1_000), 0);
    app
}

fn keys(app: &mut App, keys: &[Key], now: Millis) -> Vec<Effect> {
    keys.iter().flat_map(|&key| app.on_key(key, now)).collect()
}

fn known() -> Policies {
    let schema = json!({"type": "object", "properties": {"batch_size": {"type": "integer", "minimum": 1}}});
    let policy = |kind: &str, name: &str| AvailablePolicy {
        kind: kind.into(),
        name: name.into(),
        config_schema: schema.clone(),
        ..Default::default()
    };
    let available = vec![
        policy("scheduler", "continuous"),
        policy("admission", "memory-aware"),
        policy("scheduler", "static-batch"),
    ];
    Policies { available, ..Policies::default() }
}

fn typed(text: &str) -> Vec<Key> {
    text.chars().map(Key::Char).collect()
}

/// Returns an order placed while `continuous` is live.
fn order(name: &str, mode: Mode) -> Order {
    let (kind, source, of) = ("scheduler".into(), Source::of(name), Some("continuous".into()));
    Order { kind, source, mode, config: None, force: false, of }
}

fn question(app: &App) -> &str {
    match &app.dialog {
        Some(Dialog::Confirm { question, .. }) => question,
        other => panic!("{other:?}"),
    }
}
