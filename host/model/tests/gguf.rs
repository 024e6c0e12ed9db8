//! GGUF files: golden checkpoints written as GGUF compute and tokenize like their safetensors; every type of block is read as
//! by another implementation; and files are never trusted.

mod common;
#[path = "common/gguf.rs"]
mod convert;

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use common::{Chunk, Driver, golden};
use infer_model::config::{ExpertsConfig, LayerConfig, LongRope, RopeScaling};
use infer_model::{DType, KvCacheKind, Model, ModelConfig, ModelError, Source, Tokenizer, WeightType};
use proptest::prelude::*;
use serde_json::Value as Json;

fn json(name: &str, file: &str) -> Json {
    let bytes = std::fs::read(golden(name).join(file)).expect("golden files are there");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn ids(json: &Json) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("ids are numbers")
}

/// Logits after every prompt of a golden checkpoint.
fn logits(model: &Model, prompts: &Json) -> Vec<Vec<f32>> {
    let mut driver = Driver::new(model, KvCacheKind::Paged, 16, 1);
    let prompts: Vec<Vec<u32>> =
        prompts.as_array().expect("a list").iter().map(|prompt| ids(&prompt["ids"])).collect();
    let chunks: Vec<Chunk<'_>> = prompts
        .iter()
        .enumerate()
        .map(|(i, tokens)| Chunk { sequence: i as u64 + 1, start: 0, tokens })
        .collect();
    driver.run(&chunks).into_iter().map(|(logits, _)| logits).collect()
}

fn distance(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    (error / want.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
}

#[test]
fn a_gguf_file_computes_what_its_safetensors_do() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, kind, dtype) in [
        ("llama-f32", GgmlDType::F32, DType::F32),
        ("llama-bf16", GgmlDType::BF16, DType::Bf16),
        ("llama-bf16", GgmlDType::F32, DType::F32),
        ("mistral-bf16", GgmlDType::BF16, DType::Bf16),
        ("qwen2-bf16", GgmlDType::BF16, DType::F32),
        ("qwen3-bf16", GgmlDType::BF16, DType::Bf16),
        ("gemma3-f32", GgmlDType::F32, DType::F32),
        ("gemma3-bf16", GgmlDType::BF16, DType::Bf16),
        ("qwen3moe-bf16", GgmlDType::BF16, DType::Bf16),
        ("qwen3moe-bf16", GgmlDType::F32, DType::F32),
        ("phi3-bf16", GgmlDType::BF16, DType::Bf16),
        ("granite-bf16", GgmlDType::BF16, DType::Bf16),
        ("olmo2-bf16", GgmlDType::BF16, DType::Bf16),
        ("olmo3-bf16", GgmlDType::BF16, DType::Bf16),
    ] {
        let source = Source::gguf(&convert::convert(name, kind, directory.path())).expect("a sound file");
        let plain = Source::Directory(golden(name));
        let model = Model::load(&source, None).expect("it loads");
        assert_eq!(model.dtype, if kind == GgmlDType::F32 { DType::F32 } else { DType::Bf16 }, "{name}");
        let model = Model::load(&source, Some(dtype)).expect("it loads");
        let mut same = Model::load(&plain, Some(dtype)).expect("it loads");
        if name == "qwen2-bf16" {
            // GGUF files of Qwen2 have no window, so the reference must have none either.
            let config = std::fs::read_to_string(golden(name).join("config.json")).expect("text");
            let config = config.replace("sliding_attention", "full_attention");
            let weights = std::fs::read(golden(name).join("model.safetensors")).expect("bytes");
            let files = [("config.json", config.as_bytes()), ("model.safetensors", weights.as_slice())];
            same = Model::load(&Source::Embedded(&files), Some(dtype)).expect("it loads");
        }
        let prompts = json(name, "golden.json")["prompts"].clone();
        for (i, (got, want)) in logits(&model, &prompts).iter().zip(logits(&same, &prompts)).enumerate() {
            // The file rounds Llama 3's factors to f32, and Gemma's norms after 1 was added.
            let exact = name.starts_with("qwen") || name.starts_with("mistral");
            let most = match (exact, dtype) {
                (true, _) => 0.0,
                (false, DType::F32) => 1e-5,
                (false, DType::Bf16 | DType::F16) => 1e-2,
            };
            let error = distance(got, &want);
            assert!(error <= most, "{name} as {kind:?}, prompt {i}: {error:.2e}");
        }
    }
}

