//! HTTP shared by both planes: connections and their limits, bodies, errors, request ids, queries, rules for
//! web pages. No endpoints.

mod backlog;
mod body;
mod cors;
mod error;
mod guard;
mod head;
mod listener;
mod places;
mod query;
mod request_id;
mod tls;
mod unsent;

use std::convert::Infallible;
use std::time::SystemTime;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

pub use backlog::Backlog;
pub use body::{BodyLimits, BodyRoom, ReadBody, Room, check_content_encoding, discard, read_body};
pub use cors::AllowedOrigins;
pub use error::{ApiError, ErrorForm, shortened};
pub use guard::{Pace, Patience};
pub use head::check_head;
pub use listener::{Listener, ListenerOptions};
pub use places::{Connections, Crowded, Keyless, REQUEST_TIME};
pub use query::{Query, path_text};
pub use request_id::RequestId;
pub use tls::{Tls, pem_words};
pub use unsent::Unsent;

use crate::utc::http_date;

/// Body of every response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// Every response.
pub type Answer = Response<Body>;

/// A body that is already complete.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// An error response as bytes, for a connection on which no request could be read. It closes the connection.
fn wire(error: ApiError) -> Vec<u8> {
    let status = error.status();
    let (id, body) = (RequestId::of(&hyper::HeaderMap::new()), error.body());
    let (code, reason, len) = (status.as_u16(), status.canonical_reason().unwrap_or(""), body.len());
    let after =
        error.retry_after_s().map_or_else(String::new, |seconds| format!("retry-after: {seconds}\r\n"));
    let advice = error.should_retry().map_or_else(String::new, |word| format!("x-should-retry: {word}\r\n"));
    let date = http_date(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\
         connection: close\r\n{after}{advice}x-request-id: {}\r\ndate: {date}\r\n\r\n",
        id.as_str()
    );
    [head.into_bytes(), body].concat()
}

/// A JSON response.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    json_bytes(status, serde_json::to_vec(value).expect("wire types can be written as JSON"))
}

/// A response of serialized JSON.
pub fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Answer {
    let mut answer = Response::new(full(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A text response.
pub fn text(content_type: &'static str, text: String) -> Answer {
    let mut answer = Response::new(full(text));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
