//! What the fake hub's repositories hold: the golden checkpoint, also in two shards.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(super) const FILES: &[&str] =
    &["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS];
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// A template for tools, in a folder of its own.
pub(super) const TOOLS: &str = "additional_chat_templates/tool_use.jinja";
/// The files of an adapter.
pub(super) const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
/// How a checkpoint that embeds pools, in two files.
pub(super) const POOLING: [&str; 2] = ["modules.json", "1_Pooling/config.json"];
pub(super) const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A file of the hub: the golden checkpoint, also in two shards.
pub(super) fn content(name: &str) -> Option<Vec<u8>> {
    let whole = fs::read(golden().join(WEIGHTS)).unwrap();
    if let Some(at) = SHARDS.iter().position(|shard| *shard == name) {
        return Some(shards(&whole)[at].clone());
    }
    match name {
        INDEX => {
            let names = tensors(&whole).into_iter().enumerate();
            let map: serde_json::Map<_, _> =
                names.map(|(i, (name, _))| (name, json!(SHARDS[i % 2]))).collect();
            Some(json!({"weight_map": map}).to_string().into_bytes())
        }
        TOOLS => Some(b"{{ tools }}".to_vec()),
        name if ADAPTER.contains(&name) => {
            fs::read(golden().with_file_name("qwen3-lora").join("some").join(name)).ok()
        }
        name if POOLING.contains(&name) => {
            fs::read(golden().with_file_name("qwen3-embedding-bf16").join(name)).ok()
        }
        name => fs::read(golden().join(name)).ok(),
    }
}

/// Names and descriptions of the tensors of a safetensors file, in the order of their names.
fn tensors(file: &[u8]) -> Vec<(String, Value)> {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + header]).unwrap();
    header.into_iter().filter(|(name, _)| name != "__metadata__").collect()
}

/// The tensors of a file, alternately in two files.
fn shards(file: &[u8]) -> [Vec<u8>; 2] {
    let data = &file[8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize..];
    let mut shards = [(serde_json::Map::new(), Vec::new()), (serde_json::Map::new(), Vec::new())];
    for (i, (name, mut tensor)) in tensors(file).into_iter().enumerate() {
        let (header, bytes) = &mut shards[i % 2];
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        tensor["data_offsets"] = json!([bytes.len(), bytes.len() + to - from]);
        bytes.extend(&data[from..to]);
        header.insert(name, tensor);
    }
    shards.map(|(header, bytes)| {
        let mut header = serde_json::to_vec(&header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()
    })
}

pub(super) fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama-f32")
}

pub(super) fn weights() -> Vec<u8> {
    fs::read(golden().join(WEIGHTS)).unwrap()
}

pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
