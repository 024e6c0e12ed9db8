//! Where a connection is among its requests and responses, as it and the service that handles them know it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

use crate::http::backlog::Counted;
use crate::http::{Backlog, Body, Unsent};

/// Whether a connection was dropped because its peer reads too slowly; in the extensions of its requests. Cheap to
/// clone, and doesn't keep the connection's state.
#[derive(Clone, Debug, Default)]
pub struct Pace(Arc<AtomicBool>);

impl Pace {
    /// Whether it was.
    pub fn is_too_slow(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn too_slow(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// State shared by a connection and the service that handles its requests.
#[derive(Debug)]
pub struct Phase {
    /// A request is being handled.
    pub(super) serving: AtomicBool,
    /// Requests received so far.
    pub(super) requests: AtomicU64,
    /// The connection closes after the current response.
    pub(super) last: AtomicBool,
    /// The host closes its connections.
    pub(super) stopping: AtomicBool,
    /// The current request ends when the peer closes its side.
    pub(super) leaves_with_peer: AtomicBool,
    /// The response is not sent yet, even if hyper has taken all of it.
    pub(super) unflushed: AtomicBool,
    /// The last response is for someone who has shown no key.
    pub(super) keyless: AtomicBool,
    /// Wakes the connection after each response, to restart its timers.
    pub(super) connection: AtomicWaker,
    unsent: Unsent,
    /// The current response counts as unsent.
    counted: AtomicBool,
    /// The long ones of the responses that are not sent yet.
    long: Mutex<Vec<Counted>>,
    /// Other responses need their memory.
    pub(super) given_up: AtomicBool,
    pub(super) pace: Pace,
}

/// Marks a request as being handled until it is dropped.
pub struct Serving(Arc<Phase>);

impl Phase {
    /// The phase of a connection without requests. Its responses count in `unsent`.
    pub fn new(unsent: Unsent) -> Self {
        Self {
            serving: AtomicBool::new(false),
            leaves_with_peer: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            keyless: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            last: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            connection: AtomicWaker::new(),
            unsent,
            counted: AtomicBool::new(false),
            long: Mutex::default(),
            given_up: AtomicBool::new(false),
            pace: Pace::default(),
        }
    }

    /// How its peer reads.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Call this when a head has arrived.
    pub fn begin(self: &Arc<Self>) -> Serving {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.serving.store(true, Ordering::Release);
        self.unflushed.store(true, Ordering::Release);
        // The response before a pipelined request may not be flushed yet; both count once.
        if !self.counted.load(Ordering::Acquire) && self.unsent.begin() {
            self.counted.store(true, Ordering::Release);
        }
        Serving(Arc::clone(self))
    }

    /// The host closes its connections. Call this before the connection is polled.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The rest of its responses is not sent, and the connection ends.
    pub(in crate::http) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.connection.wake();
    }

    /// All that hyper has written is sent.
    pub(super) fn flushed(&self) {
        if self.serving.load(Ordering::Acquire) {
            return;
        }
        if self.unflushed.swap(false, Ordering::AcqRel) {
            self.long.lock().unwrap_or_else(PoisonError::into_inner).clear();
            // It is idle from now on, and may have to make room.
            self.connection.wake();
        }
        if self.counted.swap(false, Ordering::AcqRel) {
            self.unsent.end();
        }
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if *self.counted.get_mut() {
            self.unsent.end();
        }
    }
}

impl Serving {
    /// Says whether the request ends when the peer closes its side of the connection.
    pub fn leave_with_peer(&self, leaves: bool) {
        self.0.leaves_with_peer.store(leaves, Ordering::Release);
    }

    /// Says whether the response is for someone who has shown no key.
    pub fn set_keyless(&self, is_keyless: bool) {
        self.0.keyless.store(is_keyless, Ordering::Release);
    }

    /// Call this before the connection's last response is sent.
    pub fn mark_last(&self) {
        self.0.last.store(true, Ordering::Release);
    }

    /// Counts the bytes of the response until it is sent.
    pub fn count(&self, backlog: &Arc<Backlog>, bytes: u64) {
        let counted = backlog.enter(&self.0, usize::try_from(bytes).unwrap_or(usize::MAX));
        self.0.long.lock().unwrap_or_else(PoisonError::into_inner).extend(counted);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.store(false, Ordering::Release);
        self.0.connection.wake();
    }
}

/// A response body that ends the handling of its request when it is dropped.
pub struct ServedBody {
    inner: Body,
    _serving: Serving,
}

impl ServedBody {
    /// Keeps `serving` until the body is sent or abandoned.
    pub fn new(inner: Body, serving: Serving) -> Self {
        Self { inner, _serving: serving }
    }
}

impl HttpBody for ServedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
