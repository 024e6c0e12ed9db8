//! A model's checksums tell it from every other one.

use infer_model::{Model, Source};
use serde_json::Value;

use crate::read;

/// The files of a checkpoint that a model is made of.
fn files(name: &str) -> [(&'static str, Vec<u8>); 2] {
    ["config.json", "model.safetensors"].map(|file| (file, read(name, file)))
}

fn checksums(files: &[(&'static str, Vec<u8>); 2], threads: usize) -> Vec<u32> {
    let files = files.each_ref().map(|(name, bytes)| (*name, bytes.as_slice()));
    Model::load(&Source::Embedded(&files), None).expect("it loads").checksums(threads)
}

#[test]
fn a_changed_number_of_any_tensor_shows() {
    for name in [
        "qwen3moe-bf16",
        "gemma3-bf16",
        "phi3-bf16",
        "olmo2-bf16",
        "mixtral-bf16",
        "olmoe-bf16",
        "gptoss-bf16",
        "gptoss-mxfp4",
    ] {
        let original = files(name);
        let sums = checksums(&original, 1);
        assert_eq!(checksums(&original, 3), sums, "threads don't show");
        let bytes = &original[1].1;
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..start]).expect("JSON");
        for (tensor, about) in header.as_object().expect("tensors") {
            let Some(end) = about["data_offsets"][1].as_u64() else { continue };
            let mut other = original.clone();
            // The highest bit of the last number's mantissa.
            other[1].1[start + end as usize - 2] ^= 0x40;
            assert_ne!(checksums(&other, 2), sums, "{name}: {tensor}");
        }
    }
}

/// Which of them count depends on the longest sequence, which is no part of a model.
#[test]
fn factors_of_short_and_of_long_sequences_show() {
    let original = files("phi3-bf16");
    let sums = checksums(&original, 1);
    for key in ["short_factor", "long_factor"] {
        let mut config: Value = serde_json::from_slice(&original[0].1).expect("JSON");
        assert!(config["rope_parameters"][key][23].is_f64(), "{key}");
        config["rope_parameters"][key][23] = 9.5.into();
        let mut other = original.clone();
        other[0].1 = serde_json::to_vec(&config).expect("JSON");
        assert_ne!(checksums(&other, 1), sums, "{key}");
    }
}

/// The checksums of these files with another value for a key.
fn with(original: &[(&'static str, Vec<u8>); 2], key: &str, value: Value) -> Vec<u32> {
    let mut config: Value = serde_json::from_slice(&original[0].1).expect("JSON");
    assert!(config.get(key).is_some(), "{key}");
    config[key] = value;
    let mut other = original.clone();
    other[0].1 = serde_json::to_vec(&config).expect("JSON");
    checksums(&other, 1)
}

/// A prompt whose activations are within both limits doesn't tell them apart.
#[test]
fn limits_of_activations_show() {
    let original = files("gptoss-bf16");
    assert_ne!(with(&original, "swiglu_limit", 100.0.into()), with(&original, "swiglu_limit", 101.0.into()));
}

#[test]
fn windows_and_frequencies_show() {
    let original = files("gemma3-bf16");
    let sums = checksums(&original, 1);
    let config: Value = serde_json::from_slice(&original[0].1).expect("JSON");
    let with = |key: &str, value: Value| with(&original, key, value);
    let window = config["sliding_window"].as_u64().expect("a number");
    assert_ne!(with("sliding_window", (window + 1).into()), sums);
    let mut ropes = config["rope_parameters"].clone();
    ropes["full_attention"]["rope_theta"] = 1_000_001.0.into();
    assert_ne!(with("rope_parameters", ropes), sums);
    assert_eq!(with("max_position_embeddings", 4_096.into()), sums, "this changes no key and no value");
}
