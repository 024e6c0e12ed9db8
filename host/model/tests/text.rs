//! Tokenizers and streams against the results of Hugging Face's libraries (`tests/golden`, made with transformers and
//! tokenizers).

use std::path::PathBuf;

use infer_model::{ModelError, Source, StopStrings, Tokenizer};
use proptest::prelude::*;
use serde_json::Value as Json;

const CHECKPOINTS: [&str; 5] = ["llama-f32", "llama-bf16", "qwen3-bf16", "gemma3-f32", "gemma3-bf16"];

struct Golden {
    name: &'static str,
    tokenizer: Tokenizer,
    expected: Json,
}

impl Golden {
    fn all() -> impl Iterator<Item = Self> {
        CHECKPOINTS.into_iter().map(|name| {
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
            let text = std::fs::read_to_string(folder.join("golden.json")).expect("golden.json is there");
            let expected = serde_json::from_str(&text).expect("golden.json is JSON");
            let tokenizer = Tokenizer::load(&Source::Directory(folder)).expect("the tokenizer loads");
            Self { name, tokenizer, expected }
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

fn ids(json: &Json) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("ids are numbers")
}

fn text(json: &Json) -> &str {
    json.as_str().expect("a text")
}

#[test]
fn text_becomes_the_same_tokens() {
    for golden in Golden::all() {
        for case in golden.cases("encode") {
            let name = golden.name;
            let encode = |special| golden.tokenizer.encode(text(&case["text"]), special).expect("encodes");
            assert_eq!(encode(false), ids(&case["ids"]), "{name}: {case}");
            assert_eq!(encode(true), ids(&case["ids_with_special"]), "{name}: {case}");
        }
    }
}

/// A text that fits must never be refused, and one that is hopelessly long must not be encoded as a whole.
#[test]
fn text_is_far_too_long_only_if_it_is() {
    for golden in Golden::all() {
        let name = golden.name;
        let cases = golden.cases("encode").iter().map(|case| text(&case["text"]));
        let mixed: String = cases.collect();
        let words = "word ".to_owned();
        for part in [mixed, words, " ".to_owned(), "\n".to_owned(), "e\u{301}".to_owned(), "a".to_owned()] {
            let whole = part.repeat((200 << 10) / part.len());
            let tokens = golden.tokenizer.encode(&whole, false).expect("encodes").len();
            assert!(!golden.tokenizer.far_exceeds(&whole, tokens), "{name}: {:?}", &part[..1]);
            assert!(golden.tokenizer.far_exceeds(&whole, tokens / 3), "{name}: {:?}", &part[..1]);
        }
    }
}

#[test]
fn tokens_become_the_same_text_at_once_and_in_a_stream() {
    for golden in Golden::all() {
        let (encode, decode) = (golden.cases("encode"), golden.cases("decode"));
        for case in encode.iter().chain(decode) {
            // The decoded text of an encoded one is that of its ids with special tokens.
            let ids = ids(case.get("ids_with_special").unwrap_or(&case["ids"]));
            let at_once = golden.tokenizer.decode(&ids, true).expect("decodes");
            assert_eq!(at_once, text(&case["decoded_skip_special"]), "{}: {case}", golden.name);
            assert_eq!(stream(&golden.tokenizer, &ids), at_once, "{}: {case}", golden.name);
        }
    }
}

#[test]
fn a_stream_never_shows_half_a_character() {
    for golden in Golden::all() {
        for case in golden.cases("stream") {
            let mut detokenizer = golden.tokenizer.detokenizer();
            let mut shown = String::new();
            for id in ids(&case["ids"]) {
                shown.push_str(&detokenizer.push(id));
                assert!(text(&case["text"]).starts_with(&shown), "{}: {shown:?}", golden.name);
            }
            shown.push_str(&detokenizer.finish());
            assert_eq!(shown, text(&case["text"]), "{}", golden.name);
        }
    }
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

#[test]
fn implausibly_large_token_id_is_refused() {
    let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
        "use_regex": true});
    let tokens = |last| [("<s>", 0), ("a", last)].into_iter();
    assert_eq!(load(&bytes, tokens(7)).expect("it loads").token_bytes(7), b"a");
    let error = load(&bytes, tokens(1 << 22)).err().expect("nobody has that many tokens");
    assert!(error.message.contains("\"a\" has id 4194304"), "{error}");
}

/// The tokens of "a" as a bare prompt, by a post-processor and a tokenizer_config.json.
fn bare(post_processor: &Json, config: &Json) -> Result<Vec<u32>, ModelError> {
    let special = |id: u32, name: &str| {
        serde_json::json!({"id": id, "content": name, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [special(0, "<s>"), special(1, "</s>")],
        "normalizer": null, "pre_tokenizer": null, "post_processor": post_processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "a": 2}, "unk_token": "<s>"}
    });
    let (tokenizer, settings) = (tokenizer.to_string(), config.to_string());
    let files = [("tokenizer.json", tokenizer.as_bytes()), ("tokenizer_config.json", settings.as_bytes())];
    let tokenizer = Tokenizer::load(&Source::Embedded(&files))?;
    // A rendered chat has its BOS already.
    assert_eq!(tokenizer.encode("a", false).expect("encodes"), [2], "{config}");
    tokenizer.encode("a", true)
}

/// Some classes follow `add_bos_token` and `add_eos_token`, as in transformers 4, and the others tokenizer.json. So do all
/// without these flags, which transformers 5 doesn't write.
#[test]
fn bare_prompt_gets_the_tokens_that_its_tokenizer_class_adds() {
    let nothing = serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
        "use_regex": true});
    let sequence = |id: &str| serde_json::json!({"Sequence": {"id": id, "type_id": 0}});
    let bos = serde_json::json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let adds_bos = serde_json::json!({"type": "TemplateProcessing", "single": [bos, sequence("A")],
        "pair": [bos, sequence("A"), sequence("B")],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}});
    let (plain, with_bos, with_both) = (&[2][..], &[0, 2][..], &[0, 2, 1][..]);
    for (class, more, on_nothing, on_bos) in [
        ("LlamaTokenizerFast", serde_json::json!({"add_bos_token": true}), with_bos, with_bos),
        ("LlamaTokenizerFast", serde_json::json!({"add_bos_token": false}), plain, plain),
        ("LlamaTokenizerFast", serde_json::json!({"add_bos_token": null}), plain, plain),
        ("LlamaTokenizerFast", serde_json::json!({"add_eos_token": true}), with_both, with_both),
        (
            "LlamaTokenizer",
            serde_json::json!({"add_bos_token": true, "bos_token": {"content": "<s>"}}),
            with_bos,
            with_bos,
        ),
        ("LlamaTokenizer", serde_json::json!({}), plain, with_bos),
        ("GemmaTokenizer", serde_json::json!({}), plain, with_bos),
        ("GPTNeoXTokenizerFast", serde_json::json!({}), plain, with_bos),
        ("GPTNeoXTokenizerFast", serde_json::json!({"add_bos_token": true}), with_bos, with_bos),
        ("GPTNeoXTokenizerFast", serde_json::json!({"add_eos_token": false}), plain, plain),
        ("Qwen2Tokenizer", serde_json::json!({}), plain, with_bos),
        ("Qwen2Tokenizer", serde_json::json!({"add_bos_token": true}), plain, with_bos),
        ("PreTrainedTokenizerFast", serde_json::json!({"add_bos_token": false}), plain, with_bos),
        ("LlamaTokenizer", serde_json::json!({"add_bos_token": false, "bos_token": null}), plain, plain),
    ] {
        let mut config = serde_json::json!({"tokenizer_class": class, "bos_token": "<s>",
            "eos_token": "</s>"});
        for (key, value) in more.as_object().expect("an object") {
            config[key] = value.clone();
        }
        assert_eq!(bare(&nothing, &config).expect("it loads"), on_nothing, "{config}");
        assert_eq!(bare(&adds_bos, &config).expect("it loads"), on_bos, "{config}");
    }
    assert_eq!(bare(&adds_bos, &serde_json::json!({})).expect("it loads"), with_bos);
    for (more, why) in [
        (serde_json::json!({"add_bos_token": "true"}), "add_bos_token is \"true\"; it must be true or false"),
        (
            serde_json::json!({"add_bos_token": true, "bos_token": "<bos>"}),
            "bos_token is no token of tokenizer.json",
        ),
        (serde_json::json!({"add_eos_token": true}), "add_eos_token is true, but eos_token is no token"),
    ] {
        let mut config = serde_json::json!({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"});
        for (key, value) in more.as_object().expect("an object") {
            config[key] = value.clone();
        }
        let error = bare(&nothing, &config).expect_err("it says what is wrong");
        assert!(error.message.contains(why), "{config}: {error}");
    }
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
    let gguf = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf-mixed/model.gguf");
    let gguf = Source::gguf(&gguf).expect("a sound file");
    all.push(("scored pieces", Tokenizer::load(&gguf).expect("it loads")));
    all
}

thread_local! {
    static KINDS: Vec<(&'static str, Tokenizer)> = all_kinds();
}

#[test]
fn only_the_first_leading_space_is_dropped() {
    let tokenizer = llama_2();
    let mut detokenizer = tokenizer.detokenizer();
    let pieces: Vec<_> = [3, 3, 1, 12, 11].into_iter().map(|id| detokenizer.push(id)).collect();
    assert_eq!(pieces, ["the", " the", " ", " x", "."]);
}

#[test]
fn continuation_of_a_prompt_keeps_its_leading_space() {
    KINDS.with(|kinds| {
        let of = |name: &str| &kinds.iter().find(|(kind, _)| *kind == name).expect("it is there").1;
        for (kind, prompt, output, text) in [
            ("llama 2", &[0, 3][..], &[3, 12, 11][..], " the x."),
            ("llama 2", &[3, 2], &[12], " x"),
            ("llama 2", &[3, 6, 7, 8], &[3], " the"),
            ("llama 2", &[6, 7, 8], &[6, 7, 8, 3], "\u{6771} the"),
            ("llama 2", &[3, 1_000], &[3], " the"),
            // After a special token, and after nothing, a new text begins.
            ("llama 2", &[0], &[3, 12], "the x"),
            ("llama 2", &[3, 0], &[3, 12], "the x"),
            ("llama 2", &[], &[3, 12], "the x"),
            ("metaspace", &[0, 4], &[3, 2, 12], " the   x"),
            ("word pieces", &[1], &[3, 2, 5], " threetwo ."),
            ("word pieces", &[0], &[3, 2], "threetwo"),
        ] {
            assert_eq!(stream_after(of(kind), prompt, output), text, "{kind} {prompt:?} {output:?}");
        }
    });
}

#[test]
fn leading_space_is_kept_after_a_long_run_of_byte_tokens() {
    let tokenizer = llama_2();
    // Whole characters up to the longest run, and one byte beyond or before it.
    for characters in 9..13 {
        let ids: Vec<u32> = [6, 7, 8].repeat(characters).into_iter().chain([9, 9, 3]).collect();
        for ids in
            [&ids[..], &[&ids[..3 * characters], &[9, 3]].concat(), &[&ids[..3 * characters], &[3]].concat()]
        {
            let whole = tokenizer.decode(ids, true).expect("decodes");
            assert_eq!(stream(&tokenizer, ids), whole, "{characters}: {ids:?}");
        }
    }
}

#[test]
fn a_long_run_of_byte_tokens_does_not_hold_everything_back() {
    let tokenizer = llama_2();
    let mut detokenizer = tokenizer.detokenizer();
    let mut shown = detokenizer.push(4);
    let mut most_held_back = 0;
    for character in 1..=100 {
        for byte in [6, 7, 8] {
            shown.push_str(&detokenizer.push(byte));
        }
        most_held_back = most_held_back.max(1 + character - shown.chars().count());
    }
    assert!(most_held_back <= 11, "{most_held_back} characters were held back");
    shown.push_str(&detokenizer.push(11));
    assert_eq!(shown, format!("a{}.", "\u{6771}".repeat(100)));
}

#[test]
fn spelled_special_token_has_its_name_as_text_between_any_others() {
    let tokenizer = llama_2();
    for (ids, text) in [
        (&[0, 3][..], "<s> the"),
        (&[3, 0, 3, 0, 0, 12], "the<s> the<s><s> x"),
        // It ends a run of bytes.
        (&[6, 7, 0, 8, 11], "\u{fffd}\u{fffd}<s>\u{fffd}."),
        (&[6, 7, 8, 0, 6, 7, 8, 11], "\u{6771}<s>\u{6771}."),
    ] {
        let mut detokenizer = tokenizer.detokenizer().spelling(&["<s>", "a", "none"]);
        let shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        assert_eq!(shown + &detokenizer.finish(), text, "{ids:?}");
        assert_eq!(stream(&tokenizer, ids), tokenizer.decode(ids, true).expect("decodes"), "{ids:?}");
    }
}

#[test]
fn marked_special_token_is_a_character_that_text_can_not_have() {
    let tokenizer = llama_2();
    for (ids, text) in [
        (&[0, 3][..], "\u{fdd0} the"),
        (&[3, 0, 3, 0, 0, 12], "the\u{fdd0} the\u{fdd0}\u{fdd0} x"),
        // It ends a run of bytes.
        (&[6, 7, 0, 8, 11], "\u{fffd}\u{fffd}\u{fdd0}\u{fffd}."),
        (&[6, 7, 8, 0, 6, 7, 8, 11], "\u{6771}\u{fdd0}\u{6771}."),
    ] {
        let marks = [("<s>", '\u{fdd0}'), ("a", 'a'), ("none", 'n')];
        let mut detokenizer = tokenizer.detokenizer().marking(&marks);
        assert!(detokenizer.marks(0) && !detokenizer.marks(3));
        let shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        assert_eq!(shown + &detokenizer.finish(), text, "{ids:?}");
        // The character that text has is told from the token.
        let marks = [("<s>", '\u{6771}')];
        let mut detokenizer = tokenizer.detokenizer().marking(&marks);
        let shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        let expected = text.replace('\u{6771}', "\u{fffd}").replace('\u{fdd0}', "\u{6771}");
        assert_eq!(shown + &detokenizer.finish(), expected, "{ids:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_stream_with_spelled_tokens_adds_up_to_the_whole(
        random in prop::collection::vec(0_u32..70_000, 0..60),
    ) {
        KINDS.with(|kinds| {
            for (kind, tokenizer) in kinds {
                let name = |id: &u32| tokenizer.token(*id).filter(|written| tokenizer.is_special(written));
                let spelled = (0..tokenizer.vocab_size()).find(|id| name(id).is_some()).expect("there is one");
                // Every fifth token is the spelled one.
                let ids = random.iter().zip(0..).map(|(id, at)| {
                    if at % 5 == 2 { spelled } else { id % (tokenizer.vocab_size() + 2) }
                });
                let ids: Vec<u32> = ids.collect();
                let mut detokenizer = tokenizer.detokenizer().spelling(&[&name(&spelled).expect("special")]);
                let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
                let kept: Vec<u32> =
                    ids.iter().copied().filter(|id| *id == spelled || name(id).is_none()).collect();
                let whole = tokenizer.decode(&kept, false).expect("decodes");
                prop_assert_eq!(text + &detokenizer.finish(), whole, "{} {:?}", kind, ids);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_stream_adds_up_to_the_whole(random in prop::collection::vec(0_u32..70_000, 0..60)) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                // A few ids beyond the vocabulary are among them.
                let ids: Vec<u32> = random.iter().map(|id| id % (tokenizer.vocab_size() + 2)).collect();
                let whole = tokenizer.decode(&ids, true).expect("decodes");
                prop_assert_eq!(stream(tokenizer, &ids), whole, "{} {:?}", name, ids);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_prompt_and_what_follows_it_add_up_to_the_whole(
        random in prop::collection::vec(0_u32..70_000, 1..40),
        cut in 0_usize..40,
    ) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                let ids: Vec<u32> = random.iter().map(|id| id % tokenizer.vocab_size()).collect();
                let (prompt, output) = ids.split_at(cut.min(ids.len()));
                let text = |ids: &[u32]| tokenizer.decode(ids, true).expect("decodes");
                let last = prompt.last().and_then(|id| tokenizer.token(*id));
                let anew = last.is_none_or(|written| tokenizer.is_special(&written));
                let (whole, before) = if anew { (text(output), String::new()) } else { (text(&ids), text(prompt)) };
                // If the cut splits a character, the prompt's text is no prefix of the whole.
                let Some(expected) = whole.strip_prefix(&before) else { continue };
                if before.ends_with(char::REPLACEMENT_CHARACTER) {
                    continue;
                }
                prop_assert_eq!(stream_after(tokenizer, prompt, output), expected, "{} {:?} {:?}", name, prompt, output);
            }
            Ok(())
        })?;
    }

    #[test]
    fn what_is_shown_is_never_taken_back(random in prop::collection::vec(0_u32..70_000, 0..30)) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                let ids: Vec<u32> = random.iter().map(|id| id % (tokenizer.vocab_size() + 2)).collect();
                let whole = tokenizer.decode(&ids, true).expect("decodes");
                let (mut detokenizer, mut shown) = (tokenizer.detokenizer(), String::new());
                for id in &ids {
                    shown.push_str(&detokenizer.push(*id));
                    // Half a character would give U+FFFD in place of a letter.
                    prop_assert!(whole.starts_with(&shown), "{} {:?}: {:?}", name, ids, shown);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_stop_string_ends_the_text_wherever_tokens_cut_it(
        random in prop::collection::vec(0_u32..70_000, 1..40),
        (from, len) in (0_usize..60, 1_usize..6),
    ) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                let ids: Vec<u32> = random.iter().map(|id| id % tokenizer.vocab_size()).collect();
                let whole = tokenizer.decode(&ids, true).expect("decodes");
                let stop: String = whole.chars().skip(from).take(len).collect();
                if stop.is_empty() {
                    continue;
                }
                let mut stops = StopStrings::new(vec![stop.clone()]);
                let (mut detokenizer, mut shown, mut stopped) = (tokenizer.detokenizer(), String::new(), false);
                for id in ids.iter().map(Some).chain([None]) {
                    let text = match id {
                        Some(&id) => detokenizer.push(id),
                        None => detokenizer.finish(),
                    };
                    let step = stops.push(&text);
                    shown.push_str(&step.text);
                    stopped = step.stopped;
                    if stopped {
                        break;
                    }
                }
                let end = whole.find(&stop).expect("it is part of the text");
                prop_assert!(stopped, "{} {:?} {:?}", name, ids, stop);
                prop_assert_eq!(&shown, &whole[..end], "{} {:?} {:?}", name, ids, stop);
            }
            Ok(())
        })?;
    }

    #[test]
    fn text_survives_tokens_and_a_stream(text in "\\PC{0,40}") {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds.iter().filter(|(name, _)| name.starts_with("llama-")) {
                let ids = tokenizer.encode(&text, true).expect("encodes");
                prop_assert_eq!(stream(tokenizer, &ids), text.clone(), "{}", name);
            }
            Ok(())
        })?;
    }
}
