//! Keys that work on every screen, paste, clicks, commands and notices.

use super::*;
use crate::state::blocks::ColourBy;
use crate::state::keys::Hit;

#[test]
fn digits_and_tabs_change_the_screen() {
    let mut app = app();
    let cases = [
        (Key::Char('3'), Screen::Requests),
        (Key::Tab, Screen::Policies),
        (Key::Char('5'), Screen::Cache),
        (Key::Char('6'), Screen::Log),
        (Key::Tab, Screen::Tenants),
        (Key::Tab, Screen::Overview),
        (Key::BackTab, Screen::Tenants),
        (Key::Char('1'), Screen::Overview),
        (Key::Char('7'), Screen::Tenants),
    ];
    for (key, screen) in cases {
        app.on_key(key, 0);
        assert_eq!(app.screen, screen, "{key:?}");
    }
}

#[test]
fn q_closes_what_is_open_then_quits_and_ctrl_c_always_quits() {
    let mut app = app();
    assert_eq!(keys(&mut app, &[Key::Char('?'), Key::Char('q')], 0), []);
    assert_eq!(app.help, None);
    assert_eq!(app.on_key(Key::Char('q'), 0), [Effect::Quit]);
    keys(&mut app, &[Key::Char('3'), Key::Char('c')], 0);
    assert!(app.dialog.is_some());
    assert_eq!(app.on_key(Key::Interrupt, 0), [Effect::Quit]);
}

#[test]
fn scrolling_stops_at_the_end() {
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
fn errors_stay_longer_than_other_notices() {
    let mut app = app();
    for (result, gone) in [(Ok("done".to_owned()), true), (Err("refused, because".to_owned()), false)] {
        app.on_message(Message::Done(result), 0);
        app.pass(Duration::from_secs(10));
        assert_eq!(app.notice.is_none(), gone);
    }
}

#[test]
fn stray_enter_and_pasted_text_confirm_nothing() {
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
        assert!(app.dialog.is_some(), "{line}: the confirmation is still open");
    }
    let mut app = app();
    keys(&mut app, &[Key::Char('4'), Key::Char('s')], 0);
    app.on_message(Message::Policies(Ok(known())), 0);
    assert_eq!(keys(&mut app, &[Key::Enter; 5], 0), [], "a held key confirms nothing");
    app.on_key(Key::Escape, 0);
    app.on_key(Key::Char('3'), 0);
    app.on_paste("cy");
    assert_eq!((app.dialog.clone(), app.screen), (None, Screen::Requests));
    assert!(app.notice.as_ref().unwrap().text.contains("no input line to paste into"));
}

#[test]
fn paste_goes_into_the_line_being_typed() {
    let mut app = app();
    keys(&mut app, &[Key::Char('3'), Key::Char('/')], 0);
    app.on_paste("  id:9\nand more");
    assert_eq!((app.requests.table.filter.text(), app.requests.table.order().len()), ("id:9", 1));
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

#[test]
fn up_brings_back_the_last_command_though_it_was_refused() {
    let mut app = app();
    let line = |app: &App| match &app.prompt {
        Some(Prompt::Command(line, _)) => line.text(),
        other => panic!("{other:?}"),
    };
    keys(&mut app, &[Key::Char(':'), Key::Up], 0);
    assert_eq!(line(&app), "", "there was none");
    keys(&mut app, &typed("cancel x4"), 0);
    keys(&mut app, &[Key::Enter], 0);
    assert!(app.notice.is_some() && app.prompt.is_none(), "it is refused");
    keys(&mut app, &[Key::Char(':'), Key::Char('h'), Key::Up], 0);
    assert_eq!(line(&app), "h", "what is typed stays");
    keys(&mut app, &[Key::Backspace, Key::Up], 0);
    assert_eq!(line(&app), "cancel x4");
    keys(&mut app, &[Key::Backspace, Key::Backspace, Key::Char('9'), Key::Enter], 0);
    assert!(matches!(&app.dialog, Some(Dialog::Confirm { effect: Effect::Cancel { id: 9 }, .. })));
    keys(&mut app, &[Key::Char('n'), Key::Char(':'), Key::Enter, Key::Char(':'), Key::Up], 0);
    assert_eq!(line(&app), "cancel 9", "an empty line is no command");
}

#[test]
fn commands_match_their_keys_and_report_errors() {
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
    run(&mut app, "undrain");
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::Undrain]);
    run(&mut app, "clear-queue");
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::ClearQueue]);
    run(&mut app, "fly");
    assert!(app.notice.as_ref().unwrap().text.contains("unknown command `fly`"));
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
fn copy_takes_the_selected_id_or_digest() {
    let mut app = app();
    assert_eq!(keys(&mut app, &[Key::Char('3'), Key::Char('y')], 0), [Effect::Copy("4".into())]);
    keys(&mut app, &[Key::Char('4')], 0);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), [Effect::Copy("continuous".into())]);
    keys(&mut app, &[Key::Char('2')], 0);
    assert_eq!(keys(&mut app, &[Key::Char('y')], 0), []);
    assert!(app.notice.as_ref().unwrap().text.contains("nothing to copy"));
}

#[test]
fn first_click_selects_and_second_opens() {
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
