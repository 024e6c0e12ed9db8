//! Reads a request body within a limit and a deadline.
//!
//! A body that is refused is still drained for a while: closing a socket with unread bytes resets the
//! connection, and the client would never see the answer.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use super::{Answer, ApiError};

/// Most that is read and thrown away of a body that was refused.
const DRAIN_BYTES: usize = 64 << 20;
/// Longest time for that.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Bounds of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Longest body.
    pub max_bytes: usize,
    /// For the whole body.
    pub timeout: Duration,
}

/// The whole body, or the 400, 408 or 413 that it deserves.
pub async fn read_body(
    headers: &HeaderMap,
    mut body: Incoming,
    limits: BodyLimits,
) -> Result<Bytes, ApiError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > limits.max_bytes as u64) {
        // A client that waits for leave to send has sent nothing that would have to be drained.
        if !headers.contains_key(EXPECT) {
            drain(body);
        }
        return Err(too_large(limits.max_bytes));
    }
    let deadline = tokio::time::Instant::now() + limits.timeout;
    let mut read = Vec::with_capacity(body.size_hint().lower().min(limits.max_bytes as u64) as usize);
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Err(_) => {
                drain(body);
                let message = format!("the body did not arrive within {} s", limits.timeout.as_secs_f32());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message).close());
            }
            Ok(None) => return Ok(read.into()),
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
