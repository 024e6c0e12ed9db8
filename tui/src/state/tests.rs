//! Stories told to the state as lists of messages and keys, with the clock in hand.

use std::time::Duration;

use infer_api::admin::{
    AdminEvent, AvailablePolicy, Change, FaultInfo, HostInfo, Memory, PolicySlot, RequestRow, RowsChange,
    ShadowInfo,
};
use serde_json::json;

use super::blocks::ColourBy;
use super::keys::Hit;
use super::log::Level;
use super::swap::{Mode, Order, Source};
use super::*;
use crate::conn::ConnError;
use crate::input::Key;
use crate::print;
use ratatui::layout::Rect;

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

#[test]
fn digits_and_tabs_change_the_screen() {
    let mut app = app();
    let cases = [
        (Key::Char('3'), Screen::Requests),
        (Key::Tab, Screen::Policies),
        (Key::Char('5'), Screen::Cache),
        (Key::Char('6'), Screen::Log),
        (Key::Tab, Screen::Overview),
        (Key::BackTab, Screen::Log),
    ];
    for (key, screen) in cases {
        app.on_key(key, 0);
        assert_eq!(app.screen, screen, "{key:?}");
    }
}

#[test]
fn q_closes_what_is_open_and_then_quits_and_control_c_quits_from_anywhere() {
    let mut app = app();
    assert_eq!(keys(&mut app, &[Key::Char('?'), Key::Char('q')], 0), []);
    assert_eq!(app.help, None);
    assert_eq!(app.on_key(Key::Char('q'), 0), [Effect::Quit]);
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    assert!(app.dialog.is_some());
    assert_eq!(app.on_key(Key::Interrupt, 0), [Effect::Quit]);
}

#[test]
fn what_is_scrolled_past_its_end_comes_back_with_the_first_key() {
    let mut app = app();
    app.on_key(Key::Char('4'), 0);
    let room =
        Room { facts: Scroll { most: 7, page: 4 }, help: Scroll { most: 30, page: 10 }, ..Room::default() };
    for _ in 0..9 {
        app.on_key(Key::PageDown, 0);
        app.fit(room);
    }
    assert_eq!(app.policies.scroll, 7);
    app.on_key(Key::PageUp, 0);
    assert_eq!(app.policies.scroll, 3);
    keys(&mut app, &[Key::Char('?'), Key::Char('G'), Key::Down], 0);
    app.fit(room);
    assert_eq!(app.help, Some(30));
    app.on_key(Key::PageUp, 0);
    assert_eq!(app.help, Some(20));
}

#[test]
fn an_error_stays_longer_than_an_outcome() {
    let mut app = app();
    for (result, gone) in [(Ok("done".to_owned()), true), (Err("refused, because".to_owned()), false)] {
        app.on_message(Message::Done(result), 0);
        app.pass(Duration::from_secs(10));
        assert_eq!(app.notice.is_none(), gone);
    }
}

#[test]
fn a_request_is_cancelled_only_after_a_yes() {
    let mut app = app();
    assert_eq!(keys(&mut app, &[Key::Char('3'), Key::Down, Key::Char('c'), Key::Char('n')], 0), []);
    assert_eq!(app.dialog, None);
    assert_eq!(keys(&mut app, &[Key::Char('c'), Key::Char('y')], 0), [Effect::Cancel { id: 9 }]);
    app.on_message(Message::Done(Ok("request 9 cancelled".into())), 5);
    assert!(app.notice.as_ref().unwrap().text.contains("request 9 cancelled"));
    app.pass(Duration::from_mins(1));
    assert_eq!(app.notice, None);
}

