//! A response as the client receives it: items of reasoning, text and calls, as one body or as events.
//!
//! The same code gathers the items in both cases, so a stream ends with the body that it would have been. Only
//! log-probabilities come with the deltas alone, because each of the last four events would repeat them.

use infer_api::chat::{ChatLogprobs, TokenLogprob};
use infer_api::responses::{
    IncompleteDetails, InputTokensDetails, OutputItem, OutputPart, Response, ResponseError, ResponseUsage,
};
use infer_api::usage::CompletionTokensDetails;
use infer_core::{FinishReason, TokenLogprobs};
use infer_model::Tokenizer;

use super::events::Events;
use super::tools::Spaces;
use crate::data::chat::{Part, Replies, Speaker, is_object, random_id};
use crate::data::response::logprobs::{NAME_BYTES, push_chat};
use crate::data::response::{Frames, Go, Preface, Sink};
use crate::data::sequence::group::Totals;
use crate::data::sequence::outcome::Outcome;
use crate::data::sequence::run::Piece;
use crate::engine::Clock;
use crate::http::{ApiError, Room};

const IN_PROGRESS: &str = "in_progress";
const COMPLETED: &str = "completed";
const INCOMPLETE: &str = "incomplete";

/// A token, and what the model thought of it and of others.
type Told = (u32, Box<TokenLogprobs>);

/// Gathers a response, and writes its events if it is streamed.
pub struct Reply {
    response: Response,
    /// The share in the memory budget of what it repeats of the request.
    _room: Room,
    speaker: Speaker,
    /// The functions that are called by two names.
    spaces: Spaces,
    clock: Clock,
    /// Whether the last item may go on.
    open: bool,
    /// Present if log-probabilities are requested.
    spelling: Option<Tokenizer>,
    /// Tokens whose text is still held back, or belongs to no message.
    pending: Vec<Told>,
    /// Tokens of messages, each with its item's position. None in a stream.
    told: Vec<(usize, Told)>,
    /// Present in a stream.
    events: Option<Events>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
}

impl Reply {
    /// A response whose output is still empty.
    pub fn new(response: Response, room: Room, spaces: Spaces, replies: &Replies, clock: Clock) -> Self {
        Self {
            response,
            _room: room,
            speaker: Speaker::new(&replies.speech),
            spaces,
            clock,
            open: false,
            spelling: replies.logprobs.clone(),
            pending: Vec::new(),
            told: Vec::new(),
            events: None,
        }
    }

    /// The same as a stream, with its first events, which wait for no token.
    pub fn streamed(self) -> Self {
        let mut events = Events::default();
        events.response("response.created", &self.response);
        events.response("response.in_progress", &self.response);
        Self { events: Some(events), ..self }
    }

    /// Estimated bytes of token names to serialize.
    pub fn spelled_bytes(&self) -> usize {
        self.told.iter().map(|(_, (_, of))| NAME_BYTES * (of.top.len() + 1)).sum()
    }

    /// The body as JSON.
    pub fn written(mut self, totals: &Totals, tokenizer: &Tokenizer) -> Vec<u8> {
        self.total(totals);
        let mut lists: Vec<ChatLogprobs> = vec![ChatLogprobs::default(); self.response.output.len()];
        for (at, (token, of)) in &self.told {
            push_chat(&mut lists[*at], tokenizer, *token, of);
        }
        for (item, list) in self.response.output.iter_mut().zip(lists) {
            if let OutputItem::Message { content, .. } = item
                && let Some(OutputPart::OutputText { logprobs, .. }) = content.first_mut()
            {
                *logprobs = list.content;
            }
        }
        serde_json::to_vec(&self.response).expect("wire types can be written as JSON")
    }

