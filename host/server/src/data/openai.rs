//! Completions as OpenAI writes them: one body, or unnamed chunks and `[DONE]`.

use infer_api::completions::{Choice, Completion, CompletionLogprobs};
use infer_api::usage::Usage;
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::answer::{Frames, Go, Sink};
use super::common::StreamOptions;
use super::echo::Echoes;
use super::frames::{Head, openai_done, openai_error};
use super::group::Totals;
use super::logprobs;
use super::outcome::{Outcome, openai_reason};
use super::run::Piece;
use crate::http::ApiError;

/// Gathers choices for one body.
pub struct CompletionBody {
    choices: Vec<Choice>,
    asks_logprobs: bool,
    echoes: Echoes,
    tokenizer: Tokenizer,
    /// Characters of each choice's text.
    offsets: Vec<u32>,
}

impl CompletionBody {
    /// For so many choices.
    pub fn new(choices: usize, asks_logprobs: bool, echoes: Echoes, tokenizer: &Tokenizer) -> Self {
        let choice = |index| {
            let logprobs = asks_logprobs.then(CompletionLogprobs::default);
            Choice { index: index as u32, logprobs, ..Choice::default() }
        };
        let tokenizer = tokenizer.clone();
        Self {
            choices: (0..choices).map(choice).collect(),
            asks_logprobs,
            echoes,
            tokenizer,
            offsets: vec![0; choices],
        }
    }

    /// The body.
    pub fn finish(self, head: &Head, totals: &Totals) -> Completion {
        Completion {
            id: head.id.clone(),
            object: head.object.to_owned(),
            created: head.created,
            model: head.model.clone(),
            choices: self.choices,
            usage: Some(totals.usage),
            timings: Some(totals.timings),
        }
    }

    fn echo(&mut self, at: usize) {
        let Some(echo) = self.echoes.take(at) else { return };
        self.offsets[at] += echo.text.chars().count() as u32;
        self.choices[at].text.push_str(&echo.text);
        if let Some(logprobs) = echo.logprobs {
            self.choices[at].logprobs = Some(logprobs);
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
        if let Some(lists) = choice.logprobs.as_mut().filter(|_| self.asks_logprobs) {
            let of = piece.logprobs.as_deref();
            logprobs::push(lists, &self.tokenizer, piece.token, of, self.offsets[at]);
        }
        self.offsets[at] += piece.text.chars().count() as u32;
        choice.text.push_str(&piece.text);
        Go::On
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        self.echo(at);
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
    pub fn with_logprobs(mut self, asked: bool, tokenizer: &Tokenizer) -> Self {
        self.spelling = asked.then(|| tokenizer.clone());
        self
    }

    fn chunk(&mut self, choice: Choice) {
        let usage = self.options.continuous_usage.then_some(&self.usage);
        self.head.chunk(&mut self.out, &[choice], usage);
    }

    fn echo(&mut self, at: usize) {
        if let Some(echo) = self.echoes.take(at) {
            self.offsets[at] += echo.text.chars().count() as u32;
            self.chunk(Choice {
                index: at as u32,
                text: echo.text,
                logprobs: echo.logprobs,
                finish_reason: None,
            });
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
        self.offsets[at] += piece.text.chars().count() as u32;
        let logprobs = self.spelling.as_ref().map(|tokenizer| {
            let mut lists = CompletionLogprobs::default();
            logprobs::push(&mut lists, tokenizer, piece.token, piece.logprobs.as_deref(), offset);
            lists
        });
        self.chunk(Choice { index: at as u32, text: piece.text, logprobs, finish_reason: None });
        Go::On
    }

    fn end(&mut self, at: usize, outcome: &Outcome) {
        self.echo(at);
        let finish_reason = outcome.reason.map(|reason| openai_reason(reason).to_owned());
        self.chunk(Choice { index: at as u32, finish_reason, ..Choice::default() });
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
