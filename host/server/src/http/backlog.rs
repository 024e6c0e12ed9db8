//! The memory of long responses that are not sent yet. A peer that reads slowly keeps its response in memory, for hours
//! if it reads just enough, and a short request may have a response of megabytes: all connections together could need
//! more memory than the host has.
//!
//! So they share a budget. A response that exceeds it is sent all the same, and those that have waited longest are
//! given up with their connections until the rest fits. A peer that reads at an ordinary speed has its response long
//! before. Deliberately absent: streams, whose events wait in bounded channels.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::guard::Phase;

/// Responses up to this many bytes don't count. The connection limit bounds their sum.
pub(super) const FREE_BYTES: usize = 64 << 10;

/// A listener's long responses that are not sent yet.
#[derive(Debug)]
pub struct Backlog {
    max_bytes: usize,
    unsent: Mutex<Responses>,
}

#[derive(Debug, Default)]
struct Responses {
    bytes: usize,
    next: u64,
    /// By number, the oldest first.
    all: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    connection: Weak<Phase>,
}

/// A response that counts until this is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    backlog: Arc<Backlog>,
    number: u64,
}

impl Backlog {
    /// Responses may have `max_bytes` together; a single one may exceed that.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, unsent: Mutex::default() })
    }

    /// Counts a connection's response of `bytes`, and makes older ones give up their memory to it. `None` for a short
    /// one.
    pub(super) fn enter(self: &Arc<Self>, connection: &Arc<Phase>, bytes: usize) -> Option<Counted> {
        if bytes <= FREE_BYTES {
            return None;
        }
        let mut given_up = Vec::new();
        let mut unsent = self.lock();
        while unsent.bytes.saturating_add(bytes) > self.max_bytes
            && let Some((_, oldest)) = unsent.all.pop_first()
        {
            unsent.bytes -= oldest.bytes;
            given_up.push(oldest);
        }
        let number = unsent.next;
        unsent.next += 1;
        unsent.bytes += bytes;
        unsent.all.insert(number, Waiting { bytes, connection: Arc::downgrade(connection) });
        // The last owner of a connection locks this again.
        drop(unsent);
        for Waiting { bytes, connection } in given_up {
            if let Some(connection) = connection.upgrade() {
                tracing::info!(
                    bytes,
                    "a response is given up: its client reads slowly, and others need the memory"
                );
                connection.give_up();
            }
        }
        Some(Counted { backlog: Arc::clone(self), number })
    }

    fn lock(&self) -> MutexGuard<'_, Responses> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut unsent = self.backlog.lock();
        if let Some(sent) = unsent.all.remove(&self.number) {
            unsent.bytes -= sent.bytes;
        }
    }
}