#[test]
fn a_key_that_slips_and_a_text_that_is_pasted_are_no_yes() {
    let run = |app: &mut App, line: &str| {
        keys(app, &[Key::Char(':')], 0);
        keys(app, &typed(line), 0);
        keys(app, &[Key::Enter, Key::Enter, Key::Enter], 0)
    };
    for line in
        ["drain", "clear-queue", "cancel 4", "rollback scheduler", "swap scheduler static-batch", "drain"]
    {
        let mut app = app();
        assert_eq!(run(&mut app, line), [], "{line}");
        assert!(app.dialog.is_some(), "{line}: it is still asked");
    }
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0);
    app.on_message(Message::Policies(Ok(known())), 0);
    assert_eq!(keys(&mut app, &[Key::Enter; 5], 0), [], "a held key swaps nothing");
    app.on_key(Key::Escape, 0);
    app.on_key(Key::Char('3'), 0);
    app.on_paste("cy");
    assert_eq!((app.dialog.clone(), app.screen), (None, Screen::Requests));
    assert!(app.notice.as_ref().unwrap().text.contains("no line to paste into"));
}

#[test]
fn a_paste_goes_into_the_line_that_is_typed() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('/')], 0);
    app.on_paste("  id:9\nand more");
    assert_eq!((app.requests.filter.text(), app.requests.order().len()), ("id:9", 1));
    keys(&mut app, &[Key::Escape, Key::Char(':')], 0);
    keys(&mut app, &typed("cancel "), 0);
    app.on_paste("9\n");
    app.on_key(Key::Enter, 0);
    assert!(matches!(&app.dialog, Some(Dialog::Confirm { effect: Effect::Cancel { id: 9 }, .. })));
    keys(&mut app, &[Key::Escape, Key::Char('4'), Key::Char('f')], 0);
    app.on_paste("./mine.wasm");
    let effects = keys(&mut app, &[Key::Enter, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("./mine.wasm", Mode::Now))]);
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

/// What is ordered while `continuous` is in force.
fn order(name: &str, mode: Mode) -> Order {
    let (kind, source, of) = ("scheduler".into(), Source::of(name), Some("continuous".into()));
    Order { kind, source, mode, config: None, force: false, of }
}

#[test]
fn a_swap_is_picked_from_the_list_and_confirmed_and_reports_its_pause() {
    let mut app = app();
    let effects = keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0);
    assert_eq!(effects, [Effect::FetchHistory { kind: "scheduler".into() }, Effect::FetchPolicies]);
    app.on_message(Message::Policies(Ok(known())), 0);
    assert_eq!(keys(&mut app, &[Key::Down, Key::Enter], 0), []);
    assert!(
        matches!(&app.dialog, Some(Dialog::Swap(plan)) if plan.order.of.as_deref() == Some("continuous"))
    );
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::Swap(order("static-batch", Mode::Now))]);
    let answer = SwapAnswer {
        from: "continuous".into(),
        to: "static-batch".into(),
        pause_us: 41.25,
        mode: "now".into(),
        ..SwapAnswer::default()
    };
    app.on_message(Message::Swapped { kind: "scheduler".into(), verb: "swapped", result: Ok(answer) }, 0);
    let notice = &app.notice.as_ref().unwrap().text;
    assert!(notice.contains("continuous -> static-batch") && notice.contains("41.2 us"), "{notice}");
    assert!(notice.contains("r goes back"), "{notice}");
}

#[test]
fn a_policy_comes_in_shadow_or_as_a_canary_and_from_a_file() {
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0);
    app.on_message(Message::Policies(Ok(known())), 0);
    let effects = keys(&mut app, &[Key::Down, Key::Enter, Key::Tab, Key::Tab, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("static-batch", Mode::Canary))]);
    keys(&mut app, &[Key::Char('f')], 0);
    keys(&mut app, &typed("./mine.wasm"), 0);
    let effects = keys(&mut app, &[Key::Enter, Key::Right, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("./mine.wasm", Mode::Shadow))]);
    let last = [Key::Char('s'), Key::End, Key::Enter];
    assert_eq!(keys(&mut app, &last, 0), [Effect::FetchPolicies], "what is known is there at once");
    assert!(matches!(&app.dialog, Some(Dialog::Path(path)) if path.kind == "scheduler"));
}

