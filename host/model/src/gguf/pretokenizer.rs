//! How byte-level vocabularies split text before merging: GGUF names the rule, `tokenizer.json` spells it out.

use serde_json::{Value as Json, json};

/// A rule.
pub(super) struct PreTokenizer {
    /// `pre_tokenizer` of a `tokenizer.json`.
    pub json: Json,
    /// Whether text is normalized to NFC first.
    pub composes: bool,
    /// Whether a piece that is a token stays whole regardless of merges.
    pub ignores_merges: bool,
    /// Whether a prompt begins with the BOS token if the file doesn't say.
    pub adds_bos: bool,
}

/// Names of the supported rules.
pub(super) const KNOWN: &str = "default, gpt-2, olmo, llama-bpe, llama3, llama-v3, smaug-bpe, dbrx, qwen2, \
                                deepseek-r1-qwen, smollm, refact, tekken and gpt-4o";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
/// llama.cpp's rule for files that name none: punctuation separately, words, digits in threes.
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
            // OLMoE's, which is GPT-NeoX's.
            "olmo" => Self { composes: true, ..plain(&[GPT2]) },
            "llama-bpe" | "llama3" | "llama-v3" => {
                Self { ignores_merges: true, adds_bos: true, ..plain(&[LLAMA3]) }
            }
            // The name of the same rule for tokenizers that add no BOS token.
            "smaug-bpe" => Self { ignores_merges: true, ..plain(&[LLAMA3]) },
            // The same rule for Phi-4 and OLMo 2, whose pieces are merged even if they are tokens.
            "dbrx" => plain(&[LLAMA3]),
            "tekken" => Self { ignores_merges: true, adds_bos: true, ..plain(&[TEKKEN]) },
            // The rule of Phi-4-mini and gpt-oss.
            "gpt-4o" => plain(&[GPT4O]),
            "qwen2" => Self { composes: true, ..plain(&[QWEN2]) },
            "deepseek-r1-qwen" => plain(&[QWEN2]),
            // The latter is the name in files of Granite.
            "smollm" | "refact" => plain(&[r"\p{N}", GPT2]),
            _ => return None,
        })
    }
}

/// Splits by one pattern after another, then writes bytes as letters.
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
