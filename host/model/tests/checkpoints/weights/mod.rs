//! Weights of safetensors: shards, embedded bytes, data types; and what must be refused, with the tensor or file at fault in
//! the message.

mod experts;
mod extremes;
mod forms;

use std::ops::ControlFlow;

use infer_model::{
    DType, ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelConfig, ModelErrorKind, Source, Tokenizer,
    WeightType,
};
use serde_json::{Value, json};

use crate::common::{Chunk, Driver, golden};
use crate::config::{llama_config, parse};
use crate::{read, with};

#[test]
fn shards_embedded_bytes_and_one_file_load_the_same_weights() {
    let (config, whole) = (read("llama-f32", "config.json"), read("llama-f32", "model.safetensors"));
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound");
    let (mut shards, mut map) = ([Vec::new(), Vec::new()], serde_json::Map::new());
    for (i, (name, view)) in tensors.tensors().into_iter().enumerate() {
        map.insert(name.clone(), json!(format!("shard-{}.safetensors", i % 2)));
        shards[i % 2].push((name, view));
    }
    let shards = shards.map(|shard| safetensors::serialize(shard, None).expect("sound"));
    let index = json!({"weight_map": map}).to_string();
    let embedded: Vec<(&str, &[u8])> = vec![
        ("config.json", &config),
        ("model.safetensors.index.json", index.as_bytes()),
        ("shard-0.safetensors", &shards[0]),
        ("shard-1.safetensors", &shards[1]),
    ];
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, bytes) in &embedded {
        std::fs::write(directory.path().join(name), bytes).expect("it can be written");
    }
    // A single file wins over an index of others, as in transformers.
    let left = json!({"weight_map": {"model.norm.weight": "gone.safetensors"}}).to_string();
    let both: Vec<(&str, &[u8])> = vec![
        ("config.json", &config),
        ("model.safetensors", &whole),
        ("model.safetensors.index.json", left.as_bytes()),
    ];
    let both_in = tempfile::tempdir().expect("a temporary directory");
    for (name, bytes) in &both {
        std::fs::write(both_in.path().join(name), bytes).expect("it can be written");
    }
    let sources = [
        Source::Directory(golden("llama-f32")),
        Source::Embedded(&embedded),
        Source::Directory(directory.path().to_owned()),
        Source::Embedded(&both),
        Source::Directory(both_in.path().to_owned()),
    ];
    let logits = sources.map(|source| {
        let model = Model::load(&source, None).expect("sound");
        let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
        driver.run(&[Chunk { sequence: 1, start: 0, tokens: &[506, 3, 9] }]).remove(0).0
    });
    for other in &logits[1..] {
        assert_eq!(&logits[0], other);
    }
}

