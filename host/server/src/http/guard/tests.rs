//! Connections over a pipe in memory, polled by hand.

use std::mem::MaybeUninit;
use std::task::Waker;

use hyper::rt::{Read as _, ReadBuf, Write as _};
use hyper_util::rt::TokioIo;

use super::streams::made_up;
use super::*;
use crate::http::backlog::FREE_BYTES;
use crate::http::{Backlog, Unsent};

const HOUR: Duration = Duration::from_secs(3_600);
type Connection = Guarded<TokioIo<tokio::io::DuplexStream>>;

fn read(connection: &mut Connection) -> Poll<io::Result<()>> {
    let mut bytes = [MaybeUninit::uninit(); 8];
    let mut buffer = ReadBuf::uninit(&mut bytes);
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(connection).poll_read(&mut cx, buffer.unfilled())
}

/// Whether it goes on waiting for its peer.
fn is_open(connection: &mut Connection) -> bool {
    read(connection).is_pending()
}

#[tokio::test]
async fn what_follows_the_last_response_is_no_head() {
    for last in [false, true] {
        let (near, mut far) = tokio::io::duplex(64);
        let patience = Patience { head: Duration::from_millis(1), idle: HOUR, request: HOUR, write: HOUR };
        let phase = Arc::new(Phase::new(Unsent::default()));
        let mut connection = Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::default());
        let serving = phase.begin();
        assert!(is_open(&mut connection), "the request's body may take its time");
        if last {
            serving.mark_last();
        }
        drop(serving);
        tokio::io::AsyncWriteExt::write_all(&mut far, b"rest").await.unwrap();
        assert!(matches!(read(&mut connection), Poll::Ready(Ok(()))));
        let ended = std::future::poll_fn(|cx| {
            let mut bytes = [MaybeUninit::uninit(); 8];
            Pin::new(&mut connection).poll_read(cx, ReadBuf::uninit(&mut bytes).unfilled())
        });
        assert_eq!(ended.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(connection.ended_in_head(), !last);
    }
}

/// A connection that the kernel gives up: what it took hasn't arrived.
struct Unheard;

impl hyper::rt::Read for Unheard {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl hyper::rt::Write for Unheard {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn who_takes_nothing_of_a_response_until_the_kernel_gives_up_reads_too_slowly() {
    for answered in [false, true] {
        let patience = Patience { head: HOUR, idle: HOUR, request: HOUR, write: HOUR };
        let phase = Arc::new(Phase::new(Unsent::default()));
        let mut connection = Guarded::new(Unheard, patience, Arc::clone(&phase), Arc::default());
        let mut cx = Context::from_waker(Waker::noop());
        let _serving = phase.begin();
        connection.note_requests();
        if answered {
            let written = Pin::new(&mut connection).poll_write(&mut cx, b"data: 1");
            assert!(matches!(written, Poll::Ready(Ok(7))));
        }
        let mut bytes = [MaybeUninit::uninit(); 8];
        let end = Pin::new(&mut connection).poll_read(&mut cx, ReadBuf::uninit(&mut bytes).unfilled());
        assert!(matches!(end, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::TimedOut));
        assert_eq!(phase.pace().is_too_slow(), answered);
    }
}

#[tokio::test]
async fn half_a_head_ends_when_the_host_stops() {
    let patience = Patience { head: HOUR, idle: HOUR, request: HOUR, write: HOUR };
    let (near, mut far) = tokio::io::duplex(64);
    let phase = Arc::new(Phase::new(Unsent::default()));
    let mut connection = Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::default());
    tokio::io::AsyncWriteExt::write_all(&mut far, b"GET /").await.unwrap();
    assert!(matches!(read(&mut connection), Poll::Ready(Ok(()))));
    assert!(is_open(&mut connection), "the rest may come");
    tokio::io::AsyncWriteExt::write_all(&mut far, b"hea").await.unwrap();
    phase.stop();
    assert!(matches!(read(&mut connection), Poll::Ready(Ok(()))), "what has arrived is read");
    assert!(matches!(read(&mut connection), Poll::Ready(Err(_))) && connection.cut_in_head());
}

#[tokio::test]
async fn the_response_before_half_a_head_is_sent_before_the_connection_ends() {
    let patience = Patience { head: HOUR, idle: HOUR, request: HOUR, write: HOUR };
    let (near, mut far) = tokio::io::duplex(64);
    let phase = Arc::new(Phase::new(Unsent::default()));
    let mut connection = Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::default());
    drop(phase.begin());
    tokio::io::AsyncWriteExt::write_all(&mut far, b"GET /").await.unwrap();
    assert!(matches!(read(&mut connection), Poll::Ready(Ok(()))));
    phase.stop();
    assert!(is_open(&mut connection), "hyper has all of the response, but has not sent it");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut connection).poll_flush(&mut cx).is_ready());
    assert!(!is_open(&mut connection) && connection.cut_in_head());
}

#[tokio::test]
async fn a_connection_makes_room_when_all_is_sent_and_someone_waits() {
    let (near, _far) = tokio::io::duplex(64);
    let patience = Patience { head: HOUR, idle: HOUR, request: HOUR, write: HOUR };
    let (phase, crowd) = (Arc::new(Phase::new(Unsent::default())), Arc::new(Crowd::default()));
    let mut connection = Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::clone(&crowd));
    crowd.make_room.notify_one();
    let needed = crowd.enter();
    assert!(is_open(&mut connection), "its first request may come");
    drop(phase.begin());
    assert!(is_open(&mut connection), "hyper has all of the response, but has not sent it");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut connection).poll_flush(&mut cx).is_ready());
    drop(needed);
    assert!(is_open(&mut connection), "whoever asked for room has left");
    let _needed = crowd.enter();
    assert!(is_open(&mut connection), "another one was asked");
    crowd.make_room.notify_one();
    assert!(!is_open(&mut connection) && connection.made_room());
}

