//! What it costs to hold an output to its shape, a token, with vocabularies as large as today's: JSON with and
//! without a schema, a regular expression, a choice. First what a mask costs, then what a draw waits for it
//! where the step before took a while. Vocabularies are made here (syllables, numbers, JSON's
//! punctuation, several scripts); a folder with a tokenizer.json as argument measures that one.
//! `cargo bench --workspace --all-features --bench masks -- [FOLDER]`
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use infer_core::testing::SplitMix;
use infer_core::{Constraint, TenantId};
use infer_model::{Source, Tokenizer};
use infer_server::data::{Compiler, Prelude, Shape};
use infer_server::shares::Holder;
use serde_json::{Map, Value, json};

/// Outputs a shape.
const ROUNDS: usize = 5;
/// A step of a model, in which masks are found out ahead.
const STEP: Duration = Duration::from_millis(10);
/// Who asks.
const ALONE: Holder = Holder { tenant: TenantId(0), alone: true };

fn main() {
    // Cargo adds flags of its own.
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if let Some(folder) = folder {
        return measure(Path::new(&folder), &folder);
    }
    for size in [32_768, 131_072, 262_144] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer(size)).expect("written");
        measure(folder.path(), &format!("{size} tokens"));
    }
}

/// What is asked, and an output that fulfils it.
fn cases() -> Vec<(&'static str, Value, String)> {
    let person = json!({
        "name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "role": "author", "active": true,
        "tags": ["engines", "numbers", "a longer text with several words in it, and a comma"],
        "address": {"street": "12 Saint James Square", "city": "London", "zip": "SW1Y"},
        "history": [{"year": 1833, "event": "met Babbage"}, {"year": 1843, "event": "wrote the notes"}],
    });
    let text = |max: u32| json!({"type": "string", "maxLength": max});
    let schema = json!({
        "type": "object", "additionalProperties": false,
        "required": ["name", "age", "email", "role", "active", "tags", "address", "history"],
        "properties": {
            "name": text(60), "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "pattern": "^[a-z.]+@[a-z.]+\\.[a-z]{2,6}$"},
            "role": {"enum": ["author", "editor", "reader"]}, "active": {"type": "boolean"},
            "tags": {"type": "array", "items": text(80), "maxItems": 8},
            "address": {
                "type": "object", "required": ["street", "city", "zip"],
                "properties": {"street": text(80), "city": text(40), "zip": text(10)},
            },
            "history": {"type": "array", "items": {
                "type": "object", "required": ["year", "event"],
                "properties": {"year": {"type": "integer"}, "event": {"type": "string"}},
            }},
        },
    });
    // In the order in which a schema's properties stand, which is the one that outputs have.
    let ordered = |value: &Value| serde_json::to_string(value).expect("JSON");
    let date = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T[0-9]{2}:[0-9]{2}:[0-9]{2}Z";
    vec![
        ("any JSON object", json!({"json_object": true}), ordered(&person)),
        ("a schema", json!({"json": schema}), ordered(&person)),
        ("a pattern", json!({"regex": date}), "1943-10-05T12:30:59Z".to_owned()),
        (
            "a choice",
            json!({"choice": ["positive", "negative", "neither of them"]}),
            "neither of them".to_owned(),
        ),
    ]
}

fn measure(folder: &Path, name: &str) {
    let tokenizer = Tokenizer::load(&Source::Directory(folder.to_owned())).unwrap_or_else(|e| panic!("{e}"));
    let size = tokenizer.vocab_size();
    let words: HashMap<Vec<u8>, u32> = (0..size - 1)
        .filter(|&id| tokenizer.token(id).is_some_and(|written| !tokenizer.is_special(&written)))
        .map(|id| (tokenizer.token_bytes(id), id))
        .collect();
    let longest = words.keys().map(Vec::len).max().unwrap_or(1);
    let compiler = Compiler::new(tokenizer, size, Arc::from([size - 1]));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let asked = |outputs: &Value| {
        let shape = Shape::of_outputs(outputs.as_object().expect("an object").clone());
        let shape = shape.unwrap_or_else(|e| panic!("{}", e.message()));
        let begun = Instant::now();
        let masks = runtime
            .block_on(compiler.masks(ALONE, &shape, 1, Prelude::None))
            .unwrap_or_else(|e| panic!("{}", e.message()));
        (masks.into_iter().next().expect("one was asked for"), begun.elapsed())
    };
    let (_, first) = asked(&json!({"regex": "a"}));
    println!(
        "{name}: the first shape takes {:.0} ms, the vocabulary's trie included",
        first.as_secs_f64() * 1e3
    );
    println!("  {:16} {:>7} {:>9} {:>9} {:>9} {:>9}", "us a mask", "tokens", "mean", "p50", "p99", "max");
    let mut logits = vec![0.0_f32; size as usize];
    for (what, outputs, text) in cases() {
        let tokens = longest_match(text.as_bytes(), &words, longest);
        for (how, step, rounds) in [(what, None, ROUNDS), ("  of it waited", Some(STEP), 1)] {
            let mut times = Vec::new();
            for _ in 0..rounds {
                let (mask, _) = asked(&outputs);
                for taken in 0..=tokens.len() {
                    logits.fill(0.0);
                    let begun = Instant::now();
                    let goes_on = mask.restrict(&tokens[..taken], &mut logits);
                    times.push(begun.elapsed().as_secs_f64() * 1e6);
                    assert!(goes_on, "{what}: {:?}", mask.fault());
                    let next = tokens.get(taken).copied().unwrap_or(size - 1);
                    assert!(logits[next as usize] == 0.0, "{what}: token {taken} of {text} may not follow");
                    if let Some(step) = step {
                        Arc::clone(&mask).drawn(next);
                        std::thread::sleep(step);
                    }
                }
            }
            show(how, tokens.len(), times);
        }
    }
}

