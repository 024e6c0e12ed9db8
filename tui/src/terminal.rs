//! The terminal as the console takes it, and how it is given back: at the end, on an error, and on a panic
//! wherever that happens. A task's panic would otherwise leave a console that draws on a terminal that has
//! been given back already.

use std::io::{Result, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste};
use crossterm::execute;
use ratatui::DefaultTerminal;
use tokio::sync::Notify;

/// A terminal that is given back when this is dropped.
pub struct Taken {
    /// To draw on.
    pub terminal: DefaultTerminal,
    panic: Arc<Panic>,
}

#[derive(Default)]
struct Panic {
    happened: AtomicBool,
    told: Notify,
}

impl Taken {
    /// Takes the terminal. Once per process: panics are told to it from then on.
    ///
    /// # Errors
    /// It can't be set up.
    pub fn take() -> Result<Self> {
        let terminal = ratatui::try_init()?;
        // Else what is pasted comes as keys.
        execute!(stdout(), EnableBracketedPaste)?;
        let panic = Arc::new(Panic::default());
        // Ratatui's gives back what it knows of, and then tells what happened; mouse and paste are ours.
        let (restore, seen) = (std::panic::take_hook(), Arc::clone(&panic));
        std::panic::set_hook(Box::new(move |why| {
            seen.happened.store(true, Ordering::Release);
            seen.told.notify_one();
            let _ = execute!(stdout(), DisableMouseCapture, DisableBracketedPaste);
            restore(why);
        }));
        Ok(Self { terminal, panic })
    }

    /// Completes once a part of the program has panicked.
    pub async fn panicked(&self) {
        self.panic.told.notified().await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Twice would put the cursor over what the panic said.
        if !self.panic.happened.load(Ordering::Acquire) {
            let _ = execute!(stdout(), DisableMouseCapture, DisableBracketedPaste);
            ratatui::restore();
        }
    }
}
