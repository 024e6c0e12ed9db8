//! Bytes of frames. Every frame ends with an empty line; what all chunks of a stream begin with is written once.

use infer_api::usage::Usage;
use serde::Serialize;

use super::group::Totals;
use crate::app::Served;
use crate::http::{ApiError, RequestId};

/// In front of a frame's JSON.
const FIELD: &[u8] = b"data: ";

/// What an OpenAI object says of itself.
#[derive(Clone, Debug)]
pub struct Head {
    /// Of a chunk: everything up to the choices.
    prefix: Vec<u8>,
}

impl Head {
    /// Of an object of a kind.
    pub fn new(
        kind: &str,
        object: &'static str,
        request_id: &RequestId,
        served: &Served,
        created: u64,
    ) -> Self {
        let id = format!("{kind}-{}", request_id.as_str());
        let head = serde_json::json!({
            "id": id, "object": object, "created": created, "model": served.model_names[0]
        });
        let mut prefix = FIELD.to_vec();
        prefix.extend_from_slice(head.to_string().trim_end_matches('}').as_bytes());
        prefix.extend_from_slice(b",\"choices\":");
        Self { prefix }
    }

    /// One chunk.
    pub fn chunk<T: Serialize>(&self, out: &mut Vec<u8>, choices: &[T], usage: Option<&Usage>) {
        out.extend_from_slice(&self.prefix);
        write_json(out, &choices);
        if let Some(usage) = usage {
            out.extend_from_slice(b",\"usage\":");
            write_json(out, usage);
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// A whole object, written choice by choice: with the names of their tokens they are long.
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

/// An event with a name.
pub fn named<T: Serialize>(out: &mut Vec<u8>, event: &str, value: &T) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(event.as_bytes());
    out.push(b'\n');
    data(out, value);
}

/// An event without one.
pub fn data<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    out.extend_from_slice(FIELD);
    write_json(out, value);
    out.extend_from_slice(b"\n\n");
}

/// The end of an OpenAI stream.
pub fn openai_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// An error within an OpenAI stream, and its end.
pub fn openai_error(out: &mut Vec<u8>, error: &ApiError) {
    let error = serde_json::json!({
        "error": {"message": error.message(), "type": error.kind(), "param": null, "code": error.reason()}
    });
    data(out, &error);
    openai_done(out);
}

/// JSON on one line: it has no line break that could end a frame early.
fn write_json<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("wire types can be written as JSON");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_frame_whatever_its_text() {
        let mut out = Vec::new();
        named(&mut out, "token", &serde_json::json!({"token": "a\n\n\"ü"}));
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "event: token\ndata: {\"token\":\"a\\n\\n\\\"ü\"}\n\n");
    }
}
