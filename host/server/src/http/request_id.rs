//! Identifies a request to its caller: by `x-request-id`, the client's if it is safe to log and a generated
//! one otherwise, and by the `traceparent` and `tracestate` of the caller's trace.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

/// Longest id accepted from a client, in bytes. Logs and the console show it.
const MAX_LEN: usize = 128;
/// The header.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Length of a `traceparent` of version 00, in bytes.
const TRACEPARENT_LEN: usize = 55;
/// Longest `tracestate` that is propagated, in bytes: the least that W3C Trace Context asks for.
const MAX_TRACESTATE_LEN: usize = 512;

/// Identifies a request in responses, logs, traces and the console.
#[derive(Clone, Debug)]
pub struct RequestId {
    id: String,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl RequestId {
    /// Takes the client's id if it has 1 to 128 visible ASCII characters, and generates one otherwise.
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
        Self { id, traceparent, tracestate: tracestate(headers) }
    }

    /// The caller's `traceparent`.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// The caller's `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.id
    }

    /// The id as a header value.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.id).expect("ids are visible ASCII")
    }
}

/// All `tracestate` headers combined into one list (W3C Trace Context, 3.3.1.1).
fn tracestate(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all("tracestate").iter();
    let lists = all.map(HeaderValue::to_str).collect::<Result<Vec<_>, _>>().ok()?;
    Some(lists.join(",")).filter(|list| (1..=MAX_TRACESTATE_LEN).contains(&list.len()))
}

fn fresh() -> String {
    // The counter makes it unique within this process, the random part among hosts.
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
    fn tracestate_headers_are_joined_in_order() {
        let read = |lists: &[&str]| {
            let name = HeaderName::from_static("tracestate");
            let headers = lists.iter().map(|list| (name.clone(), list.parse().unwrap())).collect();
            RequestId::of(&headers).tracestate
        };
        assert_eq!(read(&["a=1,b=2", "c=3"]).as_deref(), Some("a=1,b=2,c=3"));
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[&"x".repeat(300), &"y".repeat(300)]), None);
    }

    #[test]
    fn safe_ids_are_kept_and_others_replaced() {
        assert_eq!(of(b"abc-1:2"), "abc-1:2");
        for odd in [&b""[..], b"a b", b"\xff\xfe", "x".repeat(129).as_bytes()] {
            let id = of(odd);
            assert_eq!(id.len(), 16, "{id}");
        }
    }
}
