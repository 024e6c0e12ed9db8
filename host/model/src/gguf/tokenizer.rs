//! A GGUF file's vocabulary as a `tokenizer.json`: byte-level BPE (`gpt2`) unchanged, SentencePiece (`llama`) as the BPE that
//! merges in the order of its scores. The `tokenizers` library then reads it like any other.
//!
//! Unused tokens, and those with invalid UTF-8 or the text of an earlier token, keep their ids but have no text.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::Gguf;
use super::pretokenizer::{KNOWN, PreTokenizer};
use crate::error::{ModelError, ModelErrorKind};
use crate::tokenizer::template;

/// Texts of tokens that end an output even if the file doesn't declare them. Some files mark them as normal tokens; like
/// llama.cpp, this treats them as control tokens.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
];

/// The special tokens of Phi-3's SentencePiece vocabulary that leave the whitespace behind them. All others take it, which the
/// model's templates rely on, and which files don't say: llama.cpp, too, knows it of the model.
const LEAVING_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

const TOKENS: &str = "tokenizer.ggml.tokens";

/// `tokenizer.ggml.model`.
enum Model {
    ByteLevel,
    SentencePiece,
}

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

struct Vocabulary<'a> {
    /// Texts by id; `None` has no text.
    tokens: Vec<Option<&'a str>>,
    kinds: Vec<Kind>,
    ids: HashMap<&'a str, usize>,
}

pub(super) fn tokenizer(file: &Gguf) -> Result<Json, ModelError> {
    let vocabulary = Vocabulary::read(file)?;
    match Model::of(file)? {
        Model::ByteLevel => byte_level(file, &vocabulary),
        Model::SentencePiece => sentence_piece(file, &vocabulary),
    }
}

/// Fails as `tokenizer` does for a file without a vocabulary or with one of an unknown kind, but doesn't read it.
pub(super) fn check(file: &Gguf) -> Result<(), ModelError> {
    if !file.values.contains_key(TOKENS) {
        return Err(without_tokens(file));
    }
    match Model::of(file)? {
        Model::ByteLevel => pre_tokenizer(file).map(drop),
        Model::SentencePiece => Ok(()),
    }
}

fn without_tokens(file: &Gguf) -> ModelError {
    file.fault(ModelErrorKind::Tokenizer, format_args!("{TOKENS} is missing"))
}

/// Chat templates and the names of special tokens. Of named templates only the one for tools is ever used.
pub(super) fn tokenizer_config(file: &Gguf) -> Result<Json, ModelError> {
    let vocabulary = Vocabulary::read(file)?;
    let mut config = Map::new();
    if let Some(template) = file.text("tokenizer.chat_template")? {
        let named = |name: &str, template: &str| json!({"name": name, "template": template});
        let templates = match file.text("tokenizer.chat_template.tool_use")? {
            None => json!(template),
            Some(tool_use) => json!([named("default", &template), named("tool_use", &tool_use)]),
        };
        config.insert("chat_template".to_owned(), templates);
    }
    for (name, key) in [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ] {
        if let Some(token) = vocabulary.named(file, key)? {
            config.insert(name.to_owned(), json!(vocabulary.tokens[token]));
        }
    }
    Ok(Json::Object(config))
}

/// Tokens that end a sequence: those that the file declares, and those with a known text.
pub(super) fn ends(file: &Gguf) -> Result<Vec<u32>, ModelError> {
    let vocabulary = Vocabulary::read(file)?;
    let mut ends = Vec::new();
    for key in ["eos", "eot", "eom"] {
        ends.extend(vocabulary.named(file, &format!("tokenizer.ggml.{key}_token_id"))?);
    }
    ends.extend(ENDS.iter().filter_map(|text| vocabulary.ids.get(text)));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends.into_iter().map(|id| id as u32).collect())
}

impl Model {
    fn of(file: &Gguf) -> Result<Self, ModelError> {
        let name = file.text("tokenizer.ggml.model")?;
        let missing = || file.fault(ModelErrorKind::Tokenizer, "tokenizer.ggml.model is missing");
        match &*name.ok_or_else(missing)? {
            "gpt2" => Ok(Self::ByteLevel),
            "llama" => Ok(Self::SentencePiece),
            other => Err(file.fault(
                ModelErrorKind::Unsupported,
                format!("tokenizer.ggml.model is {other:?}; supported are gpt2 and llama"),
            )),
        }
    }
}

