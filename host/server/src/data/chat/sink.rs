//! A chat's choices as the client receives them: reasoning, text, calls, log-probabilities.

use infer_api::chat::{CalledFunction, ChatChoice, ChatChunkChoice, ChatLogprobs, Delta, Reply, ToolCall};
use infer_api::usage::{CompletionTokensDetails, Usage};
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::calls::Part;
use super::reasoning::Expected;
use super::speaker::{Speaker, Speech};
use crate::data::request::common::StreamOptions;
use crate::data::response::echo::ID_BYTES;
use crate::data::response::frames::{Head, openai_done, openai_error};
use crate::data::response::logprobs::{NAME_BYTES, push_chat};
use crate::data::response::{Frames, Go, Preface, Sink};
use crate::data::sequence::group::Totals;
use crate::data::sequence::outcome::Outcome;
use crate::data::sequence::run::Piece;
use crate::http::ApiError;

/// What all replies of a request share.
pub struct Replies {
    /// What they may contain.
    pub speech: Speech,
    /// Present if log-probabilities are requested.
    pub logprobs: Option<Tokenizer>,
    /// Whether token ids are requested.
    pub token_ids: bool,
}

/// What a chunk has of a token besides its text.
#[derive(Default)]
struct Told {
    logprobs: Option<ChatLogprobs>,
    /// Present if token ids are requested.
    token: Option<u32>,
}

impl Replies {
    fn speakers(&self, choices: usize) -> Vec<Speaker> {
        (0..choices).map(|_| Speaker::new(&self.speech)).collect()
    }

    fn told(&self, piece: &Piece) -> Told {
        let logprobs = self.logprobs.as_ref().zip(piece.logprobs.as_deref()).map(|(tokenizer, of)| {
            let mut list = ChatLogprobs::default();
            push_chat(&mut list, tokenizer, piece.token, of);
            list
        });
        Told { logprobs, token: self.token_ids.then_some(piece.token) }
    }

    /// Adds the tokens of the reasoning, if the replies may have any.
    fn detailed(&self, usage: Usage, speakers: &[Speaker]) -> Usage {
        let reasoning_tokens = speakers.iter().map(Speaker::reasoning_tokens).sum();
        let reasons = self.speech.reasoning != Expected::Never;
        let details = reasons.then_some(CompletionTokensDetails { reasoning_tokens });
        Usage { completion_tokens_details: details, ..usage }
    }
}

/// A random id, such as that of a call, which its `tool` message refers to.
pub fn random_id(kind: &str) -> String {
    let random = || getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    format!("{kind}_{:016x}{:08x}", random(), random() >> 32)
}

