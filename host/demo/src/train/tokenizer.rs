//! A byte-level BPE vocabulary trained on the corpus: it encodes any input, and the corpus in few tokens.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, ensure};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer, TokenizerBuilder};

use super::Corpus;

/// Starts every text.
pub const BEGIN: u32 = 0;
/// Ends an answer, and a turn of a conversation.
pub const END: u32 = 1;
/// Starts a system message.
pub const SYSTEM: u32 = 2;
/// Starts a user message.
pub const USER: u32 = 3;
/// Starts a message of the model.
pub const ASSISTANT: u32 = 4;

/// The special tokens, in the order of their ids.
pub const SPECIAL: [&str; 5] = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"];

/// The trained tokenizer.
pub struct Vocabulary(Tokenizer);

impl Vocabulary {
    /// Trains a vocabulary of at most `size` tokens on names, questions and answers.
    ///
    /// # Errors
    /// What the tokenizer library reports.
    pub fn train(corpus: &Corpus, size: usize) -> Result<Self> {
        let special: Vec<_> = SPECIAL.iter().map(|&token| AddedToken::from(token, true)).collect();
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size)
            .min_frequency(2)
            .show_progress(false)
            .special_tokens(special)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut builder = TokenizerBuilder::new()
            .with_model(BPE::default())
            .with_normalizer(None::<tokenizers::NormalizerWrapper>)
            .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
            .with_post_processor(None::<TemplateProcessing>)
            .with_decoder(Some(ByteLevel::default()))
            .build()
            .map_err(|error| anyhow!("building the tokenizer: {error}"))?;
        builder
            .train(&mut trainer, texts(corpus).into_iter())
            .map_err(|error| anyhow!("training the tokenizer: {error}"))?;
        builder.with_post_processor(Some(
            TemplateProcessing::builder()
                .try_single("<|begin|> $A")
                .map_err(|error| anyhow!("{error}"))?
                .special_tokens(vec![("<|begin|>", BEGIN)])
                .build()?,
        ));
        let json = builder.to_string(false).map_err(|error| anyhow!("{error}"))?;
        let vocabulary = Self(json.parse().map_err(|error| anyhow!("{error}"))?);
        for (id, token) in (0_u32..).zip(SPECIAL) {
            ensure!(vocabulary.0.token_to_id(token) == Some(id), "{token} must have the id {id}");
        }
        Ok(vocabulary)
    }

    /// The tokens of `text`, without special ones.
    ///
    /// # Errors
    /// What the tokenizer library reports.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.0.encode_fast(text, false).map_err(|error| anyhow!("{error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `tokens`, without special ones.
    ///
    /// # Errors
    /// What the tokenizer library reports.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.0.decode(tokens, true).map_err(|error| anyhow!("{error}"))
    }

    /// Number of tokens, the special ones included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// The content of `tokenizer.json`.
    ///
    /// # Errors
    /// What the tokenizer library reports.
    pub fn to_json(&self) -> Result<String> {
        self.0.to_string(false).map_err(|error| anyhow!("{error}"))
    }
}

/// Each text once, sorted, so that the vocabulary doesn't depend on the order of the topics.
fn texts(corpus: &Corpus) -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    for entry in &corpus.entries {
        texts.insert(entry.answer.clone());
        for asked in entry.questions.iter().chain(&entry.names) {
            texts.insert(format!(" {asked}"));
            texts.insert(asked.to_lowercase());
            texts.insert(asked.clone());
        }
    }
    texts
}
