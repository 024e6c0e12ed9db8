//! `std::sync::mpsc::sync_channel` for loom, built from a mutex and a condition variable.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError, TrySendError};
use std::time::Duration;

use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A channel that holds `bound` messages, at least one.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let state = Mutex::new(State { queue: VecDeque::new(), senders: 1 });
    let shared = Arc::new(Shared { state, filled: Condvar::new(), bound });
    (SyncSender(Arc::clone(&shared)), Receiver(shared))
}

struct Shared<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    bound: usize,
}

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no holder panics")
    }
}

/// The sending end.
pub struct SyncSender<T>(Arc<Shared<T>>);

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            self.0.filled.notify_one();
        }
    }
}

impl<T> SyncSender<T> {
    /// Sends without waiting; fails if the channel is full.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.lock();
        if state.queue.len() == self.0.bound {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        self.0.filled.notify_one();
        Ok(())
    }
}

/// The receiving end. Unlike in std, senders don't learn that it is gone.
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    /// Receives without waiting.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.lock();
        match state.queue.pop_front() {
            Some(message) => Ok(message),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Waits for a message; fails if there is none and all senders are gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.lock();
        loop {
            if let Some(message) = state.queue.pop_front() {
                return Ok(message);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            state = self.0.filled.wait(state).expect("no holder panics");
        }
    }

    /// Same as `recv`, because loom has no time.
    pub fn recv_timeout(&self, _limit: Duration) -> Result<T, RecvTimeoutError> {
        self.recv().map_err(|_| RecvTimeoutError::Disconnected)
    }
}
