//! Embeddings, whatever the batch and the chunks; and how checkpoints say that they embed.

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use infer_model::walk::Draws;
use infer_model::{DType, KvCacheKind, Model, ModelConfig, Pooling, Source, Tokenizer, vector};
use serde_json::Value;

use crate::common::{Chunk, Driver, golden, model};
use crate::convert;

const NAME: &str = "qwen3-embedding-bf16";
const HIDDEN: usize = 64;

struct Prompt {
    text: String,
    ids: Vec<u32>,
    vector: Vec<f32>,
}

fn prompts() -> Vec<Prompt> {
    let text = std::fs::read_to_string(golden(NAME).join("embeddings.json")).expect("it is there");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let read = |prompt: &Value| Prompt {
        text: prompt["text"].as_str().expect("a text").to_owned(),
        ids: serde_json::from_value(prompt["ids"].clone()).expect("token ids"),
        vector: serde_json::from_value(prompt["vector"].clone()).expect("numbers"),
    };
    all["prompts"].as_array().expect("a list").iter().map(read).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

/// The vectors of these chunks' last tokens, as the model computes them.
fn embed(driver: &mut Driver, chunks: &[Chunk<'_>]) -> Vec<Vec<f32>> {
    let sampled = driver.walk.run(chunks, Draws::EMBED).expect("sound batches run");
    assert!(sampled.iter().all(Option::is_none), "nothing is sampled");
    let vectors = driver.walk.embeddings();
    assert!(vectors.iter().map(|(row, _)| *row).eq(0..chunks.len()), "one for each row");
    vectors.iter().map(|(_, vector)| vector.clone()).collect()
}

#[test]
fn vectors_are_those_of_the_reference() {
    let prompts = prompts();
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::Bf16, 2e-2)] {
        let model = model(NAME, dtype);
        for kind in [KvCacheKind::Paged, KvCacheKind::Contiguous] {
            let mut driver = Driver::new(&model, kind, 16, 2);
            let chunks: Vec<Chunk<'_>> = (1..)
                .zip(&prompts)
                .map(|(sequence, prompt)| Chunk { sequence, start: 0, tokens: &prompt.ids })
                .collect();
            for (prompt, vector) in prompts.iter().zip(embed(&mut driver, &chunks)) {
                let error = distance(&vector::finish(vector, HIDDEN, true), &prompt.vector);
                assert!(error < tolerance, "{:?} as {dtype:?}, {kind:?}: off by {error:.1e}", prompt.text);
            }
        }
    }
}

#[test]
fn bits_depend_on_neither_batch_nor_chunks_nor_threads() {
    let prompts = prompts();
    let model = model(NAME, DType::Bf16);
    for prompt in &prompts {
        let whole = [Chunk { sequence: 1, start: 0, tokens: &prompt.ids }];
        let alone = embed(&mut Driver::new(&model, KvCacheKind::Paged, 16, 1), &whole);
        for size in [1, 7, 16] {
            let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 2);
            let last = (prompt.ids.len() - 1) / size * size;
            for start in (0..last).step_by(size) {
                let tokens = &prompt.ids[start..start + size];
                driver.walk.run(&[Chunk { sequence: 1, start, tokens }], Draws::NONE).expect("it runs");
            }
            // Beside the others, the longest among them.
            let mut chunks = vec![Chunk { sequence: 1, start: last, tokens: &prompt.ids[last..] }];
            chunks.extend((2..).zip(&prompts).map(|(sequence, other)| Chunk {
                sequence,
                start: 0,
                tokens: &other.ids,
            }));
            assert_eq!(embed(&mut driver, &chunks)[0], alone[0], "{:?} in chunks of {size}", prompt.text);
        }
    }
}

