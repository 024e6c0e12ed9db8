//! `std::sync::mpsc::sync_channel` for loom, built from a mutex and a condition variable.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError, TrySendError};
use std::time::Duration;

use loom::sync::{Arc, Condvar, Mutex};

/// A channel that holds `bound` messages, at least one.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let shared = Arc::new(Shared { queue: Mutex::new(VecDeque::new()), filled: Condvar::new(), bound });
    (SyncSender(Arc::clone(&shared)), Receiver(shared))
}

struct Shared<T> {
    queue: Mutex<VecDeque<T>>,
    filled: Condvar,
    bound: usize,
}

/// The sending end. Unlike in std, the receiver doesn't learn that all senders are gone.
pub struct SyncSender<T>(Arc<Shared<T>>);

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> SyncSender<T> {
    /// Sends without waiting; fails if the channel is full.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut queue = self.0.queue.lock().expect("no holder panics");
        if queue.len() == self.0.bound {
            return Err(TrySendError::Full(message));
        }
        queue.push_back(message);
        self.0.filled.notify_one();
        Ok(())
    }
}

/// The receiving end.
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    /// Receives without waiting.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.queue.lock().expect("no holder panics").pop_front().ok_or(TryRecvError::Empty)
    }

    /// Waits for a message.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut queue = self.0.queue.lock().expect("no holder panics");
        loop {
            if let Some(message) = queue.pop_front() {
                return Ok(message);
            }
            queue = self.0.filled.wait(queue).expect("no holder panics");
        }
    }

    /// Same as `recv`, because loom has no time.
    pub fn recv_timeout(&self, _limit: Duration) -> Result<T, RecvTimeoutError> {
        self.recv().map_err(|_| RecvTimeoutError::Disconnected)
    }
}
