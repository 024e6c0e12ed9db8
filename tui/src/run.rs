//! Ties the parts together: one loop that waits for keys, news, time and signals, asks the state what to
//! do, and draws. The terminal is given back whatever ends it: a key, a signal, an error or a panic.

use std::io::IsTerminal;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use ratatui::layout::Rect;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, interval, sleep_until};

use crate::args::Args;
use crate::conn::{Client, ConnError, feed};
use crate::state::{App, Effect, Message};
use crate::view::theme::Theme;
use crate::{input, once, view};

/// Shortest time between two frames: a storm of events must not become a storm of frames.
const FRAME: Duration = Duration::from_millis(33);
/// How often time passes for the state: ages, staleness, fetches.
const TICK: Duration = Duration::from_millis(250);
/// News that wait to be drawn. The feed waits when it is full, and the host then counts what we missed.
const NEWS: usize = 256;

/// Why the console ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host or the way to it.
    #[error(transparent)]
    Conn(#[from] ConnError),
    /// The terminal.
    #[error("terminal: {0}")]
    Terminal(#[from] std::io::Error),
    /// There is no terminal.
    #[error("standard output is not a terminal; use --once or --json")]
    NoTerminal,
    /// A part of the console died.
    #[error("the connection task ended unexpectedly; please report this")]
    Feed,
}

impl RunError {
    /// 2 for what the command line got wrong, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoTerminal => 2,
            Self::Conn(error) if error.is_usage() => 2,
            _ => 1,
        }
    }
}

/// Runs the program to its end.
///
/// # Errors
/// [`RunError`], for `main` to print and turn into an exit code.
pub fn run(args: &Args) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::new(&args.admin, args.token_file.clone())?;
        if args.json {
            print(client.state_json().await?.trim_end())?;
            return Ok(());
        }
        if args.once {
            let state = client.state().await?;
            print(once::text(&state, &client.address()).trim_end())?;
            return Ok(());
        }
        if !std::io::stdout().is_terminal() {
            return Err(RunError::NoTerminal);
        }
        let mut terminal = ratatui::try_init()?;
        let result = Console::new(args, client).run(&mut terminal).await;
        ratatui::try_restore()?;
        result
    })
}

/// Prints a line; a reader that has gone away (`| head`) is no error.
fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

struct Console {
    app: App,
    theme: Theme,
    client: Client,
    start: Instant,
    news: Receiver<Message>,
    to_news: Sender<Message>,
}

impl Console {
    fn new(args: &Args, client: Client) -> Self {
        let (to_news, news) = channel(NEWS);
        tokio::spawn(feed::run(client.clone(), args.hz, to_news.clone()));
        Self {
            app: App::new(client.address(), args.read_only),
            theme: Theme::from_environment(),
            client,
            start: Instant::now(),
            news,
            to_news,
        }
    }

    async fn run(&mut self, terminal: &mut DefaultTerminal) -> Result<(), RunError> {
        let mut keys = EventStream::new();
        let mut signals = Signals::new()?;
        let mut ticks = interval(TICK);
        let mut next_frame = Instant::now();
        let mut dirty = true;
        loop {
            let effects = tokio::select! {
                biased;
                () = signals.any() => return Ok(()),
                event = keys.next() => match event {
                    Some(event) => self.on_terminal(&event?),
                    None => return Ok(()),
                },
                () = sleep_until(next_frame), if dirty => {
                    self.draw(terminal)?;
                    dirty = false;
                    next_frame = Instant::now() + FRAME;
                    continue;
                }
                message = self.news.recv() => match message {
                    Some(message) => { let now = self.now(); self.app.on_message(message, now) }
                    None => return Err(RunError::Feed),
                },
                _ = ticks.tick() => { let now = self.now(); self.app.on_tick(now) }
            };
            dirty = true;
            for effect in effects {
                if effect == Effect::Quit {
                    return Ok(());
                }
                self.start_effect(effect);
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn on_terminal(&mut self, event: &Event) -> Vec<Effect> {
        let now = self.now();
        input::key(event).map(|key| self.app.on_key(key, now)).unwrap_or_default()
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let now = self.now();
        let size = terminal.size()?;
        self.app.blocks.room = view::blocks::room(Rect::new(0, 0, size.width, size.height));
        terminal.draw(|frame| {
            let area = frame.area();
            view::draw(&self.app, now, &self.theme, area, frame.buffer_mut());
        })?;
        Ok(())
    }

    /// Asks the host in the background; the answer comes back as news.
    fn start_effect(&self, effect: Effect) {
        let (client, news) = (self.client.clone(), self.to_news.clone());
        tokio::spawn(async move {
            let words = |error: ConnError| error.to_string();
            let message = match effect {
                Effect::Quit => return,
                Effect::FetchBlocks => Message::Blocks(client.blocks().await.map_err(words)),
                Effect::FetchPolicies => Message::Policies(client.policies().await.map_err(words)),
                Effect::FetchHistory { kind } => {
                    let result = client.history(&kind).await.map_err(words);
                    Message::History { kind, result }
                }
                Effect::Swap { kind, name } => {
                    let result = client.swap(&kind, &name).await.map_err(words);
                    Message::Swapped { kind, rollback: false, result }
                }
                Effect::Rollback { kind } => {
                    let result = client.rollback(&kind).await.map_err(words);
                    Message::Swapped { kind, rollback: true, result }
                }
                Effect::Cancel { id } => {
                    Message::Cancelled { id, result: client.cancel(id).await.map_err(words) }
                }
            };
            // The console may have ended meanwhile; then nobody wants the answer.
            let _ = news.send(message).await;
        });
    }
}

/// The signals that ask a program to end.
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
