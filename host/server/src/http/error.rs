//! Error responses, all of one shape: `{"error": {"message", "type", "param", "code"}}`. Only the endpoints of
//! Anthropic's API have their own, with the same statuses.

use hyper::StatusCode;
use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use infer_api::admin::{ErrorBody, ErrorInfo};
use infer_api::messages::{MessagesError, MessagesErrorInfo};
use infer_core::Refusal;
use infer_core::request::RefusalReason;

use super::{Answer, RequestId, json};
use crate::engine::SubmitError;

/// Bytes that a client gets of each end of a library's words.
const END_BYTES: usize = 128;
/// The code of a request that reached the host's time limit.
const TOO_LATE: &str = "request_timeout";

/// Whose clients a path is for, which expect errors of their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorForm {
    /// OpenAI's, and everybody else.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// An error response before it is sent.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: &'static str,
    retry_after_ms: u32,
    /// A retry would fail again, whatever the status suggests.
    for_good: bool,
    /// Another host may take the request at once, so that a router should ask one.
    elsewhere: bool,
    allow: Option<&'static str>,
    close: bool,
}

impl ApiError {
    /// An error of any status. `code` is machine-readable.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
            retry_after_ms: 0,
            for_good: false,
            elsewhere: false,
            allow: None,
            close: false,
        }
    }

    /// 400: the request can't be parsed, or a field has the wrong type.
    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 400 for a field of the wrong type.
    pub fn wrong_type(param: &str, expected: &str) -> Self {
        Self::bad_request("wrong_type", format!("{param}: expected {expected}")).param(param)
    }

    /// 422: a field's value is not acceptable.
    pub fn invalid(param: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{param}: {message}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_value", message).param(param)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 405 with the allowed methods.
    pub fn method_not_allowed(path: &str, allow: &'static str) -> Self {
        let message = format!("{path} accepts {} only", allow.replace(", ", " and "));
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        error.allow = Some(allow);
        error
    }

    /// 415.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 503, to be retried after a second, or at once with another host.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self { elsewhere: true, ..Self::unavailable_here(code, message) }
    }

    /// 503 that another host can't help with, as for a request that an operator ended, or for an operator's: its client may
    /// retry it after a second, but no router for it.
    pub fn unavailable_here(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after_ms(1_000)
    }

    /// An error about a request head that can't be parsed.
    pub(super) fn head(code: &'static str, status: u16, message: &str) -> Self {
        Self::new(StatusCode::from_u16(status).expect("callers pass valid statuses"), code, message).close()
    }

    /// 500.
    pub fn internal(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, message)
    }

    /// 503: the host drains.
    pub fn draining() -> Self {
        Self::unavailable("draining", "the host takes no new requests; try another one")
    }

    /// 504: the request reached the host's time limit. A retry would take as long.
    pub fn too_late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, TOO_LATE, message).for_good()
    }

    /// Whether the request reached the host's time limit.
    pub fn is_too_late(&self) -> bool {
        self.code == TOO_LATE
    }

    /// The response to a request that admission refused.
    pub fn refused(refusal: &Refusal) -> Self {
        let (status, code) = match refusal.reason {
            RefusalReason::TooLong => (StatusCode::UNPROCESSABLE_ENTITY, refusal.reason.name()),
            RefusalReason::Rate => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            RefusalReason::Other => (StatusCode::SERVICE_UNAVAILABLE, "refused"),
            RefusalReason::QueueFull
            | RefusalReason::Memory
            | RefusalReason::Backpressure
            | RefusalReason::Draining => (StatusCode::SERVICE_UNAVAILABLE, refusal.reason.name()),
        };
        let error = Self::new(status, code, refusal.message.clone());
        if status == StatusCode::UNPROCESSABLE_ENTITY {
            error.param("prompt")
        } else {
            let for_good = refusal.retry_after_ms == 0;
            // A rate counts on one host, and another one would let its tenant exceed it.
            let elsewhere = !for_good && status == StatusCode::SERVICE_UNAVAILABLE;
            Self { for_good, elsewhere, ..error.retry_after_ms(refusal.retry_after_ms) }
        }
    }

    /// Sets the field at fault.
    pub fn param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// Locates the error within a field: `place` precedes the message.
    pub fn within(mut self, place: &str, param: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self.param = Some(param.to_owned());
        self
    }

    /// Locates the error in a part of a field: `place` replaces the field's name before the message.
    pub fn at(mut self, place: &str, field: &str) -> Self {
        let named = self.message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
        self.message = format!("{place}: {}", named.unwrap_or(&self.message));
        self.param = Some(field.to_owned());
        self
    }

    /// Names a field as another dialect does, if the error is about it or mentions its value.
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
            if let Some(rest) = self.message.strip_prefix(from).filter(|rest| !rest.starts_with('_')) {
                self.message = format!("{to}{rest}");
            }
        }
        self.message = self.message.replace(&format!(" {from} = "), &format!(" {to} = "));
        self
    }

    /// Adds to the message.
    pub fn also(mut self, more: &str) -> Self {
        self.message = format!("{}; {more}", self.message);
        self
    }

    /// Replaces the code.
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = code;
        self
    }

    /// Adds `Retry-After`.
    pub fn retry_after_ms(mut self, after_ms: u32) -> Self {
        self.retry_after_ms = after_ms;
        self
    }

    /// Tells clients not to retry: the same request would fail again. There is no `Retry-After` then.
    pub fn for_good(mut self) -> Self {
        self.for_good = true;
        self.elsewhere = false;
        self.retry_after_ms = 0;
        self
    }

    /// Closes the connection, because the request was not read to its end.
    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// The message for the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The machine-readable code.
    pub fn reason(&self) -> &'static str {
        self.code
    }

    /// OpenAI's type for errors of this status.
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

    /// Anthropic's form of the error, whose types tell a body that is too large, and what the key may not do.
    pub fn anthropic(&self, request_id: Option<&RequestId>) -> MessagesError {
        let kind = match self.status.as_u16() {
            403 => "permission_error",
            408 => "timeout_error",
            413 => "request_too_large",
            500 | 501 => "api_error",
            _ => self.kind(),
        };
        let message = match self.code {
            // Anthropic's words, by which its agents tell that they must shorten a conversation.
            "context_length_exceeded" | "too_long" => format!("prompt is too long: {}", self.message),
            _ => self.message.clone(),
        };
        let (param, code) = (self.param.clone(), self.code.to_owned());
        MessagesError {
            kind: "error".to_owned(),
            error: MessagesErrorInfo { kind: kind.to_owned(), message, param, code },
            request_id: request_id.map(|id| id.as_str().to_owned()),
        }
    }

    /// The HTTP status.
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

    /// The value of `Retry-After`, if there is one.
    pub(super) fn retry_after_s(&self) -> Option<u32> {
        (self.retry_after_ms > 0).then(|| self.retry_after_ms.div_ceil(1_000))
    }

    /// The value of `x-should-retry`, if there is one. OpenAI's clients retry 429 and 5xx unless it forbids that; routers
    /// can be told to retry what it asks for, and nothing else.
    pub(super) fn should_retry(&self) -> Option<&'static str> {
        match (self.for_good, self.elsewhere) {
            (true, _) => Some("false"),
            (false, true) => Some("true"),
            (false, false) => None,
        }
    }

    /// The JSON body alone.
    pub(super) fn body(&self) -> Vec<u8> {
        serde_json::to_vec(&self.info()).expect("wire types can be written as JSON")
    }

    /// The whole response.
    pub fn into_answer(self) -> Answer {
        let answer = json(self.status, &self.info());
        self.with_headers(answer)
    }

    /// The whole response in the form that a path's clients expect.
    pub fn into_answer_of(self, form: ErrorForm, request_id: &RequestId) -> Answer {
        match form {
            ErrorForm::OpenAi => self.into_answer(),
            ErrorForm::Anthropic => {
                let answer = json(self.status, &self.anthropic(Some(request_id)));
                self.with_headers(answer)
            }
        }
    }

    fn with_headers(self, mut answer: Answer) -> Answer {
        let headers = answer.headers_mut();
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            headers.insert(HeaderName::from_static("retry-after-ms"), HeaderValue::from(self.retry_after_ms));
        }
        if let Some(word) = self.should_retry() {
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static(word));
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
            SubmitError::Busy => Self::unavailable(
                "busy",
                "the engine is in a long step and takes no more requests until it ends; try again later",
            ),
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