#[test]
fn a_path_is_completed_in_its_dialog_and_on_the_command_line() {
    let mut app = app();
    let folder = |folder: &str, names: &[&str]| Message::Folder {
        folder: folder.into(),
        result: Ok(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    keys(&mut app, &[Key::Char('4'), Key::Char('f')], 0);
    keys(&mut app, &typed("./t"), 0);
    assert_eq!(keys(&mut app, &[Key::Tab], 0), [Effect::ListFolder("./".into())]);
    app.on_message(folder("elsewhere/", &["tools/"]), 0);
    app.on_message(folder("./", &["mine.wasm", "target/"]), 0);
    let path = |app: &App| match &app.dialog {
        Some(Dialog::Path(path)) => (path.line.text(), path.options.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(path(&app), ("./target/".to_owned(), Some(vec!["target/".to_owned()])));
    assert_eq!(keys(&mut app, &[Key::Tab], 0), [Effect::ListFolder("./target/".into())]);
    app.on_message(folder("./target/", &["a.wasm", "ab.wasm"]), 0);
    assert_eq!(path(&app).0, "./target/a");
    keys(&mut app, &typed("b"), 0);
    assert_eq!(path(&app).1, None, "what is typed anew has no options yet");
    app.on_message(Message::Folder { folder: "./target/".into(), result: Err("it is gone".into()) }, 0);
    assert!(app.notice.as_ref().unwrap().text.contains("it is gone"));
    keys(&mut app, &[Key::Escape], 0);

    keys(&mut app, &typed(":swap scheduler ~/m"), 0);
    assert_eq!(keys(&mut app, &[Key::Tab], 0), [Effect::ListFolder("~/".into())]);
    app.on_message(folder("~/", &["mine.wasm", "music/"]), 0);
    assert!(matches!(&app.prompt, Some(Prompt::Command(line, options))
        if line.text() == "swap scheduler ~/m" && options.len() == 2));
    keys(&mut app, &typed("i"), 0);
    keys(&mut app, &[Key::Tab], 0);
    app.on_message(folder("~/", &["mine.wasm", "music/"]), 0);
    let effects = keys(&mut app, &[Key::Enter, Key::Char('y')], 0);
    assert_eq!(effects, [Effect::Swap(order("~/mine.wasm", Mode::Now))]);
}

#[test]
fn the_configurations_of_a_list_are_edited_together() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    let schema = known().available[0].config_schema.clone();
    let list = json!([{"name": "a", "config": {"batch_size": 8}}, {"name": "b", "config": {}}]);
    state.policies[1].name = "a+b".into();
    state.policies[1].config_schema = json!({"type": "array", "prefixItems": [schema, schema]});
    state.policies[1].config = list;
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char('4'), Key::Down, Key::Char('e'), Key::Down, Key::Char('5')], 0);
    let effects = keys(&mut app, &[Key::Enter, Key::Char('y')], 0);
    let config =
        json!([{"name": "a", "config": {"batch_size": 8}}, {"name": "b", "config": {"batch_size": 5}}]);
    let [Effect::Swap(given)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((given.kind.as_str(), given.config.as_ref()), ("admission", Some(&config)));
}

#[test]
fn a_configuration_is_checked_before_it_is_sent() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    state.policies[0].config_schema = known().available[0].config_schema.clone();
    state.policies[0].config = json!({"batch_size": 8});
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char('4'), Key::Char('e'), Key::Backspace, Key::Char('0'), Key::Enter], 0);
    assert!(
        matches!(&app.dialog, Some(Dialog::Edit(editing)) if editing.faults == ["batch_size: must be at least 1, not 0"]),
        "{:?}",
        app.dialog
    );
    let effects = keys(&mut app, &[Key::Backspace, Key::Char('3'), Key::Enter, Key::Char('y')], 0);
    let config = Some(json!({"batch_size": 3}));
    assert_eq!(effects, [Effect::Swap(Order { config, ..order("continuous", Mode::Now) })]);
}