    fn write(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Reasoning(text) => {
                    self.go_on(Kind::Reasoning);
                    self.add(&text);
                }
                Part::Text(text) => {
                    self.go_on(Kind::Message);
                    self.add(&text);
                }
                Part::Call { name } => {
                    self.close(COMPLETED);
                    let (namespace, name) = match self.spaces.get(&name) {
                        Some((space, name)) => (Some(space.clone()), name.clone()),
                        None => (None, name),
                    };
                    self.begin(OutputItem::FunctionCall {
                        id: random_id("fc"),
                        status: IN_PROGRESS.to_owned(),
                        arguments: String::new(),
                        call_id: random_id("call"),
                        name,
                        namespace,
                    });
                }
                Part::Arguments(text) => self.add(&text),
                Part::Done => self.close(COMPLETED),
                Part::Broken => self.close(INCOMPLETE),
            }
        }
    }

    /// Makes sure that an item of this kind is the last one and open.
    fn go_on(&mut self, kind: Kind) {
        if self.open && self.response.output.last().and_then(kind_of) == Some(kind) {
            return;
        }
        self.close(COMPLETED);
        let (status, content) = (IN_PROGRESS.to_owned(), Vec::new());
        let (item, part) = match kind {
            Kind::Reasoning => (
                OutputItem::Reasoning { id: random_id("rs"), summary: Vec::new(), content, status },
                OutputPart::ReasoningText { text: String::new() },
            ),
            Kind::Message => (
                OutputItem::Message { id: random_id("msg"), status, role: "assistant".to_owned(), content },
                OutputPart::OutputText { text: String::new(), annotations: Vec::new(), logprobs: Vec::new() },
            ),
        };
        self.begin(item);
        let at = self.response.output.len() - 1;
        if let OutputItem::Reasoning { id, content, .. } | OutputItem::Message { id, content, .. } =
            &mut self.response.output[at]
        {
            content.push(part);
            if let Some(events) = &mut self.events {
                events.part("response.content_part.added", at, id, &content[0]);
            }
        }
    }

    fn begin(&mut self, item: OutputItem) {
        if let Some(events) = &mut self.events {
            events.item("response.output_item.added", self.response.output.len(), &item);
        }
        self.response.output.push(item);
        self.open = true;
    }

    /// Adds text to the last item.
    fn add(&mut self, more: &str) {
        let Some(at) = self.response.output.len().checked_sub(1).filter(|_| self.open) else { return };
        let item = &mut self.response.output[at];
        if let Some(text) = text_of(item) {
            text.push_str(more);
        }
        let logprobs = match kind_of(item) {
            Some(Kind::Message) => self.settled(at),
            _ => {
                self.pending.clear();
                Vec::new()
            }
        };
        if let Some(events) = &mut self.events {
            events.delta(at, &self.response.output[at], more, &logprobs);
        }
    }

    /// The log-probabilities of the tokens that a message got text from: written in a stream, else kept as numbers.
    fn settled(&mut self, at: usize) -> Vec<TokenLogprob> {
        let pending = std::mem::take(&mut self.pending);
        let mut list = ChatLogprobs::default();
        match (&self.spelling, &self.events) {
            (Some(tokenizer), Some(_)) => {
                pending.iter().for_each(|(token, of)| push_chat(&mut list, tokenizer, *token, of));
            }
            _ => self.told.extend(pending.into_iter().map(|told| (at, told))),
        }
        list.content
    }

    /// Ends the last item, if it is open. A call whose arguments are no object is never complete.
    fn close(&mut self, status: &str) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let at = self.response.output.len() - 1;
        let item = &mut self.response.output[at];
        let callable = !matches!(item, OutputItem::FunctionCall { arguments, .. } if !is_object(arguments));
        set_status(item, if callable { status } else { INCOMPLETE });
        if let Some(events) = &mut self.events {
            events.done(at, item);
        }
    }

    fn total(&mut self, totals: &Totals) {
        let usage = &totals.usage;
        self.response.usage = Some(ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: CompletionTokensDetails {
                reasoning_tokens: self.speaker.reasoning_tokens(),
            },
            total_tokens: usage.total_tokens,
        });
        self.response.timings = Some(totals.timings);
    }
}

