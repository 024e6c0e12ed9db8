//! The host behind the screens: snapshots and changes, pause, loss of connection, restart, replay.

use infer_api::admin::{Change, Offload, RowsChange};

use super::*;

#[test]
fn mismatched_change_restarts_the_feed() {
    let mut app = app();
    let mut next = app.state().unwrap().clone();
    next.uptime_ms = 1_250;
    next.requests.clear();
    let rows = RowsChange { gone: vec![4], ..RowsChange::default() };
    let change = Change { state: next, rows, events_left_out: 3, ..Change::default() };
    assert_eq!(event(&mut app, AdminEvent::Change(Box::new(change.clone())), 250), []);
    let ids: Vec<(u64, u64)> = app.state().unwrap().requests.iter().map(|row| (row.id, row.age_ms)).collect();
    assert_eq!((ids, app.feed().log.dropped()), (vec![(9, 250)], 3));
    assert_eq!(app.state().unwrap().policies[0].name, "continuous");
    let order = Some(vec![1, 2]);
    let change = Change { rows: RowsChange { order, ..RowsChange::default() }, ..change };
    let before = app.state().unwrap().clone();
    assert_eq!(event(&mut app, AdminEvent::Change(Box::new(change)), 500), [Effect::Resync]);
    assert_eq!(app.state(), Some(&before), "the last state is shown until the feed restarts");
    app.on_key(Key::Char('3'), 500);
    let area = Rect::new(0, 0, 80, 24);
    assert!(print::screen(&app, 500, area).contains("      9 "));
}

#[test]
fn second_level_of_the_cache_is_on_the_overview() {
    for (failed, words) in [(false, "offloaded 20 of 1,000"), (true, "  second level failed")] {
        let mut app = app();
        let mut state = app.state().unwrap().clone();
        state.offload = Some(Offload { total: 1_000, used: 20, failed, ..Offload::default() });
        event(&mut app, AdminEvent::Snapshot(Box::new(state)), 250);
        let screen = print::screen(&app, 250, Rect::new(0, 0, 120, 30));
        assert!(screen.contains(words), "{words}: {screen}");
    }
}

#[test]
fn device_faults_are_on_the_overview_once_there_are_any() {
    let mut app = app();
    let overview = |app: &mut App, faults: u64, (width, height): (u16, u16)| {
        let mut state = app.state().unwrap().clone();
        state.counters.device_faults = faults;
        event(app, AdminEvent::Snapshot(Box::new(state)), 0);
        print::screen(app, 0, Rect::new(0, 0, width, height))
    };
    for size in [(40, 12), (80, 24), (200, 60)] {
        let (none, two) = (overview(&mut app, 0, size), overview(&mut app, 2, size));
        assert!(!none.contains("device faults") && two.contains("device faults 2"), "{none} {two}");
    }
    let many = overview(&mut app, 1_234, (80, 24));
    assert!(many.contains("Requests device faults ─"), "no part of the number: {many}");
}

#[test]
fn recording_fetches_everything_and_replay_changes_nothing() {
    let mut app = app();
    app.recording = true;
    let effects = app.on_tick(0);
    assert!(effects.contains(&Effect::FetchCache), "{effects:?}");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::FetchBlocks(_))), "{effects:?}");
    let mut app = self::app();
    app.on_message(Message::Feed(Report::Replaying), 0);
    assert_eq!(
        keys(&mut app, &[Key::Char('4'), Key::Char('s'), Key::Char('y')], 0),
        [Effect::Copy("continuous".into())]
    );
    assert_eq!(app.dialog, None);
}

#[test]
fn read_only_sends_no_changes() {
    let mut app = app();
    app.read_only = true;
    let pressed =
        [Key::Char('3'), Key::Char('c'), Key::Char('y'), Key::Char('4'), Key::Char('s'), Key::Char('r')];
    let effects = keys(&mut app, &pressed, 0);
    // Without a confirmation `y` copies.
    let harmless = |effect: &Effect| matches!(effect, Effect::FetchHistory { .. } | Effect::Copy(_));
    assert!(effects.iter().all(harmless), "{effects:?}");
    assert_eq!(app.dialog, None);
    for line in [
        "swap scheduler lru",
        "drain",
        "undrain",
        "clear-queue",
        "cancel 4",
        "configure scheduler",
        "promote scheduler",
    ] {
        keys(&mut app, &[Key::Char(':')], 0);
        keys(&mut app, &typed(line), 0);
        keys(&mut app, &[Key::Enter], 0);
        assert_eq!(app.dialog, None, "{line}");
    }
}

