//! Vocabularies: pieces with scores, merges by rules that files name, special tokens, templates.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;
use infer_model::{ModelConfig, Source, Tokenizer};
use serde_json::Value as Json;

use super::{CONTROL, NORMAL, USER_DEFINED, made, tokens};
use crate::common::golden;
use crate::{convert, expected, ids};

#[test]
fn a_gguf_vocabulary_is_the_same_tokenizer() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["llama-f32", "llama-bf16", "qwen3-bf16", "gemma3-f32", "gemma3-bf16"] {
        let source = Source::gguf(&convert::convert(name, GgmlDType::F32, directory.path())).expect("sound");
        let tokenizer = Tokenizer::load(&source).expect("the vocabulary is understood");
        let expected = expected(name);
        for case in expected["tokenizer"]["encode"].as_array().expect("a list") {
            let text = case["text"].as_str().expect("a text");
            assert_eq!(tokenizer.encode(text, false).expect("encodes"), ids(&case["ids"]), "{name}: {case}");
            let special = tokenizer.encode(text, true).expect("encodes");
            assert_eq!(special, ids(&case["ids_with_special"]), "{name}: {case}");
        }
        for case in expected["tokenizer"]["decode"].as_array().expect("a list") {
            let text = tokenizer.decode(&ids(&case["ids"]), true).expect("decodes");
            assert_eq!(text, case["decoded_skip_special"], "{name}: {case}");
        }
        let mut ends = ModelConfig::load(&Source::Directory(golden(name))).expect("sound").stop_tokens;
        ends.sort_unstable();
        assert_eq!(ModelConfig::load(&source).expect("sound").stop_tokens, ends, "{name}");
    }
}

#[test]
fn sentence_pieces_merge_in_the_order_of_their_scores() {
    let source = Source::gguf(&golden("gguf-mixed").join("model.gguf")).expect("sound");
    let tokenizer = Tokenizer::load(&source).expect("sound");
    let pieces = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text, true).expect("encodes");
        ids.into_iter().map(|id| tokenizer.token(id).expect("a token")).collect()
    };
    // "ab" scores better than "▁a", so it wins although it comes later; then "▁ab" can be merged.
    assert_eq!(pieces("ab abc"), ["<s>", "▁ab", "▁ab", "c"]);
    assert_eq!(pieces("cab\n"), ["<s>", "▁", "c", "ab", "<0x0A>"]);
    let ids = tokenizer.encode("cab abba\ncd", true).expect("encodes");
    assert_eq!(tokenizer.decode(&ids, true).expect("decodes"), "cab abba\ncd");
    // Rows 38 and 39 of the embedding have no token.
    assert_eq!((tokenizer.token(37).as_deref(), tokenizer.token(38)), (Some("cd"), None));
}

#[test]
fn known_end_tokens_end_sequences_whatever_their_declared_type() {
    for kind in [NORMAL, CONTROL, USER_DEFINED] {
        for end in ["<end_of_turn>", "<|im_end|>", "<|end|>"] {
            let vocabulary = tokens(&[("<unk>", 2), ("<eos>", CONTROL), ("a", NORMAL), (end, kind)]);
            let eos = [("tokenizer.ggml.eos_token_id", Value::U32(1))];
            let source = made(&vocabulary, &eos);
            assert_eq!(ModelConfig::load(&source).expect("sound").stop_tokens, [1, 3], "{end} as {kind}");
            let tokenizer = Tokenizer::load(&source).expect("sound");
            assert!(tokenizer.is_special(end), "{end} as {kind}");
            assert_eq!(
                tokenizer.encode(&format!("{end}a"), false).expect("encodes")[0],
                3,
                "{end} as {kind}"
            );
            assert_eq!(tokenizer.decode(&[2, 3], true).expect("decodes"), "a", "{end} as {kind}");
        }
    }
}

/// Its templates end a line behind each of them, which its own tokenizer takes away.
#[test]
fn special_tokens_of_phi3_take_the_space_behind_them() {
    let vocabulary = tokens(&[
        ("<unk>", 2),
        ("<s>", CONTROL),
        ("<|endoftext|>", CONTROL),
        ("<|user|>", CONTROL),
        ("<|end|>", CONTROL),
        ("</s>", USER_DEFINED),
        ("\u{2581}", NORMAL),
        ("a", NORMAL),
        ("<0x0A>", 6),
    ]);
    let encode = |architecture: &str, text: &str| {
        let more = [("general.architecture", Value::String(architecture.to_owned()))];
        let tokenizer = Tokenizer::load(&made(&vocabulary, &more)).expect("sound");
        tokenizer.encode(text, false).expect("encodes")
    };
    let chat = "<|user|>\na<|end|>\n";
    assert_eq!(encode("phi3", chat), [3, 6, 7, 4]);
    assert_eq!(encode("phi3", "</s> a"), [5, 6, 7]);
    assert_eq!(encode("phi3", "<s>\na<|endoftext|>\na"), [1, 6, 8, 7, 2, 6, 8, 7], "these leave it");
    assert_eq!(encode("llama", chat), [3, 6, 8, 7, 4, 6, 8]);
}

