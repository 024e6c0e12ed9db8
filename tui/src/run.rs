//! Connects the parts: one loop waits for inputs, messages, ticks and signals, asks the state what to do, and
//! draws. The terminal is restored however the loop ends: by a key, a signal, an error or a panic.

use std::io::{IsTerminal, Write as _};
use std::sync::Arc;
use std::time::Duration;

use crossterm::clipboard::CopyToClipboard;
use crossterm::event::{DisableMouseCapture, EnableMouseCapture, Event, EventStream};
use crossterm::execute;
use futures_util::StreamExt;
use infer_api::admin::SwapAnswer;
use ratatui::DefaultTerminal;
use ratatui::layout::Rect;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, interval, sleep_until};

use crate::args::Args;
use crate::conn::feed::{self, Update};
use crate::conn::{Client, ConnError};
use crate::input::{self, Input, Key};
use crate::record::{Player, RecordError, Recorder};
use crate::state::blocks::{Under, Wanted};
use crate::state::{App, Effect, Link, Message, Millis, Report};
use crate::terminal::Taken;
use crate::{files, once, print, view};

/// Shortest time between two frames, so that a burst of events doesn't become a burst of frames. Keys are
/// drawn at once.
const FRAME: Duration = Duration::from_millis(33);
/// How often the state sees the clock: for ages, staleness and fetches.
const TICK: Duration = Duration::from_millis(250);
/// Time for the host to respond to what the last key of `--keys` asked for.
const SETTLE: Duration = Duration::from_secs(1);
/// Messages that wait to be drawn. When the queue is full the feed waits, and the host counts the events we
/// miss.
const NEWS: usize = 256;

/// Why the console failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host or the connection to it.
    #[error(transparent)]
    Conn(#[from] ConnError),
    /// A recording.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The terminal.
    #[error("terminal: {0}")]
    Terminal(#[from] std::io::Error),
    /// Standard output is not a terminal.
    #[error("standard output is not a terminal; use --once, --json or --print")]
    NoTerminal,
    /// The recording has no snapshot before the requested time.
    #[error("nothing to show: the host had sent no snapshot by then")]
    Nothing,
    /// A task of the console panicked or ended.
    #[error("a task of the console ended unexpectedly; please report this as a bug")]
    Died,
}

impl RunError {
    /// Returns 2 for usage errors, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoTerminal => 2,
            Self::Conn(error) if error.is_usage() => 2,
            _ => 1,
        }
    }
}

/// Runs the program until it ends.
///
/// # Errors
/// [`RunError`], for `main` to print and turn into an exit code.
pub fn run(args: &Args) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        if let Some(path) = &args.replay {
            let player = Player::open(path)?;
            if args.print || args.once {
                return put(print::recording(args, player)?.trim_end());
            }
            return show(args, Source::Recording(player)).await;
        }
        let client = Client::new(&args.admin, args.token_file.clone())?;
        if args.json {
            return put(client.state_json().await?.trim_end());
        }
        if args.once {
            let state = client.state().await?;
            return put(once::text(&state, &client.address()).trim_end());
        }
        if args.print {
            let mut console = Console::new(args, Source::Host(client))?;
            return put(console.watch_and_print(args).await?.trim_end());
        }
        show(args, Source::Host(client)).await
    });
    // Don't wait for requests in flight: their responses no longer matter.
    runtime.shutdown_background();
    outcome
}

async fn show(args: &Args, source: Source) -> Result<(), RunError> {
    if !std::io::stdout().is_terminal() {
        return Err(RunError::NoTerminal);
    }
    let mut console = Console::new(args, source)?;
    console.run(&mut Taken::take()?).await
}

/// Prints a line. A closed pipe (`| head`) is not an error.
fn put(text: &str) -> Result<(), RunError> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// What the console shows.
enum Source {
    Host(Client),
    Recording(Player),
}

/// A message, with its time if it comes from a recording.
struct News {
    at: Option<Millis>,
    message: Message,
}

impl<T: Into<Message>> From<T> for News {
    fn from(message: T) -> Self {
        Self { at: None, message: message.into() }
    }
}