#[test]
fn a_viewers_console_is_read_only_and_says_so_until_the_role_changes() {
    let state = |role: &str| {
        let AdminEvent::Snapshot(state) = snapshot(2_000) else { panic!("a snapshot") };
        let mut state = *state;
        state.operator = Some(OperatorInfo { name: "ana".into(), role: role.into() });
        AdminEvent::Snapshot(Box::new(state))
    };
    let notice = |app: &App| app.notice.as_ref().map(|notice| notice.text.clone()).unwrap_or_default();
    let area = Rect::new(0, 0, 80, 24);
    let mut app = app();
    assert!(!print::screen(&app, 0, area).contains("read-only"));
    event(&mut app, state("viewer"), 0);
    assert_eq!(notice(&app), "read-only: ana is a viewer of this host");
    assert!(print::screen(&app, 0, area).contains("viewer, read-only"));
    for key in ['r', 's', 'p', 'x'] {
        keys(&mut app, &[Key::Char('4'), Key::Char(key)], 0);
        assert_eq!((notice(&app).as_str(), &app.dialog), (VIEWER, &None), "{key}");
    }
    app.notice = None;
    event(&mut app, state("viewer"), 0);
    assert_eq!(notice(&app), "", "it is said once");

    event(&mut app, state("operator"), 0);
    assert!(!print::screen(&app, 0, area).contains("read-only"));
    app.on_key(Key::Char('r'), 0);
    assert_eq!(question(&app), "Roll scheduler back from continuous to static-batch?");
}

const VIEWER: &str = "not possible: this takes the role `operator`; ana is a viewer";

#[test]
fn pause_freezes_only_the_screen() {
    let mut app = app();
    app.on_key(Key::Char(' '), 0);
    event(&mut app, snapshot(9_000), 8_000);
    assert_eq!(app.state().unwrap().uptime_ms, 1_000);
    assert_eq!(app.stale_ms(8_100), None);
    app.on_key(Key::Char(' '), 8_200);
    assert_eq!(app.state().unwrap().uptime_ms, 9_000);
}

#[test]
fn confirmations_use_live_state_while_paused() {
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char(' ')], 0);
    let mut state = app.state().unwrap().clone();
    state.policies[0].name = "fair".into();
    state.policies[0].previous = Some("continuous".into());
    state.policies[0].config_schema = known().available[0].config_schema.clone();
    state.policies[0].config = json!({"batch_size": 3});
    state.requests[1].generated_tokens = 7;
    state.queue.waiting = 5;
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 500);
    assert_eq!(app.slot("scheduler").unwrap().name, "continuous", "the paused screen is unchanged");
    app.on_key(Key::Char('r'), 500);
    assert_eq!(question(&app), "Roll scheduler back from fair to continuous?");
    keys(&mut app, &[Key::Char('n'), Key::Char('e')], 500);
    assert!(
        matches!(&app.dialog, Some(Dialog::Edit(editing)) if editing.plan.order.of.as_deref() == Some("fair"))
    );
    app.on_key(Key::Escape, 500);
    for (line, want) in [
        ("clear-queue", "Fail all 5 waiting requests"),
        ("empty-cache", "cached blocks? Their prompts"),
        ("cancel 9", "7 of 0 tokens"),
    ] {
        keys(&mut app, &[Key::Char(':')], 500);
        keys(&mut app, &typed(line), 500);
        app.on_key(Key::Enter, 500);
        assert!(question(&app).contains(want), "{}", question(&app));
        app.on_key(Key::Escape, 500);
    }
}

#[test]
fn host_restart_discards_everything_about_the_old_host() {
    // The new host's uptime may exceed the old one's, and its request ids start from the same number.
    for uptime_ms in [50, 4_000] {
        let mut app = app();
        app.on_message(Message::Policies(Ok(known())), 0);
        app.on_message(Message::Request { id: 9, result: Ok(RequestDetail::default()) }, 0);
        app.on_message(Message::Map(Ok(BlockMap { total: 4, ..BlockMap::default() })), 0);
        app.on_message(Message::Cache(Ok(CacheReport::default())), 0);
        keys(&mut app, &[Key::Char('3'), Key::Down, Key::Char('c')], 0);
        assert!(question(&app).starts_with("Cancel request 9"));
        event(&mut app, snapshot(1_250), 250);
        assert!(app.dialog.is_some(), "still the same host");
        event(&mut app, snapshot_of("second", uptime_ms), 9_000);
        assert_eq!((app.dialog.clone(), app.requests.detail.clone()), (None, None));
        assert!(app.policies.known.is_none() && app.blocks.map.is_none() && app.cache.report.is_none());
        assert_eq!(app.feed().log.last().unwrap().text, "the host restarted");
        assert!(app.notice.as_ref().unwrap().text.contains("the open dialog was closed"));
        // Without a confirmation `y` copies.
        assert_eq!(keys(&mut app, &[Key::Char('y')], 9_000), [Effect::Copy("9".into())]);
    }
}

