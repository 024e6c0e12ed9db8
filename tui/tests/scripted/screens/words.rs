//! What screens say: reasons and facts, to the last word.

use std::time::Duration;

use infer_api::admin::AdminEvent;
use infer_tui::input::Key;
use infer_tui::state::blocks::ColourBy;
use infer_tui::state::{App, Message, Report};

use super::{fed, screen, unreachable, watched};
use crate::support::sample;

#[test]
fn reason_of_a_lost_connection_is_shown_to_the_last_word() {
    let error = unreachable();
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
    app.on_message(fed(AdminEvent::Snapshot(Box::new(sample::state(0)))), 0);
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
    app.on_message(fed(AdminEvent::Snapshot(Box::new(state))), now);
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
