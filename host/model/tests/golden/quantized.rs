//! Weights as integers: the error of the logits is bounded, and blocks of Q8_0 and of 4 bits lose nothing.

use std::ops::ControlFlow;

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use infer_model::{DType, KvCacheKind, LoadOptions, Model, Quantize, Source, WeightType};
use serde_json::Value;

use crate::common::{Chunk, Driver, golden};
use crate::{convert, distance, largest};

/// Maximum relative L2 error of any stored logits of a golden checkpoint, with weights *and* inputs of products rounded to 8
/// bits in groups of 32. Real checkpoints, whose layers are a hundred times as wide, have smaller errors, since the rounding
/// of many inputs averages out.
const BOUND: f64 = 8e-2;
/// Maximum mean error.
const MEAN_BOUND: f64 = 4e-2;
/// Margin from which on the likeliest token stays the same. The largest at which it changed is 0.24.
const FAR: f64 = 0.5;
/// The same with weights of 4 bits, which random weights suffer from far more than trained ones.
const BOUND_OF_4: f64 = 0.7;
const MEAN_BOUND_OF_4: f64 = 0.3;
/// The largest margin at which a token changed is 2.06.
const FAR_OF_4: f64 = 2.2;

fn load(source: &Source<'_>, dtype: Option<DType>, quantize: Quantize) -> Model {
    let options = LoadOptions { dtype, quantize, ..LoadOptions::default() };
    Model::load_with(source, &options, &mut |_| ControlFlow::Continue(())).expect("it loads")
}

/// Each prompt's tokens up to a stored position, the logits there and the margin of the likeliest token.
fn expected(name: &str) -> Vec<(Vec<u32>, Vec<f32>, f64)> {
    let read = |file: &str| std::fs::read(golden(name).join(file)).expect("golden files are there");
    let json: Value = serde_json::from_slice(&read("golden.json")).expect("JSON");
    let arrays = candle_core::safetensors::load_buffer(&read("golden.safetensors"), &Device::Cpu);
    let arrays = arrays.expect("safetensors");
    let mut all = Vec::new();
    for prompt in json["prompts"].as_array().expect("a list") {
        let tensor: &Tensor = &arrays[&format!("{}.logits", prompt["name"].as_str().expect("a name"))];
        let rows = tensor.to_vec2::<f32>().expect("rows");
        let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).expect("ids");
        let positions: Vec<usize> = serde_json::from_value(prompt["positions"].clone()).expect("positions");
        let margins: Vec<f64> = serde_json::from_value(prompt["margins"].clone()).expect("margins");
        for ((at, row), margin) in positions.into_iter().zip(rows).zip(margins) {
            all.push((ids[..=at].to_vec(), row, margin));
        }
    }
    all
}

fn logits(model: &Model, prompts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let mut driver = Driver::new(model, KvCacheKind::Paged, 16, 2);
    let mut all = Vec::new();
    for (round, prompts) in prompts.chunks(32).enumerate() {
        let chunks: Vec<Chunk<'_>> = prompts
            .iter()
            .enumerate()
            .map(|(i, tokens)| Chunk { sequence: (round * 32 + i) as u64 + 1, start: 0, tokens })
            .collect();
        all.extend(driver.run(&chunks).into_iter().map(|(logits, _)| logits));
        chunks.iter().for_each(|chunk| driver.release(chunk.sequence));
    }
    all
}

