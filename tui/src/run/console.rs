//! The console: one loop waits for inputs, messages, ticks and signals, asks the state what to do, and draws.
//! The terminal is restored however the loop ends: by a key, a signal, an error or a panic. Requests to the
//! host are not made here: they run beside the loop (`ask`), so that a slow host never delays a key.

mod headless;

use std::sync::Arc;
use std::time::Duration;

use crossterm::clipboard::CopyToClipboard;
use crossterm::event::{DisableMouseCapture, EnableMouseCapture, Event, EventStream};
use crossterm::execute;
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use ratatui::layout::Rect;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::ask::ask;
use super::clock::Clock;
use super::news::{News, play};
use super::signals::Signals;
use super::{RunError, Source};
use crate::args::Args;
use crate::conn::{Client, feed};
use crate::input::{self, Input, Key};
use crate::record::Recorder;
use crate::state::{App, Effect, Message, Millis, Report};
use crate::terminal::Taken;
use crate::view;

/// Shortest time between two frames, so that a burst of events doesn't become a burst of frames. Keys are
/// drawn at once.
const FRAME: Duration = Duration::from_millis(33);
/// How often the state sees the clock: for ages, staleness and fetches.
const TICK: Duration = Duration::from_millis(250);
/// Messages that wait to be drawn. When the queue is full the feed waits, and the host counts the events we
/// miss.
const NEWS: usize = 256;

/// The parts of a running console.
pub(super) struct Console {
    app: App,
    client: Option<Client>,
    recorder: Option<Recorder>,
    clock: Clock,
    news: Receiver<News>,
    to_news: Sender<News>,
    again: Arc<Notify>,
}

impl Console {
    pub(super) fn new(args: &Args, source: Source) -> Result<Self, RunError> {
        let (to_news, news) = channel(NEWS);
        let again = Arc::new(Notify::new());
        let (address, client, speed) = match source {
            Source::Host(client) => {
                tokio::spawn(feed::run(client.clone(), args.hz, Arc::clone(&again), to_news.clone()));
                (client.address(), Some(client), 1.0)
            }
            Source::Recording(player) => {
                let address = player.address().to_owned();
                tokio::spawn(play(player, args.speed, to_news.clone()));
                (address, None, args.speed)
            }
        };
        let create = |path| Recorder::create(path, &address, args.record_text);
        let recorder = args.record.as_deref().map(create).transpose()?;
        let mut app = App::new(address, args.read_only);
        app.settings = args.settings();
        app.recording = recorder.is_some();
        Ok(Self { app, client, recorder, clock: Clock::start(speed), news, to_news, again })
    }

