//! Colours, and block maps with and without them.

use infer_api::admin::BlockMap;
use infer_tui::input::Key;
use infer_tui::state::blocks::ColourBy;
use infer_tui::state::settings::{Colours, Settings, ThemeName};
use infer_tui::state::{Message, Report};
use infer_tui::view;
use ratatui::layout::Rect;
use ratatui::style::Color;

use super::{buffer, screen, watched};
use crate::support::sample;

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
fn a_map_without_colours_uses_digits() {
    let (mut app, now) = watched();
    app.settings.colours = Colours::None;
    app.on_key(Key::Char('2'), now);
    for (by, values, cells, legend) in [
        (ColourBy::Tenant, vec![0, 7, 0, 11], "· 7 0 b", "0 tenant acme  7 tenant 7  b tenant 11"),
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
