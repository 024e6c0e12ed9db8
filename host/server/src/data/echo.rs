//! The prompt as the beginning of an answer, with how likely its tokens were where that was asked.

use std::sync::Arc;

use infer_api::completions::CompletionLogprobs;
use infer_core::TokenLogprobs;
use infer_model::Tokenizer;

use super::logprobs;

/// A prompt that is to be echoed.
#[derive(Clone, Debug)]
pub struct Prompted {
    /// As the client wrote it, or as its tokens read.
    pub text: String,
    /// As the model read it.
    pub tokens: Arc<[u32]>,
}

/// The prompts of a request's choices, until each was told.
pub struct Echoes {
    tokenizer: Tokenizer,
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
    pub logprobs: Option<CompletionLogprobs>,
}

impl Echoes {
    /// Of these prompts with `n` choices each; none where nothing is to be echoed.
    pub fn new(tokenizer: Tokenizer, prompts: Vec<Prompted>, n: usize, asks_logprobs: bool) -> Self {
        let heard = vec![Some(Vec::new()); prompts.len() * n];
        Self { tokenizer, prompts, n, asks_logprobs, heard }
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
        let Prompted { text, tokens } = &self.prompts[choice / self.n];
        let logprobs = self.asks_logprobs.then(|| {
            let mut lists = CompletionLogprobs::default();
            let mut offset = 0;
            for (at, &token) in tokens.iter().enumerate() {
                let told = at.checked_sub(1).and_then(|before| heard.get(before));
                logprobs::push(&mut lists, &self.tokenizer, token, told, offset);
                offset += lists.tokens.last().map_or(0, |name| name.chars().count() as u32);
            }
            lists
        });
        Some(Echo { text: text.clone(), logprobs })
    }
}
