//! Screens with a frozen clock: as they are in files at three sizes, and what holds of screens of any size.

mod clicks;
mod colours;
mod files;
mod scrolling;
mod sizes;
mod words;

use infer_api::admin::AdminEvent;
use infer_tui::conn::ConnError;
use infer_tui::state::blocks::{Under, Wanted};
use infer_tui::state::{App, Message, Report};
use infer_tui::{print, view};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;

use crate::support::sample;

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
        app.on_message(fed(AdminEvent::Snapshot(state)), now);
    }
    let state = sample::state(240);
    let fault = state.policies[2].last_fault.clone().expect("the sample has a fault");
    let refusal = AdminEvent::Refusal {
        request_id: "r".into(),
        reason: "queue_full".into(),
        message: "1,000 requests wait already".into(),
    };
    for event in [AdminEvent::Fault(fault), refusal.clone(), refusal, AdminEvent::Preemption { id: 1_187 }] {
        app.on_message(fed(event), now);
    }
    app.on_message(Message::Map(Ok(sample::map())), now);
    app.on_message(Message::Under(Wanted::Block { id: 0 }, Ok(Under::Block(sample::block()))), now);
    app.on_message(Message::Cache(Ok(sample::cache())), now);
    app.on_message(Message::Request { id: 1_180, result: Ok(sample::request(239)) }, now);
    app.on_message(Message::History { kind: "scheduler".into(), result: Ok(sample::history()) }, now);
    (app, now + 100)
}

/// What the feed sends.
fn fed(event: AdminEvent) -> Message {
    Message::Feed(Report::Event(event))
}

fn unreachable() -> ConnError {
    ConnError::Unreachable {
        url: "http://127.0.0.1:8001".into(),
        authority: "127.0.0.1:8001".into(),
        message: "Connection refused (os error 111)".into(),
    }
}

fn screen(app: &App, now: u64, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
    terminal.draw(|frame| view::draw(app, now, frame.area(), frame.buffer_mut())).expect("drawn");
    print::text(terminal.backend().buffer())
}

fn buffer(app: &App, now: u64) -> ratatui::buffer::Buffer {
    let mut buffer = ratatui::buffer::Buffer::empty(Rect::new(0, 0, 100, 30));
    view::draw(app, now, buffer.area, &mut buffer);
    buffer
}
