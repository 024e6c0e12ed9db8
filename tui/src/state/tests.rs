//! Stories told to the state as lists of messages and keys, with the clock in hand.

use std::time::Duration;

use infer_api::admin::{AvailablePolicy, FaultInfo, Memory, PolicySlot, RequestRow};

use super::*;
use crate::conn::ConnError;
use crate::input::Key;

fn event(app: &mut App, event: AdminEvent, now: Millis) -> Vec<Effect> {
    app.on_message(Message::Feed(Report::Event(event)), now)
}

fn snapshot(uptime_ms: u64) -> AdminEvent {
    let slot = |kind: &str, name: &str, previous: Option<&str>| PolicySlot {
        kind: kind.into(),
        name: name.into(),
        previous: previous.map(Into::into),
        ..PolicySlot::default()
    };
    AdminEvent::Snapshot(Box::new(State {
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

#[test]
fn digits_and_tabs_change_the_screen() {
    let mut app = app();
    let cases = [
        (Key::Char('3'), Screen::Requests),
        (Key::Tab, Screen::Policies),
        (Key::Char('5'), Screen::Log),
        (Key::Tab, Screen::Overview),
        (Key::BackTab, Screen::Log),
    ];
    for (key, screen) in cases {
        app.on_key(key, 0);
        assert_eq!(app.screen, screen, "{key:?}");
    }
}

#[test]
fn both_quit_keys_quit_even_from_help_and_control_c_from_a_dialog() {
    let mut app = app();
    assert_eq!(app.on_key(Key::Char('q'), 0), [Effect::Quit]);
    app.on_key(Key::Char('?'), 0);
    assert_eq!(app.on_key(Key::Char('q'), 0), [Effect::Quit]);
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    assert!(app.dialog.is_some());
    assert_eq!(app.on_key(Key::Interrupt, 0), [Effect::Quit]);
}

#[test]
fn a_request_is_cancelled_only_after_a_yes() {
    let mut app = app();
    assert_eq!(keys(&mut app, &[Key::Char('3'), Key::Down, Key::Char('c'), Key::Char('n')], 0), []);
    assert_eq!(app.dialog, None);
    assert_eq!(keys(&mut app, &[Key::Char('c'), Key::Char('y')], 0), [Effect::Cancel { id: 9 }]);
    app.on_message(Message::Cancelled { id: 9, result: Ok(()) }, 5);
    assert!(app.notice.as_ref().unwrap().text.contains("request 9 cancelled"));
    app.on_tick(60_000);
    assert_eq!(app.notice, None);
}

#[test]
fn a_swap_is_picked_from_the_list_and_confirmed_and_reports_its_pause() {
    let mut app = app();
    assert_eq!(
        keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0),
        [Effect::FetchHistory { kind: "scheduler".into() }, Effect::FetchPolicies]
    );
    let policy = |kind: &str, name: &str| AvailablePolicy {
        kind: kind.into(),
        name: name.into(),
        ..Default::default()
    };
    let available = vec![
        policy("scheduler", "continuous"),
        policy("admission", "memory-aware"),
        policy("scheduler", "static-batch"),
    ];
    app.on_message(Message::Policies(Ok(Policies { available, ..Policies::default() })), 0);
    let swap = Effect::Swap { kind: "scheduler".into(), name: "static-batch".into() };
    assert_eq!(keys(&mut app, &[Key::Down, Key::Down, Key::Enter, Key::Char('y')], 0), [swap]);
    let answer = SwapAnswer { to: "static-batch".into(), pause_us: 41.25, ..SwapAnswer::default() };
    app.on_message(Message::Swapped { kind: "scheduler".into(), rollback: false, result: Ok(answer) }, 0);
    let notice = &app.notice.as_ref().unwrap().text;
    assert!(notice.contains("static-batch") && notice.contains("41.2 us"), "{notice}");
}

#[test]
fn rollback_is_offered_only_where_there_is_a_predecessor() {
    let mut app = app();
    let effects = keys(&mut app, &[Key::Char('4'), Key::Char('r'), Key::Enter], 0);
    assert!(effects.contains(&Effect::Rollback { kind: "scheduler".into() }), "{effects:?}");
    keys(&mut app, &[Key::Down, Key::Char('r')], 0);
    assert_eq!(app.dialog, None);
    assert!(app.notice.as_ref().unwrap().text.contains("nothing to roll back"));
}

#[test]
fn read_only_changes_nothing() {
    let mut app = app();
    app.read_only = true;
    let pressed =
        [Key::Char('3'), Key::Char('c'), Key::Char('y'), Key::Char('4'), Key::Char('s'), Key::Char('r')];
    let effects = keys(&mut app, &pressed, 0);
    assert!(effects.iter().all(|effect| matches!(effect, Effect::FetchHistory { .. })), "{effects:?}");
    assert_eq!(app.dialog, None);
}

#[test]
fn pausing_freezes_what_is_shown_and_nothing_else() {
    let mut app = app();
    app.on_key(Key::Char(' '), 0);
    event(&mut app, snapshot(9_000), 8_000);
    assert_eq!(app.state().unwrap().uptime_ms, 1_000);
    assert_eq!(app.stale_ms(8_100), None);
    app.on_key(Key::Char(' '), 8_200);
    assert_eq!(app.state().unwrap().uptime_ms, 9_000);
}

#[test]
fn a_lost_host_shows_as_stale_and_a_restart_starts_the_graphs_anew() {
    let mut app = app();
    event(&mut app, snapshot(2_000), 1_000);
    let error = ConnError::Lost("gone".into());
    app.on_message(Message::Feed(Report::Lost { error, retry_in: Duration::from_millis(250) }), 1_100);
    assert!(matches!(&app.link, Link::Lost { retry_at: 1_350, .. }));
    assert_eq!(app.stale_ms(13_000), Some(12_000));
    app.on_message(Message::Feed(Report::Connected), 13_000);
    event(&mut app, snapshot(50), 13_000);
    assert_eq!((app.stale_ms(13_100), app.link.clone()), (None, Link::Live));
    assert_eq!(app.feed().history.series(13_000, 3, |_| 1.0), [None, None, Some(1.0)]);
    let texts: Vec<&str> = app.feed().log.visible(9).map(|entry| entry.text.as_str()).collect();
    assert_eq!(texts, ["connection lost: gone", "connected again", "the host was restarted"]);
}

#[test]
fn events_reach_the_log_with_their_reason() {
    let mut app = app();
    let fault = FaultInfo {
        policy: "evil".into(),
        reason: "trap".into(),
        message: "unreachable executed".into(),
        step: 7,
        removed: true,
        ..FaultInfo::default()
    };
    event(&mut app, AdminEvent::Fault(fault), 10);
    let entry = app.feed().log.last().unwrap();
    assert_eq!((entry.level, entry.source), (Level::Error, "fault"));
    assert_eq!(entry.text, "evil: trap at step 7: unreachable executed; taken out");
}

#[test]
fn the_block_map_is_fetched_only_while_it_is_shown() {
    let mut app = app();
    assert_eq!(app.on_tick(1_000), []);
    assert_eq!(app.on_key(Key::Char('2'), 1_000), [Effect::FetchBlocks]);
    assert_eq!(app.on_tick(9_000), [], "one at a time");
    app.on_message(Message::Blocks(Ok(Blocks::default())), 9_000);
    assert_eq!(app.on_tick(9_000), [Effect::FetchBlocks]);
}