fn kind_of(item: &OutputItem) -> Option<Kind> {
    match item {
        OutputItem::Reasoning { .. } => Some(Kind::Reasoning),
        OutputItem::Message { .. } => Some(Kind::Message),
        OutputItem::FunctionCall { .. } => None,
    }
}

/// The text that an item consists of.
fn text_of(item: &mut OutputItem) -> Option<&mut String> {
    match item {
        OutputItem::FunctionCall { arguments, .. } => Some(arguments),
        OutputItem::Reasoning { content, .. } | OutputItem::Message { content, .. } => {
            match content.first_mut()? {
                OutputPart::OutputText { text, .. } | OutputPart::ReasoningText { text } => Some(text),
            }
        }
    }
}

fn set_status(item: &mut OutputItem, to: &str) {
    let (OutputItem::Reasoning { status, .. }
    | OutputItem::Message { status, .. }
    | OutputItem::FunctionCall { status, .. }) = item;
    to.clone_into(status);
}

impl Sink for Reply {
    fn prompt(&mut self, _choice: usize, _logprobs: Vec<TokenLogprobs>) {}

    fn token(&mut self, _choice: usize, piece: Piece) -> Go {
        self.pending.extend(piece.logprobs.map(|of| (piece.token, of)));
        let aside = self.speaker.is_aside();
        let parts = self.speaker.token(piece.text);
        let speaks = parts.iter().any(|part| matches!(part, Part::Text(_)));
        self.write(parts);
        if self.speaker.is_aside() || aside && !speaks {
            self.pending.clear();
        }
        self.speaker.go()
    }

    fn end(&mut self, _choice: usize, outcome: &Outcome) {
        let mut parts = self.speaker.push(outcome.rest.clone());
        parts.extend(self.speaker.finish());
        self.write(parts);
        let cut = matches!(outcome.reason, Some(FinishReason::Length | FinishReason::Cancelled));
        let calling = matches!(self.response.output.last(), Some(OutputItem::FunctionCall { .. }));
        self.close(if cut || calling { INCOMPLETE } else { COMPLETED });
        // Clients look for a message where there is no call.
        let only_reasons = self.response.output.iter().all(|item| kind_of(item) == Some(Kind::Reasoning));
        if only_reasons && !cut {
            self.go_on(Kind::Message);
            self.close(COMPLETED);
        }
        let status = match outcome.reason {
            Some(FinishReason::Length) => {
                let reason = "max_output_tokens".to_owned();
                self.response.incomplete_details = Some(IncompleteDetails { reason });
                INCOMPLETE
            }
            Some(FinishReason::Cancelled) => "cancelled",
            _ => {
                self.response.completed_at = Some(self.clock.unix_s());
                COMPLETED
            }
        };
        status.clone_into(&mut self.response.status);
    }
}

impl Frames for Reply {
    fn preface(&mut self, _choice: usize) -> Option<Preface> {
        None
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        self.events.get_or_insert_default().buffer()
    }

    fn done(&mut self, totals: &Totals) {
        self.total(totals);
        // A cancelled response has no event of its own, and this one says that it is not whole.
        let kind =
            if self.response.status == COMPLETED { "response.completed" } else { "response.incomplete" };
        if let Some(events) = &mut self.events {
            events.response(kind, &self.response);
        }
    }

    fn failed(&mut self, error: &ApiError) {
        // Without its last events: a client would make a call that is cut off.
        if let Some(item) = self.response.output.last_mut().filter(|_| self.open) {
            set_status(item, INCOMPLETE);
        }
        let code = if error.status().as_u16() == 429 { "rate_limit_exceeded" } else { "server_error" };
        let (code, message) = (code.to_owned(), error.message().to_owned());
        self.response.error = Some(ResponseError { code, message });
        "failed".clone_into(&mut self.response.status);
        if let Some(events) = &mut self.events {
            events.error(error);
            events.response("response.failed", &self.response);
        }
    }
}