/// Compares all golden checkpoints, quantized, with their reference. The likeliest token stays the same where its margin is
/// above `far`, as it is somewhere in each.
fn compare_with_reference(quantize: Quantize, kind: WeightType, [bound, mean_bound]: [f64; 2], far: f64) {
    for name in [
        "llama-bf16",
        "qwen2-bf16",
        "qwen3-bf16",
        "gemma3-bf16",
        "mistral-bf16",
        "llama-f32",
        "qwen3moe-bf16",
        "smollm3-bf16",
        "phi3-bf16",
        "granite-bf16",
        "olmo2-bf16",
        "olmo3-bf16",
        "mixtral-bf16",
        "olmoe-bf16",
        "gptoss-bf16",
    ] {
        let model = load(&Source::Directory(golden(name)), None, quantize);
        assert_eq!(model.weight_type, kind);
        let expected = expected(name);
        let prompts: Vec<Vec<u32>> = expected.iter().map(|(ids, ..)| ids.clone()).collect();
        let (mut sum, mut worst, mut clear) = (0.0, 0.0_f64, 0);
        for (got, (_, want, margin)) in logits(&model, &prompts).iter().zip(&expected) {
            let error = distance(got, want);
            (sum, worst) = (sum + error, worst.max(error));
            if *margin > far {
                clear += 1;
                assert_eq!(largest(got), largest(want), "{name}: margin {margin}");
            }
        }
        let mean = sum / expected.len() as f64;
        println!("{name}: worst {worst:.3}, mean {mean:.3}; {clear} clear positions of {}", expected.len());
        assert!(clear > 0, "{name}: no margin is above {far}");
        assert!(worst < bound && mean < mean_bound, "{name}: worst {worst:.3}, mean {mean:.3}");
        assert!(worst > 1e-3, "{name}: these weights are not integers");
    }
}

#[test]
fn eight_bit_weights_stay_within_the_stated_bound_of_the_reference() {
    compare_with_reference(Quantize::Q8, WeightType::Q8, [BOUND, MEAN_BOUND], FAR);
}

#[test]
fn four_bit_weights_stay_within_the_stated_bound_of_the_reference() {
    compare_with_reference(Quantize::Q4, WeightType::Q4, [BOUND_OF_4, MEAN_BOUND_OF_4], FAR_OF_4);
}

/// What differs from widened blocks is the rounding of inputs; as 8-bit integers they would be rounded, too. Rows of 128
/// numbers are no blocks of Q4_K, so that only one matrix of a layer has 4 bits then.
#[test]
fn blocks_of_4_bits_are_held_as_they_are() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, kind) in [
        ("llama-bf16", GgmlDType::Q4_0),
        ("llama-bf16", GgmlDType::Q4_1),
        ("llama-bf16", GgmlDType::Q4K),
        ("qwen3-bf16", GgmlDType::Q4_0),
        ("gemma3-bf16", GgmlDType::Q4_1),
        ("qwen3moe-bf16", GgmlDType::Q4_0),
    ] {
        let source = Source::gguf(&convert::convert(name, kind, directory.path())).expect("sound");
        let quantized = load(&source, None, Quantize::Auto);
        assert_eq!(quantized.weight_type, WeightType::Q4, "{name}, {kind:?}");
        let eight = load(&source, None, Quantize::Q8);
        assert_eq!(eight.weight_type, WeightType::Q8);
        assert!(quantized.weight_bytes() < eight.weight_bytes(), "{name}, {kind:?}");
        let plain = load(&source, Some(DType::F32), Quantize::Auto);
        assert_eq!(plain.weight_type, WeightType::F32);
        let prompts: Vec<Vec<u32>> = expected(name).into_iter().map(|(ids, ..)| ids).take(40).collect();
        let [quantized, plain, eight] = [quantized, plain, eight].map(|model| logits(&model, &prompts));
        let (mut worst, mut of_eight) = (0.0_f64, 0.0_f64);
        for ((got, want), eight) in quantized.iter().zip(&plain).zip(&eight) {
            worst = worst.max(distance(got, want));
            of_eight = of_eight.max(distance(eight, want));
        }
        println!("{name}, {kind:?}: worst {worst:.4}; 8 bits {of_eight:.4}");
        assert!(worst < BOUND && worst < of_eight, "{name}, {kind:?}: {worst:.4}; 8 bits {of_eight:.4}");
    }
}

