//! Any size: what stays, what sums up, and columns that stay aligned.

use infer_api::admin::AdminEvent;
use infer_tui::input::Key;
use infer_tui::state::App;
use infer_tui::view::format::columns;

use super::{fed, screen, watched};
use crate::support::sample;

#[test]
fn no_terminal_size_panics() {
    for (width, height) in
        [(1, 1), (20, 5), (5, 60), (200, 1), (32, 9), (33, 10), (60, 19), (76, 22), (77, 21)]
    {
        let (mut app, now) = watched();
        for key in "1234567?".chars() {
            app.on_key(Key::Char(key), now);
            let text = screen(&app, now, (width, height));
            if (width, height) == (20, 5) {
                assert!(text.starts_with("too small\n"), "{text}");
            }
        }
        app.on_key(Key::Escape, now);
        for keys in [
            &[Key::Char('3'), Key::Enter, Key::Char('c')][..],
            &[Key::Char('n'), Key::Char('4'), Key::Char('f'), Key::Enter, Key::Escape],
            &[Key::Down, Key::Char('e'), Key::Enter, Key::Escape, Key::Char(':'), Key::Char('x')],
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
        app.on_message(fed(AdminEvent::Snapshot(state)), 0);
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
}

#[test]
fn a_narrow_table_of_tenants_keeps_who_runs_and_who_waits() {
    let (mut app, now) = watched();
    app.on_key(Key::Char('7'), now);
    for (width, last) in
        [(32, "WAITING"), (40, "TOK/S"), (48, "TTFT P99"), (78, "REFUSED"), (100, "HELD"), (160, "ID")]
    {
        let text = screen(&app, now, (width, 12));
        let head = text.lines().nth(3).expect("the header");
        for title in ["TENANT ", " RUNNING", " WAITING", last] {
            assert!(head.contains(title), "{width}: {title} is missing in {text}");
        }
        assert!(
            text.lines().any(|line| line.contains(" night.batch ") || line.contains("│night.batch ")),
            "{text}"
        );
        assert!(text.lines().all(|line| columns(line) <= usize::from(width)), "{text}");
    }
}

#[test]
fn a_wider_window_shows_more_time() {
    let (mut app, now) = watched();
    assert!(screen(&app, now, (100, 30)).contains("1 s per column"));
    app.on_key(Key::Char('+'), now);
    let text = screen(&app, now, (100, 30));
    assert!(text.contains("2 s per column"), "{text}");
}

#[test]
fn client_chosen_names_keep_columns_aligned() {
    for name in [
        "会话会话会话会话会话会话",
        "\u{200b}\u{200b}\u{200b}\u{200b}",
        "a\u{202e}txt.exe\u{202c}",
        "é\u{301}👩\u{200d}🔬",
    ] {
        let mut app = App::new("x".into(), false);
        let mut state = sample::state(60);
        for row in state.requests.iter_mut().step_by(2) {
            row.session = name.into();
            row.user = name.into();
        }
        app.on_message(fed(AdminEvent::Snapshot(Box::new(state))), 0);
        app.on_key(Key::Char('3'), 0);
        let text = screen(&app, 0, (200, 60));
        let body = text.lines().filter(|line| line.starts_with('│'));
        assert!(body.clone().all(|line| columns(line) == 200), "{text}");
        // The progress bars of all rows start in the same column.
        let progress = |line: &str| columns(&line[..line.find(['━', '─']).unwrap_or(0)]);
        let places: Vec<usize> = body.map(progress).filter(|&at| at > 0).collect();
        assert!(places.len() > 2 && places.iter().all(|&at| at == places[0]), "{places:?} {text}");
        assert!(!text.contains(['\u{202e}', '\u{200b}', '\u{200d}']), "{text}");
    }
}

#[test]
fn the_smallest_overview_still_names_the_policies() {
    let (app, now) = watched();
    let text = screen(&app, now, (32, 9));
    assert!(text.contains("● continuous"), "{text}");
}
