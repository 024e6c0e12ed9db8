//! Compares every screen at three sizes with text files, with a frozen clock, and checks screens of any size.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use infer_api::admin::{AdminEvent, BlockMap};
use infer_tui::conn::ConnError;
use infer_tui::input::Key;
use infer_tui::state::blocks::{ColourBy, Under, Wanted};
use infer_tui::state::keys::Hit;
use infer_tui::state::settings::{Colours, Settings, ThemeName};
use infer_tui::state::{App, Message, Report, Screen};
use infer_tui::view::format::columns;
use infer_tui::{print, view};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use ratatui::style::Color;
use support::sample;

const SIZES: [(u16, u16); 3] = [(40, 12), (80, 24), (200, 60)];

/// Returns a console that has watched the sample host for a minute, with a gap.
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
    app.on_message(Message::Map(Ok(sample::map())), now);
    app.on_message(Message::Under(Wanted::Block { id: 0 }, Ok(Under::Block(sample::block()))), now);
    app.on_message(Message::Cache(Ok(sample::cache())), now);
    app.on_message(Message::Request { id: 1_180, result: Ok(sample::request(239)) }, now);
    app.on_message(Message::History { kind: "scheduler".into(), result: Ok(sample::history()) }, now);
    (app, now + 100)
}

fn screen(app: &App, now: u64, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
    terminal.draw(|frame| view::draw(app, now, frame.area(), frame.buffer_mut())).expect("drawn");
    print::text(terminal.backend().buffer())
}

