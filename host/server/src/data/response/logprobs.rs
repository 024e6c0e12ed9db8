//! Log-probabilities in the forms of OpenAI's two objects. Until a response is serialized only the numbers
//! are kept: there may be millions, and the names of their tokens take many times the memory.

use std::collections::BTreeMap;

use infer_api::chat::{ChatLogprobs, Likelihood, TokenLogprob};
use infer_api::completions::{CompletionLogprobs, NamedLogprob};
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

/// What OpenAI reports for impossible tokens: JSON has no infinity.
const LEAST: f32 = -9999.0;

/// Typical length of a token's name.
pub const NAME_BYTES: usize = 4;

/// A log-probability that JSON can represent.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.clamp(LEAST, 0.0) } else { LEAST }
}

/// A token's text by itself. Bytes that aren't valid UTF-8 are spelled as `bytes:\xe2`, so that distinct
/// tokens keep distinct names.
pub fn spell(tokenizer: &Tokenizer, token: u32) -> String {
    match String::from_utf8(tokenizer.token_bytes(token)) {
        Ok(text) => text,
        Err(error) => {
            let bytes = error.into_bytes();
            bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}"))
        }
    }
}

/// Log-probabilities of a completion's tokens.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    tokens: Vec<u32>,
    told: Vec<Option<TokenLogprobs>>,
    offsets: Vec<u32>,
}

impl Lists {
    /// A list of one token that begins at `offset` in the text.
    pub fn of(token: u32, told: Option<TokenLogprobs>, offset: u32) -> Self {
        Self { tokens: vec![token], told: vec![told], offsets: vec![offset] }
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32, told: Option<TokenLogprobs>, offset: u32) {
        self.tokens.push(token);
        self.told.push(told);
        self.offsets.push(offset);
    }

    /// Estimated bytes of token names to serialize.
    pub fn spelled_bytes(&self) -> usize {
        let names = |told: &Option<TokenLogprobs>| told.as_ref().map_or(1, |told| told.top.len() + 1);
        self.told.iter().map(|told| NAME_BYTES * names(told)).sum()
    }

    /// The wire form, with the tokens' names.
    pub fn written(&self, tokenizer: &Tokenizer) -> CompletionLogprobs {
        let top = |(&token, told): (&u32, &Option<TokenLogprobs>)| {
            let told = told.as_ref()?;
            let mut top: BTreeMap<String, f32> = BTreeMap::new();
            for &(token, logprob) in &told.top {
                top.entry(spell(tokenizer, token)).or_insert(finite(logprob));
            }
            top.entry(spell(tokenizer, token)).or_insert(finite(told.logprob));
            Some(top)
        };
        CompletionLogprobs {
            tokens: self.tokens.iter().map(|&token| spell(tokenizer, token)).collect(),
            token_logprobs: self.told.iter().map(|told| Some(finite(told.as_ref()?.logprob))).collect(),
            top_logprobs: self.tokens.iter().zip(&self.told).map(top).collect(),
            text_offset: self.offsets.clone(),
        }
    }
}

/// The alternatives in the named dialect's form.
pub fn named(tokenizer: &Tokenizer, of: &TokenLogprobs) -> Vec<NamedLogprob> {
    let top = of.top.iter();
    top.map(|&(token, logprob)| NamedLogprob {
        token: spell(tokenizer, token),
        token_id: token,
        logprob: finite(logprob),
    })
    .collect()
}

/// Appends a token to a chat's list.
pub fn push_chat(list: &mut ChatLogprobs, tokenizer: &Tokenizer, token: u32, of: &TokenLogprobs) {
    let likelihood = |token: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(token);
        Likelihood { token: String::from_utf8_lossy(&bytes).into_owned(), logprob: finite(logprob), bytes }
    };
    list.content.push(TokenLogprob {
        own: likelihood(token, of.logprob),
        top_logprobs: of.top.iter().map(|&(token, logprob)| likelihood(token, logprob)).collect(),
    });
}
