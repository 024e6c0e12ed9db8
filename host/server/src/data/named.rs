//! The project's own dialect: `token` events, then one `done` or `error`. Where a request has several choices,
//! every event says whose it is.

use infer_api::completions::{DoneEvent, ErrorEvent, PromptEvent, TokenEvent};
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::answer::{Frames, Go, Sink};
use super::echo::Echoes;
use super::frames::named;
use super::group::Totals;
use super::logprobs;
use super::outcome::{Outcome, reason_name};
use super::run::Piece;
use crate::http::ApiError;

/// Writes named events.
pub struct NamedFrames {
    out: Vec<u8>,
    several: bool,
    echoes: Echoes,
    tokenizer: Tokenizer,
}

impl NamedFrames {
    /// For a request with so many choices.
    pub fn new(choices: usize, echoes: Echoes, tokenizer: &Tokenizer) -> Self {
        Self { out: Vec::new(), several: choices > 1, echoes, tokenizer: tokenizer.clone() }
    }

    fn index(&self, choice: usize) -> Option<u32> {
        self.several.then_some(choice as u32)
    }

    fn echo(&mut self, choice: usize) {
        if let Some(echo) = self.echoes.take(choice) {
            let index = self.index(choice);
            let logprobs = echo.logprobs.map(|lists| lists.written(&self.tokenizer));
            let event = PromptEvent { prompt: echo.text, index, logprobs };
            named(&mut self.out, "prompt", &event);
        }
    }
}

impl Sink for NamedFrames {
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        self.echoes.hear(choice, logprobs);
    }

    fn token(&mut self, choice: usize, piece: Piece) -> Go {
        self.echo(choice);
        let of = piece.logprobs.as_deref();
        let event = TokenEvent {
            token: piece.text,
            token_id: piece.token,
            index: self.index(choice),
            logprob: of.map(|of| logprobs::finite(of.logprob)),
            top_logprobs: of.map(|of| logprobs::named(&self.tokenizer, of)),
        };
        named(&mut self.out, "token", &event);
        Go::On
    }

    fn end(&mut self, choice: usize, _outcome: &Outcome) {
        self.echo(choice);
    }
}

impl Frames for NamedFrames {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn done(&mut self, totals: &Totals) {
        let reasons: Vec<String> = totals.reasons.iter().map(|&r| reason_name(r).to_owned()).collect();
        let event = DoneEvent {
            finish_reason: reasons[0].clone(),
            finish_reasons: if self.several { reasons } else { Vec::new() },
            usage: totals.usage,
            timings: totals.timings,
        };
        named(&mut self.out, "done", &event);
    }

    fn failed(&mut self, error: &ApiError) {
        let event = ErrorEvent { error: error.message().to_owned(), code: error.reason().to_owned() };
        named(&mut self.out, "error", &event);
    }
}