#[test]
fn every_type_of_block_is_read_as_the_reference_reads_it() {
    // tests/golden/README.md: written by gguf-py, computed by transformers from what gguf-py reads.
    for name in ["gguf-mixed", "gptoss-gguf"] {
        let source = Source::gguf(&golden(name).join("model.gguf")).expect("a sound file");
        let model = Model::load(&source, Some(DType::F32)).expect("all types are known");
        let error = error_of(name, &model);
        assert!(error < 1e-4, "{name}: {error:.2e}");
    }
}

/// The largest error of the logits that are stored beside a file.
fn error_of(name: &str, model: &Model) -> f64 {
    let expected = json(name, "golden.json");
    let tokens = ids(&expected["ids"]);
    let mut driver = Driver::new(model, KvCacheKind::Paged, 16, 1);
    let errors = ids(&expected["positions"]).into_iter().enumerate().map(|(i, position)| {
        let chunk = Chunk { sequence: i as u64 + 1, start: 0, tokens: &tokens[..=position as usize] };
        let want: Vec<f32> = serde_json::from_value(expected["logits"][i].clone()).expect("numbers");
        distance(&driver.run(&[chunk])[0].0, &want)
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn experts_of_4_bit_floats_in_a_file_stay_as_they_are() {
    let source = Source::gguf(&golden("gptoss-gguf").join("model.gguf")).expect("a sound file");
    let model = Model::load(&source, None).expect("sound");
    assert_eq!((model.weight_type, model.dtype), (WeightType::Mxfp4, DType::Bf16));
    let widened = Model::load(&source, Some(DType::Bf16)).expect("sound");
    assert_eq!(widened.weight_type, WeightType::Bf16);
    // Experts take 18 bytes per 32 weights, and other matrices 34: these are bf16 in the file.
    let (experts, others) = (4 * 8 * 3 * 64 * 64, 2 * 528 * 64 + 4 * 64 * (2 * 256 + 2 * 64));
    let routers = 4 * 16 * 64 * 4;
    assert_eq!(model.weight_bytes(), experts * 18 / 32 + others * 34 / 32 + routers);
    assert_eq!(widened.weight_bytes(), experts * 2 + others * 2 + routers);
    assert_eq!(model.stored_blocks, widened.stored_blocks);
    let error = error_of("gptoss-gguf", &model);
    assert!((1e-3..4e-2).contains(&error), "{error:.2e}");
    let config = ModelConfig::load(&source).expect("sound");
    let RopeScaling::Yarn(yarn) = &config.ropes[0].scaling else { panic!("{:?}", config.ropes) };
    assert!(!yarn.truncate && config.sinks);
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(24), None, Some(24), None]);
}

#[test]
fn a_gguf_vocabulary_is_the_same_tokenizer() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["llama-f32", "llama-bf16", "qwen3-bf16", "gemma3-f32", "gemma3-bf16"] {
        let source = Source::gguf(&convert::convert(name, GgmlDType::F32, directory.path())).expect("sound");
        let tokenizer = Tokenizer::load(&source).expect("the vocabulary is understood");
        let expected = json(name, "golden.json");
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

/// A llama file with a SentencePiece vocabulary (texts and token types) and no weights but the embedding's rows, which is
/// enough for configuration and tokenizer. `more` are further keys, or other values of these.
fn made(tokens: &[(String, i32)], more: &[(&str, Value)]) -> Source<'static> {
    made_with(tokens, more, &[])
}

/// The same with further tensors of one row.
fn made_with(tokens: &[(String, i32)], more: &[(&str, Value)], rows: &[(&str, &[f32])]) -> Source<'static> {
    let number = |key: &str, number: u32| (format!("llama.{key}"), Value::U32(number));
    let array = |values: Vec<Value>| Value::Array(values);
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::String("llama".to_owned())),
        number("block_count", 1),
        number("context_length", 128),
        number("embedding_length", 8),
        number("feed_forward_length", 8),
        number("attention.head_count", 2),
        ("tokenizer.ggml.model".to_owned(), Value::String("llama".to_owned())),
    ];
    let texts = tokens.iter().map(|(text, _)| Value::String(text.clone())).collect();
    let scores = (0..tokens.len()).map(|id| Value::F32(-(id as f32))).collect();
    metadata.push(("tokenizer.ggml.tokens".to_owned(), array(texts)));
    metadata.push(("tokenizer.ggml.scores".to_owned(), array(scores)));
    let kinds = tokens.iter().map(|(_, kind)| Value::I32(*kind)).collect();
    metadata.push(("tokenizer.ggml.token_type".to_owned(), array(kinds)));
    metadata.retain(|(key, _)| more.iter().all(|(other, _)| other != key));
    metadata.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let stored = |tensor: Tensor| QTensor::quantize(&tensor, GgmlDType::F32).expect("numbers");
    let embedding = Tensor::zeros((tokens.len(), 1), candle_core::DType::F32, &Device::Cpu);
    let mut tensors = vec![("token_embd.weight", stored(embedding.expect("zeros")))];
    for (name, row) in rows {
        tensors.push((*name, stored(Tensor::new(*row, &Device::Cpu).expect("numbers"))));
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    write(&mut file, &metadata, &tensors).expect("candle writes GGUF");
    Source::gguf(file.path()).expect("a sound file")
}

