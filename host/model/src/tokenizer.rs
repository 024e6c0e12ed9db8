//! Text to tokens and back, by the checkpoint's `tokenizer.json` (for a GGUF file, its equivalent).
//!
//! A thin layer over the `tokenizers` library: it turns off truncation and padding, which a server must not do, applies what
//! tokenizer_config.json says about BOS and EOS, and prepares incremental decoding once, at load. Templates are in `chat`,
//! streams in `detokenizer`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use tokenizers::processors::PostProcessorWrapper;

use crate::detokenizer::{Detokenizer, Scheme, fallback_byte};
use crate::error::ModelError;
use crate::source::Source;

/// A checkpoint's tokenizer. Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) library: tokenizers::Tokenizer,
    pub(crate) scheme: Scheme,
}

const FILE: &str = "tokenizer.json";

const NO_TOKENS: &str = "the text can't be turned into tokens";
const NO_TEXT: &str = "tokens can't be turned into text";

/// Bytes of text that `far_exceeds` encodes at once. The library needs up to some 260 bytes for each.
const PIECE_BYTES: usize = 32 << 10;

/// Classes for which transformers 4 builds the post-processor from `add_bos_token` and `add_eos_token`, whatever
/// tokenizer.json has, and what an absent `add_bos_token` means beside the other. An absent `add_eos_token` is false.
const REBUILDING: &[(&str, bool)] = &[
    ("LlamaTokenizer", true),
    ("CodeLlamaTokenizer", true),
    ("GemmaTokenizer", true),
    ("CohereTokenizer", true),
    ("GPTNeoXTokenizer", false),
];

/// Parses a tokenizer, turning the library's panics on malformed files into errors.
fn parse(bytes: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    match catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("one of its parts has an unknown form".to_owned()),
    }
}

/// Runs the library on a text or on tokens. It doesn't check all that its file says, and panics once it needs what isn't
/// there, such as a special token of a template. `what` says what it then can't do.
fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, ModelError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        ModelError::tokenizer(format!(
            "{what}: the tokenizer library panicked; stderr of the host has its message"
        ))
    })
}

/// The library's text of tokens.
///
/// # Errors
/// What the decoder reports, or that it panicked.
pub(crate) fn decoded(
    library: &tokenizers::Tokenizer,
    tokens: &[u32],
    skip_special: bool,
) -> Result<String, ModelError> {
    guarded(NO_TEXT, || library.decode(tokens, skip_special))?
        .map_err(|error| ModelError::tokenizer(format!("{NO_TEXT}: {error}")))
}

fn absent(source: &Source) -> ModelError {
    let message = format!("{} has no {FILE}; a checkpoint in Hugging Face's layout has one", source.name());
    ModelError::tokenizer(message)
}

impl Tokenizer {
    /// Whether there is a tokenizer to load. Reads no vocabulary, which would take long.
    ///
    /// # Errors
    /// Those of `load` if there is none, or if a GGUF file's is of an unknown kind.
    pub fn check(source: &Source) -> Result<(), ModelError> {
        match source {
            Source::Gguf(file) => file.check_tokenizer(),
            Source::Directory(_) | Source::Embedded(_) if source.has(FILE) => Ok(()),
            Source::Directory(_) | Source::Embedded(_) => Err(absent(source)),
        }
    }

    /// Reads `tokenizer.json` and, if present, `tokenizer_config.json`.
    ///
    /// # Errors
    /// `tokenizer.json` is missing or isn't a tokenizer, or one of the files can't be read or says something impossible.
    pub fn load(source: &Source) -> Result<Self, ModelError> {
        let bytes = source.read(FILE)?.ok_or_else(|| absent(source))?;
        let mut library = parse(&bytes)
            .map_err(|error| ModelError::tokenizer(format!("tokenizer.json can't be parsed: {error}")))?;
        library
            .with_truncation(None)
            .map_err(|error| ModelError::tokenizer(format!("tokenizer.json: {error}")))?
            .with_padding(None);
        if let Some(template) = declared(&settings(source)?, &library)? {
            let template: PostProcessorWrapper = serde_json::from_value(template)
                .map_err(|error| ModelError::tokenizer(format!("tokenizer_config.json: {error}")))?;
            library.with_post_processor(Some(template));
        }
        let scheme = Scheme::of(&library)?;
        Ok(Self { inner: Arc::new(Inner { library, scheme }) })
    }