    pub(super) async fn run(&mut self, taken: &mut Taken) -> Result<(), RunError> {
        let mut inputs = EventStream::new();
        let mut signals = Signals::new()?;
        let mut ticks = ticks();
        let mut next_frame = Instant::now();
        let mut dirty = true;
        if self.app.settings.mouse {
            execute!(std::io::stdout(), EnableMouseCapture)?;
        }
        let ended = loop {
            let effects = tokio::select! {
                biased;
                () = signals.any() => break Ok(()),
                () = taken.panicked() => break Err(RunError::Died),
                event = inputs.next() => match event {
                    Some(event) => {
                        let (event, area) = (event?, area(&taken.terminal)?);
                        next_frame = Instant::now();
                        if input::is_redraw(&event) {
                            // `clear` would ask the terminal for its cursor, and the events would take the answer.
                            taken.terminal.resize(area)?;
                        }
                        self.on_terminal(&event, area)
                    }
                    None => break Ok(()),
                },
                () = sleep_until(next_frame), if dirty => {
                    self.draw(&mut taken.terminal)?;
                    dirty = false;
                    next_frame = Instant::now() + FRAME;
                    continue;
                }
                message = self.news.recv() => match message {
                    Some(message) => self.on_news(message)?,
                    None => break Err(RunError::Died),
                },
                _ = ticks.tick() => {
                    let now = self.now();
                    self.app.pass(TICK);
                    self.app.on_tick(now)
                }
            };
            dirty = true;
            if self.start_effects(effects)? {
                break Ok(());
            }
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.flush()?;
        }
        ended
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn on_news(&mut self, News { at, message }: News) -> Result<Vec<Effect>, RunError> {
        if let Some(at) = at {
            self.clock.set(at);
        }
        if matches!(message, Message::Feed(Report::Ended | Report::Broken(_))) {
            self.clock.stop();
        }
        let now = self.now();
        if let Some(recorder) = &mut self.recorder {
            recorder.note(&message, now)?;
        }
        Ok(self.app.on_message(message, now))
    }

    fn on_terminal(&mut self, event: &Event, area: Rect) -> Vec<Effect> {
        let now = self.now();
        // Keys can arrive faster than frames, and each one acts on what the previous one led to.
        self.app.fit(view::room(&self.app, now, area));
        match input::input(event) {
            None => Vec::new(),
            Some(Input::Key(key)) => self.app.on_key(key, now),
            Some(Input::AfterEscape(key)) => {
                let mut effects = self.app.on_key(Key::Escape, now);
                effects.extend(self.app.on_key(key, now));
                effects
            }
            Some(Input::Paste(text)) => {
                self.app.on_paste(&text);
                Vec::new()
            }
            Some(Input::Click(x, y)) => {
                view::hit::at(&self.app, area, x, y).map(|hit| self.app.on_hit(hit, now)).unwrap_or_default()
            }
        }
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let now = self.now();
        self.app.fit(view::room(&self.app, now, area(terminal)?));
        terminal.draw(|frame| {
            let area = frame.area();
            view::draw(&self.app, now, area, frame.buffer_mut());
        })?;
        Ok(())
    }

    /// Carries out effects; returns true if one of them is to quit.
    fn start_effects(&mut self, effects: Vec<Effect>) -> Result<bool, RunError> {
        for effect in effects {
            match effect {
                Effect::Quit => return Ok(true),
                Effect::Resync => self.again.notify_one(),
                Effect::Copy(text) => {
                    execute!(std::io::stdout(), CopyToClipboard::to_clipboard_from(text))?;
                }
                Effect::Mouse(true) => execute!(std::io::stdout(), EnableMouseCapture)?,
                Effect::Mouse(false) => execute!(std::io::stdout(), DisableMouseCapture)?,
                effect => {
                    // A recording can't be asked; its data comes with the playback.
                    if let Some(client) = &self.client {
                        let (client, news) = (client.clone(), self.to_news.clone());
                        tokio::spawn(async move {
                            if let Some(message) = ask(&client, effect).await {
                                // Fails only if the console has ended meanwhile.
                                let _ = news.send(message.into()).await;
                            }
                        });
                    }
                }
            }
        }
        Ok(false)
    }
}

/// One every `TICK`. Those that a busy machine missed don't come at once: notices would be gone before anybody saw them.
fn ticks() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn area(terminal: &DefaultTerminal) -> std::io::Result<Rect> {
    let size = terminal.size()?;
    Ok(Rect::new(0, 0, size.width, size.height))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::print;
    use crate::record::Player;

    const AREA: Rect = Rect::new(0, 0, 80, 24);

    fn console() -> Console {
        let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/session.jsonl");
        let args = Args::parse_from(["infer-tui", "--replay", recording, "--speed", "1000"]);
        let player = Player::open(recording.as_ref()).expect("the recording of the README");
        Console::new(&args, Source::Recording(player)).expect("a console")
    }

    fn press(console: &mut Console, keys: &str) {
        for key in keys.chars() {
            let key = KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE);
            console.on_terminal(&Event::Key(key), AREA);
        }
    }

    #[tokio::test]
    async fn keys_faster_than_frames_act_on_the_current_screen() {
        let mut console = console();
        for n in 0..100 {
            console.app.on_message(Message::Done(Ok(format!("number {n}."))), 0);
        }
        console.app.notice = None;
        press(&mut console, "6g");
        let text = print::screen(&console.app, 0, AREA);
        assert!(text.contains("number 0.") && !text.contains("number 99."), "{text}");
        press(&mut console, "?G");
        let text = print::screen(&console.app, 0, AREA);
        assert!(!text.contains("number 0.") && console.app.help > Some(0), "{text}");
    }

    #[tokio::test]
    async fn the_clock_stops_at_the_end_of_a_recording() {
        let mut console = console();
        let connected = Message::Feed(Report::Replaying);
        console.on_news(News { at: Some(40_000), message: connected }).expect("nothing is recorded");
        console.clock.pass(Duration::from_millis(10));
        assert!(console.now() >= 50_000, "{}", console.now());
        console.on_news(Report::Broken("line 9: nonsense".to_owned()).into()).expect("nothing is recorded");
        console.clock.pass(Duration::from_secs(1));
        assert_eq!(console.now(), 40_000);
        assert_eq!(console.app.feed().log.last().map(|line| line.at), Some(40_000));
    }
}