fn tokens(of: &[(&str, i32)]) -> Vec<(String, i32)> {
    of.iter().map(|(text, kind)| ((*text).to_owned(), *kind)).collect()
}

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

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
    for rule in
        ["smaug-bpe", "dbrx", "qwen2", "deepseek-r1-qwen", "smollm", "refact", "gpt-4o", "gpt-2", "default"]
    {
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

#[test]
fn positions_are_stretched_by_a_factor_without_a_kind() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let scaling = |more: &[(&str, Value)]| {
        let config = ModelConfig::load(&made(&vocabulary, more)).expect("sound");
        config.ropes[0].scaling.clone()
    };
    let kind = |kind: &str| ("llama.rope.scaling.type", Value::String(kind.to_owned()));
    let new = |factor: f32| ("llama.rope.scaling.factor", Value::F32(factor));
    let old = |factor: f32| ("llama.rope.scale_linear", Value::F32(factor));
    let linear = |factor: f64| RopeScaling::Linear { factor };
    for (more, expected) in [
        (vec![], RopeScaling::None),
        (vec![new(4.0)], linear(4.0)),
        (vec![old(4.0)], linear(4.0)),
        (vec![new(2.0), old(4.0)], linear(2.0)),
        (vec![kind("linear"), old(4.0)], linear(4.0)),
        (vec![kind("none"), old(4.0)], RopeScaling::None),
        (vec![old(1.0)], RopeScaling::None),
        (vec![new(0.0)], RopeScaling::None),
    ] {
        assert_eq!(scaling(&more), expected, "{more:?}");
    }
}

#[test]
fn factors_of_frequencies_are_the_only_scaling() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let load = |kind: &str, factor: f32| {
        let more = [
            ("llama.rope.scaling.type", Value::String(kind.to_owned())),
            ("llama.rope.scaling.factor", Value::F32(factor)),
        ];
        ModelConfig::load(&made_with(&vocabulary, &more, &[("rope_freqs.weight", &[1.0, 8.0])]))
    };
    for (kind, factor) in [("none", 4.0), ("linear", 1.0)] {
        let config = load(kind, factor).expect("sound");
        assert_eq!(config.ropes[0].scaling, RopeScaling::Factors(vec![1.0, 8.0]), "{kind}");
    }
    for kind in ["linear", "yarn"] {
        let error = load(kind, 4.0).expect_err(kind).message;
        assert!(error.contains("llama.rope.scaling must be none beside tensor rope_freqs.weight"), "{error}");
    }
}