/// What differs from widened blocks is the rounding of inputs of experts; as 8-bit integers the blocks are rounded, too.
#[test]
fn blocks_of_4_bit_floats_are_held_as_they_are() {
    let name = "gptoss-mxfp4";
    let source = Source::Directory(golden(name));
    let held = load(&source, None, Quantize::Auto);
    assert_eq!((held.weight_type, held.dtype), (WeightType::Mxfp4, DType::Bf16));
    let experts = 4 * 8 * 3 * 64 * 64;
    let widened = load(&source, None, Quantize::Off);
    assert_eq!(widened.weight_type, WeightType::Bf16);
    assert_eq!(widened.weight_bytes() - held.weight_bytes(), experts * 2 - experts * 18 / 32);
    let four = load(&source, None, Quantize::Q4);
    assert_eq!(four.weight_type, WeightType::Q4);
    assert!(four.weight_bytes() < held.weight_bytes());
    let expected = expected(name);
    let prompts: Vec<Vec<u32>> = expected.iter().map(|(ids, ..)| ids.clone()).collect();
    // Without other integers, the same values as f32 are the reference.
    let eight = load(&source, None, Quantize::Q8);
    let [held, eight] = [held, eight].map(|model| logits(&model, &prompts));
    let (mut worst, mut sum, mut of_eight) = (0.0_f64, 0.0, 0.0_f64);
    for ((got, eight), (_, want, margin)) in held.iter().zip(&eight).zip(&expected) {
        let error = distance(got, want);
        (worst, sum, of_eight) = (worst.max(error), sum + error, of_eight.max(distance(eight, want)));
        assert!(*margin <= FAR || largest(got) == largest(want), "margin {margin}");
    }
    let mean = sum / expected.len() as f64;
    println!("{name}: worst {worst:.3}, mean {mean:.3}; 8 bits {of_eight:.3}");
    assert!(worst < BOUND && mean < MEAN_BOUND && worst < of_eight, "{worst:.3}, {mean:.3}, {of_eight:.3}");
}

/// A GPU gets the integers that the CPU computes with, or floats if asked for.
#[test]
fn blocks_for_a_gpu_are_those_of_the_cpu_unless_they_are_to_be_widened() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for kind in [GgmlDType::Q4_0, GgmlDType::Q8_0] {
        let source = Source::gguf(&convert::convert("qwen3-bf16", kind, directory.path())).expect("sound");
        let on_cpu = load(&source, None, Quantize::Auto);
        let for_gpu = |dtype, quantize| {
            let options = LoadOptions { for_gpu: true, dtype, quantize };
            Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(())).expect("it loads")
        };
        let held = for_gpu(None, Quantize::Auto);
        assert_eq!((held.weight_type, held.dtype), (on_cpu.weight_type, DType::Bf16), "{kind:?}");
        assert_eq!(held.checksums(1), on_cpu.checksums(1), "{kind:?}");
        for widened in [for_gpu(None, Quantize::Off), for_gpu(Some(DType::Bf16), Quantize::Auto)] {
            assert_eq!((widened.weight_type, widened.dtype), (WeightType::Bf16, DType::Bf16), "{kind:?}");
            assert!(widened.stored_blocks.is_some_and(|bytes| bytes < widened.weight_bytes()), "{kind:?}");
            let asked = load(&source, Some(DType::Bf16), Quantize::Off);
            assert_eq!(widened.checksums(1), asked.checksums(1), "{kind:?}");
        }
    }
}

/// GPUs multiply experts as floats, so they are not rounded to integers on the way there.
#[test]
fn experts_for_a_gpu_are_floats() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = convert::convert("qwen3moe-bf16", GgmlDType::Q4_0, directory.path());
    let source = Source::gguf(&path).expect("sound");
    for quantize in [Quantize::Auto, Quantize::Q8, Quantize::Q4] {
        let options = LoadOptions { for_gpu: true, quantize, ..LoadOptions::default() };
        let model =
            Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(())).expect("it loads");
        let on_cpu = load(&source, None, quantize);
        // Three layers of eight, each of three matrices. The CPU has 32 weights in 34 or 20 bytes.
        let weights = 3 * 8 * 3 * 32 * 64;
        let of_32 = if quantize == Quantize::Q8 { 34 } else { 20 };
        let wider = weights * 2 - weights / 32 * of_32;
        assert_eq!(model.weight_bytes() - on_cpu.weight_bytes(), wider, "{quantize:?}");
    }
}