impl<'a> Vocabulary<'a> {
    fn read(file: &'a Gguf) -> Result<Self, ModelError> {
        let fault = |message: String| file.fault(ModelErrorKind::Tokenizer, message);
        let mut tokens = file.texts(TOKENS)?.ok_or_else(|| without_tokens(file))?;
        let rows = file.tensors.get("token_embd.weight").map_or(0, |tensor| tensor.shape[0]);
        if tokens.len() > rows {
            return Err(fault(format!(
                "tokenizer.ggml.tokens has {} tokens, but token_embd.weight has {rows} rows",
                tokens.len()
            )));
        }
        let mut kinds = match file.numbers("tokenizer.ggml.token_type")? {
            None => vec![Kind::Normal; tokens.len()],
            Some(kinds) => kinds.into_iter().map(Kind::of).collect(),
        };
        if kinds.len() != tokens.len() {
            return Err(fault(
                "tokenizer.ggml.token_type must be as long as tokenizer.ggml.tokens".to_owned(),
            ));
        }
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, (token, kind)) in tokens.iter_mut().zip(&kinds).enumerate() {
            let said = token.filter(|text| *kind != Kind::Unused && !text.is_empty());
            *token = said.filter(|text| *ids.entry(*text).or_insert(id) == id);
        }
        for id in ENDS.iter().filter_map(|text| ids.get(text)) {
            kinds[*id] = Kind::Control;
        }
        Ok(Self { tokens, kinds, ids })
    }

    /// The token whose id is the value of `key`.
    fn named(&self, file: &Gguf, key: &str) -> Result<Option<usize>, ModelError> {
        match file.integer(key)? {
            None => Ok(None),
            Some(id) if id < self.tokens.len() as u64 => Ok(Some(id as usize)),
            Some(_) => Err(file.wrong(key, &format!("below {}, the number of tokens", self.tokens.len()))),
        }
    }

    fn said(&self) -> impl Iterator<Item = (usize, &'a str, Kind)> {
        let tokens = self.tokens.iter().zip(&self.kinds).enumerate();
        tokens.filter_map(|(id, (token, kind))| token.map(|token| (id, token, *kind)))
    }

    fn json(&self) -> Json {
        Json::Object(self.said().map(|(id, token, _)| (token.to_owned(), json!(id))).collect())
    }

    /// Tokens that are matched in text before all others; some `take_space` behind them.
    fn added(&self, take_space: impl Fn(&str) -> bool) -> Json {
        let added = self.said().filter_map(|(id, token, kind)| {
            let special = match kind {
                Kind::Control | Kind::Unknown => true,
                Kind::UserDefined => false,
                Kind::Normal | Kind::Unused | Kind::Byte => return None,
            };
            Some(json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": take_space(token), "normalized": false, "special": special}))
        });
        added.collect()
    }

    /// Tokens added before and after a bare prompt.
    fn template(&self, file: &Gguf, adds_bos: bool) -> Result<Json, ModelError> {
        let token = |flag: &str, default: bool, key: &str| -> Result<Option<(&'a str, u32)>, ModelError> {
            let added = match file.flag(flag)?.unwrap_or(default) {
                true => self.named(file, key)?,
                false => None,
            };
            Ok(added.and_then(|id| Some((self.tokens[id]?, id as u32))))
        };
        let bos = token("tokenizer.ggml.add_bos_token", adds_bos, "tokenizer.ggml.bos_token_id")?;
        let eos = token("tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id")?;
        if bos.is_none() && eos.is_none() {
            return Ok(Json::Null);
        }
        Ok(template(bos, eos))
    }
}