#[test]
fn screens_match_their_files_at_every_size() {
    let names = ["overview", "blocks", "requests", "policies", "cache", "log", "tenants"];
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
fn dialogs_match_their_files() {
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
        app.on_key(Key::Down, now);
        support::expect::file(&file("swap"), &screen(&app, now, size));
        app.on_key(Key::Enter, now);
        app.on_key(Key::Tab, now);
        support::expect::file(&file("swap-how"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        app.on_key(Key::Down, now);
        support::expect::file(&file("canary"), &screen(&app, now, size));
        for key in [Key::Char('e'), Key::Char('x'), Key::Down] {
            app.on_key(key, now);
        }
        support::expect::file(&file("configure"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        for key in [Key::Char('f'), Key::Char('~'), Key::Char('/'), Key::Tab] {
            app.on_key(key, now);
        }
        let names = ["policies/", "priority.wasm", "projects/", "prudent.wasm", "targets/"];
        let result = Ok(names.map(str::to_owned).to_vec());
        app.on_message(Message::Folder { folder: "~/".into(), result }, now);
        support::expect::file(&file("path"), &screen(&app, now, size));
        app.on_key(Key::Escape, now);
        for key in ":swap scheduler st".chars().map(Key::Char).chain([Key::Tab]) {
            app.on_key(key, now);
        }
        support::expect::file(&file("command"), &screen(&app, now, size));
    }
}

#[test]
fn missing_host_and_stale_screen_match_their_files() {
    let mut app = App::new("http://127.0.0.1:8001".to_owned(), false);
    support::expect::file("connecting-80x24.txt", &screen(&app, 0, (80, 24)));
    let error = ConnError::Unreachable {
        url: "http://127.0.0.1:8001".into(),
        authority: "127.0.0.1:8001".into(),
        message: "Connection refused (os error 111)".into(),
    };
    app.on_message(
        Message::Feed(Report::Lost { why: error.to_string(), retry_in: Duration::from_secs(2) }),
        0,
    );
    support::expect::file("no-host-80x24.txt", &screen(&app, 0, (80, 24)));
    let (mut app, now) = watched();
    let error = ConnError::Lost("the host closed the event stream".into());
    app.on_message(
        Message::Feed(Report::Lost { why: error.to_string(), retry_in: Duration::from_secs(4) }),
        now,
    );
    support::expect::file("stale-80x24.txt", &screen(&app, now + 12_000, (80, 24)));
}

#[test]
fn reason_of_a_lost_connection_is_shown_to_the_last_word() {
    let error = ConnError::Unreachable {
        url: "http://127.0.0.1:8001".into(),
        authority: "127.0.0.1:8001".into(),
        message: "Connection refused (os error 111)".into(),
    };
    for size in [(80, 24), (200, 60)] {
        let (mut app, now) = watched();
        let lost = Report::Lost { why: error.to_string(), retry_in: Duration::from_secs(4) };
        app.on_message(Message::Feed(lost), now);
        let text = screen(&app, now, size);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").ends_with(&format!("retrying in 4 s: {error}")), "{text}");
    }
}

#[test]
fn empty_log_says_since_when_nothing_has_happened() {
    let mut app = App::new("http://127.0.0.1:8001".to_owned(), false);
    app.on_message(Message::Feed(Report::Connected), 0);
    app.on_message(Message::Feed(Report::Event(AdminEvent::Snapshot(Box::new(sample::state(0))))), 0);
    app.on_key(Key::Char('6'), 0);
    let text = screen(&app, 0, (120, 24));
    assert!(text.contains("nothing has happened since this console connected; 4 Policies"), "{text}");
}

#[test]
fn errors_are_shown_to_the_last_word() {
    let why = "scheduler not swapped: this is a prefix-cache policy, and the slot takes a scheduler: its world \
               exports infer:policy/prefix-cache (HTTP 422)";
    for size in [(40, 12), (80, 24), (200, 60)] {
        let (mut app, now) = watched();
        app.on_message(Message::Done(Err(why.to_owned())), now);
        let text = screen(&app, now, size);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").ends_with(why), "{text}");
    }
}

#[test]
fn rollback_stays_visible_after_a_fault_and_the_reason_beside_many_refusals() {
    let (mut app, now) = watched();
    let mut state = sample::state(241);
    state.counters.refused.insert("queue_full".into(), 54_067);
    state.policies[0].last_fault = state.policies[2].last_fault.clone();
    app.on_message(Message::Feed(Report::Event(AdminEvent::Snapshot(Box::new(state)))), now);
    let overview = screen(&app, now, (80, 24));
    assert!(overview.contains("refused 54,068  queue_full"), "{overview}");
    app.on_key(Key::Char('4'), now);
    let policies = screen(&app, now, (80, 24));
    assert!(
        policies.contains("fault ") && policies.contains("previous  static-batch; r rolls"),
        "{policies}"
    );
}

#[test]
fn admission_shows_its_memory_and_its_limits() {
    let (mut app, now) = watched();
    app.on_key(Key::Char('4'), now);
    app.on_key(Key::Down, now);
    let text = screen(&app, now, (400, 40));
    let facts = "up to 4,096 tokens; 370 of 1,024 blocks available, 102 reserved; 13 of 100 batch slots taken; \
                 1 held";
    assert!(text.contains(facts), "{text}");
}

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
        app.on_message(Message::Feed(Report::Event(event)), now);
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
}

fn buffer(app: &App, now: u64) -> ratatui::buffer::Buffer {
    let mut buffer = ratatui::buffer::Buffer::empty(Rect::new(0, 0, 100, 30));
    view::draw(app, now, buffer.area, &mut buffer);
    buffer
}

#[test]
fn only_available_colours_are_used() {
    let (mut app, now) = watched();
    for theme in ThemeName::ALL {
        for colours in [Colours::None, Colours::Sixteen, Colours::Many] {
            app.settings = Settings { theme, colours, ..Settings::default() };
            for by in ColourBy::ALL {
                app.blocks.by = by;
                for key in "1234567".chars() {
                    app.on_key(Key::Char(key), now);
                    for cell in buffer(&app, now).content() {
                        let none = cell.fg == Color::Reset;
                        let fine = match (theme, colours) {
                            (ThemeName::Mono, _) | (_, Colours::None) => none,
                            (_, Colours::Sixteen) => !matches!(cell.fg, Color::Indexed(_) | Color::Rgb(..)),
                            (_, Colours::Many) => none || matches!(cell.fg, Color::Indexed(_)),
                        };
                        assert!(fine && cell.bg == Color::Reset, "{theme:?} {colours:?}: {cell:?}");
                    }
                }
            }
        }
    }
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
    support::expect::file("ascii-80x24.txt", &screen(&app, now, (80, 24)));
}

#[test]
fn clicks_hit_what_is_drawn() {
    let (mut app, now) = watched();
    let area = Rect::new(0, 0, 100, 30);
    app.blocks.room = view::blocks::room(area);
    for digit in "34567".chars() {
        app.on_key(Key::Char(digit), now);
        let text = screen(&app, now, (100, 30));
        let needle = match digit {
            '3' => "1185",
            '4' => "admission ",
            '5' => "You are a patient",
            '7' => "lab-7",
            _ => " Policies ",
        };
        let (y, line) = text.lines().enumerate().find(|(_, line)| line.contains(needle)).expect(needle);
        let x = line[..line.find(needle).unwrap()].chars().count();
        let hit = view::hit::at(&app, area, x as u16, y as u16).unwrap_or_else(|| panic!("{needle}: {text}"));
        app.on_hit(hit, now);
        match digit {
            '3' => {
                let rows = &app.state().unwrap().requests;
                assert_eq!(app.requests.table.selected(rows).unwrap().id, 1_185);
            }
            '4' => assert_eq!(app.policies.kind(), "admission"),
            '5' => assert_eq!(app.cache.selected, 1),
            '7' => {
                let rows = &app.state().unwrap().tenants;
                assert_eq!(app.tenants.selected(rows).unwrap().name, "lab-7");
            }
            _ => assert_eq!(app.screen, Screen::Policies),
        }
    }
}

#[test]
fn every_tab_is_whole_and_can_be_clicked_at_any_width() {
    for (width, last) in
        [(32, "7 T"), (34, "7 Te"), (40, "7 Ten"), (71, "7 Ten"), (72, "7 Tenants"), (200, "7 Tenants")]
    {
        let (app, now) = watched();
        let text = screen(&app, now, (width, 12));
        let tabs = text.lines().nth(1).expect("the tabs");
        assert!(tabs.ends_with(last), "{width}: {tabs}");
        let hit = |x| view::hit::at(&app, Rect::new(0, 0, width, 12), x, 1);
        let mut hits: Vec<_> = (0..width).filter_map(hit).collect();
        hits.dedup();
        assert_eq!(hits, Screen::ALL.map(Hit::Tab), "{width}");
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
fn the_text_snapshot_has_every_number_of_the_overview() {
    support::expect::file("once.txt", &infer_tui::once::text(&sample::state(60), "http://127.0.0.1:8001"));
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
        app.on_message(Message::Feed(Report::Event(AdminEvent::Snapshot(Box::new(state)))), 0);
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

#[test]
fn outdated_data_says_how_old_it_is_and_why() {
    let (mut app, now) = watched();
    for key in ['2', '5'] {
        app.on_key(Key::Char(key), now);
        assert!(!screen(&app, now, (110, 32)).contains("as of"));
    }
    app.on_message(Message::Map(Err("the token is\u{1b} wrong".into())), now + 12_000);
    app.on_message(Message::Cache(Err("the token is\u{1b} wrong".into())), now + 12_000);
    for key in ['2', '5'] {
        app.on_key(Key::Char(key), now + 12_000);
        let text = screen(&app, now + 12_000, (160, 32));
        assert!(text.contains("as of 12 s ago: the token is"), "{text}");
        for by in ColourBy::ALL {
            app.blocks.by = by;
            for size in [(32, 9), (40, 12), (64, 16)] {
                let text = screen(&app, now + 12_000, size);
                assert!(text.contains("as of 12 s ago"), "{by:?} {text}");
            }
        }
    }
}

#[test]
fn a_map_without_colours_uses_digits() {
    let (mut app, now) = watched();
    app.settings.colours = Colours::None;
    app.on_key(Key::Char('2'), now);
    for (by, values, cells, legend) in [
        (ColourBy::Tenant, vec![0, 7, 0, 11], "· 7 0 b", "0 tenant 0  7 tenant 7  b tenant 11"),
        (ColourBy::References, vec![0, 1, 5, 90], "· 1 3 4", "1 held by 1  2 by 2  3 by 3 to 7  4 by more"),
        (ColourBy::Age, vec![0, 100, 50, 0], "· 4 2 0", "0 from 0 ms"),
    ] {
        let map = BlockMap {
            total: 4,
            per_cell: 1,
            by: by.name().into(),
            states: "fucs".into(),
            values,
            ..BlockMap::default()
        };
        app.blocks.by = by;
        app.blocks.room = view::blocks::room(Rect::new(0, 0, 110, 32));
        app.on_message(Message::Map(Ok(map)), now);
        let text = screen(&app, now, (110, 32));
        assert!(text.contains(cells) && text.contains(legend), "{text}");
    }
}

#[test]
fn a_map_fetched_for_another_colouring_is_not_explained_by_this_one() {
    let (mut app, now) = watched();
    app.on_key(Key::Char('2'), now);
    app.blocks.by = ColourBy::Tenant;
    let map = BlockMap { by: "tenant".into(), values: vec![7; 1_024], ..sample::map() };
    app.on_message(Message::Map(Ok(map)), now);
    let text = screen(&app, now, (110, 32));
    assert!(text.contains("coloured by tenant") && text.contains("tenant 7"), "{text}");
    // A paused screen fetches nothing, and neither does a recording.
    for (key, why) in [(' ', "age: the paused screen has none; space resumes"), (' ', "references yet")] {
        app.on_key(Key::Char(key), now);
        app.on_key(Key::Char('c'), now);
        let text = screen(&app, now, (110, 32));
        assert!(text.contains(&format!("no colours by {why}")), "{text}");
        assert!(!text.contains("coloured by") && !text.contains("from 7 s"), "{text}");
    }
    app.on_message(Message::Feed(Report::Replaying), now);
    let text = screen(&app, now, (110, 32));
    assert!(text.contains("no colours by references: the recording has none"), "{text}");
}

#[test]
fn scrolling_back_from_the_oldest_line_takes_effect_at_once() {
    let (mut app, now) = watched();
    for id in 0..40 {
        app.on_message(Message::Feed(Report::Event(AdminEvent::Preemption { id })), now);
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
