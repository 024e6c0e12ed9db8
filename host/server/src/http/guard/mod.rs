//! Wraps the connection given to hyper, to add timeouts and error responses that hyper lacks.
//!
//! - Write timeout: a connection is dropped when its peer reads nothing for too long. TCP itself waits as
//!   long as the peer advertises a zero window, so such a connection would never end.
//! - Separate timeouts for idle connections and for request heads: hyper has one timer for both, and
//!   connections that a proxy keeps alive need a longer one.
//! - After a connection's last response only the rest of a refused body may come, and that is no head. It isn't
//!   answered, however it ends.
//! - A connection in the midst of a head closes when the host does: hyper would wait for the rest.
//! - A connection between two requests closes when another needs its place, and so does one whose request doesn't
//!   arrive, or whose peer has shown no key and takes its response slowly (see `places`). One whose peer reads slowly
//!   closes when other responses need the memory of its own (see
//!   `backlog`).
//! - Disconnect detection during a request: hyper notices that the peer has left only if no bytes follow the
//!   request. Here a bounded number of such bytes is buffered and the read side is watched behind them. A peer that has
//!   closed its side may still wait for the response, so only requests that cost much without one end with it.
//! - Error bodies: hyper responds to a malformed head with a bare status. That response is held back, so that the
//!   listener can send one with the JSON body of all other errors, which says what hyper reports at the end.

mod phase;
mod streams;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

use super::places::Crowd;

pub use phase::{Pace, Phase, ServedBody};

/// Timeouts for a silent peer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a head to its last; for the first head, from the start of the connection. Also for the
    /// rest of a refused body.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// Until the first head, from a head's first byte to its last, and while a response to someone without a key waits
    /// to be sent, if another connection needs the place.
    pub request: Duration,
    /// While there is something to send to it.
    pub write: Duration,
}

/// A guarded connection; see the module documentation.
pub struct Guarded<T> {
    inner: T,
    patience: Patience,
    phase: Arc<Phase>,
    /// Requests for which the read timer was restarted.
    seen: u64,
    read: Timer,
    /// Until it is idle although a head may be on its way.
    request: Timer,
    /// The first byte of a head has arrived.
    in_head: bool,
    /// It ended after a part of a head: the read timer expired, or its place was needed.
    late_head: bool,
    /// The host stopped after a part of a head.
    cut_head: bool,
    /// The last response is complete, and the read timer was restarted for the rest of its request.
    closing: bool,
    /// Connections that need its place; they wake the one that has been idle longest.
    crowd: Arc<Crowd>,
    /// Registered with the crowd, while idle.
    idle: Option<Pin<Box<OwnedNotified>>>,
    /// It closed to make room.
    made_room: bool,
    write: Timer,
    /// Since all that hyper had written was sent, if that isn't so. Unlike `write` it doesn't begin anew with each byte.
    behind: Timer,
    /// Something of the last request's response was written, which the peer may not have taken.
    sent: bool,
    /// The status by which hyper refused a malformed head.
    refused_head: Option<u16>,
    /// Bytes that arrived during a request and that hyper has not read.
    ahead: Vec<u8>,
    /// The peer has closed its side behind them.
    ended: bool,
}

struct Timer {
    sleep: Pin<Box<Sleep>>,
    armed: bool,
}

impl Timer {
    fn new(first: Duration) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(first)), armed: false }
    }

    /// Whether the time has passed since the first call after `armed` was cleared.
    fn passed(&mut self, after: Duration, cx: &mut Context<'_>) -> bool {
        if !self.armed {
            self.armed = true;
            self.sleep.as_mut().reset(Instant::now() + after);
        }
        self.sleep.as_mut().poll(cx).is_ready()
    }
}

impl<T> Guarded<T> {
    /// Wraps a fresh connection.
    pub fn new(inner: T, patience: Patience, phase: Arc<Phase>, crowd: Arc<Crowd>) -> Self {
        Self {
            inner,
            patience,
            phase,
            seen: 0,
            read: Timer::new(patience.head),
            request: Timer::new(patience.request),
            in_head: false,
            late_head: false,
            cut_head: false,
            closing: false,
            crowd,
            idle: None,
            made_room: false,
            write: Timer::new(patience.write),
            behind: Timer::new(patience.request),
            sent: false,
            refused_head: None,
            ahead: Vec::new(),
            ended: false,
        }
    }

    /// Returns the connection itself.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// Whether it ended because the rest of a head did not arrive in time, or before another one needed its place.
    pub fn ended_in_head(&self) -> bool {
        self.late_head
    }

    /// Whether it ended because the host stopped before the rest of a head arrived.
    pub fn cut_in_head(&self) -> bool {
        self.cut_head
    }

    /// The status of the response to a malformed head that is yet to be sent.
    pub fn refused_head(&self) -> Option<u16> {
        self.refused_head
    }

    /// Whether it ended because another connection needed its place.
    pub fn made_room(&self) -> bool {
        self.made_room
    }

    /// Whether another connection needs the place of this one, which is idle.
    fn must_make_room(&mut self, cx: &mut Context<'_>) -> bool {
        let crowd = &self.crowd;
        let register = || Box::pin(Arc::clone(&crowd.make_room).notified_owned());
        while self.idle.get_or_insert_with(register).as_mut().poll(cx).is_ready() {
            if crowd.waits() {
                self.made_room = true;
                return true;
            }
            // Whoever asked has found another place.
            self.idle = None;
        }
        false
    }

    fn note_requests(&mut self) {
        let requests = self.phase.requests.load(Ordering::Relaxed);
        if requests != self.seen {
            self.seen = requests;
            self.in_head = false;
            self.read.armed = false;
            self.sent = false;
        }
    }

    /// Fails if other responses need the memory of what is not sent yet.
    fn check_kept(&self) -> io::Result<()> {
        if self.phase.given_up.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "others need the memory of its response"));
        }
        Ok(())
    }

    fn watch_write<R>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let Poll::Ready(result) = &polled {
            if let Err(error) = result {
                self.note_pace(error);
            }
            self.write.armed = false;
            return polled;
        }
        if self.write.passed(self.patience.write, cx) {
            self.phase.pace.too_slow();
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")));
        }
        let is_slow = self.behind.passed(self.patience.request, cx);
        if is_slow && self.phase.keyless.load(Ordering::Acquire) && self.must_make_room(cx) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "its place is needed")));
        }
        Poll::Pending
    }

    /// The kernel has a limit for what a peer doesn't take, too, and its may come first: also while it has room for more,
    /// so that no write waits.
    fn note_pace(&self, error: &io::Error) {
        if (self.write.armed || self.sent) && error.kind() == io::ErrorKind::TimedOut {
            self.phase.pace.too_slow();
        }
    }
}

#[cfg(test)]
mod tests;
