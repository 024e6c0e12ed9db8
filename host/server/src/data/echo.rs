//! The prompt as the beginning of an answer, with how likely its tokens were where that was asked.

use std::sync::Arc;

use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::logprobs::Lists;

/// A prompt that is to be echoed.
#[derive(Clone, Debug)]
pub struct Prompted {
    /// As the client wrote it, or as its tokens read.
    pub text: String,
    /// As the model read it.
    pub tokens: Arc<[u32]>,
    /// Where each token begins in the text, in characters, where that was asked.
    pub offsets: Vec<u32>,
}

/// The prompts of a request's choices, until each was told.
pub struct Echoes {
    prompts: Vec<Prompted>,
    n: usize,
    asks_logprobs: bool,
    /// By choice: told parts of its prompt, until it was echoed.
    heard: Vec<Option<Vec<TokenLogprobs>>>,
}

/// The beginning of a choice's answer.
pub struct Echo {
    /// The prompt.
    pub text: String,
    /// Of its tokens, where that was asked.
    pub logprobs: Option<Lists>,
}

impl Echoes {
    /// Of these prompts with `n` choices each; none where nothing is to be echoed.
    pub fn new(prompts: Vec<Prompted>, n: usize, asks_logprobs: bool) -> Self {
        let heard = vec![Some(Vec::new()); prompts.len() * n];
        Self { prompts, n, asks_logprobs, heard }
    }

    /// How likely a prompt's next tokens were.
    pub fn hear(&mut self, choice: usize, logprobs: Vec<TokenLogprobs>) {
        if let Some(Some(heard)) = self.heard.get_mut(choice) {
            heard.extend(logprobs);
        }
    }

    /// A choice's echo, once: when its first token or its end comes.
    pub fn take(&mut self, choice: usize) -> Option<Echo> {
        let heard = self.heard.get_mut(choice)?.take()?;
        let Prompted { text, tokens, offsets } = &self.prompts[choice / self.n];
        let logprobs = self.asks_logprobs.then(|| {
            let mut lists = Lists::default();
            // Nothing is told of the first.
            let mut told = std::iter::once(None).chain(heard.into_iter().map(Some));
            for (&token, &offset) in tokens.iter().zip(offsets) {
                lists.push(token, told.next().flatten(), offset);
            }
            lists
        });
        Some(Echo { text: text.clone(), logprobs })
    }
}

/// Where each token of a prompt begins in its text, in characters. A special one takes room only where its name stands
/// there: the one in front of all is the tokenizer's. Where a decoder adds a blank, the text decides.
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

    /// A vocabulary of SentencePiece's kind, with a blank in front of a text and a BOS in front of all.
    fn pieces() -> Tokenizer {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/gguf-mixed/model.gguf");
        Tokenizer::load(&Source::gguf(golden.as_ref()).unwrap()).unwrap()
    }

    #[test]
    fn every_token_of_a_prompt_begins_where_its_text_does() {
        let pieces = pieces();
        let bytes = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        for (tokenizer, text, expected) in [
            // <s>, a blank, c, ab, a blank and b, a.
            (&pieces, "cab ba", &[0, 0, 0, 1, 3, 5][..]),
            // A byte may be a part of a character, and comes with what follows, as in an output.
            (&pieces, "ab\nc", &[0, 0, 2, 2]),
            // The second one is the client's own.
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
