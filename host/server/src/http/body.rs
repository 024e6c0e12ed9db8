//! Reads request bodies, each within a size limit and a deadline, and all of them within a shared memory
//! budget: many bodies under the limit could still exhaust the host's memory.
//!
//! A rejected body is still drained for a while: closing a socket with unread bytes resets the connection,
//! and the client would never see the response.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Answer, ApiError};
use crate::web::in_full;

/// Most bytes drained of a rejected body.
const DRAIN_BYTES: usize = 64 << 20;
/// Longest time spent draining.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Bytes of each body that the shared budget doesn't count, so long bodies can't block ordinary requests. The
/// connection limit bounds their sum.
const FREE_BYTES: usize = 64 << 10;
/// Bytes per permit of the budget.
const UNIT: usize = 1 << 10;

/// The memory budget that long bodies share.
#[derive(Clone, Debug)]
pub struct BodyRoom {
    units: usize,
    free: Arc<Semaphore>,
}

impl BodyRoom {
    /// A budget of `bytes`, in addition to the free bytes of each body.
    pub fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS);
        Self { units, free: Arc::new(Semaphore::new(units)) }
    }

    /// Bytes of the budget that bodies hold.
    pub fn used(&self) -> usize {
        (self.units - self.free.available_permits()) * UNIT
    }

    /// Extends the reservation `taken` of a body to cover `bytes`. Returns false if the budget is exhausted.
    fn grow(&self, taken: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT);
        let more = wanted.saturating_sub(taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        let Some(permit) = u32::try_from(more)
            .ok()
            .and_then(|more| Arc::clone(&self.free).try_acquire_many_owned(more).ok())
        else {
            return false;
        };
        match taken {
            Some(taken) => taken.merge(permit),
            None => *taken = Some(permit),
        }
        true
    }
}

/// A complete body and its share of the budget.
#[derive(Debug)]
pub struct ReadBody {
    bytes: Bytes,
    room: Room,
}

/// A body's share of the budget. Held as long as anything parsed from the body needs memory.
#[derive(Debug)]
pub struct Room {
    permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Divides off the share of `bytes`, which are needed longer than the rest.
    pub fn part(&mut self, bytes: usize) -> Self {
        let units = bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT);
        Self { permit: self.permit.as_mut().and_then(|permit| permit.split(units.min(permit.num_permits()))) }
    }
}

impl ReadBody {
    /// Drops the bytes and returns their share of the budget, which the body's texts need until they are
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
#[derive(Clone, Debug)]
pub struct BodyLimits {
    /// Longest body, in bytes.
    pub max_bytes: usize,
    /// The budget it shares with other bodies.
    pub room: BodyRoom,
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
/// 400 for a broken transfer, 408 for a slow one, 413 for a long body, 503 if the budget is exhausted.
pub async fn read_body(
    headers: &HeaderMap,
    mut body: Incoming,
    limits: BodyLimits,
) -> Result<ReadBody, ApiError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limits.max_bytes as u64) {
        // A client that waits for `100 Continue` has sent nothing to drain.
        if !headers.contains_key(EXPECT) {
            drain(body);
        }
        return Err(too_large(limits.max_bytes));
    }
    let deadline = tokio::time::Instant::now() + limits.timeout;
    // `content-length` is only a claim: reserve little for it.
    let mut read = Vec::with_capacity(body.size_hint().lower().min(FREE_BYTES as u64) as usize);
    let mut room = None;
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Err(_) => {
                drain(body);
                let message = format!("the body did not arrive within {} s", limits.timeout.as_secs_f32());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message).close());
            }
            Ok(None) => return Ok(ReadBody { bytes: read.into(), room: Room { permit: room } }),
            Ok(Some(Err(error))) => {
                return Err(ApiError::bad_request("body", unreadable(&error)).close());
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limits.max_bytes {
            drain(body);
            return Err(too_large(limits.max_bytes));
        }
        if !limits.room.grow(&mut room, read.len() + data.len()) {
            drain(body);
            let message = "request bodies use all the memory they may (--max-body-memory); retry later";
            return Err(ApiError::unavailable("bodies_full", message).close());
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
        let room = BodyRoom::new(1 << 20);
        let (mut first, mut second, mut third) = (None, None, None);
        assert!(room.grow(&mut first, FREE_BYTES + (600 << 10)));
        assert!(room.grow(&mut first, FREE_BYTES + (1 << 20)), "only the difference is reserved");
        assert_eq!(room.used(), 1 << 20);
        assert!(!room.grow(&mut second, FREE_BYTES + 1));
        assert!(room.grow(&mut third, FREE_BYTES));
        drop(first);
        assert!(room.grow(&mut second, FREE_BYTES + (1 << 20)));

        let mut whole = Room { permit: second };
        let part = whole.part(FREE_BYTES + (300 << 10));
        drop(whole);
        let mut fourth = None;
        assert!(!room.grow(&mut fourth, FREE_BYTES + (800 << 10)), "a part of it is still needed");
        assert!(room.grow(&mut fourth, FREE_BYTES + (724 << 10)));
        drop((part, fourth));
        let mut small = Room { permit: None };
        assert!(small.part(1 << 20).permit.is_none());
        assert_eq!(room.used(), 0);
    }
}