#[test]
fn vectors_and_samples_share_a_batch() {
    let prompts = prompts();
    let model = model(NAME, DType::F32);
    let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
    let chunk = |sequence| Chunk { sequence, start: 0, tokens: &prompts[2].ids };
    let alone = driver.run(&[chunk(1)]).remove(0);
    let vector = embed(&mut driver, &[chunk(2)]).remove(0);
    let mut batch = driver.walk.batch(&[chunk(3), chunk(4), chunk(5)], Draws::KEPT);
    batch.rows[1].logits_to = None;
    batch.rows[1].sampling = driver.walk.batch(&[chunk(6)], Draws::EMBED).rows[0].sampling.clone();
    let (output, result) = driver.try_run(&batch);
    result.expect("it runs");
    assert_eq!(output.sampled, [Some(alone.1), None, Some(alone.1)]);
    assert_eq!(output.embeddings, [(1, vector)]);
    assert_eq!(driver.kept(0), &alone.0[..]);
}

#[test]
fn texts_end_with_the_token_that_the_tokenizer_adds() {
    let tokenizer = Tokenizer::load(&Source::Directory(golden(NAME))).expect("it loads");
    for Prompt { text, ids, .. } in prompts() {
        assert_eq!(tokenizer.encode(&text, true).expect("a text"), ids, "{text:?}");
        assert_eq!(tokenizer.encode(&text, false).expect("a text"), ids[..ids.len() - 1], "{text:?}");
    }
}

/// The checkpoint with another file of its pooling.
fn pooled(pooling: &str, directory: &Path) -> PathBuf {
    let copy = directory.join("checkpoint");
    std::fs::create_dir_all(copy.join("1_Pooling")).expect("a directory");
    for entry in std::fs::read_dir(golden(NAME)).expect("a directory") {
        let file = entry.expect("a file").path();
        if file.is_file() {
            std::fs::copy(&file, copy.join(file.file_name().expect("a name"))).expect("it can be copied");
        }
    }
    std::fs::write(copy.join("1_Pooling/config.json"), pooling).expect("it can be written");
    copy
}

#[test]
fn pooling_is_read_from_directories_and_from_gguf_files() {
    let pooling = |source: &Source<'_>| ModelConfig::load(source).expect("sound").pooling;
    let directory = tempfile::tempdir().expect("a directory");
    let last = Some(Pooling::Last { normalized: true });
    for (name, wanted) in [(NAME, last), ("qwen3-bf16", None)] {
        assert_eq!(pooling(&Source::Directory(golden(name))), wanted, "{name}");
        let file = convert::convert(name, GgmlDType::F32, directory.path());
        assert_eq!(pooling(&Source::gguf(&file).expect("a sound file")), wanted, "{name}");
    }
    let mean = pooled(r#"{"pooling_mode_mean_tokens": true}"#, directory.path());
    let file = convert::convert_in(&mean, "mean", GgmlDType::F32, 1, directory.path());
    for (source, wanted) in [
        (Source::Directory(mean), "modules.json has a pooling of the mode mean_tokens"),
        (Source::gguf(&file).expect("a sound file"), "qwen3.pooling_type is 1 (mean)"),
    ] {
        assert_eq!(pooling(&source), Some(Pooling::Unsupported(wanted.to_owned())));
        assert!(Model::load(&source, None).is_ok(), "it still generates text");
    }
}

#[test]
fn gguf_files_give_the_same_vectors() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = convert::convert(NAME, GgmlDType::F32, directory.path());
    let source = Source::gguf(&file).expect("a sound file");
    let tokenizer = Tokenizer::load(&source).expect("it loads");
    let model = Model::load(&source, Some(DType::F32)).expect("it loads");
    let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
    for prompt in &prompts() {
        let ids = tokenizer.encode(&prompt.text, true).expect("a text");
        assert_eq!(ids, prompt.ids, "{:?}", prompt.text);
        let vector = embed(&mut driver, &[Chunk { sequence: 1, start: 0, tokens: &ids }]).remove(0);
        driver.release(1);
        assert!(distance(&vector::finish(vector, HIDDEN, true), &prompt.vector) < 1e-4, "{:?}", prompt.text);
    }
}
