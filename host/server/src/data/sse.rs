//! Frames of a stream in both dialects. Every frame ends with an empty line.

use infer_api::completions::{Choice, Completion, DoneEvent, ErrorEvent, TokenEvent};
use serde::Serialize;

use super::outcome::{Outcome, openai_reason, reason_name};
use infer_core::FinishReason;

/// How a stream is framed.
#[derive(Clone, Debug)]
pub enum Dialect {
    /// `token`, `done` and `error` events.
    Named,
    /// Unnamed completion chunks, then `[DONE]`.
    OpenAi {
        /// The chunks without choices.
        head: Box<Completion>,
        /// Whether a last chunk carries the usage.
        include_usage: bool,
    },
}

/// A comment that keeps proxies from closing a silent stream.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

impl Dialect {
    /// One token.
    pub fn token(&self, out: &mut Vec<u8>, token: String, token_id: u32) {
        match self {
            Self::Named => named(out, "token", &TokenEvent { token, token_id }),
            Self::OpenAi { head, .. } => data(out, &chunk(head, token, None)),
        }
    }

    /// The end: `done`, or `error`.
    pub fn end(&self, out: &mut Vec<u8>, outcome: &Outcome) {
        match (&outcome.error, outcome.reason) {
            (Some(error), _) => self.error(out, error.message(), error.reason()),
            (None, reason) => self.done(out, outcome, reason.unwrap_or(FinishReason::Cancelled)),
        }
    }

    fn done(&self, out: &mut Vec<u8>, outcome: &Outcome, reason: FinishReason) {
        match self {
            Self::Named => {
                let finish_reason = reason_name(reason).to_owned();
                named(
                    out,
                    "done",
                    &DoneEvent { finish_reason, usage: outcome.usage, timings: outcome.timings },
                );
            }
            Self::OpenAi { head, include_usage } => {
                data(out, &chunk(head, String::new(), Some(openai_reason(reason))));
                if *include_usage {
                    data(out, &Completion { usage: Some(outcome.usage), ..(**head).clone() });
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
        }
    }

    fn error(&self, out: &mut Vec<u8>, message: &str, code: &str) {
        match self {
            Self::Named => {
                named(out, "error", &ErrorEvent { error: message.to_owned(), code: code.to_owned() });
            }
            Self::OpenAi { .. } => {
                let error = serde_json::json!({
                    "error": {"message": message, "type": "server_error", "param": null, "code": code}
                });
                data(out, &error);
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
        }
    }
}

fn chunk(head: &Completion, text: String, reason: Option<&str>) -> Completion {
    let finish_reason = reason.map(str::to_owned);
    Completion { choices: vec![Choice { index: 0, text, logprobs: None, finish_reason }], ..head.clone() }
}

/// An event with a name.
pub fn named<T: Serialize>(out: &mut Vec<u8>, event: &str, value: &T) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(event.as_bytes());
    out.push(b'\n');
    data(out, value);
}

fn data<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    out.extend_from_slice(b"data: ");
    // JSON on one line has no line break that could end a frame early.
    serde_json::to_writer(&mut *out, value).expect("wire types can be written as JSON");
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_frame_whatever_its_text() {
        let mut out = Vec::new();
        Dialect::Named.token(&mut out, "a\n\n\"ü".to_owned(), 7);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "event: token\ndata: {\"token\":\"a\\n\\n\\\"ü\",\"token_id\":7}\n\n");
    }
}
