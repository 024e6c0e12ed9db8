//! The one shape of error answers: `{"error": {"message", "type", "param", "code"}}`.

use hyper::StatusCode;
use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use infer_api::admin::{ErrorBody, ErrorInfo};
use infer_core::Refusal;
use infer_core::request::RefusalReason;

use super::{Answer, json};
use crate::engine::SubmitError;

/// An error answer before it is sent.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: &'static str,
    retry_after_ms: u32,
    /// Trying again can't help, whatever the status suggests.
    for_good: bool,
    allow: Option<&'static str>,
    close: bool,
}

impl ApiError {
    /// Any status; `code` is machine-readable.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
            retry_after_ms: 0,
            for_good: false,
            allow: None,
            close: false,
        }
    }

    /// 400: it can't be read, or a field has the wrong type.
    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 400 for a field of the wrong type.
    pub fn wrong_type(param: &str, expected: &str) -> Self {
        Self::bad_request("wrong_type", format!("{param}: expected {expected}")).param(param)
    }

    /// 422: a field's value can't be used.
    pub fn invalid(param: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{param}: {message}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_value", message).param(param)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 405 with the methods that would be right.
    pub fn method_not_allowed(path: &str, allow: &'static str) -> Self {
        let message = format!("{path} answers {allow} only");
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        error.allow = Some(allow);
        error
    }

    /// 503, worth trying again after a second.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after_ms(1_000)
    }

    /// A head that can't be read.
    pub(super) fn head(code: &'static str, status: u16, message: &str) -> Self {
        Self::new(StatusCode::from_u16(status).expect("a status of this file"), code, message).close()
    }

    /// 500.
    pub fn internal(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, message)
    }

    /// 504: the host's time for a whole request was over. It would take as long again.
    pub fn too_late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "request_timeout", message).for_good()
    }

    /// What a refusal by the engine is to a client.
    pub fn refused(refusal: &Refusal) -> Self {
        let (status, code) = match refusal.reason {
            RefusalReason::TooLong => (StatusCode::UNPROCESSABLE_ENTITY, "too_long"),
            RefusalReason::Rate => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            RefusalReason::QueueFull => (StatusCode::SERVICE_UNAVAILABLE, "queue_full"),
            RefusalReason::Memory => (StatusCode::SERVICE_UNAVAILABLE, "memory"),
            RefusalReason::Backpressure => (StatusCode::SERVICE_UNAVAILABLE, "backpressure"),
            RefusalReason::Other => (StatusCode::SERVICE_UNAVAILABLE, "refused"),
            RefusalReason::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        };
        let error = Self::new(status, code, refusal.message.clone());
        if status == StatusCode::UNPROCESSABLE_ENTITY {
            error.param("prompt")
        } else {
            let for_good = refusal.retry_after_ms == 0;
            Self { for_good, ..error.retry_after_ms(refusal.retry_after_ms) }
        }
    }

    /// The field at fault.
    pub fn param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// The same about a part of a field: `place` says where.
    pub fn within(mut self, place: &str, param: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self.param = Some(param.to_owned());
        self
    }

    /// Another code.
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = code;
        self
    }

    /// Adds `Retry-After`.
    pub fn retry_after_ms(mut self, after_ms: u32) -> Self {
        self.retry_after_ms = after_ms;
        self
    }

    /// The same request would meet the same again.
    pub fn for_good(mut self) -> Self {
        self.for_good = true;
        self
    }

    /// The connection can't be used again: the request was not read to its end.
    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Shown to the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Machine-readable reason.
    pub fn reason(&self) -> &'static str {
        self.code
    }

    /// OpenAI's name for errors of its kind.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    fn info(&self) -> ErrorBody {
        let error = ErrorInfo {
            message: self.message.clone(),
            kind: self.kind().to_owned(),
            param: self.param.clone(),
            code: Some(self.code.to_owned()),
        };
        ErrorBody { error }
    }

    /// The body alone.
    pub(super) fn body(&self) -> Vec<u8> {
        serde_json::to_vec(&self.info()).expect("wire types can be written as JSON")
    }

    /// The answer.
    pub fn into_answer(self) -> Answer {
        let mut answer = json(self.status, &self.info());
        let headers = answer.headers_mut();
        if self.retry_after_ms > 0 {
            headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after_ms.div_ceil(1_000)));
            headers.insert(HeaderName::from_static("retry-after-ms"), HeaderValue::from(self.retry_after_ms));
        }
        if self.for_good {
            // OpenAI's clients try 429 and 5xx again unless they are told.
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Refused(refusal) => Self::refused(&refusal),
            SubmitError::Stopped => {
                Self::unavailable("engine_stopped", "the engine has stopped; restart the host")
            }
        }
    }
}

impl From<crate::engine::EngineStopped> for ApiError {
    fn from(stopped: crate::engine::EngineStopped) -> Self {
        Self::unavailable("engine_stopped", stopped.to_string())
    }
}
