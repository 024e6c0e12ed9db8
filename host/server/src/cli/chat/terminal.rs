//! The terminal of a chat: the prompt, with editing and a history in memory, and what is shown of answers.

use std::cell::Cell;
use std::fmt::Display;
use std::io::ErrorKind;

use rustix::termios::{QueueSelector, tcflush};
use rustyline::completion::Completer;
use rustyline::error::{ReadlineError, Signal};
use rustyline::highlight::Highlighter;
use rustyline::hint::{Hint, Hinter};
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use tokio::runtime::Runtime;

use super::answer::Chunk;
use super::input;
use super::plain::{self, Plain};
use super::wrap::Wrap;
use crate::cli::Failure;
use crate::cli::out::{harmless, put_dimmed};
use crate::cli::table::terminal_columns;

/// Shown when something typed was dropped.
pub const ENDS: &str = "Ctrl-C again, or Ctrl-D, ends";

/// Reads what the user types.
pub enum Terminal {
    Edited(Box<Edited>),
    Plain(Plain),
}

impl Terminal {
    /// Reads from stdin, which must be a terminal.
    pub fn open() -> Result<Self, Failure> {
        match std::env::var("TERM").is_ok_and(|term| plain::is_plain(&term)) {
            true => Plain::open().map(Self::Plain).map_err(Failure::failed),
            false => Edited::open().map(|edited| Self::Edited(Box::new(edited))),
        }
    }

    /// Waits for a line, or several that belong together; `None` if the user ends the chat.
    pub fn read(&mut self, runtime: &Runtime) -> Result<Option<String>, Failure> {
        match self {
            Self::Edited(edited) => edited.read(),
            Self::Plain(plain) => plain.read(runtime),
        }
    }
}

/// Reads lines that the user can edit.
pub struct Edited {
    editor: Editor<Lines, DefaultHistory>,
}

impl Edited {
    fn open() -> Result<Self, Failure> {
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = Editor::<Lines, DefaultHistory>::with_config(config).map_err(Failure::failed)?;
        editor.set_helper(Some(Lines::default()));
        Ok(Self { editor })
    }

    fn read(&mut self) -> Result<Option<String>, Failure> {
        let mut is_interrupted = false;
        loop {
            match self.editor.readline("> ") {
                Ok(typed) => return Ok(Some(typed)),
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted | ReadlineError::Signal(Signal::Interrupt)) => {
                    let has_typed = self.has_typed();
                    if is_interrupted && !has_typed {
                        return Ok(None);
                    }
                    is_interrupted = true;
                    note(ENDS);
                }
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    drop_garbled();
                    is_interrupted = false;
                }
                Err(error) => return Err(unreadable(error)),
            }
        }
    }

    /// Whether any text was edited since the last call.
    fn has_typed(&self) -> bool {
        self.editor.helper().is_some_and(|lines| lines.has_text.take())
    }
}

/// Tells the editor where a question of several lines ends and what to show until then, and remembers whether there is
/// any text, which an interrupted line doesn't tell.
#[derive(Default)]
struct Lines {
    has_text: Cell<bool>,
}

impl Helper for Lines {}

impl Completer for Lines {
    type Candidate = String;
}

/// Shown behind the text; never a part of it.
struct Advice(&'static str);

impl Hint for Advice {
    fn display(&self) -> &str {
        self.0
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}

impl Hinter for Lines {
    type Hint = Advice;

    /// Called with every change of the line, whether typed, pasted or taken from the history.
    fn hint(&self, line: &str, cursor: usize, _: &Context<'_>) -> Option<Advice> {
        if !line.is_empty() {
            self.has_text.set(true);
        }
        input::advice(line).filter(|_| cursor == line.len()).map(Advice)
    }
}

impl Highlighter for Lines {}

impl Validator for Lines {
    fn validate(&self, typed: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match input::is_whole(typed.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

/// Tells of typed bytes that are left out. The chat goes on: a slip of the keyboard or of a paste must not cost what was
/// said.
pub fn drop_garbled() {
    complain("what was typed is no UTF-8, and is left out");
    // The rest of a paste is no question of its own.
    let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
}

/// The failure of reading.
pub fn unreadable(error: impl Display) -> Failure {
    Failure::Failed(format!("can't read from the terminal: {error}"))
}

/// Prints a line that no model wrote.
pub fn note(line: &str) {
    put_dimmed(format_args!("{line}\n"));
}

/// Prints why something failed.
pub fn complain(why: &str) {
    eprintln!("error: {}", harmless(why));
}

/// Shows an answer as it comes: to the word on a terminal, whose lines are broken between words.
#[derive(Default)]
pub struct Screen {
    shows_reasoning: bool,
    wrap: Wrap,
    /// Whether the cursor is behind text.
    is_within_line: bool,
    is_reasoning: bool,
}

impl Screen {
    /// A screen that shows the reasoning, dimmed, or leaves it out.
    pub fn new(shows_reasoning: bool) -> Self {
        Self { shows_reasoning, ..Self::default() }
    }

    /// Shows what a chunk adds.
    pub fn show(&mut self, chunk: &Chunk) {
        if self.shows_reasoning {
            self.add(&chunk.reasoning, true);
        }
        self.add(&chunk.text, false);
    }

    fn add(&mut self, text: &str, is_reasoning: bool) {
        if text.is_empty() {
            return;
        }
        if self.is_reasoning != is_reasoning {
            self.end_line();
            self.is_reasoning = is_reasoning;
        }
        match terminal_columns() {
            Some(columns) => {
                let shown = self.wrap.push(&harmless(text), columns);
                self.put(&shown);
            }
            None => self.put(text),
        }
    }

    fn put(&mut self, text: &str) {
        let Some(last) = text.chars().next_back() else { return };
        match self.is_reasoning {
            true => put_dimmed(format_args!("{text}")),
            false => print!("{text}"),
        }
        self.is_within_line = last != '\n';
    }

    /// Shows what was held back, and begins a line for what follows.
    pub fn end_line(&mut self) {
        let rest = self.wrap.finish(terminal_columns().unwrap_or(usize::MAX));
        self.put(&rest);
        if std::mem::take(&mut self.is_within_line) {
            println!();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_had_text_is_told_from_an_empty_one() {
        let (lines, history) = (Lines::default(), DefaultHistory::new());
        let edit = |line: &str| lines.hint(line, line.len(), &Context::new(&history)).is_none();
        assert!(edit("") && !lines.has_text.take());
        assert!(edit("") && edit("a") && edit("") && lines.has_text.take(), "also if it was deleted again");
        assert!(edit("") && !lines.has_text.take(), "the next one is empty");
    }
}
