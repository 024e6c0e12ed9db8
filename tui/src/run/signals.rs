//! The signals that end the console. They are received here and not left to their defaults, which would kill
//! the process before it restores the terminal.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask the program to end.
pub(super) struct Signals {
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Completes at the first of them.
    pub(super) async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
