//! A reply as Anthropic's clients receive it: one body, or named events.

use infer_api::messages::{
    Block, BlockDelta, MessagesEvent, MessagesReply, MessagesUsage, OutputTokensDetails, StopDelta,
};
use infer_api::usage::Usage;
use infer_core::TokenLogprobs;
use serde_json::{Map, Value};

use super::blocks::{Blocks, Change, Thinking};
use super::conversation::INVALID;
use crate::data::chat::{Expected, Speaker, Speech};
use crate::data::response::frames::named;
use crate::data::response::{Frames, Go, Preface, Sink};
use crate::data::sequence::group::Totals;
use crate::data::sequence::outcome::Outcome;
use crate::data::sequence::run::Piece;
use crate::http::ApiError;

/// What is known of a reply before its first token.
pub struct About {
    pub id: String,
    /// The served model.
    pub model: String,
    pub prompt_tokens: u32,
    /// The request's limit.
    pub max_tokens: u32,
    /// What of the reasoning it contains.
    pub thinking: Thinking,
    /// What the reply may contain.
    pub speech: Speech,
}

/// A reply so far, without what it said.
struct Reply {
    about: About,
    speaker: Speaker,
    blocks: Blocks,
    stop: StopDelta,
}

impl Reply {
    fn new(about: About) -> Self {
        let (speaker, blocks) = (Speaker::new(&about.speech), Blocks::new(about.thinking));
        Self { about, speaker, blocks, stop: StopDelta::default() }
    }

    fn token(&mut self, text: String) -> Vec<Change> {
        let parts = self.speaker.token(text);
        self.blocks.push(parts)
    }

    fn end(&mut self, outcome: &Outcome) -> Vec<Change> {
        let mut parts = self.speaker.push(outcome.rest.clone());
        parts.extend(self.speaker.finish());
        let mut changes = self.blocks.push(parts);
        changes.extend(self.blocks.finish());
        self.stop = self.stopped(outcome);
        changes
    }

    /// Why the reply ended, in Anthropic's words.
    fn stopped(&self, outcome: &Outcome) -> StopDelta {
        let Some(reason) = self.speaker.reason(outcome) else { return StopDelta::default() };
        let mut stop_sequence = None;
        let reason = match reason.as_str() {
            "tool_calls" => "tool_use",
            "length" if outcome.usage.completion_tokens < self.about.max_tokens => {
                "model_context_window_exceeded"
            }
            "length" => "max_tokens",
            "stop" if outcome.stop_string.is_some() => {
                stop_sequence.clone_from(&outcome.stop_string);
                "stop_sequence"
            }
            "stop" => "end_turn",
            other => other,
        };
        StopDelta { stop_reason: Some(reason.to_owned()), stop_sequence }
    }

    /// Token counts, of which Anthropic's leave the cached ones out of the input.
    fn usage(&self, usage: &Usage) -> MessagesUsage {
        let cached = usage.prompt_tokens_details.cached_tokens;
        let reasons = self.about.speech.reasoning != Expected::Never;
        let thinking_tokens = self.speaker.reasoning_tokens();
        MessagesUsage {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
            output_tokens_details: reasons.then_some(OutputTokensDetails { thinking_tokens }),
        }
    }

    fn message(&self, content: Vec<Block>, usage: MessagesUsage) -> MessagesReply {
        MessagesReply {
            id: self.about.id.clone(),
            kind: "message".to_owned(),
            role: "assistant".to_owned(),
            model: self.about.model.clone(),
            content,
            stop_reason: self.stop.stop_reason.clone(),
            stop_sequence: self.stop.stop_sequence.clone(),
            usage,
            timings: None,
        }
    }
}

/// Collects a reply for a response of one body.
pub struct MessageBody {
    reply: Reply,
    content: Vec<Block>,
    /// The input of the last tool so far.
    json: String,
}

impl MessageBody {
    /// An empty reply.
    pub fn new(about: About) -> Self {
        Self { reply: Reply::new(about), content: Vec::new(), json: String::new() }
    }

