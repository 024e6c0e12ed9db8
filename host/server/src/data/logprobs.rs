//! Log-probabilities as the two OpenAI objects write them.

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

/// Adds a token to a completion's lists. `offset` is where it begins in the text.
pub fn push(
    lists: &mut CompletionLogprobs,
    tokenizer: &Tokenizer,
    token: u32,
    logprobs: Option<&TokenLogprobs>,
    offset: u32,
) {
    let name = spell(tokenizer, token);
    lists.token_logprobs.push(logprobs.map(|of| finite(of.logprob)));
    lists.top_logprobs.push(logprobs.map(|of| {
        let mut top: BTreeMap<String, f32> = BTreeMap::new();
        for &(token, logprob) in &of.top {
            top.entry(spell(tokenizer, token)).or_insert(finite(logprob));
        }
        top.entry(name.clone()).or_insert(finite(of.logprob));
        top
    }));
    lists.tokens.push(name);
    lists.text_offset.push(offset);
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
