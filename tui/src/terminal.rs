//! Sets the terminal up and restores it: at the end, on an error, and on a panic anywhere. A panic in a task
//! is also reported to the console, which would otherwise keep drawing on a terminal that the panic hook has
//! restored.

use std::io::{Result, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste};
use crossterm::execute;
use ratatui::DefaultTerminal;
use tokio::sync::Notify;

/// The terminal in raw mode; dropping this restores it.
pub struct Taken {
    /// The terminal to draw on.
    pub terminal: DefaultTerminal,
    panic: Arc<Panic>,
}

#[derive(Default)]
struct Panic {
    happened: AtomicBool,
    notify: Notify,
}

impl Taken {
    /// Sets the terminal up. Once per process, because it installs a panic hook.
    ///
    /// # Errors
    /// The terminal can't be set up.
    pub fn take() -> Result<Self> {
        let terminal = ratatui::try_init()?;
        // Without it, pasted text arrives as keys.
        execute!(stdout(), EnableBracketedPaste)?;
        let panic = Arc::new(Panic::default());
        // Ratatui's hook restores the modes it set and prints the panic; mouse and paste modes are ours to
        // restore.
        let (restore, seen) = (std::panic::take_hook(), Arc::clone(&panic));
        std::panic::set_hook(Box::new(move |why| {
            seen.happened.store(true, Ordering::Release);
            seen.notify.notify_one();
            let _ = execute!(stdout(), DisableMouseCapture, DisableBracketedPaste);
            restore(why);
        }));
        Ok(Self { terminal, panic })
    }

    /// Completes once any part of the program has panicked.
    pub async fn panicked(&self) {
        self.panic.notify.notified().await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Restoring twice would move the cursor onto the panic's message.
        if !self.panic.happened.load(Ordering::Acquire) {
            let _ = execute!(stdout(), DisableMouseCapture, DisableBracketedPaste);
            ratatui::restore();
        }
    }
}