    /// The whole reply.
    pub fn reply(self, totals: &Totals) -> MessagesReply {
        let usage = self.reply.usage(&totals.usage);
        MessagesReply { timings: Some(totals.timings), ..self.reply.message(self.content, usage) }
    }

    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Start(block) => self.content.push(block),
                Change::Delta(delta) => self.grow(delta),
                Change::Stop => {
                    if let Some(Block::ToolUse { input, .. }) = self.content.last_mut() {
                        *input = parsed(std::mem::take(&mut self.json));
                    }
                }
            }
        }
    }

    fn grow(&mut self, delta: BlockDelta) {
        match (delta, self.content.last_mut()) {
            (BlockDelta::TextDelta { text: more }, Some(Block::Text { text })) => text.push_str(&more),
            (BlockDelta::ThinkingDelta { thinking: more }, Some(Block::Thinking { thinking, .. })) => {
                thinking.push_str(&more);
            }
            (BlockDelta::InputJsonDelta { partial_json }, _) => self.json.push_str(&partial_json),
            _ => {}
        }
    }
}

/// The input that a model wrote. One that was cut off, or is no JSON object, is kept as text: a tool can't take it for
/// an input, and it may be sent back.
fn parsed(json: String) -> Map<String, Value> {
    match serde_json::from_str(&json) {
        Ok(Value::Object(input)) => input,
        // The syntax of calls has this word for no arguments.
        Ok(Value::Null) => Map::new(),
        _ => [(INVALID.to_owned(), Value::String(json))].into_iter().collect(),
    }
}

impl Sink for MessageBody {
    fn prompt(&mut self, _choice: usize, _logprobs: Vec<TokenLogprobs>) {}

    fn token(&mut self, _choice: usize, piece: Piece) -> Go {
        let changes = self.reply.token(piece.text);
        self.apply(changes);
        self.reply.speaker.go()
    }

    fn end(&mut self, _choice: usize, outcome: &Outcome) {
        let changes = self.reply.end(outcome);
        self.apply(changes);
    }
}

/// Writes events.
pub struct MessageFrames {
    out: Vec<u8>,
    reply: Reply,
    opened: bool,
    /// Blocks that have begun.
    blocks: u32,
}

impl MessageFrames {
    /// An empty stream.
    pub fn new(about: About) -> Self {
        Self { out: Vec::new(), reply: Reply::new(about), opened: false, blocks: 0 }
    }

    fn event(&mut self, event: &MessagesEvent) {
        named(&mut self.out, event.name(), event);
    }

    /// Writes the first event. How much of the prompt was cached is known only at the end.
    fn open(&mut self) {
        if !std::mem::replace(&mut self.opened, true) {
            let prompt_tokens = self.reply.about.prompt_tokens;
            let usage = self.reply.usage(&Usage { prompt_tokens, ..Usage::default() });
            let message = self.reply.message(Vec::new(), usage);
            self.event(&MessagesEvent::MessageStart { message: Box::new(message) });
        }
    }

    fn write(&mut self, changes: Vec<Change>) {
        for change in changes {
            let event = match change {
                Change::Start(content_block) => {
                    self.blocks += 1;
                    MessagesEvent::ContentBlockStart { index: self.blocks - 1, content_block }
                }
                Change::Delta(delta) => {
                    MessagesEvent::ContentBlockDelta { index: self.blocks.saturating_sub(1), delta }
                }
                Change::Stop => MessagesEvent::ContentBlockStop { index: self.blocks.saturating_sub(1) },
            };
            self.event(&event);
        }
    }
}

impl Sink for MessageFrames {
    fn prompt(&mut self, _choice: usize, _logprobs: Vec<TokenLogprobs>) {}

    fn token(&mut self, _choice: usize, piece: Piece) -> Go {
        self.open();
        let changes = self.reply.token(piece.text);
        self.write(changes);
        self.reply.speaker.go()
    }

