//! A guarded connection as hyper reads and writes it.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use super::Guarded;

/// Most bytes that are read ahead of hyper, and how many of them in one read.
const AHEAD_BYTES: usize = 16 << 10;
const AHEAD_PIECE: usize = 4 << 10;

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
        self.sent |= matches!(polled, Poll::Ready(Ok(1..)));
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
            self.behind.armed = false;
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
        self.sent |= matches!(polled, Poll::Ready(Ok(1..)));
        if polled.is_pending() {
            self.look_for_end(cx)?;
        }
        self.watch_write(cx, polled)
    }
}

/// The status of a response that hyper made up for a malformed head. Those have no body and no request id; every
/// response of ours has a request id.
pub(super) fn made_up(buf: &[u8]) -> Option<u16> {
    if !buf.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let head = std::str::from_utf8(buf).ok()?.to_ascii_lowercase();
    if !head.contains("\r\ncontent-length: 0\r\n") || head.contains("\r\nx-request-id:") {
        return None;
    }
    head.get(9..12)?.parse().ok()
}
