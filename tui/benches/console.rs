//! Cost of the console on its own machine, with 5,000 requests and a pool of 100,000 blocks on a 200x60
//! screen: parsing a change, applying it, handling a key, each with the frame that follows. `cargo bench -p
//! infer-tui`.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use infer_api::admin::{AdminEvent, BlockCounts, BlockMap, Change, RequestRow, RowChange, RowsChange, State};
use infer_tui::conn::sse;
use infer_tui::input::Key;
use infer_tui::state::{App, Message, Report};
use infer_tui::view;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;

const REQUESTS: u64 = 5_000;
const RUNNING: u64 = 256;
const BLOCKS: u32 = 100_000;
const SIZE: (u16, u16) = (200, 60);

fn state() -> State {
    let row = |id: u64| RequestRow {
        id,
        request_id: format!("req-{id:08}"),
        session: format!("chat-{}", id % 97),
        user: "ada".into(),
        state: if id < RUNNING { "decode" } else { "waiting" }.into(),
        prompt_tokens: 900,
        generated_tokens: 20,
        max_tokens: 400,
        blocks: 58,
        started: id < RUNNING,
        ..RequestRow::default()
    };
    State { requests: (0..REQUESTS).map(row).collect(), requests_total: REQUESTS as u32, ..State::default() }
}

/// All running requests change, and so does the order, as when requests end and others arrive.
fn change(tick: u64) -> Change {
    let moved = |id: u64| RowChange {
        id,
        state: "decode".into(),
        generated_tokens: (20 + tick) as u32,
        blocks: 58,
        started: true,
        ..RowChange::default()
    };
    let order: Vec<u64> = (0..REQUESTS).map(|at| (at + tick) % REQUESTS).collect();
    Change {
        state: State { uptime_ms: tick * 250, requests_total: REQUESTS as u32, ..State::default() },
        rows: RowsChange {
            moved: (0..RUNNING).map(moved).collect(),
            order: Some(order),
            ..RowsChange::default()
        },
        ..Change::default()
    }
}

fn map() -> BlockMap {
    let per_cell = 10;
    let cells = BLOCKS / per_cell;
    BlockMap {
        block_size: 16,
        from: 0,
        total: BLOCKS,
        per_cell,
        counts: BlockCounts { used: BLOCKS, ..BlockCounts::default() },
        states: "usck".chars().cycle().take(cells as usize).collect(),
        by: "age".into(),
        values: (0..cells).collect(),
    }
}

struct Console {
    app: App,
    terminal: Terminal<TestBackend>,
    now: u64,
}

impl Console {
    fn new(digit: char) -> Self {
        let mut app = App::new("bench".into(), false);
        app.blocks.room = view::blocks::room(Rect::new(0, 0, SIZE.0, SIZE.1));
        app.on_message(Message::Feed(Report::Connected), 0);
        app.on_message(Message::Feed(Report::Event(AdminEvent::Snapshot(Box::new(state())))), 0);
        app.on_message(Message::Map(Ok(map())), 0);
        app.on_key(Key::Char(digit), 0);
        let terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).expect("a test terminal");
        Self { app, terminal, now: 0 }
    }

    fn draw(&mut self) {
        let (app, now) = (&self.app, self.now);
        self.terminal.draw(|frame| view::draw(app, now, frame.area(), frame.buffer_mut())).expect("drawn");
    }

    fn press(&mut self, key: Key) {
        black_box(self.app.on_key(key, self.now));
        self.draw();
    }
}

fn console(c: &mut Criterion) {
    let data = serde_json::to_string(&change(1)).expect("a change is JSON");
    println!("a change of {RUNNING} rows and a new order of {REQUESTS}: {} bytes", data.len());
    c.bench_function("read a change", |b| {
        b.iter(|| black_box(sse::decode("change", &data).expect("it is one")));
    });
    for (digit, name) in [('1', "overview"), ('3', "requests")] {
        let mut console = Console::new(digit);
        c.bench_function(&format!("a change and a frame: {name}"), |b| {
            b.iter(|| {
                console.now += 250;
                let event = AdminEvent::Change(Box::new(change(console.now / 250)));
                black_box(console.app.on_message(Message::Feed(Report::Event(event)), console.now));
                console.draw();
            });
        });
    }
    let mut console = Console::new('3');
    c.bench_function("a key and a frame: down among 5,000 requests", |b| b.iter(|| console.press(Key::Down)));
    c.bench_function("a key and a frame: sort 5,000 requests", |b| b.iter(|| console.press(Key::Char('s'))));
    console.press(Key::Char('/'));
    c.bench_function("a key and a frame: filter 5,000 requests", |b| {
        b.iter(|| {
            console.press(Key::Char('a'));
            console.press(Key::Backspace);
        });
    });
    let mut console = Console::new('2');
    c.bench_function("a key and a frame: right on the map of 100,000 blocks", |b| {
        b.iter(|| console.press(Key::Right));
    });
}

criterion_group!(benches, console);
criterion_main!(benches);