    fn end(&mut self, _choice: usize, outcome: &Outcome) {
        self.open();
        let changes = self.reply.end(outcome);
        self.write(changes);
    }
}

impl Frames for MessageFrames {
    fn preface(&mut self, _choice: usize) -> Option<Preface> {
        None
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn done(&mut self, totals: &Totals) {
        let (delta, usage) = (self.reply.stop.clone(), self.reply.usage(&totals.usage));
        self.event(&MessagesEvent::MessageDelta { delta, usage });
        self.event(&MessagesEvent::MessageStop);
    }

    fn failed(&mut self, error: &ApiError) {
        named(&mut self.out, "error", &error.anthropic(None));
    }
}

#[cfg(test)]
mod tests {
    use infer_api::usage::{PromptTokensDetails, Timings};
    use infer_chat::Tools;
    use infer_core::FinishReason;
    use serde_json::json;

    use super::*;

    fn about(reasoning: Expected) -> About {
        let names = vec!["time".to_owned(), "weather".to_owned()];
        About {
            id: "msg_1".to_owned(),
            model: "demo".to_owned(),
            prompt_tokens: 9,
            max_tokens: 5,
            thinking: Thinking::Shown,
            speech: Speech {
                reasoning,
                shaped: false,
                style: Tools::Hermes,
                names,
                forced: false,
                parallel: true,
                opening: None,
            },
        }
    }

    fn outcome(reason: FinishReason, stop_string: Option<&str>) -> Outcome {
        Outcome {
            reason: Some(reason),
            usage: Usage { completion_tokens: 5, ..Usage::default() },
            timings: Timings::default(),
            e2e_ms: 0.0,
            error: None,
            refused: false,
            rest: String::new(),
            stop_string: stop_string.map(str::to_owned),
        }
    }

    fn totals() -> Totals {
        let mut totals = Totals::before(1, 9);
        totals.usage.completion_tokens = 5;
        totals.usage.prompt_tokens_details = PromptTokensDetails { cached_tokens: 4 };
        totals
    }

    fn feed(sink: &mut impl Sink, text: &str, outcome: &Outcome) {
        for letter in text.chars() {
            sink.token(0, Piece { text: letter.to_string(), ..Piece::default() });
        }
        sink.end(0, outcome);
    }

    fn body(text: &str, outcome: &Outcome) -> Value {
        let mut body = MessageBody::new(about(Expected::Tagged));
        feed(&mut body, text, outcome);
        serde_json::to_value(body.reply(&totals())).unwrap()
    }