#[test]
fn a_policy_from_a_file_is_not_taken_for_the_hosts_own_of_its_name() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    state.policies[0].config_schema = known().available[0].config_schema.clone();
    state.policies[0].sha256 = "from a file".into();
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    let asked = keys(&mut app, &[Key::Char('4'), Key::Char('e')], 0);
    assert!(asked.contains(&Effect::FetchPolicies), "{asked:?}");
    let again = order("continuous", Mode::Now);
    for (sha256, hidden) in [("from a file", false), ("the host's own", true)] {
        let mut known = known();
        known.available[0].sha256 = sha256.into();
        app.on_message(Message::Policies(Ok(known)), 0);
        assert_eq!(app.hides_the_hosts_own(&again), hidden);
    }
    assert!(!app.hides_the_hosts_own(&order("static-batch", Mode::Now)), "that is another name");
}

#[test]
fn what_runs_in_shadow_is_promoted_or_ended_after_a_yes() {
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char('p')], 0);
    assert!(app.notice.as_ref().unwrap().text.contains("nothing runs in shadow"));
    let mut state = app.state().unwrap().clone();
    let watching = ShadowInfo { policy: "fair".into(), state: "watching".into(), ..ShadowInfo::default() };
    state.policies[0].shadow = Some(watching);
    let effects = event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    let kind = || "scheduler".to_owned();
    assert_eq!(effects, [Effect::FetchHistory { kind: kind() }], "it has an entry, whoever asked for it");
    let promoted = keys(&mut app, &[Key::Char('p'), Key::Char('y')], 0);
    assert_eq!(promoted, [Effect::Promote { kind: kind(), of: "fair".into() }]);
    assert_eq!(keys(&mut app, &[Key::Char('x'), Key::Char('y')], 0), [Effect::StopShadow { kind: kind() }]);
}

#[test]
fn commands_do_what_keys_do_and_say_what_is_wrong() {
    let mut app = app();
    app.policies.known = Some(known());
    let run = |app: &mut App, line: &str| {
        keys(app, &[Key::Char(':')], 0);
        keys(app, &typed(line), 0);
        app.on_key(Key::Enter, 0)
    };
    run(&mut app, "colour age");
    assert_eq!((app.screen, app.blocks.by), (Screen::Blocks, ColourBy::Age));
    run(&mut app, "swap scheduler static-batch shadow");
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0)[0], Effect::Swap(order("static-batch", Mode::Shadow)));
    run(&mut app, "drain");
    assert_eq!(keys(&mut app, &[Key::Char('n')], 0), []);
    run(&mut app, "clear-queue");
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::ClearQueue]);
    run(&mut app, "fly");
    assert!(app.notice.as_ref().unwrap().text.contains("no command `fly`"));
    keys(&mut app, &[Key::Char(':')], 0);
    keys(&mut app, &typed("swap scheduler st"), 0);
    app.on_key(Key::Tab, 0);
    assert!(
        matches!(&app.prompt, Some(Prompt::Command(line, _)) if line.text() == "swap scheduler static-batch ")
    );
    app.on_key(Key::Escape, 0);
    assert_eq!(run(&mut app, "q"), [Effect::Quit]);
}

#[test]
fn a_filter_applies_while_it_is_typed_and_escape_clears_it() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('/')], 0);
    keys(&mut app, &typed("id:9"), 0);
    assert_eq!(app.requests.order().len(), 1);
    keys(&mut app, &[Key::Enter, Key::Char('s')], 0);
    assert_eq!((app.requests.order().len(), app.prompt.is_none()), (1, true));
    keys(&mut app, &[Key::Escape], 0);
    assert_eq!(app.requests.order().len(), 2);
}

