//! The log screen: what is logged, where the reader is.

use infer_api::admin::FaultInfo;

use super::*;
use crate::state::log::Level;

#[test]
fn clearing_a_filter_restores_the_scroll_position() {
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
fn fault_event_is_logged_with_its_reason() {
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
    assert_eq!(entry.text, "evil: trap at step 7: unreachable executed; removed and quarantined");
}

#[test]
fn requests_that_fail_in_one_way_are_one_line() {
    let mut app = app();
    for id in 4..36 {
        let failure = AdminEvent::Failure {
            id,
            request_id: format!("req-{id}"),
            code: "device_fault".into(),
            message: "out of device memory".into(),
        };
        event(&mut app, failure, 10);
    }
    let entry = app.feed().log.last().unwrap();
    assert_eq!((entry.level, entry.source, entry.count), (Level::Error, "failure", 32));
    assert_eq!(entry.text, "device_fault: out of device memory");
}