#[test]
fn yarn_has_the_attention_factor_of_the_file() {
    let vocabulary = tokens(&[("<unk>", 2), ("a", NORMAL)]);
    let number = |part: &'static str, number: f32| (part, Value::F32(number));
    let load = |more: &[(&'static str, Value)]| {
        let kind = ("llama.rope.scaling.type", Value::String("yarn".to_owned()));
        let all: Vec<_> =
            [kind, number("llama.rope.scaling.factor", 4.0)].into_iter().chain(more.to_vec()).collect();
        ModelConfig::load(&made(&vocabulary, &all))
    };
    let (own, on_top) = ("llama.rope.scaling.yarn_attn_factor", "llama.rope.scaling.attn_factor");
    let extrapolation = "llama.rope.scaling.yarn_ext_factor";
    let computed = 0.1 * 4_f64.ln() + 1.0;
    for (more, expected) in [
        (vec![], computed),
        (vec![number(own, 1.5)], 1.5),
        (vec![number(on_top, 0.5)], 0.5 * computed),
        (vec![number(own, 1.5), number(on_top, 0.5)], 0.75),
        (vec![number(extrapolation, 1.0)], computed),
    ] {
        let config = load(&more).expect("sound");
        let RopeScaling::Yarn(yarn) = &config.ropes[0].scaling else { panic!("{more:?}") };
        assert!((yarn.attention - expected).abs() < 1e-9, "{more:?}: {}", yarn.attention);
    }
    for (key, value, message) in [
        (extrapolation, 0.5, "llama.rope.scaling.yarn_ext_factor must be 1"),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1, "llama.rope.scaling.yarn_log_multiplier must be 0"),
        (own, -1.0, "llama.rope.scaling.yarn_attn_factor must be positive"),
    ] {
        let error = load(&[number(key, value)]).expect_err(key);
        assert!(error.message.contains(message), "{error}");
    }
}

/// A file of this architecture: two heads of four dimensions in each of four layers, and no weights but these.
fn made_as(architecture: &str, more: &[(&str, Value)], rows: &[(&str, &[f32])]) -> Source<'static> {
    let mut keys: Vec<(String, Value)> =
        vec![("general.architecture".to_owned(), Value::String(architecture.to_owned()))];
    for (key, number) in [
        ("block_count", 4),
        ("context_length", 128),
        ("embedding_length", 8),
        ("feed_forward_length", 8),
        ("attention.head_count", 2),
    ] {
        keys.push((format!("{architecture}.{key}"), Value::U32(number)));
    }
    keys.extend(more.iter().map(|(key, value)| (format!("{architecture}.{key}"), value.clone())));
    let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    made_with(&tokens(&[("<unk>", 2), ("a", NORMAL)]), &keys, rows)
}

