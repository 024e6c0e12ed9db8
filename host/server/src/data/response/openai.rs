//! Completions in OpenAI's form: one body, or unnamed chunks and `[DONE]`.

use infer_api::completions::{Choice, CompletionLogprobs};
use infer_api::usage::Usage;
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::echo::{Echoes, ID_BYTES, Told};
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
    prompt_token_ids: Option<Vec<u32>>,
    /// Present if token ids are requested.
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
}

impl CompletionBody {
    /// A body of this many choices.
    pub fn new(choices: usize, told: Told, echoes: Echoes) -> Self {
        let choice = || Gathered {
            text: String::new(),
            offset: 0,
            logprobs: told.logprobs.then(Lists::default),
            prompt_token_ids: None,
            token_ids: told.token_ids.then(Vec::new),
            finish_reason: None,
        };
        Self { choices: (0..choices).map(|_| choice()).collect(), echoes }
    }

    /// Estimated bytes of token names and ids to serialize.
    pub fn spelled_bytes(&self) -> usize {
        let names = self.choices.iter().flat_map(|choice| &choice.logprobs).map(Lists::spelled_bytes);
        let ids = self.choices.iter().flat_map(|choice| [&choice.prompt_token_ids, &choice.token_ids]);
        names.sum::<usize>() + ids.flatten().map(|ids| ID_BYTES * ids.len()).sum::<usize>()
    }

    /// The body as JSON.
    pub fn written(self, head: &Head, totals: &Totals, tokenizer: &Tokenizer) -> Vec<u8> {
        let choices = self.choices.into_iter().enumerate().map(|(at, choice)| Choice {
            index: at as u32,
            text: choice.text,
            prompt_token_ids: choice.prompt_token_ids,
            token_ids: choice.token_ids,
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
        choice.prompt_token_ids = echo.token_ids;
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
        if let Some(ids) = &mut choice.token_ids {
            ids.push(piece.token);
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
    /// Whether chunks have the ids of their tokens.
    token_ids: bool,
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
        let offsets = vec![0; choices];
        Self { out, head, options, echoes, spelling: None, token_ids: false, offsets, usage }
    }

    /// Adds log-probabilities if there is a tokenizer to name the tokens.
    pub fn with_logprobs(self, spelling: Option<Tokenizer>) -> Self {
        Self { spelling, ..self }
    }

    /// Adds the ids of tokens, if they are requested.
    pub fn with_token_ids(self, token_ids: bool) -> Self {
        Self { token_ids, ..self }
    }

    fn written(&self, lists: Option<Lists>) -> Option<CompletionLogprobs> {
        self.spelling.as_ref().zip(lists).map(|(tokenizer, lists)| lists.written(tokenizer))
    }

    /// Writes a chunk. `token` is the one that it adds, if any.
    fn chunk(&mut self, token: Option<u32>, mut choice: Choice) {
        choice.token_ids = self.token_ids.then(|| token.into_iter().collect());
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
        let choice = Choice { index: at as u32, text: piece.text, logprobs, ..Choice::default() };
        self.chunk(Some(piece.token), choice);
        Go::On
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        let finish_reason = outcome.reason.map(|reason| openai_reason(reason).to_owned());
        let text = outcome.rest.clone();
        self.chunk(None, Choice { index: at as u32, text, finish_reason, ..Choice::default() });
    }
}

impl Frames for CompletionFrames {
    fn preface(&mut self, at: usize) -> Option<Preface> {
        let echo = self.echoes.take(at)?;
        self.offsets[at] += echo.text.chars().count() as u32;
        let (head, usage) = (self.head.clone(), self.options.continuous_usage.then_some(self.usage));
        let (spelled_bytes, token_ids) = (echo.spelled_bytes(), self.token_ids.then(Vec::new));
        let write = move |tokenizer: &Tokenizer| {
            let choice = Choice {
                index: at as u32,
                text: echo.text,
                prompt_token_ids: echo.token_ids,
                token_ids,
                logprobs: echo.logprobs.map(|lists| lists.written(tokenizer)),
                finish_reason: None,
            };
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
