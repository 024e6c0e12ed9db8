//! Completions as OpenAI writes them: one body, or unnamed chunks and `[DONE]`.

use infer_api::completions::{Choice, CompletionLogprobs};
use infer_api::usage::Usage;
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::answer::{Frames, Go, Sink};
use super::common::StreamOptions;
use super::echo::Echoes;
use super::frames::{Head, openai_done, openai_error};
use super::group::Totals;
use super::logprobs::Lists;
use super::outcome::{Outcome, openai_reason};
use super::run::Piece;
use crate::http::ApiError;

/// Gathers choices for one body.
pub struct CompletionBody {
    choices: Vec<Gathered>,
    echoes: Echoes,
}

/// A choice so far.
struct Gathered {
    text: String,
    /// Characters of its tokens.
    offset: u32,
    /// Where log-probabilities are asked for.
    logprobs: Option<Lists>,
    finish_reason: Option<String>,
}

impl CompletionBody {
    /// For so many choices.
    pub fn new(choices: usize, asks_logprobs: bool, echoes: Echoes) -> Self {
        let choice = || {
            let logprobs = asks_logprobs.then(Lists::default);
            Gathered { text: String::new(), offset: 0, logprobs, finish_reason: None }
        };
        Self { choices: (0..choices).map(|_| choice()).collect(), echoes }
    }

    /// Bytes of names that it is written with, about.
    pub fn spelled_bytes(&self) -> usize {
        self.choices.iter().flat_map(|choice| &choice.logprobs).map(|lists| 4 * lists.numbers()).sum()
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
        self.echoes.hear(choice, logprobs);
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
    /// Where log-probabilities are asked for.
    spelling: Option<Tokenizer>,
    offsets: Vec<u32>,
    usage: Usage,
}

impl CompletionFrames {
    /// For so many choices, whose prompts have so many tokens.
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

    /// Tells how likely tokens were, where that is asked.
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

    fn echo(&mut self, at: usize) {
        if let Some(echo) = self.echoes.take(at) {
            self.offsets[at] += echo.text.chars().count() as u32;
            let logprobs = self.written(echo.logprobs);
            self.chunk(Choice { index: at as u32, text: echo.text, logprobs, finish_reason: None });
        }
    }
}

impl Sink for CompletionFrames {
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        self.echoes.hear(choice, logprobs);
    }

    fn token(&mut self, at: usize, piece: Piece) -> Go {
        self.echo(at);
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
        self.echo(at);
        let finish_reason = outcome.reason.map(|reason| openai_reason(reason).to_owned());
        let text = outcome.rest.clone();
        self.chunk(Choice { index: at as u32, text, logprobs: None, finish_reason });
    }
}

impl Frames for CompletionFrames {
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