impl Kind {
    fn of(number: f64) -> Self {
        match number as i64 {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

fn pre_tokenizer(file: &Gguf) -> Result<PreTokenizer, ModelError> {
    let name = file.text("tokenizer.ggml.pre")?;
    let name = name.as_deref().unwrap_or("default");
    PreTokenizer::named(name).ok_or_else(|| {
        file.fault(
            ModelErrorKind::Unsupported,
            format!("tokenizer.ggml.pre is {name:?}; supported are {KNOWN}"),
        )
    })
}

fn byte_level(file: &Gguf, vocabulary: &Vocabulary<'_>) -> Result<Json, ModelError> {
    let pre = pre_tokenizer(file)?;
    let merges = file.texts("tokenizer.ggml.merges")?;
    let merges = merges
        .ok_or_else(|| file.fault(ModelErrorKind::Tokenizer, "tokenizer.ggml.merges is missing"))?
        .into_iter()
        .map(|merge| {
            // The first letter is never the separator.
            let merge = merge?;
            let skip = merge.chars().next()?.len_utf8();
            let at = skip + merge[skip..].find(' ')?;
            Some(json!([&merge[..at], &merge[at + 1..]]))
        })
        .collect::<Option<Vec<Json>>>()
        .ok_or_else(|| file.wrong("tokenizer.ggml.merges", "pairs with a space between"))?;
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(|_| false),
        "normalizer": if pre.composes { json!({"type": "NFC"}) } else { Json::Null },
        "pre_tokenizer": pre.json,
        "post_processor": vocabulary.template(file, pre.adds_bos)?,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary.json(), "merges": merges, "ignore_merges": pre.ignores_merges},
    }))
}

fn sentence_piece(file: &Gguf, vocabulary: &Vocabulary<'_>) -> Result<Json, ModelError> {
    const SPACE: &str = "\u{2581}";
    let prefix = file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let normalizer = match prefix {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, space]}),
        false => space,
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let takes_space = file.architecture == "phi3";
    let unknown = match vocabulary.named(file, "tokenizer.ggml.unknown_token_id")? {
        Some(id) => Some(id),
        None => vocabulary.kinds.iter().position(|kind| *kind == Kind::Unknown),
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(|token| takes_space && !LEAVING_SPACE.contains(&token)),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": vocabulary.template(file, true)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": vocabulary.json(), "merges": scored_merges(file, vocabulary)?,
            "unk_token": unknown.and_then(|id| vocabulary.tokens[id]), "fuse_unk": true, "byte_fallback": true},
    }))
}

/// Maximum bytes of a piece that is cut in two: several times the longest of any vocabulary.
const LONGEST_PIECE: usize = 256;
/// Average ways per piece to cut it into known ones: real vocabularies have two. Each way takes two texts in memory, several
/// times, so without a bound a file of a few megabytes could demand any amount.
const CUTS_PER_PIECE: usize = 8;
/// Total number of cuts that is always accepted.
const FEW_CUTS: usize = 1 << 16;
/// Maximum total number of cuts: eight times that of the largest vocabulary.
const MOST_CUTS: usize = 1 << 22;

/// SentencePiece joins the two neighbours whose union has the best score. As merges, that is every way to cut a piece in two,
/// with the best pieces first.
fn scored_merges<'a>(file: &'a Gguf, vocabulary: &Vocabulary<'a>) -> Result<Json, ModelError> {
    let scores = file.numbers("tokenizer.ggml.scores")?.unwrap_or_default();
    if scores.len() != vocabulary.tokens.len() {
        return Err(file.wrong("tokenizer.ggml.scores", "an array as long as tokenizer.ggml.tokens"));
    }
    let normal = |piece: &str| {
        let id = vocabulary.ids.get(piece)?;
        (vocabulary.kinds[*id] == Kind::Normal).then_some(*id)
    };
    let mut pieces: Vec<(usize, &str)> = vocabulary
        .said()
        .filter(|(_, _, kind)| *kind == Kind::Normal)
        .map(|(id, text, _)| (id, text))
        .collect();
    if let Some((id, piece)) = pieces.iter().find(|(_, piece)| piece.len() > LONGEST_PIECE) {
        return Err(file.fault(
            ModelErrorKind::Tokenizer,
            format!("tokenizer.ggml.tokens: token {id} has {} bytes, more than {LONGEST_PIECE}", piece.len()),
        ));
    }
    let most = (CUTS_PER_PIECE * pieces.len()).clamp(FEW_CUTS, MOST_CUTS);
    pieces.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]).then(a.0.cmp(&b.0)));
    let mut merges = Vec::new();
    for (_, piece) in pieces {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let known = cuts.filter_map(|(left, right)| Some(((normal(left)?, normal(right)?), (left, right))));
        let mut known: Vec<_> = known.collect();
        if merges.len() + known.len() > most {
            return Err(file.fault(
                ModelErrorKind::Tokenizer,
                format!("tokenizer.ggml.tokens can be cut into each other in more than {most} ways"),
            ));
        }
        known.sort_unstable_by_key(|(ids, _)| *ids);
        merges.extend(known.into_iter().map(|(_, (left, right))| json!([left, right])));
    }
    Ok(Json::Array(merges))
}
