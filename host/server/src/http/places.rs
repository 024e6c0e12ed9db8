//! The places of a listener: how many connections are open, who makes room for another, and who waits for it.
//!
//! When all places are taken, the next connections enter a waiting room. Each asks the connection that has been idle
//! longest to close. One that gets no place in time is served from the waiting room, marked as `Crowded`,
//! for one request and for a short time: a probe still gets its answer, and on the data plane everyone else hears that
//! the host is full. Behind a full waiting room, connections wait in the kernel's backlog, and one that is in it without
//! a request is asked to close.
//!
//! A connection also counts as idle if its request has not arrived within `REQUEST_TIME`, or if a response to someone who
//! has shown no key has not been taken within it: whoever only connects, or reads a byte a minute of what is open to all,
//! needs no key, and would otherwise keep everyone out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How long a connection keeps its place before a request has arrived, although others need it: enough for a request
/// that is on its way over a slow network, for a TLS handshake, and for a response that anyone gets.
pub const REQUEST_TIME: Duration = Duration::from_secs(1);

/// Counts of a listener's connections. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    made_room: AtomicU64,
    crowded: AtomicU64,
}

impl Connections {
    /// Open connections, also those in the waiting room.
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Idle connections that were closed to make room, so far.
    pub fn made_room(&self) -> u64 {
        self.0.made_room.load(Ordering::Relaxed)
    }

    /// Connections that found no place, so far.
    pub fn crowded(&self) -> u64 {
        self.0.crowded.load(Ordering::Relaxed)
    }

    /// Counts a connection as open until the result is dropped.
    pub(super) fn enter(&self) -> Open {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }

    /// An idle connection closes to make room.
    pub(super) fn note_made_room(&self) {
        self.0.made_room.fetch_add(1, Ordering::Relaxed);
    }
}

/// An open connection.
pub(super) struct Open(Connections);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In the extensions of a response to someone who has shown no key.
#[derive(Clone, Copy, Debug)]
pub struct Keyless;

/// In the extensions of a request whose connection has found no place.
#[derive(Clone, Copy, Debug)]
pub struct Crowded;

/// Connections that hope for a place, or for one in the waiting room.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    waiting: AtomicUsize,
    /// Connections wait for this while they are idle; it wakes the one that has waited longest. It may come late, so
    /// look at `waits`.
    pub(super) make_room: Arc<Notify>,
}

impl Crowd {
    /// Whether anyone needs a place.
    pub(super) fn waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Waits until the result is dropped.
    pub(super) fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self)
    }

    /// Completes when another connection needs the place of one that has nothing to do, not even after `patience`.
    pub(super) async fn displaces(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        loop {
            self.make_room.notified().await;
            if self.waits() {
                return;
            }
        }
    }
}

/// A connection that waits for a place.
pub(super) struct Waiting<'a>(&'a Crowd);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Places and waiting room of a listener.
#[derive(Clone)]
pub(super) struct Places {
    places: Arc<Semaphore>,
    waiting_room: Arc<Semaphore>,
    /// Longest wait in it for a place.
    room_time: Duration,
    /// Those that need a place.
    crowd: Arc<Crowd>,
    /// Those that don't even find one in the waiting room.
    outside: Arc<Crowd>,
    connections: Connections,
}

/// What a connection holds while it is open.
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    /// It is in the waiting room.
    pub(super) crowded: bool,
}

impl Places {
    /// `max` places, and a waiting room for so many, in which each hopes for a place for `room_time`.
    pub(super) fn new(
        max: usize,
        waiting_room: usize,
        room_time: Duration,
        connections: Connections,
    ) -> Self {
        Self {
            places: Arc::new(Semaphore::new(max)),
            waiting_room: Arc::new(Semaphore::new(waiting_room)),
            room_time,
            crowd: Arc::default(),
            outside: Arc::default(),
            connections,
        }
    }

    /// A place for the next connection, as soon as there is one even in the waiting room. A full one loses a connection
    /// that has nothing to do before it is known whether another comes: those in the kernel's backlog can't be seen.
    pub(super) async fn next(&self) -> Place {
        let _needed = self.outside.enter();
        if self.places.available_permits() == 0 && self.waiting_room.available_permits() == 0 {
            self.outside.make_room.notify_one();
        }
        tokio::select! {
            biased;
            permit = acquire(&self.places) => Place { _permit: permit, crowded: false },
            permit = acquire(&self.waiting_room) => Place { _permit: permit, crowded: true },
        }
    }

    /// Those that need the place of a connection, which may be in the waiting room.
    pub(super) fn crowd_of(&self, crowded: bool) -> &Arc<Crowd> {
        if crowded { &self.outside } else { &self.crowd }
    }

    /// Waits in the waiting room for a place.
    pub(super) async fn settle(&self, place: Place) -> Place {
        if !place.crowded {
            return place;
        }
        let needed = self.crowd.enter();
        if self.places.available_permits() == 0 {
            self.crowd.make_room.notify_one();
        }
        if let Ok(permit) = tokio::time::timeout(self.room_time, acquire(&self.places)).await {
            return Place { _permit: permit, crowded: false };
        }
        drop(needed);
        self.connections.0.crowded.fetch_add(1, Ordering::Relaxed);
        place
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("the semaphores are never closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_waiting_room_loses_one_that_has_nothing_to_do() {
        let places = Places::new(1, 2, Duration::ZERO, Connections::default());
        let mut inside = vec![places.next().await, places.next().await, places.next().await];
        assert_eq!(inside.iter().filter(|place| place.crowded).count(), 2);
        let leaves = async {
            places.crowd_of(true).displaces(Duration::ZERO).await;
            inside.pop().map(|place| place.crowded)
        };
        let both = async { tokio::join!(places.next(), leaves) };
        let (next, left) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it leaves");
        assert_eq!((next.crowded, left), (true, Some(true)));
    }
}
