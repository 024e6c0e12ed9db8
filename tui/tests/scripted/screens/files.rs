//! Screens and dialogs that match the files in `tests/screens`.

use std::time::Duration;

use infer_tui::conn::ConnError;
use infer_tui::input::Key;
use infer_tui::state::{App, Message, Report};
use infer_tui::{print, view};
use ratatui::layout::Rect;

use super::{buffer, screen, unreachable, watched};
use crate::support::{expect, sample};

const SIZES: [(u16, u16); 3] = [(40, 12), (80, 24), (200, 60)];

#[test]
fn screens_match_their_files_at_every_size() {
    let names = ["overview", "blocks", "requests", "policies", "cache", "log", "tenants"];
    for size in SIZES {
        for (digit, name) in ('1'..).zip(names) {
            let (mut app, now) = watched();
            app.blocks.room = view::blocks::room(Rect::new(0, 0, size.0, size.1));
            app.on_key(Key::Char(digit), now);
            expect::file(&format!("{name}-{}x{}.txt", size.0, size.1), &screen(&app, now, size));
        }
    }
}

#[test]
fn dialogs_match_their_files() {
    for size in [(40, 12), (80, 24)] {
        let file = |name: &str| format!("{name}-{}x{}.txt", size.0, size.1);
        let (mut app, now) = watched();
        app.on_key(Key::Char('?'), now);
        expect::file(&file("help"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        app.on_key(Key::Char('3'), now);
        app.on_key(Key::Enter, now);
        expect::file(&file("request"), &screen(&app, now, size));
        app.on_key(Key::Char('c'), now);
        expect::file(&file("cancel"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        app.on_key(Key::Char('4'), now);
        app.on_key(Key::Char('s'), now);
        app.on_message(Message::Policies(Ok(sample::policies())), now);
        app.on_key(Key::Down, now);
        app.on_key(Key::Down, now);
        expect::file(&file("swap"), &screen(&app, now, size));
        app.on_key(Key::Enter, now);
        app.on_key(Key::Tab, now);
        expect::file(&file("swap-how"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        app.on_key(Key::Down, now);
        expect::file(&file("canary"), &screen(&app, now, size));
        for key in [Key::Char('e'), Key::Char('x'), Key::Down] {
            app.on_key(key, now);
        }
        expect::file(&file("configure"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        for key in [Key::Char('f'), Key::Char('~'), Key::Char('/'), Key::Tab] {
            app.on_key(key, now);
        }
        let names = ["policies/", "priority.wasm", "projects/", "prudent.wasm", "targets/"];
        let result = Ok(names.map(str::to_owned).to_vec());
        app.on_message(Message::Folder { folder: "~/".into(), result }, now);
        expect::file(&file("path"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        for key in ":swap scheduler st".chars().map(Key::Char).chain([Key::Tab]) {
            app.on_key(key, now);
        }
        expect::file(&file("command"), &screen(&app, now, size));
    }
}

#[test]
fn missing_host_and_stale_screen_match_their_files() {
    let mut app = App::new("http://127.0.0.1:8001".to_owned(), false);
    expect::file("connecting-80x24.txt", &screen(&app, 0, (80, 24)));
    let error = unreachable();
    app.on_message(
        Message::Feed(Report::Lost { why: error.to_string(), retry_in: Duration::from_secs(2) }),
        0,
    );
    expect::file("no-host-80x24.txt", &screen(&app, 0, (80, 24)));
    let (mut app, now) = watched();
    let error = ConnError::Lost("the host closed the event stream".into());
    app.on_message(
        Message::Feed(Report::Lost { why: error.to_string(), retry_in: Duration::from_secs(4) }),
        now,
    );
    expect::file("stale-80x24.txt", &screen(&app, now + 12_000, (80, 24)));
}

#[test]
fn ascii_mode_draws_only_ascii() {
    let (mut app, now) = watched();
    app.settings.ascii = true;
    for key in "1234567?".chars() {
        app.on_key(Key::Char(key), now);
        let text = print::text(&buffer(&app, now));
        assert!(text.is_ascii(), "{text}");
        assert!(!text.contains("??"), "a glyph without a replacement: {text}");
    }
    app.on_key(Key::Escape, now);
    app.on_key(Key::Char('2'), now);
    expect::file("ascii-80x24.txt", &screen(&app, now, (80, 24)));
}

#[test]
fn the_text_snapshot_has_every_number_of_the_overview() {
    expect::file("once.txt", &infer_tui::once::text(&sample::state(60), "http://127.0.0.1:8001"));
}
