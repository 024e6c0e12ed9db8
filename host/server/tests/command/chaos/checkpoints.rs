//! Checkpoints that can't be read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{Home, complaint};

/// A copy of the demo model's checkpoint.
fn checkpoint(home: &Home, name: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/checkpoint");
    let to = home.path(name);
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    to
}

#[test]
fn unreadable_checkpoint_is_named() {
    let home = Home::new();
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &[&str]); 10] = [
        ("no-weights", |dir| fs::remove_file(dir.join("model.safetensors")).unwrap(), &["model.safetensors"]),
        ("truncated", |dir| halve(&dir.join("model.safetensors")), &["model.safetensors"]),
        (
            "no-header",
            |dir| fs::write(dir.join("model.safetensors"), [255; 16]).unwrap(),
            &["model.safetensors"],
        ),
        (
            "empty-weights",
            |dir| fs::write(dir.join("model.safetensors"), []).unwrap(),
            &["model.safetensors"],
        ),
        ("folder", |dir| in_place_of(&dir.join("model.safetensors")), &["model.safetensors"]),
        ("config", |dir| halve(&dir.join("config.json")), &["config.json"]),
        ("no-config", |dir| fs::remove_file(dir.join("config.json")).unwrap(), &["config.json"]),
        ("tokenizer", |dir| halve(&dir.join("tokenizer.json")), &["tokenizer.json"]),
        ("shard", lose_a_shard, &["model-00002-of-00002.safetensors"]),
        ("half-shard", halve_a_shard, &["model-00002-of-00002.safetensors", "truncated"]),
    ];
    for (name, spoil, words) in cases {
        let dir = checkpoint(&home, name);
        spoil(&dir);
        let dir = dir.to_str().unwrap();
        let output = home.serve("", &["--model", dir]).output().unwrap();
        let said = complaint(&output);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{name}: {code:?} {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{name}: {words:?} aren't in: {said}");
    }
    assert_eq!(home.left("run"), Vec::<PathBuf>::new(), "hosts that never served leave no token");
}

#[test]
fn unsupported_type_is_refused_with_the_supported_ones() {
    let output = Home::new().serve("", &["--dtype", "f16", "--device", "cpu"]).output().unwrap();
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(["--dtype", "GPUs", "`bf16`"].iter().all(|word| said.contains(word)), "{said}");
}

fn halve(file: &Path) {
    let content = fs::read(file).unwrap();
    fs::write(file, &content[..content.len() / 2]).unwrap();
}

fn in_place_of(file: &Path) {
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
}

/// Leaves one of two shards that the index names.
fn lose_a_shard(dir: &Path) {
    fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors")).unwrap();
    let index = r#"{"metadata": {}, "weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "model.norm.weight": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

/// Leaves one of two shards whole, and half of the other.
fn halve_a_shard(dir: &Path) {
    lose_a_shard(dir);
    let second = dir.join("model-00002-of-00002.safetensors");
    fs::copy(dir.join("model-00001-of-00002.safetensors"), &second).unwrap();
    halve(&second);
}