#[test]
fn a_filter_that_leaves_less_than_a_screen_forgets_no_place() {
    let mut app = app();
    for n in 0..100 {
        app.on_message(Message::Done(Ok(format!("number {n}."))), 0);
    }
    let shown = |app: &mut App, pressed: &str| {
        keys(app, &typed(pressed), 0);
        let area = Rect::new(0, 0, 80, 24);
        app.fit(crate::view::room(app, 0, area));
        print::screen(app, 0, area)
    };
    shown(&mut app, "6");
    let read = shown(&mut app, "kkkkk");
    assert!(read.contains("number 94.") && !read.contains("number 95."), "{read}");
    assert!(shown(&mut app, "/number 7.").contains("10 of 100 lines"));
    app.on_key(Key::Escape, 0);
    app.notice = None;
    let again = shown(&mut app, "");
    assert!(again.contains("number 94.") && !again.contains("number 95."), "{again}");
}

#[test]
fn copying_takes_what_the_screen_is_about() {
    let mut app = app();
    assert_eq!(keys(&mut app, &[Key::Char('3'), Key::Char('y')], 0), [Effect::Copy("4".into())]);
    keys(&mut app, &[Key::Char('4')], 0);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::Copy("continuous".into())]);
    keys(&mut app, &[Key::Char('2')], 0);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), []);
    assert!(app.notice.as_ref().unwrap().text.contains("nothing to copy"));
}

#[test]
fn a_click_selects_and_a_second_one_opens() {
    let mut app = app();
    app.on_hit(Hit::Tab(Screen::Requests), 0);
    app.on_hit(Hit::Request(1), 0);
    assert_eq!((app.screen, app.dialog.clone()), (Screen::Requests, None));
    assert_eq!(app.on_hit(Hit::Request(1), 0), [Effect::FetchRequest { id: 9 }]);
    assert_eq!(app.dialog, Some(Dialog::Details { id: 9 }));
    assert_eq!(app.on_key(Key::Char('m'), 0), [], "a dialog is open");
    app.on_key(Key::Escape, 0);
    assert_eq!(app.on_key(Key::Char('m'), 0), [Effect::Mouse(true)]);
}

#[test]
fn changes_are_applied_and_one_that_does_not_fit_begins_the_feed_anew() {
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
    assert_eq!(app.state(), Some(&before), "what was known is shown until the feed has begun anew");
    app.on_key(Key::Char('3'), 500);
    let area = Rect::new(0, 0, 80, 24);
    assert!(print::screen(&app, 500, area).contains("      9 "));
}