#[test]
fn blocks_of_q8_0_are_held_as_they_are() {
    for name in ["qwen3-bf16", "qwen3moe-bf16"] {
        q8_0_is_held_as_it_is(name);
    }
}

fn q8_0_is_held_as_it_is(name: &str) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = Source::gguf(&convert::convert(name, GgmlDType::Q8_0, directory.path())).expect("sound");
    let quantized = load(&source, None, Quantize::Auto);
    assert_eq!((quantized.weight_type, quantized.dtype), (WeightType::Q8, DType::Bf16));
    let plain = load(&source, Some(DType::F32), Quantize::Auto);
    assert_eq!(plain.weight_type, WeightType::F32);
    // Widening to floats and quantizing again gives the same integers.
    let again = rewritten(&directory, name);
    let again = load(&again, Some(DType::Bf16), Quantize::Q8);
    let prompts: Vec<Vec<u32>> = expected(name).into_iter().map(|(ids, ..)| ids).take(40).collect();
    let [quantized, plain, again] = [quantized, plain, again].map(|model| logits(&model, &prompts));
    assert_eq!(quantized, again);
    for (got, want) in quantized.iter().zip(&plain) {
        assert!(distance(got, want) < BOUND);
    }
}

/// What a step reads of a model of experts: of eight in a layer, two for one token and at most all for many.
#[test]
fn bytes_of_a_step_are_those_of_the_experts_that_its_tokens_choose() {
    for quantize in [Quantize::Off, Quantize::Q8, Quantize::Q4] {
        let model = load(&Source::Directory(golden("qwen3moe-bf16")), None, quantize);
        let experts: u64 = match quantize {
            Quantize::Q8 => 3 * 32 * 64 * 34 / 32,
            Quantize::Q4 => 3 * 32 * 64 * 20 / 32,
            Quantize::Off | Quantize::Auto => 3 * 32 * 64 * 2,
        };
        let ends = if quantize == Quantize::Off { 520 * 64 * 2 } else { 520 * 64 * 34 / 32 };
        // Columns are padded to sixteen.
        let embedding: u64 = ends / 520 * 528;
        let shared = model.weight_bytes() - embedding - 3 * 8 * experts;
        assert_eq!(model.step_bytes(), shared + 3 * 2 * experts, "{quantize:?}");
        let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
        driver.run(&[Chunk { sequence: 1, start: 0, tokens: &[9] }]);
        assert_eq!(driver.walk.executor.read_bytes(), model.step_bytes(), "{quantize:?}");
        let many: Vec<u32> = (0..200).collect();
        driver.run(&[Chunk { sequence: 2, start: 0, tokens: &many }]);
        assert_eq!(driver.walk.executor.read_bytes(), shared + 3 * 8 * experts, "{quantize:?}");
    }
}

/// The checkpoint with its matrices rounded to Q8_0 and widened again.
fn rewritten(directory: &tempfile::TempDir, name: &str) -> Source<'static> {
    let tensors = candle_core::safetensors::load(golden(name).join("model.safetensors"), &Device::Cpu);
    let tensors = tensors.expect("sound").into_iter().map(|(name, tensor)| {
        let wide = tensor.to_dtype(candle_core::DType::F32).expect("numbers");
        let rounded = match wide.rank() {
            2 if !name.ends_with("mlp.gate.weight") => {
                candle_core::quantized::QTensor::quantize(&wide, GgmlDType::Q8_0)
                    .and_then(|blocks| blocks.dequantize(&Device::Cpu))
                    .expect("rows are whole blocks")
            }
            _ => wide,
        };
        (name, rounded)
    });
    let tensors: std::collections::HashMap<String, Tensor> = tensors.collect();
    let path = directory.path().join("rewritten");
    std::fs::create_dir(&path).expect("a directory");
    candle_core::safetensors::save(&tensors, path.join("model.safetensors")).expect("it can be written");
    std::fs::copy(golden(name).join("config.json"), path.join("config.json")).expect("it can be copied");
    Source::Directory(path)
}
