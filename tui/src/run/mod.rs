//! Does what the command line asks: shows the live console, or prints a snapshot or a screen and ends.
//!
//! `console` has the console's parts and its loop, and in `headless` that of `--print`, without a terminal.
//! What the state wants of the host goes out through `ask`; `news` is what comes in besides keys, `clock` the
//! state's time; `signals` end the loop. Deliberately absent: what a key or a message does (`state`), and what
//! a screen looks like (`view`).

mod ask;
mod clock;
mod console;
mod news;
mod signals;

use std::io::{IsTerminal, Write as _};

use crate::args::Args;
use crate::conn::{Client, ConnError};
use crate::record::{Player, RecordError};
use crate::terminal::Taken;
use crate::{once, print};
use console::Console;

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
