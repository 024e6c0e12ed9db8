//! Reads a request body within a limit and a deadline, and all bodies within the memory that they may take
//! together: many that are each short enough could fill a machine.
//!
//! A body that is refused is still drained for a while: closing a socket with unread bytes resets the
//! connection, and the client would never see the answer.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Answer, ApiError};

/// Most that is read and thrown away of a body that was refused.
const DRAIN_BYTES: usize = 64 << 20;
/// Longest time for that.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// What a body has without asking: usual requests pass whatever long ones do, and connections bound their number.
const FREE_BYTES: usize = 64 << 10;
/// What memory is counted in.
const UNIT: usize = 1 << 10;

/// Memory that long bodies share.
#[derive(Clone, Debug)]
pub struct BodyRoom(Arc<Semaphore>);

impl BodyRoom {
    /// Room for so many bytes beside what each body has free.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / UNIT).min(Semaphore::MAX_PERMITS))))
    }

    /// Lets a body that has `taken` grow to `bytes`; false where there is no room.
    fn grow(&self, taken: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT);
        let more = wanted.saturating_sub(taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        let Some(permit) =
            u32::try_from(more).ok().and_then(|more| Arc::clone(&self.0).try_acquire_many_owned(more).ok())
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

/// A whole body, and its room for as long as it is held.
#[derive(Debug)]
pub struct ReadBody {
    bytes: Bytes,
    room: Room,
}

/// Memory that a body took, for what was read from it.
#[derive(Debug)]
pub struct Room {
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReadBody {
    /// Lets go of the bytes. The room is for the texts that were in them, until they are tokens.
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

/// Bounds of a body.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    /// Longest body.
    pub max_bytes: usize,
    /// What it shares with others.
    pub room: BodyRoom,
    /// For the whole body.
    pub timeout: Duration,
}

/// The whole body, or the 400, 408, 413 or 503 that it deserves.
pub async fn read_body(
    headers: &HeaderMap,
    mut body: Incoming,
    limits: BodyLimits,
) -> Result<ReadBody, ApiError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limits.max_bytes as u64) {
        // A client that waits for leave to send has sent nothing that would have to be drained.
        if !headers.contains_key(EXPECT) {
            drain(body);
        }
        return Err(too_large(limits.max_bytes));
    }
    let deadline = tokio::time::Instant::now() + limits.timeout;
    // Nothing is laid aside for what is only announced.
    let mut read = Vec::with_capacity(body.size_hint().lower().min(FREE_BYTES as u64) as usize);
    let mut room = None;
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Err(_) => {
                drain(body);
                let message = format!("the body did not arrive within {} s", limits.timeout.as_secs_f32());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message).close());
            }
            Ok(None) => return Ok(ReadBody { bytes: read.into(), room: Room { _permit: room } }),
            Ok(Some(Err(error))) => {
                return Err(ApiError::bad_request("body", format!("can't read the body: {error}")).close());
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
            let message = "the bodies of requests take all memory that they may (--max-body-memory)";
            return Err(ApiError::unavailable("bodies_full", message).close());
        }
        read.extend_from_slice(&data);
    }
}

/// Closes the connection after an answer to a request whose body nobody read; what comes of it is drained.
pub fn discard(unread: Option<Incoming>, answer: &mut Answer) {
    if let Some(body) = unread.filter(|body| !body.is_end_stream()) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        drain(body);
    }
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
    use super::*;

    #[test]
    fn long_bodies_share_their_room_and_short_ones_need_none() {
        let room = BodyRoom::new(1 << 20);
        let (mut first, mut second, mut third) = (None, None, None);
        assert!(room.grow(&mut first, FREE_BYTES + (600 << 10)));
        assert!(room.grow(&mut first, FREE_BYTES + (1 << 20)), "it grows by what it lacks");
        assert!(!room.grow(&mut second, FREE_BYTES + 1));
        assert!(room.grow(&mut third, FREE_BYTES));
        drop(first);
        assert!(room.grow(&mut second, FREE_BYTES + (1 << 20)));
    }
}
