//! The protocol. Atomics and the channel come from the parent module.
//!
//! A word that must not be lost says that somebody has gone away, and that can be seen: so where it finds no room
//! the thread is told to look around. Whoever goes away does so first and speaks then.

use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::Duration;

use super::world::{Arc, AtomicBool, Ordering, Receiver, SyncSender, sync_channel};

/// Everybody's end.
pub(in super::super) struct Mail<T> {
    words: SyncSender<T>,
    look: Arc<AtomicBool>,
}

/// The thread's end.
pub(in super::super) struct Inbox<T> {
    words: Receiver<T>,
    look: Arc<AtomicBool>,
}

/// A mailbox with room for so many words.
pub(in super::super) fn mailbox<T>(capacity: usize) -> (Mail<T>, Inbox<T>) {
    let (sender, receiver) = sync_channel(capacity);
    let look = Arc::new(AtomicBool::new(false));
    (Mail { words: sender, look: Arc::clone(&look) }, Inbox { words: receiver, look })
}

impl<T> Mail<T> {
    /// Says it, unless there is no room, or nobody there.
    pub(in super::super) fn say(&self, word: T) -> Result<(), T> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        self.words.try_send(word).map_err(|(Full(word) | Disconnected(word))| word)
    }

    /// Has the thread look around. `wake` is a word that does nothing: the thread may be asleep, or about to be.
    /// Where it finds no room either, there is enough in the box to keep the thread awake.
    pub(in super::super) fn look_around(&self, wake: T) {
        self.look.store(true, Ordering::Release);
        let _ = self.say(wake);
    }
}

impl<T> Inbox<T> {
    /// What was said and not heard yet.
    pub(in super::super) fn try_next(&self) -> Result<T, TryRecvError> {
        self.words.try_recv()
    }

    /// Whether to look around, once.
    pub(in super::super) fn must_look(&self) -> bool {
        // Asked before each step: mostly there is nothing to write.
        self.look.load(Ordering::Acquire) && self.look.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until something is said, or the time is over. Only after `try_next` found nothing and `must_look` was
    /// asked.
    pub(in super::super) fn sleep(&self, limit: Option<Duration>) -> Result<T, RecvTimeoutError> {
        match limit {
            Some(limit) => self.words.recv_timeout(limit),
            None => self.words.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }
}