#[test]
fn a_recording_asks_for_everything_and_a_replay_changes_nothing() {
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
fn rollback_is_offered_only_where_there_is_a_predecessor() {
    let mut app = app();
    let effects = keys(&mut app, &[Key::Char('4'), Key::Char('r'), Key::Char('y')], 0);
    assert!(
        effects.contains(&Effect::Rollback { kind: "scheduler".into(), of: "continuous".into() }),
        "{effects:?}"
    );
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
    // `y` copies where there is no question to answer.
    let harmless = |effect: &Effect| matches!(effect, Effect::FetchHistory { .. } | Effect::Copy(_));
    assert!(effects.iter().all(harmless), "{effects:?}");
    assert_eq!(app.dialog, None);
    for line in
        ["swap scheduler lru", "drain", "clear-queue", "cancel 4", "configure scheduler", "promote scheduler"]
    {
        keys(&mut app, &[Key::Char(':')], 0);
        keys(&mut app, &typed(line), 0);
        keys(&mut app, &[Key::Enter], 0);
        assert_eq!(app.dialog, None, "{line}");
    }
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

fn question(app: &App) -> &str {
    match &app.dialog {
        Some(Dialog::Confirm { question, .. }) => question,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_paused_screen_asks_about_what_is_so_now() {
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
    assert_eq!(app.slot("scheduler").unwrap().name, "continuous", "that is what is shown");
    app.on_key(Key::Char('r'), 500);
    assert_eq!(question(&app), "Roll scheduler back from fair to continuous?");
    keys(&mut app, &[Key::Char('n'), Key::Char('e')], 500);
    assert!(
        matches!(&app.dialog, Some(Dialog::Edit(editing)) if editing.plan.order.of.as_deref() == Some("fair"))
    );
    app.on_key(Key::Escape, 500);
    for (line, want) in [("clear-queue", "Fail all 5 requests"), ("cancel 9", "7 of 0 tokens")] {
        keys(&mut app, &[Key::Char(':')], 500);
        keys(&mut app, &typed(line), 500);
        app.on_key(Key::Enter, 500);
        assert!(question(&app).contains(want), "{}", question(&app));
        app.on_key(Key::Escape, 500);
    }
}

#[test]
fn clearing_the_queue_names_all_whose_clients_get_an_error() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    (state.queue.waiting, state.queue.held, state.queue.preempted) = (0, 2, 5);
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char(':')], 0);
    keys(&mut app, &typed("clear-queue"), 0);
    app.on_key(Key::Enter, 0);
    assert!(question(&app).contains("all 7 requests") && question(&app).contains("5 of them were preempted"));
}

#[test]
fn nothing_outlives_the_host_that_it_was_about() {
    // The new host may be older than the old one was, and it counts its requests from the same number.
    for uptime_ms in [50, 4_000] {
        let mut app = app();
        app.on_message(Message::Policies(Ok(known())), 0);
        app.on_message(Message::Request { id: 9, result: Ok(RequestDetail::default()) }, 0);
        app.on_message(Message::Map(Ok(BlockMap { total: 4, ..BlockMap::default() })), 0);
        app.on_message(Message::Cache(Ok(CacheReport::default())), 0);
        keys(&mut app, &[Key::Char('3'), Key::Down, Key::Char('c')], 0);
        assert!(question(&app).starts_with("Cancel request 9"));
        event(&mut app, snapshot(1_250), 250);
        assert!(app.dialog.is_some(), "the same host");
        event(&mut app, snapshot_of("second", uptime_ms), 9_000);
        assert_eq!((app.dialog.clone(), app.requests.detail.clone()), (None, None));
        assert!(app.policies.known.is_none() && app.blocks.map.is_none() && app.cache.report.is_none());
        assert_eq!(app.feed().log.last().unwrap().text, "the host was restarted");
        assert!(app.notice.as_ref().unwrap().text.contains("what was open is closed"));
        // `y` copies where nothing is asked.
        assert_eq!(keys(&mut app, &[Key::Char('y')], 9_000), [Effect::Copy("9".into())]);
    }
}

#[test]
fn a_screen_that_was_paused_before_a_restart_changes_nothing() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char(' ')], 0);
    event(&mut app, snapshot_of("second", 50), 9_000);
    assert_eq!(app.state().unwrap().uptime_ms, 1_000, "it can still be read");
    app.on_key(Key::Char('c'), 9_000);
    assert_eq!(app.dialog, None);
    assert!(app.notice.as_ref().unwrap().text.contains("before its restart"));
    keys(&mut app, &[Key::Char(' '), Key::Char('c')], 9_000);
    assert!(app.dialog.is_some());
}

#[test]
fn a_yes_needs_the_host_that_was_asked_about() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    let error = ConnError::Lost("gone".into());
    app.on_message(Message::Feed(Report::Lost { error, retry_in: Duration::from_secs(4) }), 100);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 200), []);
    assert_eq!(app.dialog, None);
    assert!(app.notice.as_ref().unwrap().text.contains("no connection"));
    app.on_key(Key::Char('c'), 300);
    assert_eq!(app.dialog, None, "nor is anything asked");

    // Connected again, perhaps to another host that has not said so yet.
    let mut app = self::app();
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    app.on_message(Message::Feed(Report::Connected), 100);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 200), []);
    event(&mut app, snapshot(1_300), 300);
    assert_eq!(keys(&mut app, &[Key::Char('c'), Key::Char('y')], 400), [Effect::Cancel { id: 4 }]);
}

