//! Parses server-sent events: bytes in, frames out. Covers the part of the format that the admin plane uses:
//! `event`, `data`, comments, and the empty line that ends a frame. `id` and `retry` are ignored. Frames are
//! bounded, so a peer that never ends one causes an error instead of exhausting memory.

use infer_api::admin::{AdminEvent, Change, MAX_STATE_BYTES, State};

use super::ConnError;

/// Largest accepted frame: the largest snapshot.
const MAX_FRAME_BYTES: usize = MAX_STATE_BYTES;

/// One event as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its `event:` line; empty if there was none.
    pub name: String,
    /// Its `data:` lines, joined by newlines.
    pub data: String,
}

/// Splits a byte stream into frames, independent of how the stream was chunked.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    frame: Frame,
    has_data: bool,
}

impl Parser {
    /// Takes a chunk and returns the frames that it completes.
    ///
    /// # Errors
    /// [`ConnError::Protocol`] for a frame over the bound and for text that isn't UTF-8.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<Frame>, ConnError> {
        let mut frames = Vec::new();
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + self.frame.data.len() + part.len() > MAX_FRAME_BYTES {
                return Err(ConnError::Protocol(format!("an event is larger than {MAX_FRAME_BYTES} bytes")));
            }
            self.line.extend_from_slice(part);
            if self.line.last() == Some(&b'\n') {
                self.end_line(&mut frames)?;
            }
        }
        Ok(frames)
    }

    fn end_line(&mut self, frames: &mut Vec<Frame>) -> Result<(), ConnError> {
        let bytes = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&bytes)
            .map_err(|_| ConnError::Protocol("the event stream is not UTF-8".to_owned()))?
            .trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            if std::mem::take(&mut self.has_data) {
                frames.push(frame);
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.frame.name),
            "data" => {
                if self.has_data {
                    self.frame.data.push('\n');
                }
                self.has_data = true;
                self.frame.data.push_str(value);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the event that a frame carries: named by the frame, or in the tagged form of [`AdminEvent`] in its
/// data. `None` for an unknown event, because a newer host may send more kinds.
///
/// # Errors
/// [`ConnError::Protocol`] if a known event has an unexpected shape.
pub fn decode(frame: &Frame) -> Result<Option<AdminEvent>, ConnError> {
    // Snapshots and changes are most of the traffic: parse them straight into their type.
    if frame.name == "snapshot"
        && let Ok(state) = serde_json::from_str::<State>(&frame.data)
    {
        return Ok(Some(AdminEvent::Snapshot(Box::new(state))));
    }
    if frame.name == "change"
        && let Ok(change) = serde_json::from_str::<Change>(&frame.data)
    {
        return Ok(Some(AdminEvent::Change(Box::new(change))));
    }
    let value: serde_json::Value = serde_json::from_str(&frame.data)
        .map_err(|error| ConnError::Protocol(format!("event `{}` is not JSON: {error}", frame.name)))?;
    let tagged = value.get("event").is_some() && value.get("data").is_some();
    let tagged = if tagged { value } else { serde_json::json!({"event": frame.name, "data": value}) };
    let name = tagged["event"].as_str().unwrap_or_default().to_owned();
    if !["snapshot", "change", "swap", "fault", "refusal", "preemption", "lagged", "canary"]
        .contains(&name.as_str())
    {
        return Ok(None);
    }
    serde_json::from_value(tagged)
        .map(Some)
        .map_err(|error| ConnError::Protocol(format!("event `{name}` has an unexpected shape: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(chunks: &[&[u8]]) -> Vec<Frame> {
        let mut parser = Parser::default();
        chunks.iter().flat_map(|chunk| parser.push(chunk).unwrap()).collect()
    }

    #[test]
    fn frames_are_whole_however_the_stream_is_chunked() {
        let text = b": hello\r\n\r\nevent: swap\r\ndata: {\"a\":\ndata: 1}\n\nid: 3\ndata:x\n\ndata: cut";
        let want = vec![
            Frame { name: "swap".into(), data: "{\"a\":\n1}".into() },
            Frame { name: String::new(), data: "x".into() },
        ];
        assert_eq!(frames(&[text]), want);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(frames(&bytes), want);
    }

    #[test]
    fn an_endless_frame_is_an_error() {
        let mut parser = Parser::default();
        let chunk = vec![b'x'; 1 << 20];
        let pushes = (MAX_FRAME_BYTES >> 20) + 1;
        let error = (0..pushes).find_map(|_| parser.push(&chunk).err()).expect("bounded");
        assert!(error.to_string().contains("larger than"), "{error}");
    }

    #[test]
    fn both_forms_of_an_event_are_decoded_and_unknown_events_skipped() {
        let frame = |name: &str, data: &str| Frame { name: name.into(), data: data.into() };
        let want = Some(AdminEvent::Preemption { id: 7 });
        assert_eq!(decode(&frame("preemption", r#"{"id":7}"#)).unwrap(), want);
        assert_eq!(decode(&frame("preemption", r#"{"event":"preemption","data":{"id":7}}"#)).unwrap(), want);
        assert_eq!(decode(&frame("weather", "{}")).unwrap(), None);
        assert!(decode(&frame("swap", r#"{"kind":1}"#)).is_err());
        let state = serde_json::to_string(&State::default()).unwrap();
        assert!(matches!(decode(&frame("snapshot", &state)).unwrap(), Some(AdminEvent::Snapshot(_))));
    }
}
