//! How byte-level vocabularies cut text before they merge: GGUF names the rule, `tokenizer.json` spells it out.

use serde_json::{Value as Json, json};

/// A rule.
pub(super) struct PreTokenizer {
    /// `pre_tokenizer` of a `tokenizer.json`.
    pub json: Json,
    /// Text is composed (NFC) first.
    pub composes: bool,
    /// A piece that is a token stays whole whatever the merges say.
    pub ignores_merges: bool,
    /// Whether a prompt begins with the BOS where the file doesn't say.
    pub adds_bos: bool,
}

/// Names of the rules that are known.
pub(super) const KNOWN: &str = "default, gpt-2, llama-bpe, llama3, llama-v3, smaug-bpe, qwen2, deepseek-r1-qwen, \
                                smollm and tekken";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
/// What llama.cpp does with files that name no rule: punctuation apart, words, digits in threes.
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

impl PreTokenizer {
    /// The rule of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let plain = |patterns: &[&str]| Self {
            json: cut(patterns),
            composes: false,
            ignores_merges: false,
            adds_bos: false,
        };
        Some(match name {
            "default" => plain(DEFAULT),
            "gpt-2" => plain(&[GPT2]),
            "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => {
                Self { ignores_merges: true, adds_bos: true, ..plain(&[LLAMA3]) }
            }
            "tekken" => Self { ignores_merges: true, adds_bos: true, ..plain(&[TEKKEN]) },
            "qwen2" => Self { composes: true, ..plain(&[QWEN2]) },
            "deepseek-r1-qwen" => plain(&[QWEN2]),
            "smollm" => plain(&[r"\p{N}", GPT2]),
            _ => return None,
        })
    }
}

/// Cuts by one pattern after the other, then writes bytes as letters.
fn cut(patterns: &[&str]) -> Json {
    let mut steps: Vec<Json> = patterns
        .iter()
        .map(|pattern| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}))
        .collect();
    steps.push(
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
    );
    json!({"type": "Sequence", "pretokenizers": steps})
}
