//! A chat's choices as the client receives them: text, calls, log-probabilities.

use infer_api::chat::{CalledFunction, ChatChoice, ChatChunkChoice, ChatLogprobs, Delta, Reply, ToolCall};
use infer_api::usage::Usage;
use infer_chat::Tools;
use infer_core::{FinishReason, TokenLogprobs};
use infer_model::Tokenizer;

use super::calls::{Calls, Part};
use crate::data::request::common::StreamOptions;
use crate::data::response::frames::{Head, openai_done, openai_error};
use crate::data::response::logprobs::{NAME_BYTES, push_chat};
use crate::data::response::{Frames, Go, Preface, Sink};
use crate::data::sequence::group::Totals;
use crate::data::sequence::outcome::{Outcome, openai_reason};
use crate::data::sequence::run::Piece;
use crate::http::ApiError;

/// What all replies of a request share.
pub struct Replies {
    /// The syntax of the model's calls.
    pub style: Tools,
    /// Functions that the model may call; none if the prompt offers none.
    pub names: Vec<String>,
    /// Whether it may call several.
    pub parallel: bool,
    /// Present if log-probabilities are requested.
    pub logprobs: Option<Tokenizer>,
}

/// Splits one choice's reply into parts.
struct Speaker {
    calls: Option<Calls>,
    parallel: bool,
    /// Number of calls that have begun.
    begun: u32,
    /// The only allowed call has ended.
    satisfied: bool,
}

impl Replies {
    fn speaker(&self) -> Speaker {
        let calls = (!self.names.is_empty()).then(|| Calls::new(self.style, self.names.clone()));
        Speaker { calls, parallel: self.parallel, begun: 0, satisfied: false }
    }

    fn logprobs(&self, piece: &Piece) -> Option<ChatLogprobs> {
        let (tokenizer, of) = (self.logprobs.as_ref()?, piece.logprobs.as_deref()?);
        let mut list = ChatLogprobs::default();
        push_chat(&mut list, tokenizer, piece.token, of);
        Some(list)
    }
}

impl Speaker {
    fn push(&mut self, text: String) -> Vec<Part> {
        let parts = match &mut self.calls {
            Some(calls) => calls.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Text(text)],
        };
        self.allowed(parts)
    }

    fn finish(&mut self) -> Vec<Part> {
        let parts = self.calls.as_mut().map(Calls::finish).unwrap_or_default();
        self.allowed(parts)
    }

    /// Drops what follows the only allowed call.
    fn allowed(&mut self, parts: Vec<Part>) -> Vec<Part> {
        let mut allowed = Vec::with_capacity(parts.len());
        for part in parts {
            if self.satisfied {
                break;
            }
            match part {
                Part::Call { .. } => self.begun += 1,
                Part::Done => self.satisfied = !self.parallel,
                _ => {}
            }
            allowed.push(part);
        }
        allowed
    }

    fn go(&self) -> Go {
        if self.satisfied { Go::Stop } else { Go::On }
    }

    fn reason(&self, outcome: &Outcome) -> Option<String> {
        let reason = outcome.reason?;
        let called = self.begun > 0 && matches!(reason, FinishReason::Eos | FinishReason::Stop);
        Some(if called { "tool_calls" } else { openai_reason(reason) }.to_owned())
    }
}

/// A random id for a call, which its `tool` message refers to.
fn call_id() -> String {
    let random = || getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    format!("call_{:016x}{:08x}", random(), random() >> 32)
}

fn begin_call(index: Option<u32>, name: String) -> ToolCall {
    let function = CalledFunction { name: Some(name), arguments: String::new() };
    ToolCall { index, id: Some(call_id()), kind: Some("function".to_owned()), function }
}

/// Collects choices for a response of one body.
pub struct ChatBody {
    replies: Replies,
    speakers: Vec<Speaker>,
    choices: Vec<ChatChoice>,
    /// Log-probabilities of each choice's tokens, if requested.
    logprobs: Vec<Vec<(u32, Box<TokenLogprobs>)>>,
}

impl ChatBody {
    /// A body of this many choices.
    pub fn new(choices: usize, replies: Replies) -> Self {
        let choice = |index| {
            let message = Reply { role: "assistant".to_owned(), ..Reply::default() };
            ChatChoice { index: index as u32, message, logprobs: None, finish_reason: None }
        };
        Self {
            speakers: (0..choices).map(|_| replies.speaker()).collect(),
            choices: (0..choices).map(choice).collect(),
            logprobs: vec![Vec::new(); choices],
            replies,
        }
    }

    /// Estimated bytes of token names to serialize.
    pub fn spelled_bytes(&self) -> usize {
        self.logprobs.iter().flatten().map(|(_, of)| NAME_BYTES * (of.top.len() + 1)).sum()
    }

    /// The body as JSON.
    pub fn written(self, head: &Head, totals: &Totals, tokenizer: &Tokenizer) -> Vec<u8> {
        let asked = self.replies.logprobs.is_some();
        let choices = self.choices.into_iter().zip(self.logprobs).map(|(mut choice, logprobs)| {
            choice.logprobs = asked.then(|| {
                let mut list = ChatLogprobs::default();
                logprobs.iter().for_each(|(token, of)| push_chat(&mut list, tokenizer, *token, of));
                list
            });
            choice
        });
        head.whole(choices, totals)
    }

    fn add(&mut self, choice: usize, parts: Vec<Part>) {
        let message = &mut self.choices[choice].message;
        for part in parts {
            match part {
                Part::Text(text) => message.content.get_or_insert_default().push_str(&text),
                Part::Call { name } => message.tool_calls.push(begin_call(None, name)),
                Part::Arguments(text) => {
                    if let Some(call) = message.tool_calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
                Part::Done => {}
            }
        }
    }
}

impl Sink for ChatBody {
    fn prompt(&mut self, _choice: usize, _logprobs: Vec<TokenLogprobs>) {}

