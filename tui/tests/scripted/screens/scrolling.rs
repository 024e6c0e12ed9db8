//! Longer than the screen: every line is reachable.

use infer_api::admin::AdminEvent;
use infer_tui::input::Key;
use infer_tui::state::App;
use infer_tui::view;
use ratatui::layout::Rect;

use super::{fed, screen, watched};

#[test]
fn the_oldest_log_line_is_reachable_when_lines_wrap() {
    let (mut app, now) = watched();
    app.on_key(Key::Char('6'), now);
    for id in 0..30 {
        let event = AdminEvent::Refusal {
            request_id: "r".into(),
            reason: "too_long".into(),
            message: format!("number {id} may need more blocks than the whole pool of this host has"),
        };
        app.on_message(fed(event), now);
    }
    let latest = screen(&app, now, (40, 12));
    assert!(latest.contains("number 29") && !latest.contains("greedy-cache"), "{latest}");
    app.fit(view::room(&app, now, Rect::new(0, 0, 40, 12)));
    app.on_key(Key::Home, now);
    let oldest = screen(&app, now, (40, 12));
    assert!(oldest.lines().nth(3).is_some_and(|row| row.contains("greedy-cache")), "{oldest}");
    assert!(oldest.lines().all(|row| row.chars().count() <= 40), "{oldest}");
}

#[test]
fn facts_and_help_scroll_to_their_ends_and_no_further() {
    for size in [(40, 12), (80, 24)] {
        let (mut app, now) = watched();
        let area = Rect::new(0, 0, size.0, size.1);
        let press = |app: &mut App, key| {
            app.on_key(key, now);
            app.fit(view::room(app, now, area));
            screen(app, now, size)
        };
        press(&mut app, Key::Char('4'));
        let last = (0..40).map(|_| press(&mut app, Key::PageDown)).last().expect("forty");
        assert!(last.contains("digest") || last.contains("(start)"), "{last}");
        assert!(!last.contains("more, PgDn"), "{last}");
        let before = press(&mut app, Key::PageUp);
        assert!(before != last && before.contains("more, PgDn"), "{before}");
        press(&mut app, Key::Char('?'));
        let end = press(&mut app, Key::End);
        assert!(end.contains(":quit") && !end.contains("for more"), "{end}");
        assert!(press(&mut app, Key::Up).contains("for more"));
    }
}

#[test]
fn scrolling_back_from_the_oldest_line_takes_effect_at_once() {
    let (mut app, now) = watched();
    for id in 0..40 {
        app.on_message(fed(AdminEvent::Preemption { id }), now);
    }
    let size = (80, 24);
    let press = |app: &mut App, key| {
        app.on_key(key, now);
        app.fit(view::room(app, now, Rect::new(0, 0, size.0, size.1)));
        screen(app, now, size)
    };
    press(&mut app, Key::Char('6'));
    let oldest = press(&mut app, Key::Home);
    assert_ne!(press(&mut app, Key::Down), oldest);
    assert_eq!(press(&mut app, Key::Up), oldest);
    press(&mut app, Key::Char('3'));
    assert_eq!(press(&mut app, Key::Char('6')), oldest, "visiting another screen keeps the position");
}