#[test]
fn tokenizer_of_an_unknown_kind_is_refused_before_its_vocabulary_is_read() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let text = |key, value: &str| vec![(key, Value::String(value.to_owned()))];
    assert!(Tokenizer::check(&made(&vocabulary, &[])).is_ok());
    let gpt2 = [text("tokenizer.ggml.model", "gpt2"), text("tokenizer.ggml.pre", "novel")].concat();
    for (more, words) in [
        (text("tokenizer.ggml.model", "t5"), "tokenizer.ggml.model is \"t5\"; supported are gpt2 and llama"),
        (gpt2, "tokenizer.ggml.pre is \"novel\"; supported are "),
    ] {
        let source = made(&vocabulary, &more);
        let error = Tokenizer::check(&source).expect_err("refused").message;
        assert!(error.contains(words), "{error}");
        assert_eq!(Tokenizer::load(&source).err().map(|error| error.message), Some(error));
    }
}

/// Converters know a rule by the tokens of a sample, its BOS included, so some names say whether there is one.
#[test]
fn bare_prompt_gets_the_bos_token_of_its_rule_unless_the_file_says() {
    let vocabulary = tokens(&[("<s>", CONTROL), ("a", NORMAL), ("b", NORMAL), ("ab", NORMAL)]);
    let bare = |rule: &str, adds: Option<bool>| {
        let mut more = vec![
            ("tokenizer.ggml.model", Value::String("gpt2".to_owned())),
            ("tokenizer.ggml.pre", Value::String(rule.to_owned())),
            ("tokenizer.ggml.merges", Value::Array(vec![Value::String("a b".to_owned())])),
            ("tokenizer.ggml.bos_token_id", Value::U32(0)),
        ];
        more.extend(adds.map(|adds| ("tokenizer.ggml.add_bos_token", Value::Bool(adds))));
        let tokenizer = Tokenizer::load(&made(&vocabulary, &more)).expect("the rule is known");
        tokenizer.encode("ab", true).expect("encodes")
    };
    for rule in ["llama-bpe", "llama3", "llama-v3", "tekken"] {
        assert_eq!(bare(rule, None), [0, 3], "{rule}");
        assert_eq!(bare(rule, Some(false)), [3], "{rule}");
    }
    for rule in [
        "smaug-bpe",
        "dbrx",
        "qwen2",
        "deepseek-r1-qwen",
        "smollm",
        "refact",
        "gpt-4o",
        "gpt-2",
        "olmo",
        "default",
    ] {
        assert_eq!(bare(rule, None), [3], "{rule}");
        assert_eq!(bare(rule, Some(true)), [0, 3], "{rule}");
    }
}

/// In files of Phi-4-mini a word ends where its small letters do, and has what is contracted with it; in those of Phi-4
/// neither.
#[test]
fn words_are_cut_by_the_rule_that_the_file_names() {
    let vocabulary = ["a", "B", "aB", "'", "s", "'s", "a's"].map(|text| (text, NORMAL));
    let merges = ["a B", "' s", "a 's"].map(|merge| Value::String(merge.to_owned()));
    for (rule, cut) in [("gpt-4o", &[0, 1, 6][..]), ("dbrx", &[2, 0, 5][..])] {
        let more = [
            ("tokenizer.ggml.model", Value::String("gpt2".to_owned())),
            ("tokenizer.ggml.pre", Value::String(rule.to_owned())),
            ("tokenizer.ggml.merges", Value::Array(merges.to_vec())),
        ];
        let tokenizer = Tokenizer::load(&made(&tokens(&vocabulary), &more)).expect("the rule is known");
        assert_eq!(tokenizer.encode("aBa's", false).expect("encodes"), cut, "{rule}");
    }
}

#[test]
fn template_for_tools_is_kept_beside_the_default_one() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let template = |keys: &[(&str, &str)]| -> Json {
        let metadata: Vec<_> =
            keys.iter().map(|(key, text)| (*key, Value::String((*text).to_owned()))).collect();
        let config = made(&vocabulary, &metadata).read("tokenizer_config.json").expect("sound");
        let config: Json = serde_json::from_slice(&config.expect("it is there")).expect("JSON");
        config["chat_template"].clone()
    };
    let (plain, tools) =
        (("tokenizer.chat_template", "plain"), ("tokenizer.chat_template.tool_use", "tools"));
    assert_eq!(template(&[]), Json::Null);
    assert_eq!(template(&[plain]), "plain");
    let both = serde_json::json!([
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
    assert_eq!(template(&[plain, tools]), both);
}

#[test]
fn vocabulary_with_too_many_cuts_is_refused_but_long_runs_of_spaces_are_not() {
    let runs = |letter: &str, longest: usize| -> Vec<(String, i32)> {
        (1..=longest).map(|count| (letter.repeat(count), NORMAL)).collect()
    };
    // As many spaces as Gemma's vocabulary has in one piece.
    Tokenizer::load(&made(&runs("\u{2581}", 31), &[])).expect("real vocabularies have such");
    let letters = ["a", "b", "c", "d"];
    let some: Vec<_> = letters.iter().flat_map(|letter| runs(letter, 256)).collect();
    let error = Tokenizer::load(&made(&some, &[])).err().expect("131,000 merges of 1,024 pieces");
    assert!(error.message.contains("in more than 65536 ways"), "{error}");
    let error = Tokenizer::load(&made(&runs("a", 257), &[])).err().expect("nobody has such pieces");
    assert!(error.message.contains("token 256 has 257 bytes, more than 256"), "{error}");
}
