//! Server-sent events as bytes. Every frame ends with an empty line. The common beginning of a stream's
//! chunks is serialized once.

use infer_api::usage::Usage;
use serde::Serialize;

use crate::data::sequence::group::Totals;
use crate::http::{ApiError, RequestId};

/// Precedes a frame's JSON.
const FIELD: &[u8] = b"data: ";

/// The end of a head.
const CHOICES: &[u8] = b",\"choices\":";

/// The leading fields of an OpenAI object: id, type, time and model.
#[derive(Clone, Debug)]
pub struct Head {
    /// A chunk up to its choices.
    prefix: Vec<u8>,
}

impl Head {
    /// The head of an object. `kind` is the prefix of its id.
    pub fn new(kind: &str, object: &'static str, request_id: &RequestId, model: &str, created: u64) -> Self {
        let id = format!("{kind}-{}", request_id.as_str());
        let head = serde_json::json!({
            "id": id, "object": object, "created": created, "model": model
        });
        let mut prefix = FIELD.to_vec();
        prefix.extend_from_slice(head.to_string().trim_end_matches('}').as_bytes());
        prefix.extend_from_slice(CHOICES);
        Self { prefix }
    }

    /// The same with the ids of a prompt.
    pub fn with_prompt(&self, token_ids: &[u32]) -> Self {
        let mut prefix = self.prefix.clone();
        prefix.truncate(prefix.len() - CHOICES.len());
        prefix.extend_from_slice(b",\"prompt_token_ids\":");
        write_json(&mut prefix, &token_ids);
        prefix.extend_from_slice(CHOICES);
        Self { prefix }
    }

    /// Writes one chunk.
    pub fn chunk<T: Serialize>(&self, out: &mut Vec<u8>, choices: &[T], usage: Option<&Usage>) {
        out.extend_from_slice(&self.prefix);
        write_json(out, &choices);
        if let Some(usage) = usage {
            out.extend_from_slice(b",\"usage\":");
            write_json(out, usage);
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// Returns a whole object. Choices are serialized one by one, because each is large with
    /// log-probabilities.
    pub fn whole<T: Serialize>(&self, choices: impl Iterator<Item = T>, totals: &Totals) -> Vec<u8> {
        let mut out = self.prefix[FIELD.len()..].to_vec();
        let mut before = b'[';
        for choice in choices {
            out.push(before);
            write_json(&mut out, &choice);
            before = b',';
        }
        out.extend_from_slice(b"],\"usage\":");
        write_json(&mut out, &totals.usage);
        out.extend_from_slice(b",\"timings\":");
        write_json(&mut out, &totals.timings);
        out.push(b'}');
        out
    }
}

/// Writes a named event.
pub fn named<T: Serialize>(out: &mut Vec<u8>, event: &str, value: &T) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(event.as_bytes());
    out.push(b'\n');
    data(out, value);
}

/// Writes an event without a name.
pub fn data<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    out.extend_from_slice(FIELD);
    write_json(out, value);
    out.extend_from_slice(b"\n\n");
}

/// Writes the end of an OpenAI stream.
pub fn openai_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// Writes an error in an OpenAI stream, and the stream's end.
pub fn openai_error(out: &mut Vec<u8>, error: &ApiError) {
    let error = serde_json::json!({
        "error": {"message": error.message(), "type": error.kind(), "param": null, "code": error.reason()}
    });
    data(out, &error);
    openai_done(out);
}

/// Writes JSON on one line: a line break would end the frame early.
fn write_json<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("wire types can be written as JSON");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_one_frame_whatever_its_text() {
        let mut out = Vec::new();
        named(&mut out, "token", &serde_json::json!({"token": "a\n\n\"ü"}));
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "event: token\ndata: {\"token\":\"a\\n\\n\\\"ü\"}\n\n");
    }
}
