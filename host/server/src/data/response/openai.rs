//! Completions in OpenAI's form: one body, or unnamed chunks and `[DONE]`.

use infer_api::completions::{Choice, CompletionLogprobs};
use infer_api::usage::Usage;
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::echo::Echoes;
use super::frames::{Head, openai_done, openai_error};
use super::logprobs::Lists;
use super::{Frames, Go, Preface, Sink};
use crate::data::request::common::StreamOptions;
use crate::data::sequence::group::Totals;
use crate::data::sequence::outcome::{Outcome, openai_reason};
use crate::data::sequence::run::Piece;
use crate::http::ApiError;

/// Collects choices for a response of one body.
pub struct CompletionBody {
    choices: Vec<Gathered>,
    echoes: Echoes,
}

/// A choice so far.
struct Gathered {
    text: String,
    /// Characters so far, including held-back ones.
    offset: u32,
    /// Present if log-probabilities are requested.
    logprobs: Option<Lists>,
    finish_reason: Option<String>,
}

impl CompletionBody {
    /// A body of this many choices.
    pub fn new(choices: usize, asks_logprobs: bool, echoes: Echoes) -> Self {
        let choice = || {
            let logprobs = asks_logprobs.then(Lists::default);
            Gathered { text: String::new(), offset: 0, logprobs, finish_reason: None }
        };
        Self { choices: (0..choices).map(|_| choice()).collect(), echoes }
    }

    /// Estimated bytes of token names to serialize.
    pub fn spelled_bytes(&self) -> usize {
        self.choices.iter().flat_map(|choice| &choice.logprobs).map(Lists::spelled_bytes).sum()
    }

    /// The body as JSON.
    pub fn written(self, head: &Head, totals: &Totals, tokenizer: &Tokenizer) -> Vec<u8> {
        let choices = self.choices.into_iter().enumerate().map(|(at, choice)| Choice {
            index: at as u32,
            text: choice.text,
            logprobs: choice.logprobs.map(|lists| lists.written(tokenizer)),
            finish_reason: choice.finish_reason,
        });
        head.whole(choices, totals)
    }

    fn echo(&mut self, at: usize) {
        let Some(echo) = self.echoes.take(at) else { return };
        let choice = &mut self.choices[at];
        choice.offset += echo.text.chars().count() as u32;
        choice.text.push_str(&echo.text);
        if let Some(logprobs) = echo.logprobs {
            choice.logprobs = Some(logprobs);
        }
    }
}

impl Sink for CompletionBody {
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        self.echoes.add(choice, logprobs);
    }

    fn token(&mut self, at: usize, piece: Piece) -> Go {
        self.echo(at);
        let choice = &mut self.choices[at];
        if let Some(lists) = &mut choice.logprobs {
            lists.push(piece.token, piece.logprobs.map(|told| *told), choice.offset);
        }
        choice.offset += piece.chars;
        choice.text.push_str(&piece.text);
        Go::On
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        self.echo(at);
        self.choices[at].text.push_str(&outcome.rest);
        self.choices[at].finish_reason = outcome.reason.map(|reason| openai_reason(reason).to_owned());
    }
}

/// Writes chunks.
pub struct CompletionFrames {
    out: Vec<u8>,
    head: Head,
    options: StreamOptions,
    echoes: Echoes,
    /// Present if log-probabilities are requested.
    spelling: Option<Tokenizer>,
    offsets: Vec<u32>,
    usage: Usage,
}

impl CompletionFrames {
    /// Frames of this many choices. `prompt_tokens` counts each prompt once.
    pub fn new(
        head: Head,
        choices: usize,
        echoes: Echoes,
        options: Option<StreamOptions>,
        prompt_tokens: u32,
    ) -> Self {
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
        let (out, options) = (Vec::new(), options.unwrap_or_default());
        Self { out, head, options, echoes, spelling: None, offsets: vec![0; choices], usage }
    }

    /// Adds log-probabilities if there is a tokenizer to name the tokens.
    pub fn with_logprobs(self, spelling: Option<Tokenizer>) -> Self {
        Self { spelling, ..self }
    }

    fn written(&self, lists: Option<Lists>) -> Option<CompletionLogprobs> {
        self.spelling.as_ref().zip(lists).map(|(tokenizer, lists)| lists.written(tokenizer))
    }

    fn chunk(&mut self, choice: Choice) {
        let usage = self.options.continuous_usage.then_some(&self.usage);
        self.head.chunk(&mut self.out, &[choice], usage);
    }
}

impl Sink for CompletionFrames {
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        self.echoes.add(choice, logprobs);
    }

    fn token(&mut self, at: usize, piece: Piece) -> Go {
        self.usage.completion_tokens += 1;
        self.usage.total_tokens += 1;
        let offset = self.offsets[at];
        self.offsets[at] += piece.chars;
        let lists = Lists::of(piece.token, piece.logprobs.map(|told| *told), offset);
        let logprobs = self.written(Some(lists));
        self.chunk(Choice { index: at as u32, text: piece.text, logprobs, finish_reason: None });
        Go::On
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        let finish_reason = outcome.reason.map(|reason| openai_reason(reason).to_owned());
        let text = outcome.rest.clone();
        self.chunk(Choice { index: at as u32, text, logprobs: None, finish_reason });
    }
}

impl Frames for CompletionFrames {
    fn preface(&mut self, at: usize) -> Option<Preface> {
        let echo = self.echoes.take(at)?;
        self.offsets[at] += echo.text.chars().count() as u32;
        let (head, usage) = (self.head.clone(), self.options.continuous_usage.then_some(self.usage));
        let spelled_bytes = echo.spelled_bytes();
        let write = move |tokenizer: &Tokenizer| {
            let logprobs = echo.logprobs.map(|lists| lists.written(tokenizer));
            let choice = Choice { index: at as u32, text: echo.text, logprobs, finish_reason: None };
            let mut out = Vec::new();
            head.chunk(&mut out, &[choice], usage.as_ref());
            out
        };
        Some(Preface { spelled_bytes, write: Box::new(write) })
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn done(&mut self, totals: &Totals) {
        if self.options.include_usage {
            self.head.chunk::<Choice>(&mut self.out, &[], Some(&totals.usage));
        }
        openai_done(&mut self.out);
    }

    fn failed(&mut self, error: &ApiError) {
        openai_error(&mut self.out, error);
    }
}
