//! Reads request bodies, each within a size limit and a deadline, and all of them within a memory budget that tenants
//! share (`shares`): many bodies under the limit could still exhaust the host's memory. A tenant whose bodies hold no
//! more than one longest body may always have needs only what is free, so that bodies of any allowed length are read
//! whatever the others send, as long as the budget has room at all.
//!
//! A rejected body is still drained for a while: closing a socket with unread bytes resets the connection,
//! and the client would never see the response.

use std::ops::Deref;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use infer_core::TenantId;

use super::{Answer, ApiError};
use crate::shares::{Budget, Full, Holder, Part};
use crate::web::in_full;

/// Most bytes drained of a rejected body.
const DRAIN_BYTES: usize = 64 << 20;
/// Longest time spent draining.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Bytes of each body that the shared budget doesn't count, so long bodies can't block ordinary requests. The
/// connection limit bounds their sum.
const FREE_BYTES: usize = 64 << 10;

/// The memory budget that long bodies share.
#[derive(Clone, Debug)]
pub struct BodyRoom(Budget);

impl BodyRoom {
    /// A budget of `bytes`, in addition to the free bytes of each body.
    pub fn new(bytes: usize) -> Self {
        Self(Budget::new(bytes))
    }

    /// Bytes of the budget that bodies hold.
    pub fn used(&self) -> usize {
        self.0.used()
    }

    /// Room for one body, which needs none yet.
    pub fn of(&self, holder: Holder) -> Room {
        Room(self.0.part(holder))
    }
}

/// A complete body and its part of the budget.
#[derive(Debug)]
pub struct ReadBody {
    bytes: Bytes,
    room: Room,
}

/// A body's part of the budget. Held as long as anything parsed from the body needs memory.
#[derive(Debug)]
pub struct Room(Part);

impl Room {
    /// For a body of up to so many bytes that shares its memory with no other.
    pub fn alone(bytes: usize) -> Self {
        BodyRoom::new(bytes).of(Holder { tenant: TenantId::default(), alone: true })
    }

    /// Divides off the part of `bytes`, which are needed longer than the rest.
    pub fn part(&mut self, bytes: usize) -> Self {
        Self(self.0.split(counted(bytes)))
    }

    /// Extends it to cover `bytes` of a body of at most `longest`.
    fn grow(&mut self, bytes: usize, longest: usize) -> Result<(), Full> {
        let more = counted(bytes).saturating_sub(self.0.bytes());
        self.0.grow(more, counted(longest))
    }
}

/// The bytes of a body that the budget counts.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(FREE_BYTES)
}

impl ReadBody {
    /// Drops the bytes and returns their part of the budget, which the body's texts need until they are
    /// tokens.
    pub fn into_room(self) -> Room {
        self.room
    }
}

impl Deref for ReadBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// Limits of a body.
#[derive(Debug)]
pub struct BodyLimits {
    /// Longest body, in bytes.
    pub max_bytes: usize,
    /// Its part of the budget, which grows with it.
    pub room: Room,
    /// Time until the whole body must have arrived.
    pub timeout: Duration,
}

/// Accepts uncompressed bodies only: the limits of bodies are checked as their bytes arrive.
pub fn check_content_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = values.map(|value| value.to_str().unwrap_or("?").trim());
    let plain = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    let Some(coding) = codings.find(|coding| !plain(coding)) else { return Ok(()) };
    let shown: String = coding.chars().take(64).collect();
    Err(ApiError::unsupported(format!(
        "content-encoding `{shown}` is not supported; send the body uncompressed"
    )))
}

/// Reads the whole body.
///
/// # Errors
/// 400 for a broken transfer, 408 for a slow one, 413 for a long body, 503 if the budget or the tenant's share of it is
/// exhausted.
pub async fn read_body(
    headers: &HeaderMap,
    mut body: Incoming,
    limits: BodyLimits,
) -> Result<ReadBody, ApiError> {
    let BodyLimits { max_bytes, mut room, timeout } = limits;
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > max_bytes as u64) {
        // A client that waits for `100 Continue` has sent nothing to drain.
        if !headers.contains_key(EXPECT) {
            drain(body);
        }
        return Err(too_large(max_bytes));
    }
    let deadline = tokio::time::Instant::now() + timeout;
    // `content-length` is only a claim: reserve little for it.
    let mut read = Vec::with_capacity(body.size_hint().lower().min(FREE_BYTES as u64) as usize);
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Err(_) => {
                drain(body);
                let message = format!("the body did not arrive within {} s", timeout.as_secs_f32());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message).close());
            }
            Ok(None) => return Ok(ReadBody { bytes: read.into(), room }),
            Ok(Some(Err(error))) => {
                return Err(ApiError::bad_request("body", unreadable(&error)).close());
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > max_bytes {
            drain(body);
            return Err(too_large(max_bytes));
        }
        if let Err(full) = room.grow(read.len() + data.len(), max_bytes) {
            drain(body);
            return Err(no_room(full));
        }
        read.extend_from_slice(&data);
    }
}

