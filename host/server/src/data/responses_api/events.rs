//! The events of a streamed response as bytes, each with its name and its number.

use infer_api::chat::TokenLogprob;
use infer_api::responses::{
    DeltaEvent, DoneTextEvent, FailureEvent, ItemEvent, OutputItem, OutputPart, PartEvent, Response,
    ResponseEvent,
};

use crate::data::response::frames::named;
use crate::http::ApiError;

/// Events that are not sent yet.
#[derive(Default)]
pub struct Events {
    out: Vec<u8>,
    /// Number of the next event.
    next: u32,
}

impl Events {
    /// The bytes of all events since they were last taken.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The beginning or the end of the response.
    pub fn response(&mut self, kind: &str, response: &Response) {
        let sequence_number = self.number();
        named(&mut self.out, kind, &ResponseEvent { kind, sequence_number, response });
    }

    /// The beginning or the end of an item.
    pub fn item(&mut self, kind: &str, output_index: usize, item: &OutputItem) {
        let sequence_number = self.number();
        named(&mut self.out, kind, &ItemEvent { kind, sequence_number, output_index, item });
    }

    /// The beginning or the end of an item's only part.
    pub fn part(&mut self, kind: &str, output_index: usize, item_id: &str, part: &OutputPart) {
        let sequence_number = self.number();
        let event = PartEvent { kind, sequence_number, item_id, output_index, content_index: 0, part };
        named(&mut self.out, kind, &event);
    }

    /// What is added to an item's text.
    pub fn delta(&mut self, output_index: usize, item: &OutputItem, delta: &str, logprobs: &[TokenLogprob]) {
        let (kind, item_id, logprobs) = match item {
            OutputItem::Reasoning { id, .. } => ("response.reasoning_text.delta", id, None),
            OutputItem::Message { id, .. } => ("response.output_text.delta", id, Some(logprobs)),
            OutputItem::FunctionCall { id, .. } => ("response.function_call_arguments.delta", id, None),
        };
        let content_index = (!matches!(item, OutputItem::FunctionCall { .. })).then_some(0);
        let sequence_number = self.number();
        let event =
            DeltaEvent { kind, sequence_number, item_id, output_index, content_index, delta, logprobs };
        named(&mut self.out, kind, &event);
    }

    /// The end of an item: of its text, of its part, and of itself.
    pub fn done(&mut self, output_index: usize, item: &OutputItem) {
        let event = DoneTextEvent {
            kind: "response.function_call_arguments.done",
            sequence_number: self.number(),
            item_id: "",
            output_index,
            content_index: Some(0),
            text: None,
            logprobs: None,
            name: None,
            arguments: None,
        };
        match item {
            OutputItem::FunctionCall { id: item_id, name, arguments, .. } => {
                let (name, arguments) = (Some(name.as_str()), Some(arguments.as_str()));
                let event = DoneTextEvent { item_id, content_index: None, name, arguments, ..event };
                named(&mut self.out, event.kind, &event);
            }
            OutputItem::Reasoning { id: item_id, content, .. }
            | OutputItem::Message { id: item_id, content, .. } => {
                let part = &content[0];
                let (kind, text, logprobs) = match part {
                    OutputPart::OutputText { text, .. } => ("response.output_text.done", text, Some(&[][..])),
                    OutputPart::ReasoningText { text } => ("response.reasoning_text.done", text, None),
                };
                let event = DoneTextEvent { kind, item_id, text: Some(text), logprobs, ..event };
                named(&mut self.out, kind, &event);
                self.part("response.content_part.done", output_index, item_id, part);
            }
        }
        self.item("response.output_item.done", output_index, item);
    }

    /// Why the stream ends early.
    pub fn error(&mut self, error: &ApiError) {
        let (kind, sequence_number) = ("error", self.number());
        let (code, message) = (error.reason(), error.message());
        named(&mut self.out, kind, &FailureEvent { kind, sequence_number, code, message, param: None });
    }
}