#[test]
fn a_loss_in_a_recording_is_told_as_it_was_and_a_broken_line_ends_it() {
    let mut app = app();
    app.on_message(Message::Feed(Report::Replaying), 0);
    let error = ConnError::Recorded("connection lost: gone".into());
    app.on_message(Message::Feed(Report::Lost { error, retry_in: Duration::MAX }), u64::MAX - 5);
    app.on_message(Message::Feed(Report::Replaying), 500);
    app.on_message(Message::Feed(Report::Broken("a.jsonl, line 9: nonsense".into())), 600);
    let texts: Vec<&str> = app.feed().log.shown(&app.log.filter).map(|entry| entry.text.as_str()).collect();
    assert_eq!(texts, ["connection lost: gone", "connected again", "a.jsonl, line 9: nonsense"]);
    assert_eq!(app.link, Link::Ended);
    app.on_tick(u64::MAX);
    assert!(app.notice.as_ref().unwrap().text.contains("line 9"), "it is read at the pace of who reads it");
}

#[test]
fn a_list_that_grows_does_not_put_another_policy_under_the_finger() {
    let mut app = app();
    app.policies.known = Some(known());
    keys(&mut app, &[Key::Char('4'), Key::Char('s'), Key::Down], 0);
    let mut more = known();
    more.available
        .insert(0, AvailablePolicy { kind: "scheduler".into(), name: "a".into(), ..Default::default() });
    app.on_message(Message::Policies(Ok(more.clone())), 0);
    app.on_key(Key::Enter, 0);
    assert!(matches!(&app.dialog, Some(Dialog::Swap(plan)) if plan.order.source.text() == "static-batch"));
    keys(&mut app, &[Key::Escape, Key::Char('s'), Key::End], 0);
    more.available.remove(0);
    app.on_message(Message::Policies(Ok(more)), 0);
    app.on_key(Key::Enter, 0);
    assert!(matches!(&app.dialog, Some(Dialog::Path(_))), "the file stays last");
}

#[test]
fn a_lost_host_shows_as_stale_and_a_restart_starts_the_graphs_anew() {
    let mut app = app();
    event(&mut app, snapshot(2_000), 1_000);
    let error = ConnError::Lost("gone".into());
    app.on_message(Message::Feed(Report::Lost { error, retry_in: Duration::from_millis(250) }), 1_100);
    assert!(matches!(&app.link, Link::Lost { retry_at: 1_350, .. }));
    assert_eq!(app.stale_ms(13_000), Some(12_000));
    app.on_message(Message::Done(Err("not done: no host answers".into())), 12_900);
    app.on_message(Message::Feed(Report::Connected), 13_000);
    assert_eq!(app.notice, None, "what failed for want of a host is over");
    event(&mut app, snapshot_of("second", 50), 13_000);
    assert_eq!((app.stale_ms(13_100), app.link.clone()), (None, Link::Live));
    assert_eq!(
        app.feed().history.series(13_000, 3, 1, history::Join::Mean, |_| 1.0),
        [None, None, Some(1.0)]
    );
    let feed = app.feed();
    let texts: Vec<&str> = feed.log.shown(&app.log.filter).map(|entry| entry.text.as_str()).collect();
    let want =
        ["connection lost: gone", "not done: no host answers", "connected again", "the host was restarted"];
    assert_eq!(texts, want);
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
fn what_a_screen_needs_is_fetched_only_while_it_is_shown() {
    let mut app = app();
    app.blocks.room = (40, 10);
    assert_eq!(app.on_tick(1_000), []);
    let first = app.on_key(Key::Char('2'), 1_000);
    assert!(matches!(first.as_slice(), [Effect::FetchBlocks(Wanted::Map { .. })]), "{first:?}");
    assert_eq!(app.on_tick(9_000), [], "one at a time");
    let map = BlockMap { total: 4, per_cell: 1, states: "fcus".into(), ..BlockMap::default() };
    let then = app.on_message(Message::Map(Ok(map)), 9_000);
    assert_eq!(then[1..], [Effect::FetchBlocks(Wanted::Block { id: 0 })]);
    assert_eq!(app.on_key(Key::Char('5'), 9_000), [Effect::FetchCache]);
}
