//! Clicks hit what is drawn.

use infer_tui::input::Key;
use infer_tui::state::Screen;
use infer_tui::state::keys::Hit;
use infer_tui::view;
use ratatui::layout::Rect;

use super::{screen, watched};

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
