//! What outputs begin with: their prompts' texts, log-probabilities and token ids, as far as requested.

use std::sync::Arc;

use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::logprobs::Lists;

/// Bytes of a token id in JSON.
pub const ID_BYTES: usize = 7;

/// A prompt that outputs begin with.
#[derive(Clone, Debug)]
pub struct Prompted {
    /// The client's text, or the decoded tokens; empty if it is not to be echoed.
    pub text: String,
    /// The tokens of the prompt.
    pub tokens: Arc<[u32]>,
    /// Where each token begins in the text, in characters, if log-probabilities are requested.
    pub offsets: Vec<u32>,
}

/// What is returned of a prompt besides its text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// The log-probabilities of its tokens.
    pub logprobs: bool,
    /// Their ids.
    pub token_ids: bool,
}

/// The echoes of a request's choices.
pub struct Echoes {
    prompts: Vec<Prompted>,
    n: usize,
    told: Told,
    /// By choice: the prompt's log-probabilities so far; `None` once it is echoed.
    logprobs: Vec<Option<Vec<TokenLogprobs>>>,
}

/// The beginning of a choice's output.
pub struct Echo {
    /// The prompt, if it is echoed.
    pub text: String,
    /// Log-probabilities of its tokens, if requested.
    pub logprobs: Option<Lists>,
    /// Its token ids, if requested.
    pub token_ids: Option<Vec<u32>>,
}

impl Echo {
    /// Estimated bytes of token names and ids that it is written with.
    pub fn spelled_bytes(&self) -> usize {
        let ids = self.token_ids.as_ref().map_or(0, |ids| ID_BYTES * ids.len());
        self.logprobs.as_ref().map_or(0, Lists::spelled_bytes) + ids
    }
}

impl Echoes {
    /// Echoes these prompts, each for `n` choices. Without prompts nothing is echoed.
    pub fn new(prompts: Vec<Prompted>, n: usize, told: Told) -> Self {
        let logprobs = vec![Some(Vec::new()); prompts.len() * n];
        Self { prompts, n, told, logprobs }
    }

    /// Adds the log-probabilities of a prompt's next tokens.
    pub fn add(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        if let Some(Some(so_far)) = self.logprobs.get_mut(choice) {
            so_far.extend(logprobs);
        }
    }

    /// Returns a choice's echo, once. Call it at the choice's first token or its end, when the echo is
    /// complete.
    pub fn take(&mut self, choice: usize) -> Option<Echo> {
        let logprobs = self.logprobs.get_mut(choice)?.take()?;
        let Prompted { text, tokens, offsets } = &self.prompts[choice / self.n];
        let logprobs = self.told.logprobs.then(|| {
            let mut lists = Lists::default();
            // The first token has no log-probability.
            let mut logprobs = std::iter::once(None).chain(logprobs.into_iter().map(Some));
            for (&token, &offset) in tokens.iter().zip(offsets) {
                lists.push(token, logprobs.next().flatten(), offset);
            }
            lists
        });
        let token_ids = self.told.token_ids.then(|| tokens.to_vec());
        Some(Echo { text: text.clone(), logprobs, token_ids })
    }
}

/// Where each token of a prompt begins in its text, in characters. A special token counts only if its name is
/// in the text: the leading one is usually the tokenizer's own. A blank that the decoder adds counts only if
/// it is in the text.
pub fn offsets(tokenizer: &Tokenizer, text: &str, tokens: &[u32]) -> Vec<u32> {
    let mut detokenizer = tokenizer.detokenizer();
    let (mut rest, mut offset) = (text, 0);
    let mut begins = |token: &u32| {
        let begins = offset;
        let special = tokenizer.token(*token).filter(|written| tokenizer.is_special(written));
        let piece = match special {
            Some(name) if rest.starts_with(&name) => name,
            Some(_) => String::new(),
            None => detokenizer.push(*token),
        };
        let shorter = piece.strip_prefix(' ').filter(|shorter| rest.starts_with(shorter));
        let piece = if rest.starts_with(&piece) { &piece } else { shorter.unwrap_or(&piece) };
        rest = rest.strip_prefix(piece).unwrap_or(rest);
        offset += piece.chars().count() as u32;
        begins
    };
    tokens.iter().map(&mut begins).collect()
}

#[cfg(test)]
mod tests {
    use infer_model::Source;

    use super::*;

    /// A SentencePiece vocabulary, which prepends a blank and a BOS token to a text.
    fn pieces() -> Tokenizer {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/gguf-mixed/model.gguf");
        Tokenizer::load(&Source::gguf(golden.as_ref()).unwrap()).unwrap()
    }

    #[test]
    fn token_offsets_match_their_text() {
        let pieces = pieces();
        let bytes = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        for (tokenizer, text, expected) in [
            // <s>, a blank, c, ab, a blank and b, a.
            (&pieces, "cab ba", &[0, 0, 0, 1, 3, 5][..]),
            // A byte may be part of a character, so it is decoded with what follows, as in outputs.
            (&pieces, "ab\nc", &[0, 0, 2, 2]),
            // The second BOS is in the client's text.
            (&pieces, "<s>ab", &[0, 3, 3]),
        ] {
            let tokens = tokenizer.encode(text, true).unwrap();
            assert_eq!(offsets(tokenizer, text, &tokens), expected, "{text}: {tokens:?}");
        }
        let text = "What is a prefix cache?";
        let tokens = bytes.encode(text, true).unwrap();
        for pair in offsets(&bytes, text, &tokens).windows(2).zip(&tokens).filter(|(_, t)| **t > 1) {
            let ([from, to], token) = (pair.0, *pair.1) else { unreachable!("pairs") };
            let read: String = text.chars().skip(*from as usize).take((to - from) as usize).collect();
            assert_eq!(read.as_bytes(), bytes.token_bytes(token));
        }
    }
}