#[test]
fn files_of_phi3_have_longropes_factors_in_tensors() {
    let (short, long) = ("rope_factors_short.weight", "rope_factors_long.weight");
    let both: [(&str, &[f32]); 2] = [(short, &[1.5]), (long, &[4.0])];
    let original = ("rope.scaling.original_context_length", Value::U32(64));
    let (turned, attention) =
        (("rope.dimension_count", Value::U32(2)), ("rope.scaling.attn_factor", Value::F32(1.25)));
    let all = [original, turned, attention];
    let config = ModelConfig::load(&made_as("phi3", &all, &both)).expect("sound");
    assert_eq!((config.model_type.as_str(), config.ropes[0].rotated(config.head_dim)), ("phi3", 2));
    let expected = LongRope { short: vec![1.5], long: vec![4.0], original: 64, attention: 1.25 };
    assert_eq!(config.ropes[0].scaling, RopeScaling::Long(expected));

    // Files say 0 if there is no window, and nothing else if nothing is scaled.
    for (window, expected) in [(0, None), (47, Some(47))] {
        let window = ("attention.sliding_window", Value::U32(window));
        let config = ModelConfig::load(&made_as("phi3", &[window], &[])).expect("sound");
        assert_eq!((config.layers[0].window, &config.ropes[0].scaling), (expected, &RopeScaling::None));
    }

    let kind = |kind: &str| ("rope.scaling.type", Value::String(kind.to_owned()));
    let two: [(&str, &[f32]); 2] = [(short, &[1.5, 2.0]), (long, &[4.0, 8.0])];
    type Keys<'a> = &'a [(&'a str, Value)];
    type Rows<'a> = &'a [(&'a str, &'a [f32])];
    let cases: [(Keys<'_>, Rows<'_>, &str); 6] = [
        (&all, &both[..1], "tensor rope_factors_long.weight is missing"),
        (&all, &two, "tensor rope_factors_short.weight must be a list of 1 numbers"),
        (&[kind("longrope")], &[], "tensor rope_factors_short.weight is missing"),
        (
            &[kind("yarn")],
            &both,
            "phi3.rope.scaling.type must be longrope beside tensor rope_factors_long.weight",
        ),
        (
            &[kind("linear"), ("rope.scaling.factor", Value::F32(2.0))],
            &[],
            "phi3.rope.scaling.type is \"linear\"",
        ),
        (
            &[("rope.dimension_count", Value::U32(6))],
            &[],
            "phi3.rope.dimension_count must be above 0 and at most 1",
        ),
    ];
    for (keys, rows, named) in cases {
        let error = ModelConfig::load(&made_as("phi3", keys, rows)).expect_err(named);
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

#[test]
fn absent_factors_of_granite_are_llama_cpps() {
    let load = |more: &[(&str, Value)]| ModelConfig::load(&made_as("granite", more, &[])).expect("sound");
    let plain = load(&[]);
    assert_eq!((plain.embedding_scale, plain.query_scale), (1.0, 0.5), "scores have the usual one");
    assert_eq!((plain.branch_scale, plain.logit_divisor), (None, None));
    let number = |part: &'static str, number: f32| (part, Value::F32(number));
    let all = load(&[
        number("embedding_scale", 12.0),
        number("attention.scale", 0.25),
        number("residual_scale", 0.22),
        number("logit_scale", 6.0),
    ]);
    assert_eq!((all.embedding_scale, all.query_scale), (12.0, 0.25));
    assert_eq!((all.branch_scale, all.logit_divisor), (Some(0.22), Some(6.0)));
}

#[test]
fn file_of_granite_without_a_position_embedding_is_refused() {
    let load = |rotates: bool| {
        let key = [("rope.scaling.finetuned", Value::Bool(rotates))];
        ModelConfig::load(&made_as("granite", &key, &[]))
    };
    assert!(load(true).is_ok());
    let error = load(false).expect_err("nothing would be rotated");
    assert!(error.message.contains("granite.rope.scaling.finetuned must be true"), "{error}");
}

#[test]
fn files_of_smollm3_and_olmo_are_those_of_llama_cpp() {
    let load = |architecture: &str, more: &[(&str, Value)]| {
        ModelConfig::load(&made_as(architecture, more, &[])).expect("sound")
    };
    let smollm = load("smollm3", &[]);
    let absent = |layer: &LayerConfig| smollm.ropes[layer.rope].scaling == RopeScaling::Absent;
    assert_eq!(smollm.layers.iter().map(absent).collect::<Vec<_>>(), [false, false, false, true]);
    let two = load("olmo2", &[]);
    assert_eq!((two.model_type.as_str(), two.ropes.len()), ("olmo2", 1));
    let base = ("rope.freq_base", Value::F32(50_000.0));
    let three = load("olmo2", &[base, ("attention.sliding_window", Value::U32(32))]);
    assert_eq!(three.model_type, "olmo3");
    let windows: Vec<_> = three.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(32), Some(32), Some(32), None]);
    let scaled = [
        ("rope.scaling.type", Value::String("yarn".to_owned())),
        ("rope.scaling.factor", Value::F32(8.0)),
        ("rope.scaling.attn_factor", Value::F32(1.25)),
        ("attention.sliding_window", Value::U32(32)),
    ];
    let scaled = load("olmo2", &scaled);
    let RopeScaling::Yarn(yarn) = &scaled.ropes[0].scaling else { panic!("it is YaRN") };
    assert_eq!(yarn.attention, 1.25, "the whole factor");
    // There is one base for all.
    assert_eq!(three.ropes.iter().map(|rope| rope.theta).collect::<Vec<_>>(), [50_000.0; 2]);
}

/// A file of a model of experts in the second and in no other layer, with these keys.
fn made_of_experts(more: &[(&'static str, Value)]) -> Source<'static> {
    let mut keys = vec![("general.architecture", Value::String("qwen3moe".to_owned()))];
    for (key, number) in [
        ("qwen3moe.block_count", 3),
        ("qwen3moe.context_length", 128),
        ("qwen3moe.embedding_length", 8),
        ("qwen3moe.feed_forward_length", 8),
        ("qwen3moe.attention.head_count", 2),
        ("qwen3moe.expert_count", 4),
        ("qwen3moe.expert_used_count", 2),
        ("qwen3moe.expert_feed_forward_length", 16),
    ] {
        keys.push((key, Value::U32(number)));
    }
    keys.retain(|(key, _)| more.iter().all(|(other, _)| other != key));
    keys.extend(more.iter().cloned());
    let dense: [(&str, &[f32]); 2] =
        [("blk.0.ffn_gate.weight", &[0.0; 8]), ("blk.2.ffn_gate.weight", &[0.0; 8])];
    made_with(&tokens(&[("<unk>", 2), ("a", NORMAL)]), &keys, &dense)
}

#[test]
fn layers_without_a_gate_of_their_own_have_experts_whose_weights_are_normalized() {
    let experts = |more: &[(&'static str, Value)]| {
        let config = ModelConfig::load(&made_of_experts(more)).expect("sound");
        assert_eq!(config.model_type, "qwen3_moe");
        config.layers.iter().map(|layer| layer.experts).collect::<Vec<_>>()
    };
    let normalized = ExpertsConfig {
        count: 4,
        per_token: 2,
        intermediate: 16,
        normalized: true,
        bias: false,
        interleaved: false,
    };
    assert_eq!(experts(&[]), [None, Some(normalized), None]);
    let without_effect = [
        ("qwen3moe.expert_weights_norm", Value::Bool(true)),
        ("qwen3moe.expert_weights_scale", Value::F32(1.0)),
        ("qwen3moe.expert_gating_func", Value::U32(1)),
        ("qwen3moe.expert_shared_count", Value::U32(0)),
    ];
    assert_eq!(experts(&without_effect), [None, Some(normalized), None]);
    let said = experts(&[("qwen3moe.expert_weights_norm", Value::Bool(false))]);
    assert_eq!(said[1], Some(ExpertsConfig { normalized: false, ..normalized }));
    for (key, value) in [
        ("qwen3moe.expert_weights_norm", Value::U32(1)),
        ("qwen3moe.expert_weights_scale", Value::F32(2.5)),
        ("qwen3moe.expert_gating_func", Value::U32(2)),
        ("qwen3moe.expert_shared_count", Value::U32(1)),
        ("qwen3moe.expert_shared_feed_forward_length", Value::U32(64)),
        ("qwen3moe.expert_count", Value::U32(0)),
        ("qwen3moe.expert_used_count", Value::U32(5)),
        ("qwen3moe.expert_feed_forward_length", Value::U32(0)),
    ] {
        let error = ModelConfig::load(&made_of_experts(&[(key, value)])).expect_err(key);
        assert!(error.message.contains(key), "{key}: {error}");
    }
}

#[test]
fn missing_or_misshapen_experts_of_a_file_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = convert::convert("qwen3moe-bf16", GgmlDType::Q8_0, directory.path());
    let sound = std::fs::read(&path).expect("it is there");
    // A key's value begins with its type; the last letter of a tensor's name precedes its dimensions.
    for (needle, offset, bytes, named) in [
        ("qwen3moe.expert_count", 4, 4_u32.to_le_bytes(), "ffn_gate_inp.weight has shape [8, 64]"),
        (
            "qwen3moe.expert_feed_forward_length",
            4,
            64_u32.to_le_bytes(),
            "blk.0.ffn_gate_exps.weight has shape [8, 32, 64], the metadata requires [8, 64, 64]",
        ),
        ("blk.2.ffn_up_exps.", 0, *b"xeig", "blk.2.ffn_up_exps.weight is missing"),
        ("blk.3.ffn_gate_inp.", 0, *b"xeig", "blk.3.ffn_gate_inp.weight is missing"),
    ] {
        let mut file = sound.clone();
        let at = file.windows(needle.len()).position(|part| part == needle.as_bytes()).expect("it is there");
        file[at + needle.len() + offset..][..4].copy_from_slice(&bytes);
        std::fs::write(&path, file).expect("it can be written");
        let loaded = Source::gguf(&path).and_then(|source| Model::load(&source, None));
        let error = loaded.err().unwrap_or_else(|| panic!("{needle}: taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

fn mixed() -> Vec<u8> {
    std::fs::read(golden("gguf-mixed").join("model.gguf")).expect("golden files are there")
}

/// Runs everything that reads a GGUF file.
fn load(bytes: &[u8]) -> Result<(), ModelError> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("it can be written");
    let source = Source::gguf(file.path())?;
    ModelConfig::load(&source)?;
    Tokenizer::load(&source)?;
    source.read("tokenizer_config.json")?;
    Model::load(&source, Some(DType::F32)).map(drop)
}

/// The file with the bytes at `offset` after the first `needle` replaced.
fn with(needle: &str, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = mixed();
    let at = file.windows(needle.len()).position(|part| part == needle.as_bytes()).expect("it is there");
    let start = at + needle.len() + offset;
    file[start..start + bytes.len()].copy_from_slice(bytes);
    file
}

fn renamed(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    with(from, 0, &[]);
    let mut file = mixed();
    let at = file.windows(from.len()).position(|part| part == from.as_bytes()).expect("it is there");
    file[at..at + to.len()].copy_from_slice(to.as_bytes());
    file
}

/// The file with 8,192 more bytes, a multiple of the tensors' alignment, in the last token before two fillers.
fn with_a_long_token() -> Vec<u8> {
    let (mut file, key) = (mixed(), b"tokenizer.ggml.tokens");
    let number = |file: &[u8], at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let key = file.windows(key.len()).position(|part| part == key).expect("it is there") + key.len();
    // The array's type, its elements' and their number; each text follows its length.
    let (tokens, mut at) = (number(&file, key + 8), key + 16);
    for _ in 3..tokens {
        at += 8 + number(&file, at) as usize;
    }
    let longer = number(&file, at) + 8_192;
    file[at..at + 8].copy_from_slice(&longer.to_le_bytes());
    file.splice(at + 8..at + 8, std::iter::repeat_n(b'a', 8_192));
    file
}

/// The file with the width of the feed-forward layers as an array of halves, 32 bytes longer.
fn with_half_a_width() -> Vec<u8> {
    let (mut file, key) = (mixed(), b"llama.feed_forward_length");
    let at = file.windows(key.len()).position(|part| part == key).expect("it is there") + key.len();
    let (array, f32s, count) = (9_u32.to_le_bytes(), 6_u32.to_le_bytes(), 6_u64.to_le_bytes());
    let value = [&array[..], &f32s, &count, &176.5_f32.to_le_bytes().repeat(6)].concat();
    file.splice(at..at + 8, value);
    file
}

#[test]
fn parts_are_one_model_and_a_wrong_one_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = convert::convert_in(&golden("mistral-bf16"), "m", GgmlDType::F32, 3, directory.path());
    let part = |number: usize| directory.path().join(format!("m-F32-{number:05}-of-00003.gguf"));
    assert_eq!(path, part(1));
    let whole = Source::gguf(&convert::convert("mistral-bf16", GgmlDType::F32, directory.path()));
    let prompts = json("mistral-bf16", "golden.json")["prompts"].clone();
    let of = |source: &Source<'_>| logits(&Model::load(source, None).expect("it loads"), &prompts);
    assert_eq!(of(&Source::gguf(&path).expect("all parts are there")), of(&whole.expect("a sound file")));

    let refused = |path: &std::path::Path| Source::gguf(path).expect_err("it is wrong").message;
    let error = refused(&part(2));
    assert!(error.contains("part 2 of 3; give") && error.contains("m-F32-00001-of-00003.gguf"), "{error}");
    let third = std::fs::read(part(3)).expect("it is there");
    std::fs::copy(part(2), part(3)).expect("it can be written");
    let error = refused(&path);
    assert!(error.contains("00003-of-00003.gguf: split.no"), "{error}");
    std::fs::remove_file(part(3)).expect("it can be removed");
    let error = refused(&path);
    assert!(error.contains("can't read") && error.contains("00003-of-00003.gguf"), "{error}");
    std::fs::write(part(3), third).expect("it can be written");
    let renamed = directory.path().join("renamed.gguf");
    std::fs::copy(&path, &renamed).expect("it can be written");
    let error = refused(&renamed);
    assert!(error.contains("must end in -00001-of-00003.gguf"), "{error}");
}

#[test]
fn what_a_file_claims_is_checked_and_the_key_or_tensor_is_named() {
    load(&mixed()).expect("the file itself is sound");
    let huge = u64::MAX.to_le_bytes();
    let mut tensors = mixed();
    tensors[8..16].copy_from_slice(&huge);
    let mut keys = mixed();
    keys[16..24].copy_from_slice(&(1_u64 << 13).to_le_bytes());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("GGUF", b"GGUX".to_vec()),
        ("truncated", b"GGUF\x03".to_vec()),
        ("version 7", [b"GGUF".as_slice(), &7_u32.to_le_bytes(), &[0; 16]].concat()),
        ("18446744073709551615 tensors", tensors),
        ("a name of a metadata key", keys),
        // A key's value begins with its type; a text and an array follow with their lengths.
        ("general.architecture", with("general.architecture", 4, &huge)),
        ("value type 99", with("llama.block_count", 0, &99_u32.to_le_bytes())),
        ("llama.block_count", with("llama.block_count", 4, &0_u32.to_le_bytes())),
        ("llama.block_count", with("llama.block_count", 4, &u32::MAX.to_le_bytes())),
        ("llama.attention.head_count", with("llama.attention.head_count", 4, &0_u32.to_le_bytes())),
        ("llama.attention.value_length", with("llama.attention.value_length", 4, &16_u32.to_le_bytes())),
        ("tokenizer.ggml.tokens", with("tokenizer.ggml.tokens", 8, &huge)),
        ("tokenizer.ggml.tokens", with("tokenizer.ggml.tokens", 8, &(1_u64 << 20).to_le_bytes())),
        ("bytes, more than 256", with_a_long_token()),
        ("176.5", with_half_a_width()),
        ("tokenizer.ggml.bos_token_id", with("tokenizer.ggml.bos_token_id", 4, &77_u32.to_le_bytes())),
        ("tokenizer.ggml.scores", renamed("tokenizer.ggml.scores", "tokenizer.ggml.xxxxxx")),
        // A tensor's name is followed by the number of its dimensions, these, its type and its offset.
        ("9 dimensions", with("token_embd.weight", 0, &9_u32.to_le_bytes())),
        ("impossible shape", with("token_embd.weight", 4, &huge)),
        ("impossible shape", with("token_embd.weight", 4, &0_u64.to_le_bytes())),
        ("which Q6K can't hold", with("token_embd.weight", 4, &100_u64.to_le_bytes())),
        ("beyond the end", with("token_embd.weight", 12, &(1_u64 << 30).to_le_bytes())),
        ("ggml type 77", with("token_embd.weight", 20, &77_u32.to_le_bytes())),
        ("beyond the end", with("token_embd.weight", 24, &(u64::MAX - 7).to_le_bytes())),
        ("not a multiple of 32", with("token_embd.weight", 24, &8_u64.to_le_bytes())),
        ("blk.1.ffn_up.weight is missing", renamed("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight")),
        ("appears twice", renamed("blk.1.ffn_up.weight", "blk.0.ffn_up.weight")),
        ("has shape [32, 256]", with("llama.feed_forward_length", 4, &64_u32.to_le_bytes())),
    ];
    for (named, bytes) in cases {
        let error = load(&bytes).err().unwrap_or_else(|| panic!("{named} was taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
    let error = load(&mixed()[..100_000]).expect_err("half the file").message;
    assert!(error.contains("tensor ") && error.contains("truncated"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn broken_files_are_refused_or_load_and_never_panic(
        changes in prop::collection::vec((0_usize..5_000, any::<u8>()), 1..4),
        cut in prop::option::of(0_usize..171_776),
    ) {
        let mut file = mixed();
        for (at, byte) in changes {
            file[at] = byte;
        }
        file.truncate(cut.unwrap_or(file.len()));
        let _ = load(&file);
    }
}
