//! The requests screen: filter, cancel, clear the queue.

use super::*;

#[test]
fn cancel_needs_confirmation() {
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
fn row_of_several_sequences_shows_their_number_and_cancels_the_request() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    let of = |id, state: &str| RequestRow {
        id,
        first_id: Some(20),
        request_id: "many".into(),
        state: state.into(),
        ..RequestRow::default()
    };
    state.requests = (0..300).map(|at| of(20 + at, if at < 100 { "prefill" } else { "waiting" })).collect();
    // Another client chose the same name.
    state.requests.push(RequestRow { first_id: Some(400), ..of(400, "waiting") });
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    app.on_key(Key::Char('3'), 0);
    let screen = print::screen(&app, 0, Rect::new(0, 0, 100, 24));
    for shown in ["     20 prefill", " ×100 ", "    120 waiting", " ×200 ", "    400 waiting"] {
        assert!(screen.contains(shown), "{shown}: {screen}");
    }
    assert!(!screen.contains("    121 "), "{screen}");
    keys(&mut app, &[Key::Home, Key::Down, Key::Char('c')], 0);
    assert_eq!(question(&app), "Cancel request 120 with all its 300 sequences?");
    let all = Effect::CancelAll { id: 120, first_id: 20 };
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [all]);
    let one = keys(&mut app, &[Key::End, Key::Char('c'), Key::Char('y')], 0);
    assert_eq!(one, [Effect::Cancel { id: 400 }]);
}

#[test]
fn adapter_of_a_request_is_shown_and_searched() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    state.requests[1].adapter = Some("sql".into());
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char('3'), Key::Char('/')], 0);
    keys(&mut app, &typed("adapter:sq"), 0);
    assert_eq!(app.requests.table.order(), [1]);
    keys(&mut app, &[Key::Enter, Key::Enter], 0);
    let screen = print::screen(&app, 0, Rect::new(0, 0, 100, 24));
    assert!(screen.lines().any(|line| line.contains("adapter") && line.contains(" sql ")), "{screen}");
}

#[test]
fn filter_applies_while_typed_and_escape_clears_it() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('/')], 0);
    keys(&mut app, &typed("id:9"), 0);
    assert_eq!(app.requests.table.order().len(), 1);
    keys(&mut app, &[Key::Enter, Key::Char('s')], 0);
    assert_eq!((app.requests.table.order().len(), app.prompt.is_none()), (1, true));
    keys(&mut app, &[Key::Escape], 0);
    assert_eq!(app.requests.table.order().len(), 2);
}

#[test]
fn clear_queue_confirmation_counts_every_waiting_request() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    (state.queue.waiting, state.queue.held, state.queue.preempted) = (0, 2, 5);
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    keys(&mut app, &[Key::Char(':')], 0);
    keys(&mut app, &typed("clear-queue"), 0);
    app.on_key(Key::Enter, 0);
    assert!(
        question(&app).contains("all 7 waiting requests")
            && question(&app).contains("5 of them were preempted")
    );
}

#[test]
fn a_new_filter_replaces_the_old_one_with_the_first_key() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('/')], 0);
    keys(&mut app, &typed("id:9"), 0);
    keys(&mut app, &[Key::Enter, Key::Char('/'), Key::Left], 0);
    assert_eq!(app.requests.table.filter.text(), "id:9", "nothing has been typed yet");
    keys(&mut app, &typed("id:4"), 0);
    assert_eq!((app.requests.table.filter.text(), app.requests.table.order()), ("id:4", &[0][..]));
}

#[test]
fn details_step_through_the_table_and_are_copied() {
    let mut app = app();
    let mut details = |press: &[Key]| {
        let effects = keys(&mut app, press, 0);
        let Some(Dialog::Details { id }) = app.dialog else { panic!("{:?}", app.dialog) };
        (id, app.requests.table.selected_row(), effects.contains(&Effect::Copy(id.to_string())))
    };
    for (press, id, row, copies) in [
        (&[Key::Char('3'), Key::Enter][..], 4, 0, false),
        (&[Key::Char('k')], 4, 0, false),
        (&[Key::Char('j')], 9, 1, false),
        (&[Key::Down], 9, 1, false),
        (&[Key::Char('y')], 9, 1, true),
        (&[Key::Up, Key::Char('y')], 4, 0, true),
    ] {
        assert_eq!(details(press), (id, row, copies), "{press:?}");
    }
    // Of one that has ended, the neighbour is the one in its place.
    let mut state = app.state().unwrap().clone();
    state.requests.remove(0);
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    assert_eq!(app.dialog, Some(Dialog::Details { id: 4 }));
    keys(&mut app, &[Key::Char('j')], 0);
    assert_eq!(app.dialog, Some(Dialog::Details { id: 9 }));
}

#[test]
fn up_brings_back_what_is_filtered_by_to_be_edited() {
    for screen in ["3", "6", "7"] {
        let mut app = app();
        let prompt = |app: &App| match &app.prompt {
            Some(Prompt::Filter(line)) => line.text(),
            other => panic!("{other:?}"),
        };
        keys(&mut app, &typed(&format!("{screen}/id:4")), 0);
        keys(&mut app, &[Key::Enter, Key::Char('/'), Key::Up], 0);
        assert_eq!(prompt(&app), "id:4", "screen {screen}");
        keys(&mut app, &[Key::Backspace, Key::Char('9'), Key::Enter, Key::Char('/'), Key::Up], 0);
        assert_eq!(prompt(&app), "id:9", "screen {screen}");
    }
}

#[test]
fn an_unknown_field_in_a_filter_is_named() {
    let mut app = app();
    let shown = |app: &mut App, line: &str| {
        keys(app, &typed(line), 0);
        keys(app, &[Key::Enter], 0);
        print::screen(app, 0, Rect::new(0, 0, 80, 24))
    };
    let requests = shown(&mut app, "3/usr:ada");
    assert!(requests.contains("no request has a field `usr`; the fields are id, "), "{requests}");
    let requests = shown(&mut app, "/user:ada");
    assert!(requests.contains("no request matches the filter"), "{requests}");
    app.on_message(Message::Done(Ok("done".into())), 0);
    let log = shown(&mut app, "6/lvl:error");
    assert!(log.contains("lines have no field `lvl`; the fields are source, level, text"), "{log}");
}

#[test]
fn a_first_token_within_a_millisecond_is_not_a_missing_one() {
    let mut app = app();
    let mut state = app.state().unwrap().clone();
    (state.requests[1].started, state.requests[1].ttft_ms) = (true, Some(0));
    event(&mut app, AdminEvent::Snapshot(Box::new(state)), 0);
    app.on_key(Key::Char('3'), 0);
    let screen = print::screen(&app, 0, Rect::new(0, 0, 100, 24));
    assert_eq!(screen.matches("<1 ms").count(), 1, "{screen}");
    let mut details = |moves: &[Key]| {
        keys(&mut app, moves, 0);
        print::screen(&app, 0, Rect::new(0, 0, 100, 24))
    };
    let waits = details(&[Key::Enter]);
    assert!(waits.contains("prefill -  ") && waits.contains("decode -  "), "{waits}");
    let answers = details(&[Key::Escape, Key::Down, Key::Enter]);
    assert!(answers.contains("prefill <1 ms") && answers.contains("decode <1 ms"), "{answers}");
}
