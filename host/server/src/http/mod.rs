//! HTTP without endpoints: connections and their bounds, bodies, errors, request ids, queries.

mod body;
mod error;
mod listener;
mod query;
mod request_id;
mod stall;

use std::convert::Infallible;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

pub use body::{BodyLimits, discard, read_body};
pub use error::ApiError;
pub use listener::{Listener, ListenerBounds};
pub use query::Query;
pub use request_id::RequestId;

/// Body of every answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// Every answer.
pub type Answer = Response<Body>;

/// A body that is known as a whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A JSON answer.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let bytes = serde_json::to_vec(value).expect("wire types can be written as JSON");
    let mut answer = Response::new(full(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A text answer.
pub fn text(content_type: &'static str, text: String) -> Answer {
    let mut answer = Response::new(full(text));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