#[tokio::test]
async fn a_connection_whose_request_does_not_arrive_makes_room() {
    let patience = Patience { head: HOUR, idle: HOUR, request: Duration::from_millis(1), write: HOUR };
    for in_head in [false, true] {
        let (near, mut far) = tokio::io::duplex(64);
        let (phase, crowd) = (Arc::new(Phase::new(Unsent::default())), Arc::new(Crowd::default()));
        let mut connection = Guarded::new(TokioIo::new(near), patience, phase, Arc::clone(&crowd));
        if in_head {
            tokio::io::AsyncWriteExt::write_all(&mut far, b"GET /").await.unwrap();
            assert!(matches!(read(&mut connection), Poll::Ready(Ok(()))));
        }
        let _needed = crowd.enter();
        crowd.make_room.notify_one();
        let ended = std::future::poll_fn(|cx| {
            let mut bytes = [MaybeUninit::uninit(); 8];
            Pin::new(&mut connection).poll_read(cx, ReadBuf::uninit(&mut bytes).unfilled())
        });
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert_eq!(ended.expect("long before its head is late").unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(connection.made_room() && connection.ended_in_head() == in_head);
    }
}

#[tokio::test]
async fn a_response_to_someone_without_a_key_that_is_not_taken_makes_room() {
    for is_keyless in [false, true] {
        let (near, _far) = tokio::io::duplex(16);
        let moment = Duration::from_millis(1);
        let write = if is_keyless { HOUR } else { moment };
        let patience = Patience { head: HOUR, idle: HOUR, request: moment, write };
        let (phase, crowd) = (Arc::new(Phase::new(Unsent::default())), Arc::new(Crowd::default()));
        let mut connection =
            Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::clone(&crowd));
        phase.begin().set_keyless(is_keyless);
        let _needed = crowd.enter();
        crowd.make_room.notify_one();
        let ended = std::future::poll_fn(|cx| {
            loop {
                match Pin::new(&mut connection).poll_write(cx, b"HTTP/1.1 200 OK") {
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert_eq!(ended.expect("long before an hour").kind(), io::ErrorKind::TimedOut);
        assert_eq!((connection.made_room(), phase.pace().is_too_slow()), (is_keyless, !is_keyless));
    }
}

#[tokio::test]
async fn who_catches_up_is_not_behind() {
    let (near, mut far) = tokio::io::duplex(16);
    let patience = Patience { head: HOUR, idle: HOUR, request: HOUR, write: HOUR };
    let phase = Arc::new(Phase::new(Unsent::default()));
    let mut connection = Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::default());
    phase.begin().set_keyless(true);
    let mut cx = Context::from_waker(Waker::noop());
    let mut write =
        |connection: &mut Connection| Pin::new(connection).poll_write(&mut cx, b"sixteen bytes...");
    assert!(write(&mut connection).is_ready() && write(&mut connection).is_pending());
    assert!(connection.behind.armed);
    tokio::io::AsyncReadExt::read_exact(&mut far, &mut [0; 16]).await.unwrap();
    assert!(write(&mut connection).is_ready());
    assert!(connection.behind.armed, "there may be more to write");
    assert!(Pin::new(&mut connection).poll_flush(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(!connection.behind.armed);
}

#[tokio::test]
async fn the_oldest_unsent_response_makes_room_for_others() {
    let patience = Patience { head: HOUR, idle: HOUR, request: HOUR, write: HOUR };
    let backlog = Backlog::new(4 * FREE_BYTES);
    let respond = |times: u64| {
        let (near, far) = tokio::io::duplex(64);
        let phase = Arc::new(Phase::new(Unsent::default()));
        let connection = Guarded::new(TokioIo::new(near), patience, Arc::clone(&phase), Arc::default());
        phase.begin().count(&backlog, times * FREE_BYTES as u64);
        (connection, far)
    };
    let mut cx = Context::from_waker(Waker::noop());
    let mut can_send = |connection: &mut Connection| {
        let sent = Pin::new(connection).poll_write(&mut cx, b"x");
        matches!(sent, Poll::Ready(Ok(1)))
    };
    let (mut short, _far) = respond(1);
    let (mut first, _far_first) = respond(2);
    let (mut second, _far_second) = respond(2);
    assert!([&mut first, &mut second].into_iter().all(&mut can_send), "they fit");
    let (mut third, _far_third) = respond(2);
    assert!(!can_send(&mut first), "it is the oldest");
    assert!([&mut short, &mut second, &mut third].into_iter().all(&mut can_send));
    let mut flush_cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut second).poll_flush(&mut flush_cx).is_ready());
    let (mut fourth, _far_fourth) = respond(2);
    assert!(can_send(&mut third), "what is sent takes no memory");
    let (mut huge, _far_huge) = respond(9);
    assert!(
        !can_send(&mut third) && !can_send(&mut fourth) && can_send(&mut huge),
        "a single one may exceed it"
    );
}

#[test]
fn only_responses_made_up_by_hyper_are_held_back() {
    let hyper = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
    assert_eq!(made_up(hyper), Some(431));
    let own = b"HTTP/1.1 404 Not Found\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n";
    assert!(made_up(own).is_none());
    assert!(made_up(b"data: HTTP/1.1 400").is_none());
}
