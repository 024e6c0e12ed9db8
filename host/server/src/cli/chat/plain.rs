//! The prompt on a terminal that knows no editing (TERM=dumb, as in the shell of an editor): its lines as it gives them.
//!
//! A thread of its own reads them, because a read can't be given up when Ctrl-C is pressed. It reads none ahead: what is
//! typed or pasted meanwhile stays with the terminal, which can drop it.

use std::io::{self, BufRead as _};
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, Receiver};

use super::input;
use super::terminal::{ENDS, drop_garbled, note, unreadable};
use crate::cli::Failure;

/// Such terminals, by their TERM.
const TERMS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// Whether a terminal with this TERM is one.
pub fn is_plain(term: &str) -> bool {
    TERMS.iter().any(|known| term.eq_ignore_ascii_case(known))
}

/// Reads what the user types.
pub struct Plain {
    asks: SyncSender<()>,
    lines: Receiver<io::Result<Vec<u8>>>,
    /// A line is being read.
    is_asked: bool,
}

impl Plain {
    /// Reads from stdin, which must be a terminal.
    pub fn open() -> io::Result<Self> {
        Self::of(|| {
            let mut line = Vec::new();
            io::stdin().lock().read_until(b'\n', &mut line).map(|_| line)
        })
    }

    fn of(mut read: impl FnMut() -> io::Result<Vec<u8>> + Send + 'static) -> io::Result<Self> {
        let (asks, asked) = sync_channel(1);
        let (to, lines) = mpsc::channel(1);
        std::thread::Builder::new().name("lines".into()).spawn(move || {
            for () in asked {
                if to.blocking_send(read()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asks, lines, is_asked: false })
    }

    /// Waits for a line. If that is given up, the next call waits for the same one.
    async fn line(&mut self) -> Option<io::Result<Vec<u8>>> {
        if !self.is_asked {
            self.is_asked = self.asks.send(()).is_ok();
        }
        let line = self.lines.recv().await;
        self.is_asked = false;
        line
    }

    /// Waits for a line, or several that belong together; `None` if the user ends the chat.
    pub fn read(&mut self, runtime: &Runtime) -> Result<Option<String>, Failure> {
        runtime.block_on(async {
            // Of this prompt only: a Ctrl-C before it has stopped an answer.
            let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
            let mut typing = Typing::default();
            print!("> ");
            loop {
                let event = tokio::select! {
                    _ = interrupts.recv() => Event::Interrupt,
                    line = self.line() => match line {
                        Some(Ok(line)) if !line.is_empty() => Event::Line(line),
                        Some(Ok(_)) | None => Event::End,
                        Some(Err(error)) => return Err(unreadable(error)),
                    },
                };
                let is_interrupt = matches!(event, Event::Interrupt);
                if is_interrupt {
                    // Behind what the terminal shows of the key.
                    println!();
                }
                match typing.take(event) {
                    Next::More => continue,
                    Next::Whole(typed) => return Ok(Some(typed)),
                    Next::Over => {
                        if !is_interrupt {
                            println!();
                        }
                        return Ok(None);
                    }
                    Next::Dropped => note(ENDS),
                    Next::Garbled => drop_garbled(),
                }
                print!("> ");
            }
        })
    }
}

/// What the user did.
enum Event {
    /// Ended a line.
    Line(Vec<u8>),
    /// Pressed Ctrl-C.
    Interrupt,
    /// Pressed Ctrl-D at the beginning of a line.
    End,
}

/// What follows from it.
enum Next {
    /// Further lines belong to what is typed.
    More,
    Whole(String),
    /// What was typed is dropped.
    Dropped,
    /// The same, because it is no UTF-8.
    Garbled,
    /// The chat is over.
    Over,
}

/// What is typed so far.
#[derive(Default)]
struct Typing {
    text: String,
    /// Something was dropped, and no line came since.
    is_interrupted: bool,
}

impl Typing {
    fn take(&mut self, event: Event) -> Next {
        let ends = match event {
            Event::Line(line) => return self.add(line),
            Event::Interrupt => self.is_interrupted,
            Event::End => self.text.is_empty(),
        };
        if ends {
            return Next::Over;
        }
        self.text.clear();
        self.is_interrupted = true;
        Next::Dropped
    }

    fn add(&mut self, line: Vec<u8>) -> Next {
        self.is_interrupted = false;
        let Ok(line) = String::from_utf8(line) else {
            self.text.clear();
            return Next::Garbled;
        };
        let line = line.strip_suffix('\n').unwrap_or(&line);
        self.text.push_str(line.strip_suffix('\r').unwrap_or(line));
        if input::is_whole(&self.text) {
            return Next::Whole(std::mem::take(&mut self.text));
        }
        self.text.push('\n');
        Next::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter for what follows from each event; `^C` and `^D` are keys, anything else a line.
    fn follows(events: &[&str]) -> String {
        let mut typing = Typing::default();
        let event = |text: &&str| match *text {
            "^C" => Event::Interrupt,
            "^D" => Event::End,
            line => Event::Line(format!("{line}\n").into_bytes()),
        };
        let next = |event: Event| match typing.take(event) {
            Next::More => "+".to_owned(),
            Next::Whole(text) => format!("[{text}]"),
            Next::Dropped => "-".to_owned(),
            Next::Garbled => "?".to_owned(),
            Next::Over => ".".to_owned(),
        };
        events.iter().map(event).map(next).collect()
    }

    #[test]
    fn keys_drop_what_is_typed_and_end_a_chat_without_any() {
        for (events, followed) in [
            (&["a"][..], "[a]"),
            (&["a\\", "b\r"], "+[a\\\nb]"),
            (&["^D"], "."),
            (&["^C", "^C"], "-."),
            (&["^C", "^D"], "-."),
            (&["^C", "\"\"\"", "^C", "^C"], "-+-."),
            (&["\"\"\"", "a", "^D", "b"], "++-[b]"),
            (&["\"\"\"", "^D", "^D"], "+-."),
        ] {
            assert_eq!(follows(events), followed, "{events:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_dropped_with_what_is_typed() {
        let mut typing = Typing::default();
        assert!(matches!(typing.take(Event::Line(b"\"\"\"\n".to_vec())), Next::More));
        assert!(matches!(typing.take(Event::Line(b"caf\xe9\n".to_vec())), Next::Garbled));
        assert!(matches!(typing.take(Event::Line(b"b\n".to_vec())), Next::Whole(text) if text == "b"));
    }

    #[tokio::test]
    async fn a_line_is_read_only_when_one_is_wanted() {
        let (tell, reads) = std::sync::mpsc::channel();
        let mut plain = Plain::of(move || {
            tell.send(()).map_err(io::Error::other)?;
            Ok(b"a\n".to_vec())
        })
        .unwrap();
        assert_eq!(plain.line().await.unwrap().unwrap(), b"a\n");
        drop(plain);
        // Ends with the thread.
        assert_eq!(reads.iter().count(), 1, "the terminal couldn't drop another");
    }

    #[test]
    fn terminals_without_editing_are_known_by_their_names() {
        assert!(["dumb", "DUMB", "emacs"].into_iter().all(is_plain));
        assert!(!["", "xterm", "screen-256color", "dumb-emacs-ansi"].into_iter().any(is_plain));
    }
}