    #[test]
    fn body_has_blocks_and_anthropics_counts() {
        let text = "<think>Two.</think>\n\nI look.<tool_call>{\"name\": \"time\", \"arguments\": {\"b\": 1, \"a\": [2]}}\
                    </tool_call>\n<tool_call>{\"name\": \"weather\"}</tool_call>";
        let mut reply = body(text, &outcome(FinishReason::Eos, None));
        let thought = reply["usage"]["output_tokens_details"].take();
        assert!(thought["thinking_tokens"].as_u64().unwrap() > 0, "{thought}");
        for at in [2, 3] {
            let id = reply["content"][at]["id"].take();
            assert!(id.as_str().unwrap().starts_with("toolu_"), "{id}");
        }
        let timings = reply["timings"].take();
        assert!(timings.is_object());
        let expected = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "demo",
            "content": [
                {"type": "thinking", "thinking": "Two.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": null, "name": "time", "input": {"b": 1, "a": [2]}},
                {"type": "tool_use", "id": null, "name": "weather", "input": {}},
            ],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
                "output_tokens": 5, "output_tokens_details": null},
            "timings": null,
        });
        assert_eq!(reply, expected);
    }

    #[test]
    fn end_is_told_in_anthropics_words() {
        use FinishReason::{Cancelled, Eos, Length, Stop};
        let call = "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";
        let short = |mut outcome: Outcome| {
            outcome.usage.completion_tokens = 4;
            outcome
        };
        for (text, outcome, reason, sequence) in [
            ("a", outcome(Eos, None), "end_turn", None),
            ("a", outcome(Stop, None), "end_turn", None),
            ("a", outcome(Stop, Some("b")), "stop_sequence", Some("b")),
            ("a", outcome(Length, None), "max_tokens", None),
            ("a", short(outcome(Length, None)), "model_context_window_exceeded", None),
            ("a", outcome(Cancelled, None), "cancelled", None),
            (call, outcome(Eos, None), "tool_use", None),
            (call, outcome(Stop, Some("b")), "tool_use", None),
            (call, outcome(Length, None), "max_tokens", None),
        ] {
            let reply = body(text, &outcome);
            let found = (reply["stop_reason"].as_str(), reply["stop_sequence"].as_str());
            assert_eq!(found, (Some(reason), sequence), "{text}: {outcome:?}");
        }
    }

    #[test]
    fn input_that_is_no_object_is_kept_as_text() {
        let call = |arguments: &str| format!("<tool_call>{{\"name\": \"time\", \"arguments\": {arguments}");
        for (text, input) in [
            (call("{\"a\": [1, "), json!({"INVALID_JSON": "{\"a\": [1, "})),
            (call("{\"a\": oops}}</tool_call>"), json!({"INVALID_JSON": "{\"a\": oops}"})),
            (call("[1]}</tool_call>"), json!({"INVALID_JSON": "[1]"})),
            (call("null}</tool_call>"), json!({})),
            ("<tool_call>{\"name\": \"time\", ".to_owned(), json!({"INVALID_JSON": ""})),
        ] {
            let reply = body(&text, &outcome(FinishReason::Length, None));
            assert_eq!(reply["content"][0]["input"], input, "{text}");
        }
    }

    #[test]
    fn stream_tells_the_same_in_order() {
        let text =
            "<think>Two.</think>Hi<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": 1}}</tool_call>";
        let mut frames = MessageFrames::new(about(Expected::Tagged));
        feed(&mut frames, text, &outcome(FinishReason::Eos, None));
        frames.done(&totals());
        let written = String::from_utf8(std::mem::take(frames.buffer())).unwrap();
        let mut events = Vec::new();
        let mut texts = [String::new(), String::new(), String::new()];
        for frame in written.split_terminator("\n\n") {
            let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            if name == "content_block_delta" {
                let at = data["index"].as_u64().unwrap() as usize;
                let key = ["thinking", "text", "partial_json"][at];
                texts[at].push_str(data["delta"][key].as_str().unwrap());
            } else {
                events.push((name.to_owned(), data));
            }
        }
        assert_eq!(texts, ["Two.", "Hi", "{\"a\": 1}"]);
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        let (start, stop) = ("content_block_start", "content_block_stop");
        let expected =
            ["message_start", start, stop, start, stop, start, stop, "message_delta", "message_stop"];
        assert_eq!(names, expected);
        let first = &events[0].1["message"];
        assert_eq!((&first["content"], &first["stop_reason"]), (&json!([]), &Value::Null));
        assert_eq!(first["usage"]["input_tokens"], 9);
        let last = &events[7].1;
        assert_eq!(last["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
        let counts =
            ["input_tokens", "cache_read_input_tokens", "output_tokens"].map(|name| &last["usage"][name]);
        assert_eq!(counts, [5, 4, 5]);
    }

    #[test]
    fn stream_that_fails_ends_with_the_error() {
        let mut frames = MessageFrames::new(about(Expected::Never));
        frames.failed(&ApiError::too_late("too slow"));
        let written = String::from_utf8(std::mem::take(frames.buffer())).unwrap();
        let data = written.strip_prefix("event: error\ndata: ").expect("one event");
        let expected = json!({"type": "error", "error": {"type": "timeout_error", "message": "too slow",
            "param": null, "code": "request_timeout"}});
        assert_eq!(serde_json::from_str::<Value>(data).unwrap(), expected);
    }
}
