//! The tokens of a text, and of a bare prompt.

use infer_model::{ModelError, ModelErrorKind, Source, Tokenizer};
use serde_json::Value as Json;

use super::{Golden, load, text};
use crate::{ids, with};

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
        let own = serde_json::json!({"tokenizer_class": class, "bos_token": "<s>", "eos_token": "</s>"});
        let config = with(own, more);
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
        let own = serde_json::json!({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"});
        let config = with(own, more);
        let error = bare(&nothing, &config).expect_err("it says what is wrong");
        assert!(error.message.contains(why), "{config}: {error}");
    }
}

/// The library reads a template that names a token it lacks, and panics when it needs the token.
#[test]
fn panic_of_the_library_is_an_error_of_the_tokenizer() {
    let lacking = serde_json::json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<lacking>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {}});
    let error = bare(&lacking, &serde_json::json!({})).expect_err("a bare prompt needs the token");
    assert_eq!(error.kind, ModelErrorKind::Tokenizer, "{error}");
}