fn begin_call(index: Option<u32>, name: String) -> ToolCall {
    let function = CalledFunction { name: Some(name), arguments: String::new() };
    ToolCall { index, id: Some(random_id("call")), kind: Some("function".to_owned()), function }
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
            let token_ids = replies.token_ids.then(Vec::new);
            ChatChoice { index: index as u32, message, logprobs: None, token_ids, finish_reason: None }
        };
        Self {
            speakers: replies.speakers(choices),
            choices: (0..choices).map(choice).collect(),
            logprobs: vec![Vec::new(); choices],
            replies,
        }
    }

    /// Estimated bytes of token names and ids to serialize.
    pub fn spelled_bytes(&self) -> usize {
        let names = self.logprobs.iter().flatten().map(|(_, of)| NAME_BYTES * (of.top.len() + 1));
        let ids = self.choices.iter().flat_map(|choice| &choice.token_ids).map(|ids| ID_BYTES * ids.len());
        names.sum::<usize>() + ids.sum::<usize>()
    }

    /// The body as JSON.
    pub fn written(self, head: &Head, mut totals: Totals, tokenizer: &Tokenizer) -> Vec<u8> {
        totals.usage = self.replies.detailed(totals.usage, &self.speakers);
        let asked = self.replies.logprobs.is_some();
        let choices = self.choices.into_iter().zip(self.logprobs).map(|(mut choice, logprobs)| {
            choice.logprobs = asked.then(|| {
                let mut list = ChatLogprobs::default();
                logprobs.iter().for_each(|(token, of)| push_chat(&mut list, tokenizer, *token, of));
                list
            });
            choice
        });
        head.whole(choices, &totals)
    }

    fn add(&mut self, choice: usize, parts: Vec<Part>) {
        let message = &mut self.choices[choice].message;
        for part in parts {
            match part {
                Part::Reasoning(text) => message.reasoning_content.get_or_insert_default().push_str(&text),
                Part::Text(text) => message.content.get_or_insert_default().push_str(&text),
                Part::Call { name } => message.tool_calls.push(begin_call(None, name)),
                Part::Arguments(text) => {
                    if let Some(call) = message.tool_calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
                Part::Done | Part::Broken => {}
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
        if let Some(ids) = &mut self.choices[at].token_ids {
            ids.push(piece.token);
        }
        let parts = self.speakers[at].token(piece.text);
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
    /// That of the first chunk, if it differs.
    first: Option<Head>,
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
            first: None,
            options: options.unwrap_or_default(),
            speakers: replies.speakers(choices),
            opened: vec![false; choices],
            replies,
            usage,
        }
    }

    /// Adds the ids of the prompt's tokens to the first chunk, if they are requested.
    pub fn with_prompt(self, token_ids: Option<&[u32]>) -> Self {
        Self { first: token_ids.map(|ids| self.head.with_prompt(ids)), ..self }
    }

    fn chunk(&mut self, at: usize, delta: Delta, told: Told, reason: Option<String>) {
        let Told { logprobs, token } = told;
        let token_ids = self.replies.token_ids.then(|| token.into_iter().collect());
        let choice = ChatChunkChoice { index: at as u32, delta, logprobs, token_ids, finish_reason: reason };
        let usage = self.options.continuous_usage.then(|| self.replies.detailed(self.usage, &self.speakers));
        let first = self.first.take();
        first.as_ref().unwrap_or(&self.head).chunk(&mut self.out, &[choice], usage.as_ref());
    }

    /// Writes the first chunk, which has the role.
    fn open(&mut self, at: usize) {
        if !std::mem::replace(&mut self.opened[at], true) {
            let delta = Delta {
                role: Some("assistant".to_owned()),
                content: Some(String::new()),
                ..Delta::default()
            };
            self.chunk(at, delta, Told::default(), None);
        }
    }

    fn write(&mut self, at: usize, parts: Vec<Part>, told: Told) {
        let asked = told.logprobs.is_some() || told.token.is_some();
        let mut told = asked.then_some(told);
        // The number of calls before these parts.
        let starting = parts.iter().filter(|part| matches!(part, Part::Call { .. })).count() as u32;
        let mut begun = self.speakers[at].begun() - starting;
        for part in parts {
            let mut delta = Delta::default();
            match part {
                Part::Reasoning(text) => delta.reasoning_content = Some(text),
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
                Part::Done | Part::Broken => continue,
            }
            self.chunk(at, delta, told.take().unwrap_or_default(), None);
        }
        if let Some(told) = told {
            self.chunk(at, Delta { content: Some(String::new()), ..Delta::default() }, told, None);
        }
    }
}

impl Sink for ChatFrames {
    fn prompt(&mut self, _choice: usize, _logprobs: Vec<TokenLogprobs>) {}

    fn token(&mut self, at: usize, piece: Piece) -> Go {
        self.open(at);
        self.usage.completion_tokens += 1;
        self.usage.total_tokens += 1;
        let told = self.replies.told(&piece);
        let parts = self.speakers[at].token(piece.text);
        self.write(at, parts, told);
        self.speakers[at].go()
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        self.open(at);
        let rest = self.speakers[at].push(outcome.rest.clone());
        self.write(at, rest, Told::default());
        let parts = self.speakers[at].finish();
        self.write(at, parts, Told::default());
        let reason = self.speakers[at].reason(outcome);
        self.chunk(at, Delta::default(), Told::default(), reason);
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
            let usage = self.replies.detailed(totals.usage, &self.speakers);
            self.head.chunk::<ChatChunkChoice>(&mut self.out, &[], Some(&usage));
        }
        openai_done(&mut self.out);
    }

    fn failed(&mut self, error: &ApiError) {
        openai_error(&mut self.out, error);
    }
}
