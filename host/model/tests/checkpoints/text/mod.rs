//! Tokenizers and streams against the results of Hugging Face's libraries (`tests/golden`, made with transformers and
//! tokenizers); and strings that end a stream.

mod arbitrary;
mod stop;
mod streams;
mod tokens;

use infer_model::{ModelError, Source, Tokenizer};
use serde_json::Value as Json;

use crate::common::golden;
use crate::expected;

const CHECKPOINTS: [&str; 5] = ["llama-f32", "llama-bf16", "qwen3-bf16", "gemma3-f32", "gemma3-bf16"];

struct Golden {
    name: &'static str,
    tokenizer: Tokenizer,
    expected: Json,
}

impl Golden {
    fn all() -> impl Iterator<Item = Self> {
        CHECKPOINTS.into_iter().map(|name| {
            let tokenizer = Tokenizer::load(&Source::Directory(golden(name))).expect("the tokenizer loads");
            Self { name, tokenizer, expected: expected(name) }
        })
    }

    fn cases(&self, kind: &str) -> &[Json] {
        self.expected["tokenizer"][kind].as_array().expect("cases are a list")
    }
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = tokenizer.detokenizer();
    let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text + &detokenizer.finish()
}

/// The text of tokens after a prompt, decoded piece by piece.
fn stream_after(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32]) -> String {
    let mut detokenizer = tokenizer.detokenizer_after(prompt);
    let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text + &detokenizer.finish()
}

fn text(json: &Json) -> &str {
    json.as_str().expect("a text")
}

/// A tokenizer with a kind of decoder that no golden checkpoint has.
fn made(decoder: &Json, vocabulary: &[&str]) -> Tokenizer {
    load(decoder, vocabulary.iter().copied().zip(0..)).expect("it loads")
}

fn load<'a>(
    decoder: &Json,
    vocabulary: impl Iterator<Item = (&'a str, u32)>,
) -> Result<Tokenizer, ModelError> {
    let vocabulary: serde_json::Map<_, _> =
        vocabulary.map(|(token, id)| (token.to_owned(), Json::from(id))).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<s>"}
    });
    let bytes = json.to_string();
    Tokenizer::load(&Source::Embedded(&[("tokenizer.json", bytes.as_bytes())]))
}

fn llama_2() -> Tokenizer {
    let decoder = serde_json::json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    ]});
    made(&decoder, PIECES)
}

const PIECES: &[&str] =
    &["<s>", "▁", "▁▁", "▁the", "a", "é", "<0xE6>", "<0x9D>", "<0xB1>", "<0x0A>", "<0xFF>", ".", "▁x"];

fn all_kinds() -> Vec<(&'static str, Tokenizer)> {
    let metaspace = serde_json::json!(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let word_piece = serde_json::json!({"type": "WordPiece", "prefix": "##", "cleanup": false});
    let words = ["<s>", "one", "##two", "three", "##'", ".", "##\u{fffd}"];
    let mut all: Vec<_> = Golden::all().map(|golden| (golden.name, golden.tokenizer)).collect();
    all.push(("llama 2", llama_2()));
    all.push(("metaspace", made(&metaspace, PIECES)));
    all.push(("word pieces", made(&word_piece, &words)));
    let gguf = Source::gguf(&golden("gguf-mixed").join("model.gguf")).expect("a sound file");
    all.push(("scored pieces", Tokenizer::load(&gguf).expect("it loads")));
    all
}

thread_local! {
    static KINDS: Vec<(&'static str, Tokenizer)> = all_kinds();
}
