//! The protocol. Atomics and the channel come from the parent module.
//!
//! The only messages that must not be lost say that a stream ends, and the engine can detect that by itself: if the
//! channel is full, the sender sets a flag and the engine scans for closed and stopped streams. Senders therefore close
//! or mark the stream first and send second.

use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::Duration;

use super::world::{Arc, AtomicBool, Ordering, Receiver, SyncSender, sync_channel};

/// The senders' end.
pub(in super::super) struct MailSender<T> {
    messages: SyncSender<T>,
    scan: Arc<AtomicBool>,
}

/// The engine thread's end.
pub(in super::super) struct Inbox<T> {
    messages: Receiver<T>,
    scan: Arc<AtomicBool>,
}

/// Returns a mailbox that holds up to `capacity` messages.
pub(in super::super) fn mailbox<T>(capacity: usize) -> (MailSender<T>, Inbox<T>) {
    let (messages, receiver) = sync_channel(capacity);
    let scan = Arc::new(AtomicBool::new(false));
    (MailSender { messages, scan: Arc::clone(&scan) }, Inbox { messages: receiver, scan })
}

impl<T> MailSender<T> {
    /// Sends a message without blocking. Returns it if the mailbox is full or the thread has ended.
    pub(in super::super) fn send(&self, message: T) -> Result<(), T> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        self.messages.try_send(message).map_err(|(Full(message) | Disconnected(message))| message)
    }

    /// Makes the thread scan for ended streams. `wake` is a message without effect that wakes the thread; if even
    /// that does not fit, the mailbox holds enough to keep it awake.
    pub(in super::super) fn request_scan(&self, wake: T) {
        self.scan.store(true, Ordering::Release);
        let _ = self.send(wake);
    }
}

impl<T> Inbox<T> {
    /// Returns the next message, without blocking.
    pub(in super::super) fn try_next(&self) -> Result<T, TryRecvError> {
        self.messages.try_recv()
    }

    /// Whether a scan was requested since the last call.
    pub(in super::super) fn must_scan(&self) -> bool {
        // Called before each step: the flag is mostly unset, and then nothing is written.
        self.scan.load(Ordering::Acquire) && self.scan.swap(false, Ordering::AcqRel)
    }

    /// Blocks until a message arrives or the limit is over. Call only after `try_next` found nothing and `must_scan`
    /// was checked.
    pub(in super::super) fn sleep(&self, limit: Option<Duration>) -> Result<T, RecvTimeoutError> {
        match limit {
            Some(limit) => self.messages.recv_timeout(limit),
            None => self.messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }
}
