//! A connection as hyper sees it, with the bounds that hyper doesn't keep and the answers it doesn't give.
//!
//! - A peer that takes nothing for too long is given up: TCP itself waits as long as the peer says that its
//!   window is full, and such a connection would keep its place for ever.
//! - Between requests a connection may idle for one time, and once the first byte of a head has come, the
//!   head has another: hyper has one timer for both, and a proxy's kept-alive connections need the longer.
//! - While a request is answered, hyper looks whether its peer has left only where nothing came behind that request.
//!   Here bytes that did come are laid aside, some of them, and what follows them is looked at.
//! - A head that can't be read is answered by hyper with a bare status; here it gets the body that every
//!   other error has.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::time::{Instant, Sleep};

use super::{ApiError, Body, wire};

/// Most that is read ahead of hyper, and how much of it at once.
const AHEAD_BYTES: usize = 16 << 10;
const AHEAD_PIECE: usize = 4 << 10;

/// How long a peer may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a head to its last; on a new connection from its beginning.
    pub head: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// While something is to be sent to it.
    pub write: Duration,
}

/// What the connection and the service that answers on it tell each other.
#[derive(Debug, Default)]
pub struct Phase {
    /// A request is being answered.
    serving: AtomicBool,
    /// Requests so far.
    requests: AtomicU64,
    /// The connection, which is to look at its times again when an answer has ended.
    connection: AtomicWaker,
}

/// Until it is dropped, a request is being answered.
pub struct Serving(Arc<Phase>);

impl Phase {
    /// A head has come.
    pub fn begin(self: &Arc<Self>) -> Serving {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.serving.store(true, Ordering::Release);
        Serving(Arc::clone(self))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.store(false, Ordering::Release);
        self.0.connection.wake();
    }
}

/// A body whose end is the end of the request.
pub struct ServedBody {
    inner: Body,
    _serving: Serving,
}

impl ServedBody {
    /// Holds `serving` until the body is sent or given up.
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

/// See the module's documentation.
pub struct Guarded<T> {
    inner: T,
    patience: Patience,
    phase: Arc<Phase>,
    /// Requests that the read timer knows of.
    seen: u64,
    read: Timer,
    /// The first byte of a head has come.
    in_head: bool,
    /// The read timer ended it, and part of a head had come.
    late_head: bool,
    write: Timer,
    /// An answer that replaces hyper's, as far as it is not sent.
    instead: Vec<u8>,
    /// What came while a request was answered and hyper has not asked for.
    ahead: Vec<u8>,
}

struct Timer {
    sleep: Pin<Box<Sleep>>,
    armed: bool,
}

impl Timer {
    fn new(first: Duration) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(first)), armed: false }
    }

    /// Runs from the first call after `armed` was false.
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
    pub fn new(inner: T, patience: Patience, phase: Arc<Phase>) -> Self {
        Self {
            inner,
            patience,
            phase,
            seen: 0,
            read: Timer::new(patience.head),
            in_head: false,
            late_head: false,
            write: Timer::new(patience.write),
            instead: Vec::new(),
            ahead: Vec::new(),
        }
    }

    /// The connection itself.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// Whether it ended because the rest of a head did not come.
    pub fn ended_in_head(&self) -> bool {
        self.late_head
    }

    fn note_requests(&mut self) {
        let requests = self.phase.requests.load(Ordering::Relaxed);
        if requests != self.seen {
            self.seen = requests;
            self.in_head = false;
            self.read.armed = false;
        }
    }

    fn watch_write<R>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.write.armed = false;
            return polled;
        }
        if self.write.passed(self.patience.write, cx) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")));
        }
        Poll::Pending
    }
}

impl<T: Read + Unpin> Guarded<T> {
    /// What was read ahead comes before anything else.
    fn poll_next(&mut self, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let taken = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..taken]);
        self.ahead.drain(..taken);
        Poll::Ready(Ok(()))
    }

    /// Fails where the peer has left while its request is answered. Wakes when it does.
    fn look_for_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.phase.serving.load(Ordering::Acquire) && self.ahead.len() < AHEAD_BYTES {
            let mut bytes = [MaybeUninit::uninit(); AHEAD_PIECE];
            let mut piece = ReadBuf::uninit(&mut bytes);
            match Pin::new(&mut self.inner).poll_read(cx, piece.unfilled()) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) if piece.filled().is_empty() => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer has left"));
                }
                Poll::Ready(Ok(())) => self.ahead.extend_from_slice(piece.filled()),
            }
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
        if self.phase.serving.load(Ordering::Acquire) {
            return polled;
        }
        if polled.is_ready() {
            if !self.in_head {
                self.in_head = true;
                self.read.armed = false;
            }
            return polled;
        }
        let waits_for_first = self.seen == 0 || self.in_head;
        let patience = if waits_for_first { self.patience.head } else { self.patience.idle };
        if self.read.passed(patience, cx) {
            self.late_head = self.in_head;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came in time")));
        }
        Poll::Pending
    }
}

impl<T: Write + Unpin> Guarded<T> {
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let sent = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.instead))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Read + Write + Unpin> Write for Guarded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(answer) = instead_of(buf) {
            self.instead = answer;
            return Poll::Ready(Ok(buf.len()));
        }
        let polled = match self.poll_instead(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.inner).poll_write(cx, buf),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        self.watch_write(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whatever hyper waits for, it flushes each time that it looks.
        self.look_for_end(cx)?;
        let polled = match self.poll_instead(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.inner).poll_flush(cx),
            other => other,
        };
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
        if bufs.len() == 1 || !self.instead.is_empty() {
            return self.poll_write(cx, bufs.first().map_or(&[][..], |buf| buf));
        }
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch_write(cx, polled)
    }
}

/// What to send where hyper is about to answer a head that it can't read. Its answers have no body and
/// no request id, ours always have the latter.
fn instead_of(buf: &[u8]) -> Option<Vec<u8>> {
    if !buf.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let head = std::str::from_utf8(buf).ok()?.to_ascii_lowercase();
    if !head.contains("\r\ncontent-length: 0\r\n") || head.contains("\r\nx-request-id:") {
        return None;
    }
    let error = match head.get(9..12)? {
        "431" => {
            ApiError::head("header_fields_too_large", 431, "the head has too many fields or is too long")
        }
        _ => ApiError::head("malformed_head", 400, "the head is not valid HTTP/1.1"),
    };
    Some(wire(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_hyper_makes_up_are_replaced() {
        let hyper = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let answer = String::from_utf8(instead_of(hyper).unwrap()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(
            answer.contains("x-request-id: ") && answer.contains("\"code\":\"header_fields_too_large\""),
            "{answer}"
        );
        let own = b"HTTP/1.1 404 Not Found\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n";
        assert!(instead_of(own).is_none());
        assert!(instead_of(b"data: HTTP/1.1 400").is_none());
    }
}
