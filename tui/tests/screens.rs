//! Every screen at three sizes with a frozen clock, compared with text files, and terminals of any size.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use infer_api::admin::AdminEvent;
use infer_tui::conn::ConnError;
use infer_tui::conn::feed::Report;
use infer_tui::input::Key;
use infer_tui::state::{App, Message};
use infer_tui::view;
use infer_tui::view::theme::Theme;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use support::sample;

const SIZES: [(u16, u16); 3] = [(40, 12), (80, 24), (200, 60)];

/// A console that has watched the sample host for a minute, with a gap.
fn watched() -> (App, u64) {
    let mut app = App::new("http://127.0.0.1:8001".to_owned(), false);
    let mut now = 0;
    app.on_message(Message::Feed(Report::Connected), now);
    for tick in 0..240 {
        now = tick * 250;
        if (20_000..26_000).contains(&now) {
            continue;
        }
        let state = Box::new(sample::state(tick));
        app.on_message(Message::Feed(Report::Event(AdminEvent::Snapshot(state))), now);
    }
    let state = sample::state(240);
    let fault = state.policies[2].last_fault.clone().expect("the sample has a fault");
    let refusal = AdminEvent::Refusal {
        request_id: "r".into(),
        reason: "queue_full".into(),
        message: "1,000 requests wait already".into(),
    };
    for event in [AdminEvent::Fault(fault), refusal.clone(), refusal, AdminEvent::Preemption { id: 1_187 }] {
        app.on_message(Message::Feed(Report::Event(event)), now);
    }
    app.on_message(Message::Blocks(Ok(sample::blocks())), now);
    app.on_message(Message::History { kind: "scheduler".into(), result: Ok(sample::history()) }, now);
    (app, now + 100)
}

fn screen(app: &App, now: u64, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
    terminal
        .draw(|frame| view::draw(app, now, &Theme::colour(), frame.area(), frame.buffer_mut()))
        .expect("drawn");
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|y| {
            let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            format!("{}\n", row.trim_end())
        })
        .collect()
}

#[test]
fn every_screen_looks_as_it_should_at_every_size() {
    let names = ["overview", "blocks", "requests", "policies", "log"];
    for size in SIZES {
        for (digit, name) in ('1'..).zip(names) {
            let (mut app, now) = watched();
            app.blocks.room = view::blocks::room(Rect::new(0, 0, size.0, size.1));
            app.on_key(Key::Char(digit), now);
            support::expect::file(&format!("{name}-{}x{}.txt", size.0, size.1), &screen(&app, now, size));
        }
    }
}

#[test]
fn what_lies_over_the_screens_looks_as_it_should() {
    for size in [(40, 12), (80, 24)] {
        let file = |name: &str| format!("{name}-{}x{}.txt", size.0, size.1);
        let (mut app, now) = watched();
        app.on_key(Key::Char('?'), now);
        support::expect::file(&file("help"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        app.on_key(Key::Char('3'), now);
        app.on_key(Key::Enter, now);
        support::expect::file(&file("request"), &screen(&app, now, size));
        app.on_key(Key::Char('c'), now);
        support::expect::file(&file("cancel"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        app.on_key(Key::Char('4'), now);
        app.on_key(Key::Char('s'), now);
        app.on_message(Message::Policies(Ok(sample::policies())), now);
        app.on_key(Key::Down, now);
        support::expect::file(&file("swap"), &screen(&app, now, size));
    }
}

#[test]
fn a_console_without_a_host_says_so_and_a_stale_one_too() {
    let mut app = App::new("http://127.0.0.1:8001".to_owned(), false);
    support::expect::file("connecting-80x24.txt", &screen(&app, 0, (80, 24)));
    let error = ConnError::Unreachable {
        url: "http://127.0.0.1:8001".into(),
        authority: "127.0.0.1:8001".into(),
        message: "Connection refused (os error 111)".into(),
    };
    app.on_message(Message::Feed(Report::Lost { error, retry_in: Duration::from_secs(2) }), 0);
    support::expect::file("no-host-80x24.txt", &screen(&app, 0, (80, 24)));
    let (mut app, now) = watched();
    let error = ConnError::Lost("the host closed the event stream".into());
    app.on_message(Message::Feed(Report::Lost { error, retry_in: Duration::from_secs(4) }), now);
    support::expect::file("stale-80x24.txt", &screen(&app, now + 12_000, (80, 24)));
}

#[test]
fn no_terminal_is_too_small_to_survive() {
    for (width, height) in
        [(1, 1), (20, 5), (5, 60), (200, 1), (32, 9), (33, 10), (60, 19), (76, 22), (77, 21)]
    {
        let (mut app, now) = watched();
        for key in "12345?".chars() {
            app.on_key(Key::Char(key), now);
            let text = screen(&app, now, (width, height));
            if (width, height) == (20, 5) {
                assert!(text.starts_with("too small\n"), "{text}");
            }
        }
        app.on_key(Key::Escape, now);
        for keys in [
            &[Key::Char('3'), Key::Enter, Key::Char('c')][..],
            &[Key::Char('n'), Key::Char('4'), Key::Char('s')],
        ] {
            for key in keys {
                app.on_key(*key, now);
                screen(&app, now, (width, height));
            }
        }
    }
}

#[test]
fn pool_bar_and_block_map_sum_to_the_pool_on_every_tick() {
    for tick in 0..200 {
        let memory = sample::state(tick).memory;
        assert_eq!(memory.used + memory.cached + memory.free, memory.total, "the sample at {tick}");
        let mut app = App::new("x".into(), false);
        let state = Box::new(sample::state(tick));
        app.on_message(Message::Feed(Report::Event(AdminEvent::Snapshot(state))), 0);
        let text = screen(&app, 0, (100, 30));
        let mut pool = text.lines().skip_while(|line| !line.contains("KV pool")).skip(1);
        let (bar, legend) = (pool.next().expect("a bar"), pool.next().expect("a legend"));
        assert_eq!(bar.chars().filter(|c| "█▒·".contains(*c)).count(), 96, "{bar}");
        assert!(legend.contains("= 1,024"), "{legend}");
    }
    let (mut app, now) = watched();
    for size in [(200, 60), (80, 24), (40, 12)] {
        app.on_key(Key::Char('2'), now);
        let text = screen(&app, now, size);
        assert!(text.contains("= 1,024"), "{text}");
    }
    assert_eq!(app.blocks.counts().total(), sample::TOTAL_BLOCKS as usize);
}

#[test]
fn without_colour_nothing_is_coloured() {
    let (app, now) = watched();
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).expect("a test terminal");
    terminal
        .draw(|frame| view::draw(&app, now, &Theme::plain(), frame.area(), frame.buffer_mut()))
        .expect("drawn");
    for cell in terminal.backend().buffer().content() {
        assert_eq!((cell.fg, cell.bg), (ratatui::style::Color::Reset, ratatui::style::Color::Reset));
    }
}

#[test]
fn the_text_snapshot_has_every_number_of_the_overview() {
    support::expect::file("once.txt", &infer_tui::once::text(&sample::state(60), "http://127.0.0.1:8001"));
}
