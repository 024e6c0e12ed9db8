//! Log-probabilities as the two OpenAI objects write them. Numbers are kept until they are written: an answer may
//! have millions of them, and names take many times their memory.

use std::collections::BTreeMap;

use infer_api::chat::{ChatLogprobs, Likelihood, TokenLogprob};
use infer_api::completions::{CompletionLogprobs, NamedLogprob};
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

/// JSON has no infinity; this is what OpenAI writes for what can't be.
const LEAST: f32 = -9999.0;

/// A log-probability that JSON can write.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.clamp(LEAST, 0.0) } else { LEAST }
}

/// A token's text by itself; bytes that are no characters as `bytes:\xe2`, so that two tokens never
/// share a name by losing what they are.
pub fn spell(tokenizer: &Tokenizer, token: u32) -> String {
    match String::from_utf8(tokenizer.token_bytes(token)) {
        Ok(text) => text,
        Err(error) => {
            let bytes = error.into_bytes();
            bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}"))
        }
    }
}

/// How likely a completion's tokens were.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    tokens: Vec<u32>,
    told: Vec<Option<TokenLogprobs>>,
    offsets: Vec<u32>,
}

impl Lists {
    /// Of one token, which begins at `offset` in the text.
    pub fn of(token: u32, told: Option<TokenLogprobs>, offset: u32) -> Self {
        Self { tokens: vec![token], told: vec![told], offsets: vec![offset] }
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32, told: Option<TokenLogprobs>, offset: u32) {
        self.tokens.push(token);
        self.told.push(told);
        self.offsets.push(offset);
    }

    /// Numbers in it.
    pub fn numbers(&self) -> usize {
        self.told.iter().map(|told| told.as_ref().map_or(1, |told| told.top.len() + 1)).sum()
    }

    /// With the tokens' names.
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

/// The named dialect's alternatives.
pub fn named(tokenizer: &Tokenizer, of: &TokenLogprobs) -> Vec<NamedLogprob> {
    let top = of.top.iter();
    top.map(|&(token, logprob)| NamedLogprob {
        token: spell(tokenizer, token),
        token_id: token,
        logprob: finite(logprob),
    })
    .collect()
}

/// Adds a token to a chat's list.
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
