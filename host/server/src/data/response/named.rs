//! The named dialect, which is this project's own: `token` events, then one `done` or `error`. If a request
//! has several choices, each event has the index of its choice.

use infer_api::completions::{DoneEvent, ErrorEvent, PromptEvent, TokenEvent};
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::echo::Echoes;
use super::frames::named;
use super::logprobs;
use super::{Frames, Go, Preface, Sink};
use crate::data::sequence::group::Totals;
use crate::data::sequence::outcome::Outcome;
use crate::data::sequence::run::Piece;
use crate::http::ApiError;

/// Writes named events.
pub struct NamedFrames {
    out: Vec<u8>,
    several: bool,
    echoes: Echoes,
    tokenizer: Tokenizer,
    /// By choice: text that was held back until its end.
    rests: Vec<String>,
}

impl NamedFrames {
    /// Frames of a request with this many choices.
    pub fn new(choices: usize, echoes: Echoes, tokenizer: &Tokenizer) -> Self {
        let (several, rests) = (choices > 1, vec![String::new(); choices]);
        Self { out: Vec::new(), several, echoes, tokenizer: tokenizer.clone(), rests }
    }

    fn index(&self, choice: usize) -> Option<u32> {
        self.several.then_some(choice as u32)
    }
}

impl Sink for NamedFrames {
    fn prompt(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        self.echoes.add(choice, logprobs);
    }

    fn token(&mut self, choice: usize, piece: Piece) -> Go {
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

    fn end(&mut self, choice: usize, outcome: &Outcome) {
        // No token event: there is one for each token.
        self.rests[choice].clone_from(&outcome.rest);
    }
}

impl Frames for NamedFrames {
    fn preface(&mut self, choice: usize) -> Option<Preface> {
        let (echo, index) = (self.echoes.take(choice)?, self.index(choice));
        let spelled_bytes = echo.spelled_bytes();
        let write = move |tokenizer: &Tokenizer| {
            let logprobs = echo.logprobs.map(|lists| lists.written(tokenizer));
            let mut out = Vec::new();
            let event = PromptEvent { prompt: echo.text, prompt_token_ids: echo.token_ids, index, logprobs };
            named(&mut out, "prompt", &event);
            out
        };
        Some(Preface { spelled_bytes, write: Box::new(write) })
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn done(&mut self, totals: &Totals) {
        let reasons: Vec<String> = totals.reasons.iter().map(|reason| reason.name().to_owned()).collect();
        let rests = std::mem::take(&mut self.rests);
        let any_rest = rests.iter().any(|rest| !rest.is_empty());
        let event = DoneEvent {
            finish_reason: reasons[0].clone(),
            finish_reasons: if self.several { reasons } else { Vec::new() },
            rest: rests[0].clone(),
            rests: if self.several && any_rest { rests } else { Vec::new() },
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

#[cfg(test)]
mod tests {
    use infer_api::usage::{Timings, Usage};
    use infer_core::FinishReason;
    use infer_model::Source;
    use serde_json::{Value, json};

    use super::super::echo::{Prompted, Told};
    use super::*;

    #[test]
    fn text_that_was_held_back_comes_with_the_end() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        for (rests, expected) in [
            (vec![""], json!([null, null])),
            (vec!["a"], json!(["a", null])),
            (vec!["", ""], json!([null, null])),
            (vec!["", "b"], json!([null, ["", "b"]])),
        ] {
            let mut frames =
                NamedFrames::new(rests.len(), Echoes::new(Vec::new(), 1, Told::default()), &tokenizer);
            for (choice, rest) in rests.iter().enumerate() {
                let outcome = Outcome {
                    reason: Some(FinishReason::Cancelled),
                    usage: Usage::default(),
                    timings: Timings::default(),
                    e2e_ms: 0.0,
                    error: None,
                    refused: false,
                    rest: (*rest).to_owned(),
                    stop_string: None,
                };
                frames.end(choice, &outcome);
            }
            frames.done(&Totals::before(rests.len(), 1));
            let written = String::from_utf8(std::mem::take(frames.buffer())).unwrap();
            let data = written.strip_prefix("event: done\ndata: ").expect("one event");
            let done: Value = serde_json::from_str(data).unwrap();
            assert_eq!(json!([done["rest"], done["rests"]]), expected, "{rests:?}");
        }
    }

    #[test]
    fn echo_is_serialized_by_the_preface_and_only_once() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let text = "What is a block?".to_owned();
        let tokens: Vec<u32> = tokenizer.encode(&text, true).unwrap();
        let names = tokens.len();
        let offsets = super::super::echo::offsets(&tokenizer, &text, &tokens);
        let prompt = Prompted { text, tokens: tokens.into(), offsets };
        let told = Told { logprobs: true, token_ids: false };
        let mut frames = NamedFrames::new(1, Echoes::new(vec![prompt], 1, told), &tokenizer);
        let preface = frames.preface(0).expect("an echo");
        assert!(preface.spelled_bytes >= names, "{} bytes of {names} names", preface.spelled_bytes);
        assert!(frames.preface(0).is_none());
        frames.token(0, Piece::default());
        assert!(frames.buffer().starts_with(b"event: token\n"));
        let written = String::from_utf8((preface.write)(&tokenizer)).unwrap();
        assert!(written.starts_with("event: prompt\ndata: {\"prompt\":\"What is a block?\""), "{written}");
        assert_eq!(written.matches("event: ").count(), 1);
    }
}