#[test]
fn broken_weights_are_refused_with_the_tensor_or_file_at_fault() {
    let (config, whole) = (read("llama-f32", "config.json"), read("llama-f32", "model.safetensors"));
    let changed = |changes: Value| {
        let sound: Value = serde_json::from_slice(&config).expect("JSON");
        with(sound, changes).to_string().into_bytes()
    };
    let index = |shard: &str| json!({"weight_map": {"model.norm.weight": shard}}).to_string().into_bytes();
    let with_index = |shard: &str| {
        vec![
            ("config.json", config.clone()),
            ("shard.safetensors", whole.clone()),
            ("model.safetensors.index.json", index(shard)),
        ]
    };
    let plain = |config: Vec<u8>, weights: &[u8]| {
        vec![("config.json", config), ("model.safetensors", weights.to_vec())]
    };
    type Files = Vec<(&'static str, Vec<u8>)>;
    let cases: Vec<(Files, &str)> = vec![
        (plain(changed(json!({"intermediate_size": 180})), &whole), "mlp.gate_proj.weight"),
        (plain(changed(json!({"vocab_size": 600})), &whole), "model.embed_tokens.weight"),
        (plain(changed(json!({"tie_word_embeddings": false})), &whole), "lm_head.weight"),
        (plain(changed(json!({"num_hidden_layers": 5})), &whole), "model.layers.4"),
        (plain(config.clone(), &whole[..whole.len() - 10]), "model.safetensors"),
        (plain(config.clone(), b"no tensors here"), "model.safetensors"),
        (
            vec![("config.json", config.clone())],
            "no file model.safetensors and no model.safetensors.index.json",
        ),
        // Parts without the file that names them.
        (
            vec![("config.json", config.clone()), ("model-00001-of-00002.safetensors", whole.clone())],
            "no file model.safetensors and no model.safetensors.index.json",
        ),
        (vec![("model.safetensors", whole.clone())], "config.json"),
        (with_index("../secret.safetensors"), ".."),
        (with_index("/etc/passwd"), "/etc/passwd"),
        (with_index("absent.safetensors"), "absent.safetensors"),
    ];
    for (files, named) in cases {
        let borrowed: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (*n, b.as_slice())).collect();
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, bytes) in &borrowed {
            std::fs::write(directory.path().join(name), bytes).expect("it can be written");
        }
        for source in [Source::Embedded(&borrowed), Source::Directory(directory.path().to_owned())] {
            let error = Model::load(&source, None).err().unwrap_or_else(|| panic!("{named} was taken"));
            assert!(error.message.contains(named), "{named}: {error}");
        }
    }
}

#[test]
fn pointers_in_place_of_large_files_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("config.json"), read("llama-f32", "config.json")).expect("it can be written");
    let files = ["tokenizer.json", "model.safetensors", "model.gguf"];
    for name in files {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4519\n";
        std::fs::write(at(name), pointer).expect("it can be written");
    }
    let source = Source::Directory(directory.path().to_owned());
    let errors = [
        Tokenizer::load(&source).err(),
        Model::load(&source, None).err(),
        Source::gguf(&at("model.gguf")).err(),
    ];
    for (name, error) in files.into_iter().zip(errors) {
        let error = error.expect(name).message;
        assert!(error.contains(&format!("{name} is a Git LFS pointer")), "{error}");
    }
}

#[test]
fn file_beyond_its_bound_is_named_and_not_read() {
    const SMALL: u64 = 16 << 20;
    let files = [
        ("config.json", SMALL),
        ("1_Pooling/config.json", SMALL),
        ("tokenizer.json", 1 << 30),
        ("model.safetensors.index.json", 256 << 20),
    ];
    for (name, most) in files {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("1_Pooling")).expect("it can be made");
        let file = std::fs::File::create(directory.path().join(name)).expect("it can be written");
        let source = Source::Directory(directory.path().to_owned());
        // Without a disk's block in it.
        file.set_len(most + 1).expect("it can be longer");
        let error = source.read(name).map(drop).expect_err(name).message;
        assert!(error.contains(&format!("{name} has {} bytes, and at most {most} are", most + 1)), "{error}");
        if most == SMALL {
            file.set_len(most).expect("it can be shorter");
            let bytes = source.read(name).unwrap_or_else(|error| panic!("{error}")).expect(name);
            assert_eq!(bytes.len() as u64, most);
        }
    }
}