    fn token(&mut self, at: usize, piece: Piece) -> Go {
        if let Some(of) = piece.logprobs {
            self.logprobs[at].push((piece.token, of));
        }
        let parts = self.speakers[at].push(piece.text);
        self.add(at, parts);
        self.speakers[at].go()
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        let mut parts = self.speakers[at].push(outcome.rest.clone());
        parts.extend(self.speakers[at].finish());
        self.add(at, parts);
        let choice = &mut self.choices[at];
        choice.finish_reason = self.speakers[at].reason(outcome);
        if choice.message.tool_calls.is_empty() {
            choice.message.content.get_or_insert_default();
        }
    }
}

/// Writes chunks.
pub struct ChatFrames {
    out: Vec<u8>,
    head: Head,
    options: StreamOptions,
    replies: Replies,
    speakers: Vec<Speaker>,
    /// By choice: whether its first chunk is written.
    opened: Vec<bool>,
    usage: Usage,
}

impl ChatFrames {
    /// Frames of this many choices.
    pub fn new(
        head: Head,
        choices: usize,
        replies: Replies,
        options: Option<StreamOptions>,
        prompt_tokens: u32,
    ) -> Self {
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
        Self {
            out: Vec::new(),
            head,
            options: options.unwrap_or_default(),
            speakers: (0..choices).map(|_| replies.speaker()).collect(),
            opened: vec![false; choices],
            replies,
            usage,
        }
    }

    fn chunk(&mut self, at: usize, delta: Delta, logprobs: Option<ChatLogprobs>, reason: Option<String>) {
        let choice = ChatChunkChoice { index: at as u32, delta, logprobs, finish_reason: reason };
        let usage = self.options.continuous_usage.then_some(&self.usage);
        self.head.chunk(&mut self.out, &[choice], usage);
    }

    /// Writes the first chunk, which has the role.
    fn open(&mut self, at: usize) {
        if !std::mem::replace(&mut self.opened[at], true) {
            let delta = Delta {
                role: Some("assistant".to_owned()),
                content: Some(String::new()),
                tool_calls: Vec::new(),
            };
            self.chunk(at, delta, None, None);
        }
    }

    fn write(&mut self, at: usize, parts: Vec<Part>, mut logprobs: Option<ChatLogprobs>) {
        // The number of calls before these parts.
        let starting = parts.iter().filter(|part| matches!(part, Part::Call { .. })).count() as u32;
        let mut begun = self.speakers[at].begun - starting;
        for part in parts {
            let mut delta = Delta::default();
            match part {
                Part::Text(text) => delta.content = Some(text),
                Part::Call { name } => {
                    delta.tool_calls.push(begin_call(Some(begun), name));
                    begun += 1;
                }
                Part::Arguments(arguments) => {
                    let index = Some(begun.saturating_sub(1));
                    let function = CalledFunction { name: None, arguments };
                    delta.tool_calls.push(ToolCall { index, function, ..ToolCall::default() });
                }
                Part::Done => continue,
            }
            self.chunk(at, delta, logprobs.take(), None);
        }
        if logprobs.is_some() {
            self.chunk(at, Delta { content: Some(String::new()), ..Delta::default() }, logprobs, None);
        }
    }
}

impl Sink for ChatFrames {
    fn prompt(&mut self, _choice: usize, _logprobs: Vec<TokenLogprobs>) {}

    fn token(&mut self, at: usize, piece: Piece) -> Go {
        self.open(at);
        self.usage.completion_tokens += 1;
        self.usage.total_tokens += 1;
        let logprobs = self.replies.logprobs(&piece);
        let parts = self.speakers[at].push(piece.text);
        self.write(at, parts, logprobs);
        self.speakers[at].go()
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        self.open(at);
        let rest = self.speakers[at].push(outcome.rest.clone());
        self.write(at, rest, None);
        let parts = self.speakers[at].finish();
        self.write(at, parts, None);
        let reason = self.speakers[at].reason(outcome);
        self.chunk(at, Delta::default(), None, reason);
    }
}

impl Frames for ChatFrames {
    fn preface(&mut self, _choice: usize) -> Option<Preface> {
        None
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn done(&mut self, totals: &Totals) {
        if self.options.include_usage {
            self.head.chunk::<ChatChunkChoice>(&mut self.out, &[], Some(&totals.usage));
        }
        openai_done(&mut self.out);
    }

    fn failed(&mut self, error: &ApiError) {
        openai_error(&mut self.out, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_the_one_call_allowed_even_if_it_is_broken() {
        let broken = "<tool_call>{\"name\": \"time\" oops</tool_call>";
        let whole = "<tool_call>{\"name\": \"time\"}</tool_call>";
        for first in [broken, whole] {
            let names = vec!["time".to_owned(), "weather".to_owned()];
            let replies = Replies { style: Tools::Hermes, names, parallel: false, logprobs: None };
            let mut speaker = replies.speaker();
            let mut parts = speaker.push(first.to_owned());
            assert_eq!(speaker.go(), Go::Stop, "{first}");
            parts.extend(speaker.push("<tool_call>{\"name\": \"weather\"}</tool_call> and more".to_owned()));
            parts.extend(speaker.finish());
            let name = "time".to_owned();
            let expected = [Part::Call { name }, Part::Arguments("{}".to_owned()), Part::Done];
            assert_eq!(parts, expected, "{first}");
        }
    }
}