/// The beginning and the end of an error, which says what was expected and where. serde_json quotes a text that it didn't
/// expect, however long, and that would go into the response and the log.
pub fn shortened(error: &str) -> String {
    if error.len() <= 2 * END_BYTES {
        return error.to_owned();
    }
    let begin = &error[..error.floor_char_boundary(END_BYTES)];
    let end = &error[error.ceil_char_boundary(error.len() - END_BYTES)..];
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_in_a_part_of_a_field_names_the_field_once() {
        for (error, message) in [
            (ApiError::invalid("tools", "too many"), "tools[1]: too many"),
            (ApiError::invalid("type", "unknown"), "tools[1]: type: unknown"),
            (ApiError::internal("memory", "tools[0]: no memory"), "tools[1]: tools[0]: no memory"),
        ] {
            let error = error.at("tools[1]", "tools");
            assert_eq!((error.message(), error.param.as_deref()), (message, Some("tools")));
        }
    }

    /// Whether there are times for a retry, and what is said about one.
    fn advice(error: ApiError) -> ([bool; 2], Option<String>) {
        let answer = error.into_answer();
        let times = ["retry-after", "retry-after-ms"].map(|name| answer.headers().contains_key(name));
        let word = answer.headers().get("x-should-retry").map(|word| word.to_str().unwrap().to_owned());
        (times, word)
    }

    #[test]
    fn error_for_good_has_no_time_for_a_retry() {
        let unavailable = || ApiError::unavailable("cancelled", "an operator cancelled it");
        assert_eq!(advice(unavailable()), ([true; 2], Some("true".to_owned())));
        assert_eq!(advice(unavailable().for_good()), ([false; 2], Some("false".to_owned())));
        assert_eq!(advice(ApiError::unavailable_here("queue_cleared", "an operator did")), ([true; 2], None));
    }

    #[test]
    fn routers_are_told_to_retry_what_another_host_may_take() {
        let said = |reason, retry_after_ms| {
            advice(ApiError::refused(&Refusal { reason, message: String::new(), retry_after_ms })).1
        };
        for reason in [RefusalReason::QueueFull, RefusalReason::Memory, RefusalReason::Draining] {
            assert_eq!(said(reason, 50).as_deref(), Some("true"), "{reason:?}");
            assert_eq!(said(reason, 0).as_deref(), Some("false"), "{reason:?}");
        }
        assert_eq!(said(RefusalReason::Rate, 50), None, "each host would grant the rate anew");
        assert_eq!(said(RefusalReason::TooLong, 0), None);
    }

    #[test]
    fn field_of_another_dialect_is_renamed_where_the_error_is_about_it() {
        let renamed = |error: ApiError| {
            let error = error.renamed("max_tokens", "max_output_tokens");
            (error.param.unwrap_or_default(), error.message)
        };
        for (error, param, message) in [
            (ApiError::invalid("max_tokens", "too many"), "max_output_tokens", "max_output_tokens: too many"),
            (
                ApiError::invalid("min_tokens", "more than max_tokens = 3"),
                "min_tokens",
                "min_tokens: more than max_output_tokens = 3",
            ),
            (ApiError::invalid("input", "max_tokens: no"), "input", "input: max_tokens: no"),
            (ApiError::internal("memory", "no memory"), "", "no memory"),
        ] {
            assert_eq!(renamed(error), (param.to_owned(), message.to_owned()));
        }
    }
}