fn show(what: &str, tokens: usize, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
    println!("  {what:16} {tokens:>7} {mean:>9.1} {p50:>9.1} {p99:>9.1} {max:>9.1}");
}

fn longest_match(mut text: &[u8], words: &HashMap<Vec<u8>, u32>, longest: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let fits = |&length: &usize| words.contains_key(&text[..length]);
        let length = (1..=longest.min(text.len())).rev().find(fits).expect("every byte is a token");
        tokens.push(words[&text[..length]]);
        text = &text[length..];
    }
    tokens
}

/// Tokens under way to a vocabulary of a size.
struct Words {
    size: usize,
    all: Vec<Vec<u8>>,
    known: HashSet<Vec<u8>>,
    random: SplitMix,
}

impl Words {
    fn add(&mut self, word: impl Into<Vec<u8>>) {
        let word = word.into();
        if self.all.len() < self.size && self.known.insert(word.clone()) {
            self.all.push(word);
        }
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.below(from.len() as u64) as usize]
    }

    /// Something like a word, or some letters of another script.
    fn word(&mut self) -> String {
        const STARTS: [&str; 16] =
            ["", "b", "c", "d", "f", "st", "tr", "l", "m", "n", "p", "r", "s", "th", "v", "w"];
        const MIDDLES: [&str; 7] = ["a", "e", "i", "o", "u", "ea", "ou"];
        const ENDS: [&str; 9] = ["", "n", "r", "s", "t", "l", "ng", "ck", "nd"];
        const SCRIPTS: [u32; 7] = [0x430, 0x3b1, 0x627, 0x905, 0x3042, 0x4e00, 0xac00];
        let mut word = String::new();
        if self.random.below(10) < 2 {
            let first = SCRIPTS[self.random.below(7) as usize];
            for _ in 0..=self.random.below(3) {
                word.extend(char::from_u32(first + self.random.below(24) as u32));
            }
        } else {
            for _ in 0..=self.random.below(4) {
                word = word + self.pick(&STARTS) + self.pick(&MIDDLES) + self.pick(&ENDS);
            }
            if self.random.below(4) == 0 {
                word[..1].make_ascii_uppercase();
            }
        }
        if self.random.below(2) == 0 { format!(" {word}") } else { word }
    }
}

/// A tokenizer.json of so many tokens, the last of which is special.
fn tokenizer(size: usize) -> String {
    let (all, known, random) = (Vec::new(), HashSet::new(), SplitMix(7));
    let mut words = Words { size: size - 1, all, known, random };
    for byte in 0..=255_u8 {
        words.add([byte]);
    }
    for mark in
        ["\"", "\":", "\",", "{\"", "\"}", "\"},", "},{", "}]", "],", "\":\"", "\",\"", ": ", ", ", "//"]
    {
        words.add(mark);
        words.add(format!(" {mark}"));
    }
    for length in 2..40 {
        words.add(" ".repeat(length));
        words.add(format!("\n{}", " ".repeat(length)));
    }
    for number in 0..1_000 {
        words.add(number.to_string());
    }
    while words.all.len() < words.size {
        let word = words.word();
        words.add(word);
    }
    let mut vocab: Map<String, Value> =
        words.all.iter().enumerate().map(|(id, word)| (written(word), json!(id))).collect();
    vocab.insert("<|end|>".to_owned(), json!(size - 1));
    let special = json!({
        "id": size - 1, "content": "<|end|>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "version": "1.0", "added_tokens": [special], "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
    .to_string()
}

/// Bytes as byte-level vocabularies write them: those that can be seen as themselves, the others by the
/// letters from U+0100 on.
fn written(word: &[u8]) -> String {
    let seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let letter = |&byte: &u8| match seen(byte) {
        true => char::from(byte),
        false => {
            let hidden_before = (0..byte).filter(|&other| !seen(other)).count() as u32;
            char::from_u32(0x100 + hidden_before).expect("a letter")
        }
    };
    word.iter().map(letter).collect()
}