impl From<Update> for Message {
    fn from(update: Update) -> Self {
        Self::Feed(match update {
            Update::Connected => Report::Connected,
            Update::Event(event) => Report::Event(event),
            Update::Lost { error, retry_in } => Report::Lost { why: error.to_string(), retry_in },
        })
    }
}

/// The console's clock. A recording sets it: a recorded second is a second at any playback speed, and the
/// clock stops where the recording ends.
struct Clock {
    since: Instant,
    at: Millis,
    speed: f64,
}

impl Clock {
    fn start(speed: f64) -> Self {
        Self { since: Instant::now(), at: 0, speed }
    }

    fn now(&self) -> Millis {
        self.at.saturating_add(self.since.elapsed().mul_f64(self.speed).as_millis() as Millis)
    }

    fn set(&mut self, at: Millis) {
        (self.at, self.since) = (at, Instant::now());
    }

    fn stop(&mut self) {
        self.speed = 0.0;
    }
}

struct Console {
    app: App,
    client: Option<Client>,
    recorder: Option<Recorder>,
    clock: Clock,
    news: Receiver<News>,
    to_news: Sender<News>,
    again: Arc<Notify>,
}

impl Console {
    fn new(args: &Args, source: Source) -> Result<Self, RunError> {
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

    async fn run(&mut self, taken: &mut Taken) -> Result<(), RunError> {
        let mut inputs = EventStream::new();
        let mut signals = Signals::new()?;
        let mut ticks = interval(TICK);
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
                        next_frame = Instant::now();
                        self.on_terminal(&event?, area(&taken.terminal)?)
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

    /// Watches without a terminal and returns a screen as text.
    async fn watch_and_print(&mut self, args: &Args) -> Result<String, RunError> {
        let mut end = Instant::now() + Duration::from_secs(args.after.unwrap_or(2));
        let mut ticks = interval(TICK);
        let area = Rect::new(0, 0, args.size.0, args.size.1);
        let mut keys = args.keys.0.iter();
        loop {
            self.app.fit(view::room(&self.app, self.now(), area));
            // One key per tick, so that the host's response to one is there for the next.
            let effects = tokio::select! {
                message = self.news.recv() => match message {
                    Some(message) => self.on_news(message)?,
                    None => return Err(RunError::Died),
                },
                _ = ticks.tick() => {
                    let now = self.now();
                    self.app.pass(TICK);
                    let next = if self.app.state().is_some() { keys.next() } else { None };
                    match next {
                        Some(&key) => {
                            end = end.max(Instant::now() + SETTLE);
                            self.app.on_key(key, now)
                        }
                        None => self.app.on_tick(now),
                    }
                }
                // All keys of a script are pressed, unless there is no host.
                () = sleep_until(end), if keys.len() == 0 || self.has_nothing() => break,
            };
            // Without a terminal there is no clipboard and no mouse.
            let effects = effects.into_iter().filter(|e| !matches!(e, Effect::Copy(_) | Effect::Mouse(_)));
            if self.start_effects(effects.collect())? {
                break;
            }
        }
        if self.app.state().is_none() {
            // Fail with the reason instead of printing an empty screen.
            self.client.as_ref().ok_or(RunError::Nothing)?.state().await?;
        }
        Ok(print::screen(&self.app, self.now(), area))
    }

    /// Whether there is no host and was none before.
    fn has_nothing(&self) -> bool {
        self.app.state().is_none() && matches!(self.app.link, Link::Lost { .. })
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

fn area(terminal: &DefaultTerminal) -> std::io::Result<Rect> {
    let size = terminal.size()?;
    Ok(Rect::new(0, 0, size.width, size.height))
}

/// Sends an effect's request to the host; the response is a message to the state.
async fn ask(client: &Client, effect: Effect) -> Option<Message> {
    let words = |error: ConnError| error.to_string();
    let done = |what: String, result: Result<(), ConnError>| {
        Message::Done(match result {
            Ok(()) => Ok(what),
            Err(error @ ConnError::Unanswered(_)) => Err(format!("{what}? {error}")),
            Err(error) => Err(format!("failed: {what}: {error}")),
        })
    };
    let swapped = |kind: String, verb: &'static str, result: Result<SwapAnswer, ConnError>| {
        let result = result.map_err(|error| match error {
            ConnError::Unanswered(_) => format!("{kind} {verb}? {error}"),
            error => format!("{kind} not {verb}: {error}"),
        });
        Message::Swapped { kind, verb, result }
    };
    Some(match effect {
        Effect::Quit | Effect::Resync | Effect::Copy(_) | Effect::Mouse(_) => return None,
        Effect::ListFolder(folder) => {
            let result = files::list(&folder).await;
            Message::Folder { folder, result }
        }
        Effect::FetchBlocks(Wanted::Map { by, cells }) => {
            Message::Map(client.map(by.name(), cells, None).await.map_err(words))
        }
        Effect::FetchBlocks(Wanted::Block { id }) => {
            Message::Under(Wanted::Block { id }, client.block(id).await.map(Under::Block).map_err(words))
        }
        Effect::FetchBlocks(Wanted::Group { from, count }) => {
            let group = client.map("state", count as usize, Some((from, count))).await;
            Message::Under(Wanted::Group { from, count }, group.map(Under::Group).map_err(words))
        }
        Effect::FetchCache => Message::Cache(client.cache().await.map_err(words)),
        Effect::FetchPolicies => Message::Policies(client.policies().await.map_err(words)),
        Effect::FetchHistory { kind } => {
            let result = client.history(&kind).await.map_err(words);
            Message::History { kind, result }
        }
        Effect::FetchRequest { id } => {
            Message::Request { id, result: client.request(id).await.map_err(words) }
        }
        Effect::Swap(order) => {
            let result = client.swap(&order).await;
            swapped(order.kind, "swapped", result)
        }
        Effect::Rollback { kind, of } => {
            let result = client.rollback(&kind, &of).await;
            swapped(kind, "rolled back", result)
        }
        Effect::Promote { kind, of } => {
            let result = client.promote(&kind, &of).await;
            swapped(kind, "promoted", result)
        }
        Effect::StopShadow { kind } => {
            done(format!("{kind}: shadow stopped"), client.stop_shadow(&kind).await)
        }
        Effect::Cancel { id } => done(format!("request {id} cancelled"), client.cancel(id).await),
        Effect::ClearQueue => done("queue cleared".to_owned(), client.clear_queue().await),
        Effect::Drain => done("drain started".to_owned(), client.drain().await),
    })
}

/// Plays a recording at `speed` times its pace.
async fn play(mut player: Player, speed: f64, out: Sender<News>) {
    let start = Instant::now();
    let end = loop {
        let (at, message) = match player.read() {
            Ok(Some(line)) => line,
            Ok(None) => break Report::Ended,
            Err(error) => break Report::Broken(error.to_string()),
        };
        sleep_until(start + Duration::from_millis(at).div_f64(speed)).await;
        if out.send(News { at: Some(at), message }).await.is_err() {
            return;
        }
    };
    let _ = out.send(end.into()).await;
}

/// The signals that ask the program to end.
struct Signals {
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;

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
        console.clock.since -= Duration::from_millis(10);
        assert!(console.now() >= 50_000, "{}", console.now());
        console.on_news(Report::Broken("line 9: nonsense".to_owned()).into()).expect("nothing is recorded");
        console.clock.since -= Duration::from_secs(1);
        assert_eq!(console.now(), 40_000);
        assert_eq!(console.app.feed().log.last().map(|line| line.at), Some(40_000));
    }

    #[test]
    fn the_clock_of_a_recording_runs_at_playback_speed() {
        let mut clock = Clock::start(10.0);
        clock.set(40_000);
        let since = clock.since;
        clock.since = since.checked_sub(Duration::from_millis(300)).expect("the machine is up for that long");
        assert!(clock.now() >= 43_000, "{}", clock.now());
        clock.set(41_000);
        clock.since = Instant::now() + Duration::from_secs(60);
        assert_eq!(clock.now(), 41_000, "the message just played is now");
    }
}