/// Closes the connection after the response to a request whose body was not read, and drains the body.
pub fn discard(unread: Option<Incoming>, answer: &mut Answer) {
    if let Some(body) = unread.filter(|body| !body.is_end_stream()) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        drain(body);
    }
}

/// Why a body can't be read, in hyper's words. Those of the error itself are the same for every cause.
fn unreadable(error: &dyn std::error::Error) -> String {
    let why = error.source().map_or_else(|| error.to_string(), in_full);
    format!("can't read the body: {why}")
}

fn too_large(max_bytes: usize) -> ApiError {
    let message = format!("the body is longer than {max_bytes} bytes (--max-body-bytes)");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).close()
}

fn no_room(full: Full) -> ApiError {
    let message = match full {
        Full::Budget => "request bodies use all the memory they may (--max-body-memory); retry later",
        Full::Share => {
            "the request bodies of this tenant use its share of the memory for them (--max-body-memory); retry later"
        }
    };
    ApiError::unavailable("bodies_full", message).close()
}

fn drain(mut body: Incoming) {
    tokio::spawn(async move {
        let mut left = DRAIN_BYTES;
        let _ = tokio::time::timeout(DRAIN_TIME, async {
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        })
        .await;
    });
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn unreadable_body_is_explained_by_the_causes_of_the_error() {
        #[derive(Debug)]
        struct Outer(Option<Error>);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("error reading a body")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.0.as_ref().map(|cause| cause as _)
            }
        }
        let cause = Error::new(ErrorKind::InvalidInput, "invalid chunk size");
        assert_eq!(unreadable(&Outer(Some(cause))), "can't read the body: invalid chunk size");
        assert_eq!(unreadable(&Outer(None)), "can't read the body: error reading a body");
    }

    #[test]
    fn long_bodies_share_a_budget_and_short_ones_need_none() {
        const LONGEST: usize = FREE_BYTES + (1 << 20);
        let all = BodyRoom::new(1 << 20);
        let body = || all.of(Holder { tenant: TenantId(0), alone: true });
        let (mut first, mut second, mut third) = (body(), body(), body());
        assert_eq!(first.grow(FREE_BYTES + (600 << 10), LONGEST), Ok(()));
        assert_eq!(first.grow(LONGEST, LONGEST), Ok(()), "only the difference is needed");
        assert_eq!(all.used(), 1 << 20);
        assert_eq!(second.grow(FREE_BYTES + 1, LONGEST), Err(Full::Budget));
        assert_eq!(third.grow(FREE_BYTES, LONGEST), Ok(()));
        drop(first);
        assert_eq!(second.grow(LONGEST, LONGEST), Ok(()));

        let part = second.part(FREE_BYTES + (300 << 10));
        drop(second);
        let mut fourth = body();
        let refused = fourth.grow(FREE_BYTES + (800 << 10), LONGEST);
        assert_eq!(refused, Err(Full::Budget), "a part of it is still needed");
        assert_eq!(fourth.grow(FREE_BYTES + (724 << 10), LONGEST), Ok(()));
        drop((part, fourth));
        assert_eq!(third.part(LONGEST).0.bytes(), 0);
        assert_eq!(all.used(), 0);
    }

    #[test]
    fn bodies_of_one_tenant_leave_room_for_those_of_others() {
        const LONGEST: usize = FREE_BYTES + (100 << 10);
        let all = BodyRoom::new(1 << 20);
        let read = |number: u32| {
            let mut body = all.of(Holder { tenant: TenantId(number), alone: false });
            body.grow(LONGEST, LONGEST).map(|()| body)
        };
        let mut flood: Vec<Room> = (0..7).map(|_| read(1).unwrap()).collect();
        assert_eq!(read(1).map(drop), Err(Full::Share), "three quarters of the budget are held");
        let others: Vec<Room> = (2..5).map(|other| read(other).unwrap()).collect();
        assert_eq!(read(5).map(drop), Err(Full::Budget));
        drop(flood.pop());
        assert_eq!(read(1).map(drop), Err(Full::Share), "what others hold counts, too");
        assert!(read(5).is_ok(), "a longest body needs only what is free");
        drop((flood, others));
        assert_eq!(all.used(), 0);
    }
}
