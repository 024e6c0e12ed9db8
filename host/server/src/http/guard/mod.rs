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
//!   arrive (see `places`). One whose peer reads slowly closes when other responses need the memory of its own (see
//!   `backlog`).
//! - Disconnect detection during a request: hyper notices that the peer has left only if no bytes follow the
//!   request. Here a bounded number of such bytes is buffered and the read side is watched behind them. A peer that has
//!   closed its side may still wait for the response, so only requests that cost much without one end with it.
//! - Error bodies: hyper responds to a malformed head with a bare status. That response is held back, so that the
//!   listener can send one with the JSON body of all other errors, which says what hyper reports at the end.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

use super::backlog::Counted;
use super::places::Crowd;
use super::{Backlog, Body, Unsent};

/// Most bytes that are read ahead of hyper, and how many of them in one read.
const AHEAD_BYTES: usize = 16 << 10;
const AHEAD_PIECE: usize = 4 << 10;

/// Timeouts for a silent peer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a head to its last; for the first head, from the start of the connection. Also for the
    /// rest of a refused body.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// Until the first head, and from a head's first byte to its last, if another connection needs the place.
    pub request: Duration,
    /// While there is something to send to it.
    pub write: Duration,
}

/// Whether a connection was dropped because its peer reads too slowly; in the extensions of its requests. Cheap to
/// clone, and doesn't keep the connection's state.
#[derive(Clone, Debug, Default)]
pub struct Pace(Arc<AtomicBool>);

impl Pace {
    /// Whether it was.
    pub fn is_too_slow(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn too_slow(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// State shared by a connection and the service that handles its requests.
#[derive(Debug)]
pub struct Phase {
    /// A request is being handled.
    serving: AtomicBool,
    /// Requests received so far.
    requests: AtomicU64,
    /// The connection closes after the current response.
    last: AtomicBool,
    /// The host closes its connections.
    stopping: AtomicBool,
    /// The current request ends when the peer closes its side.
    leaves_with_peer: AtomicBool,
    /// The response is not sent yet, even if hyper has taken all of it.
    unflushed: AtomicBool,
    /// Wakes the connection after each response, to restart its timers.
    connection: AtomicWaker,
    unsent: Unsent,
    /// The current response counts as unsent.
    counted: AtomicBool,
    /// The long ones of the responses that are not sent yet.
    long: Mutex<Vec<Counted>>,
    /// Other responses need their memory.
    given_up: AtomicBool,
    pace: Pace,
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
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.connection.wake();
    }

    /// All that hyper has written is sent.
    fn flushed(&self) {
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
        Poll::Pending
    }

    /// The kernel has a limit for what a peer doesn't take, too, and its may come first.
    fn note_pace(&self, error: &io::Error) {
        if self.write.armed && error.kind() == io::ErrorKind::TimedOut {
            self.phase.pace.too_slow();
        }
    }
}

impl<T: Read + Unpin> Guarded<T> {
    /// Serves bytes that were read ahead before reading more.
    fn poll_next(&mut self, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let taken = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..taken]);
        self.ahead.drain(..taken);
        Poll::Ready(Ok(()))
    }

    /// Bounds the wait for the rest of a request whose response was the connection's last.
    fn watch_rest(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.closing = true;
            self.read.armed = false;
        }
        if polled.is_pending() && self.read.passed(self.patience.head, cx) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the rest of a body is missing",
            )));
        }
        polled
    }

    /// Fails if the peer has left during a request that ends with it. Registers for a wake-up otherwise.
    fn look_for_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.phase.connection.register(cx.waker());
        if !self.phase.serving.load(Ordering::Acquire) {
            return Ok(());
        }
        while !self.ended && self.ahead.len() < AHEAD_BYTES {
            let mut bytes = [MaybeUninit::uninit(); AHEAD_PIECE];
            let mut piece = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut self.inner).poll_read(cx, piece.unfilled()) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    self.note_pace(&error);
                    return Err(error);
                }
                Poll::Ready(Ok(())) if piece.filled().is_empty() => self.ended = true,
                Poll::Ready(Ok(())) => self.ahead.extend_from_slice(piece.filled()),
            }
        }
        if self.ended && self.phase.leaves_with_peer.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer has left"));
        }
        Ok(())
    }
}

impl<T: Read + Unpin> Read for Guarded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.note_requests();
        let polled = self.poll_next(cx, buf);
        self.phase.connection.register(cx.waker());
        if polled.is_ready() {
            // If this connection was to make room, the next idle one does.
            self.idle = None;
        }
        if self.phase.serving.load(Ordering::Acquire) {
            if let Poll::Ready(Err(error)) = &polled {
                self.note_pace(error);
            }
            return polled;
        }
        if self.phase.last.load(Ordering::Acquire) {
            return self.watch_rest(cx, polled);
        }
        if polled.is_ready() {
            if !self.in_head {
                self.in_head = true;
                self.read.armed = false;
                self.request.armed = false;
            }
            return polled;
        }
        let all_sent = !self.phase.unflushed.load(Ordering::Acquire);
        if all_sent && self.phase.stopping.load(Ordering::Acquire) {
            self.cut_head = self.in_head;
            let why = "the host is shutting down";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, why)));
        }
        let waits_for_head = self.seen == 0 || self.in_head;
        let patience = if waits_for_head { self.patience.head } else { self.patience.idle };
        let allowed = self.patience.request;
        let is_idle = all_sent && (!waits_for_head || self.request.passed(allowed, cx));
        if is_idle && self.must_make_room(cx) {
            self.late_head = self.in_head;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "its place is needed")));
        }
        if self.read.passed(patience, cx) {
            self.late_head = self.in_head;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came in time")));
        }
        Poll::Pending
    }
}

impl<T: Read + Write + Unpin> Write for Guarded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_kept()?;
        if let Some(status) = made_up(buf) {
            self.refused_head = Some(status);
            return Poll::Ready(Ok(buf.len()));
        }
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        if polled.is_pending() {
            self.look_for_end(cx)?;
        }
        self.watch_write(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes each time it is polled, whatever it waits for.
        self.check_kept()?;
        self.look_for_end(cx)?;
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        if matches!(polled, Poll::Ready(Ok(()))) {
            // hyper calls this only when its own buffer is empty.
            self.phase.flushed();
        }
        self.watch_write(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [buf] = bufs {
            return self.poll_write(cx, buf);
        }
        self.check_kept()?;
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        if polled.is_pending() {
            self.look_for_end(cx)?;
        }
        self.watch_write(cx, polled)
    }
}

/// The status of a response that hyper made up for a malformed head. Those have no body and no request id; every
/// response of ours has a request id.
fn made_up(buf: &[u8]) -> Option<u16> {
    if !buf.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let head = std::str::from_utf8(buf).ok()?.to_ascii_lowercase();
    if !head.contains("\r\ncontent-length: 0\r\n") || head.contains("\r\nx-request-id:") {
        return None;
    }
    head.get(9..12)?.parse().ok()
}

#[cfg(test)]
mod tests;