#[test]
fn load_reports_every_matrix_and_can_be_cancelled() {
    for name in ["llama-f32", "qwen3moe-bf16", "mixtral-bf16", "gptoss-bf16", "gptoss-mxfp4"] {
        let source = Source::Directory(golden(name));
        let (mut seen, mut total) = (Vec::new(), 0);
        let model = Model::load_with(&source, &LoadOptions::default(), &mut |progress| {
            seen.push(progress.done_bytes);
            total = progress.total_bytes;
            ControlFlow::Continue(())
        });
        assert!(model.is_ok() && seen.is_sorted_by(|a, b| a < b), "{name}: {seen:?}");
        let copied = Model::copy_weights(&source).expect("sound").0;
        assert_eq!(seen.last(), Some(&copied), "{name}");
        // All matrices, each of their bytes once.
        let whole = read(name, "model.safetensors");
        let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound").tensors();
        let vectors = tensors.iter().filter(|(name, view)| view.shape().len() == 1 || name.ends_with("bias"));
        let left: usize = vectors.map(|(_, view)| view.data().len()).sum();
        assert_eq!(copied + left as u64, total, "{name}");
    }

    let source = Source::Directory(golden("llama-f32"));
    let mut calls = 0;
    let given_up = Model::load_with(&source, &LoadOptions::default(), &mut |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((given_up.err().map(|error| error.kind), calls), (Some(ModelErrorKind::Weights), 3));
}

#[test]
fn half_precision_checkpoints_keep_their_precision() {
    let whole = read("llama-f32", "model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&whole).expect("sound");
    let halves: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let numbers = view.data().chunks_exact(4);
            let numbers = numbers.map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")));
            let bytes = numbers.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect();
            (name, view.shape().to_vec(), bytes)
        })
        .collect();
    let views = halves.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), bytes);
        (name.as_str(), view.expect("sizes agree"))
    });
    let weights = safetensors::serialize(views, None).expect("names are unique");
    let config = String::from_utf8(read("llama-f32", "config.json")).expect("text");
    let config = config.replace("\"float32\"", "\"float16\"");
    let files: [(&str, &[u8]); 2] = [("config.json", config.as_bytes()), ("model.safetensors", &weights)];
    let load = |files: &[(&str, &[u8])], dtype, for_gpu| {
        let options = LoadOptions { dtype, for_gpu, ..LoadOptions::default() };
        let model = Model::load_with(&Source::Embedded(files), &options, &mut |_| ControlFlow::Continue(()));
        model.map(|model| (model.dtype, model.weight_type)).map_err(|error| error.to_string())
    };
    assert_eq!(load(&files, None, false), Ok((DType::F32, WeightType::F32)));
    assert_eq!(load(&files, None, true), Ok((DType::F16, WeightType::F16)));
    assert!(load(&files, Some(DType::F16), false).is_err_and(|error| error.contains("GPUs")));

    let (config, weights) = (read("gemma3-f32", "config.json"), read("gemma3-f32", "model.safetensors"));
    let config = String::from_utf8(config).expect("text").replace("\"float32\"", "\"float16\"");
    let gemma: [(&str, &[u8]); 2] = [("config.json", config.as_bytes()), ("model.safetensors", &weights)];
    assert_eq!(load(&gemma, None, true), Ok((DType::F32, WeightType::F32)));
    assert!(load(&gemma, Some(DType::F16), true).is_err_and(|error| error.contains("overflow")));
}

#[test]
fn models_larger_than_memory_are_refused_before_allocation() {
    let small = parse(llama_config(), json!({"head_dim": 128, "max_position_embeddings": u32::MAX}));
    let small = small.expect("sound");
    let vast = ModelConfig { vocab: 1 << 40, ..small.clone() };
    for weights in [WeightType::F32, WeightType::Bf16, WeightType::Q8, WeightType::Q4, WeightType::Mxfp4] {
        let error = Model::random(vast.clone(), weights, 1).err().expect("64 TiB");
        assert!(error.message.starts_with("the weights don't fit: they take "), "{error}");
        assert!(error.message.contains(" MiB are available"), "{error}");
    }
    // Two TiB of sines and cosines, and almost no cache.
    let model = Model::random(small, WeightType::Bf16, 1).expect("a small one");
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: 16,
        total_blocks: 4,
        max_running: 1,
        max_seq_len: u32::MAX,
        prompt_cache_entries: 0,
        threads: 1,
    };
    let error = model.executor(options).err().expect("no machine has so much");
    assert!(error.message.contains("a KV cache of 64 tokens and 4294967295 positions take"), "{error}");
}