#[test]
fn screen_paused_before_a_restart_sends_no_changes() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char(' ')], 0);
    event(&mut app, snapshot_of("second", 50), 9_000);
    assert_eq!(app.state().unwrap().uptime_ms, 1_000, "the old screen stays readable");
    app.on_key(Key::Char('c'), 9_000);
    assert_eq!(app.dialog, None);
    assert!(app.notice.as_ref().unwrap().text.contains("before its restart"));
    keys(&mut app, &[Key::Char(' '), Key::Char('c')], 9_000);
    assert!(app.dialog.is_some());
}

#[test]
fn confirmation_needs_a_live_connection_to_the_same_host() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    let why = || "connection lost: gone".to_owned();
    app.on_message(Message::Feed(Report::Lost { why: why(), retry_in: Duration::from_secs(4) }), 100);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 200), []);
    assert_eq!(app.dialog, None);
    assert!(app.notice.as_ref().unwrap().text.contains("no connection"));
    app.on_key(Key::Char('c'), 300);
    assert_eq!(app.dialog, None, "no confirmation opens");

    // Reconnected, perhaps to another host; no snapshot has arrived yet.
    let mut app = self::app();
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    app.on_message(Message::Feed(Report::Connected), 100);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 200), []);
    event(&mut app, snapshot(1_300), 300);
    assert_eq!(keys(&mut app, &[Key::Char('c'), Key::Char('y')], 400), [Effect::Cancel { id: 4 }]);
}

#[test]
fn replay_shows_recorded_losses_and_ends_at_a_broken_line() {
    let mut app = app();
    app.on_message(Message::Feed(Report::Replaying), 0);
    let why = || "connection lost: gone".to_owned();
    app.on_message(Message::Feed(Report::Lost { why: why(), retry_in: Duration::MAX }), u64::MAX - 5);
    app.on_message(Message::Feed(Report::Replaying), 500);
    app.on_message(Message::Feed(Report::Broken("a.jsonl, line 9: nonsense".into())), 600);
    let texts: Vec<&str> = app.feed().log.shown(app.log.filter()).map(|entry| entry.text.as_str()).collect();
    assert_eq!(texts, ["connection lost: gone", "reconnected", "a.jsonl, line 9: nonsense"]);
    assert_eq!(app.link, Link::Ended);
    app.on_tick(u64::MAX);
    assert!(app.notice.as_ref().unwrap().text.contains("line 9"), "notices expire in the operator's time");
}

#[test]
fn lost_host_is_stale_and_a_restart_resets_the_graphs() {
    let mut app = app();
    event(&mut app, snapshot(2_000), 1_000);
    let why = || "connection lost: gone".to_owned();
    app.on_message(Message::Feed(Report::Lost { why: why(), retry_in: Duration::from_millis(250) }), 1_100);
    assert!(matches!(&app.link, Link::Lost { retry_at: 1_350, .. }));
    assert_eq!(app.stale_ms(13_000), Some(12_000));
    app.on_message(Message::Done(Err("failed: no host answers".into())), 12_900);
    app.on_message(Message::Feed(Report::Connected), 13_000);
    assert_eq!(app.notice, None, "reconnecting clears errors about the connection");
    event(&mut app, snapshot_of("second", 50), 13_000);
    assert_eq!((app.stale_ms(13_100), app.link.clone()), (None, Link::Live));
    assert_eq!(
        app.feed().history.series(13_000, 3, 1, history::Join::Mean, |_| 1.0),
        [None, None, Some(1.0)]
    );
    let feed = app.feed();
    let texts: Vec<&str> = feed.log.shown(app.log.filter()).map(|entry| entry.text.as_str()).collect();
    let want = ["connection lost: gone", "failed: no host answers", "reconnected", "the host restarted"];
    assert_eq!(texts, want);
}

#[test]
fn data_is_fetched_only_for_the_visible_screen() {
    let mut app = app();
    app.blocks.room = (40, 10);
    assert_eq!(app.on_tick(1_000), []);
    let first = app.on_key(Key::Char('2'), 1_000);
    assert!(matches!(first.as_slice(), [Effect::FetchBlocks(Wanted::Map { .. })]), "{first:?}");
    assert_eq!(app.on_tick(9_000), [], "fetches don't overlap");
    let map = BlockMap { total: 4, per_cell: 1, states: "fcus".into(), ..BlockMap::default() };
    let then = app.on_message(Message::Map(Ok(map)), 9_000);
    assert_eq!(then[1..], [Effect::FetchBlocks(Wanted::Block { id: 0 })]);
    assert_eq!(app.on_key(Key::Char('5'), 9_000), [Effect::FetchCache]);
}