    /// The tokens of `text`; with `add_special`, including those that a bare prompt gets (a BOS, say). Names of special tokens
    /// in `text` become these tokens, as templates require.
    ///
    /// # Errors
    /// The vocabulary can't express the text (`ModelErrorKind::Text`), or the library panicked (`ModelErrorKind::Tokenizer`).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        let encoding = guarded(NO_TOKENS, || self.inner.library.encode_fast(text, add_special))?
            .map_err(|error| ModelError::text(format!("{NO_TOKENS}: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Whether `text` has far more than `limit` tokens: twice as many in pieces, of which only as many are encoded as it takes
    /// to know. A cut changes the tokens beside it, and what a normalizer or pre-tokenizer makes of a beginning and an end, but
    /// that is far from half of a piece: a text that fits is not refused.
    #[must_use]
    pub fn far_exceeds(&self, text: &str, limit: usize) -> bool {
        let (mut rest, mut tokens) = (text, 0);
        while rest.len() > PIECE_BYTES && rest.len() / 2 > limit - tokens {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            // Encoding the whole text reports an error.
            let encoding = guarded(NO_TOKENS, || self.inner.library.encode_fast(piece, false));
            let counted = encoding.ok().and_then(Result::ok).map_or(0, |encoding| encoding.len());
            (rest, tokens) = (after, tokens + counted / 2);
            if tokens > limit {
                return true;
            }
        }
        false
    }

    /// The text of `tokens`; unknown ids have none, and invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// What the decoder in `tokenizer.json` reports, or that it panicked.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, ModelError> {
        decoded(&self.inner.library, tokens, skip_special)
    }

    /// An incremental decoder of a new text, without special tokens unless it is told to spell some.
    #[must_use]
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner), false)
    }

    /// An incremental decoder of a continued text: a leading space is kept.
    #[must_use]
    pub fn detokenizer_within(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner), true)
    }

    /// An incremental decoder of the continuation of a prompt. After a special token, or an empty prompt, it starts a new text.
    #[must_use]
    pub fn detokenizer_after(&self, prompt: &[u32]) -> Detokenizer {
        let last = prompt.iter().rev().find_map(|token| self.token(*token));
        match last.is_some_and(|written| !self.is_special(&written)) {
            true => self.detokenizer_within(),
            false => self.detokenizer(),
        }
    }

    /// The vocabulary's entry for a token id, if there is one. Not its text, which may depend on its neighbours.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.library.id_to_token(id)
    }

    /// The bytes of a single token: the name of a special token, nothing for an unknown id. The text of several tokens can
    /// differ from their concatenated bytes only in a leading space.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(written) = self.token(id) else { return Vec::new() };
        match &self.inner.scheme {
            Scheme::Bytes(pieces) if !self.is_special(&written) => pieces.of(id).to_vec(),
            Scheme::Window(neighbours) if !self.is_special(&written) => {
                match fallback_byte(&written).filter(|_| neighbours.byte_fallback) {
                    Some(byte) => vec![byte],
                    None => written.replace('\u{2581}', " ").into_bytes(),
                }
            }
            _ => written.into_bytes(),
        }
    }

    /// Whether the token with this vocabulary entry is special, so that it has no text in an output.
    #[must_use]
    pub fn is_special(&self, written: &str) -> bool {
        self.inner.library.get_added_vocabulary().is_special_token(written)
    }

    /// The id of the token with exactly this vocabulary entry, for instance a special one.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.library.token_to_id(token)
    }

    /// One more than the largest id.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        let largest = vocabulary(&self.inner.library).into_values().max();
        largest.map_or(0, |id| id.saturating_add(1))
    }
}

