//! What models compute from a file, or from its parts.

use candle_core::quantized::GgmlDType;
use infer_model::config::RopeScaling;
use infer_model::{DType, KvCacheKind, Model, ModelConfig, Source, WeightType};
use serde_json::Value;

use crate::common::{Chunk, Driver, golden};
use crate::{convert, expected, ids};

/// Logits after every prompt of a golden checkpoint.
fn logits(model: &Model, prompts: &Value) -> Vec<Vec<f32>> {
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
        ("mixtral-bf16", GgmlDType::BF16, DType::Bf16),
        ("mixtral-bf16", GgmlDType::F32, DType::F32),
        ("olmoe-bf16", GgmlDType::BF16, DType::Bf16),
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
        let prompts = expected(name)["prompts"].clone();
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
    let expected = expected(name);
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
fn parts_are_one_model_and_a_wrong_one_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = convert::convert_in(&golden("mistral-bf16"), "m", GgmlDType::F32, 3, directory.path());
    let part = |number: usize| directory.path().join(format!("m-F32-{number:05}-of-00003.gguf"));
    assert_eq!(path, part(1));
    let whole = Source::gguf(&convert::convert("mistral-bf16", GgmlDType::F32, directory.path()));
    let prompts = expected("mistral-bf16")["prompts"].clone();
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
