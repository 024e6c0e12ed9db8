//! What ties a request to its caller: `x-request-id`, taken from the client where it is harmless, else made
//! here; and `traceparent` and `tracestate` of the trace that it is part of.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

/// Longest id that is taken over; it goes into logs and the console.
const MAX_LEN: usize = 128;
/// The header.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A `traceparent` of the only version there is.
const TRACEPARENT_LEN: usize = 55;
/// Longer ones are dropped; W3C Trace Context wants so much of them to be carried.
const MAX_TRACESTATE_LEN: usize = 512;

/// Names a request in answers, logs, traces and the console.
#[derive(Clone, Debug)]
pub struct RequestId {
    id: String,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl RequestId {
    /// The client's id where it has 1 to 128 visible ASCII characters, else a fresh one.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        let id = match text(X_REQUEST_ID) {
            Some(id) if (1..=MAX_LEN).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) => {
                id.to_owned()
            }
            _ => fresh(),
        };
        let traceparent = text(HeaderName::from_static("traceparent"));
        let traceparent = traceparent.filter(|t| t.len() == TRACEPARENT_LEN).map(str::to_owned);
        let tracestate = text(HeaderName::from_static("tracestate"));
        let tracestate = tracestate.filter(|t| t.len() <= MAX_TRACESTATE_LEN).map(str::to_owned);
        Self { id, traceparent, tracestate }
    }

    /// The caller's trace, as it says.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// What systems on the way say of it.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.id
    }

    /// As a header value.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.id).expect("ids are visible ASCII")
    }
}

fn fresh() -> String {
    // Unique within this host by the counter, among hosts by the random part.
    static COUNTER: AtomicU64 = AtomicU64::new(1);
    static PREFIX: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let prefix = *PREFIX.get_or_init(|| getrandom::u32().unwrap_or_else(|_| std::process::id()));
    format!("{prefix:08x}{:08x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn harmless_ids_are_taken_and_others_replaced() {
        assert_eq!(of(b"abc-1:2"), "abc-1:2");
        for odd in [&b""[..], b"a b", b"\xff\xfe", "x".repeat(129).as_bytes()] {
            let id = of(odd);
            assert_eq!(id.len(), 16, "{id}");
        }
    }
}