/// The name of the end token in tokenizer_config.json.
///
/// # Errors
/// If the file can't be read or is not JSON.
pub fn eos_token(source: &Source<'_>) -> Result<Option<String>, ModelError> {
    Ok(named(&settings(source)?, "eos_token").map(str::to_owned))
}

/// The contents of tokenizer_config.json; null if there is no such file.
fn settings(source: &Source<'_>) -> Result<Json, ModelError> {
    let Some(bytes) = source.read("tokenizer_config.json")? else { return Ok(Json::Null) };
    serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::tokenizer(format!("tokenizer_config.json is not JSON: {error}")))
}

/// The name of a special token in tokenizer_config.json: a string, or an object with the token's settings.
fn named<'a>(settings: &'a Json, key: &str) -> Option<&'a str> {
    let token = &settings[key];
    token.as_str().or_else(|| token["content"].as_str())
}

/// The post-processor that tokenizer_config.json asks for. `None` keeps that of tokenizer.json, if the class doesn't
/// rebuild it or the file has neither flag: transformers 5 writes neither, and wrote what they said into tokenizer.json.
///
/// # Errors
/// A flag is neither true nor false, or it asks for a token that the vocabulary lacks.
fn declared(settings: &Json, library: &tokenizers::Tokenizer) -> Result<Option<Json>, ModelError> {
    let class = settings["tokenizer_class"].as_str().unwrap_or_default();
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let Some((_, bos_by_default)) = REBUILDING.iter().find(|(name, _)| *name == class) else {
        return Ok(None);
    };
    let flag = |key: &str| match settings.get(key) {
        None => Ok(None),
        Some(Json::Null) => Ok(Some(false)),
        Some(Json::Bool(value)) => Ok(Some(*value)),
        Some(other) => {
            let message = format!("tokenizer_config.json: {key} is {other}; it must be true or false");
            Err(ModelError::tokenizer(message))
        }
    };
    let (bos, eos) = (flag("add_bos_token")?, flag("add_eos_token")?);
    if bos.is_none() && eos.is_none() {
        return Ok(None);
    }
    let token = |wanted: bool, key: &str| {
        let found = || {
            let name = named(settings, key)?;
            Some((name, library.token_to_id(name)?))
        };
        if wanted && found().is_none() {
            let message =
                format!("tokenizer_config.json: add_{key} is true, but {key} is no token of tokenizer.json");
            return Err(ModelError::tokenizer(message));
        }
        Ok(found().filter(|_| wanted))
    };
    let bos = token(bos.unwrap_or(*bos_by_default), "bos_token")?;
    let eos = token(eos.unwrap_or(false), "eos_token")?;
    Ok(Some(template(bos, eos)))
}

/// A tokenizer.json's post-processor that adds these tokens before and after a bare prompt.
pub(crate) fn template(bos: Option<(&str, u32)>, eos: Option<(&str, u32)>) -> Json {
    let mut special = Map::new();
    let mut piece = |token: Option<(&str, u32)>| {
        let (name, id) = token?;
        special.insert(name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}));
        Some(json!({"SpecialToken": {"id": name, "type_id": 0}}))
    };
    let (before, after) = (piece(bos), piece(eos));
    let sequence = |id: &str| {
        let text = Some(json!({"Sequence": {"id": id, "type_id": 0}}));
        [before.clone(), text, after.clone()].into_iter().flatten().collect::<Vec<_>>()
    };
    let pair: Vec<Json> = sequence("A").into_iter().chain(sequence("B")).collect();
    json!({"type": "TemplateProcessing", "single": sequence("A"), "pair": pair, "special_tokens": special})
}

/// All tokens with their ids, including added ones.
pub(crate) fn vocabulary(library: &tokenizers::Tokenizer) -> HashMap<String, u32> {
    library.get_vocab(true).into_iter().collect()
}
