//! Random checkpoints of every family: shapes and options, both generations of keys, one file, shards, GGUF and GGUF in
//! parts. The paged cache in chunks, the contiguous cache at once and the definitions in scalar f64 give the same logits.

use candle_core::quantized::GgmlDType;
use infer_kernels::Random;
use infer_model::{DType, KvCacheKind, Model, Source};

use crate::common::{Chunk, Driver};
use crate::shape::{FAMILIES, Shape};
use crate::{convert, distance, scalar, shape};

/// Checkpoints per family.
const CHECKPOINTS: u64 = 12;

/// Logits at the end of every chunk of `size` tokens.
fn computed(model: &Model, kind: KvCacheKind, tokens: &[u32], size: usize) -> Vec<(usize, Vec<f32>)> {
    let mut driver = Driver::new(model, kind, 16, 1);
    let chunks = tokens.chunks(size).enumerate().map(|(i, tokens)| {
        let chunk = Chunk { sequence: 1, start: i * size, tokens };
        let end = chunk.start + tokens.len() - 1;
        (end, driver.run(&[chunk]).remove(0).0)
    });
    chunks.collect()
}

#[test]
fn random_checkpoints_of_every_family_compute_their_definition_from_every_format() {
    for family in FAMILIES {
        for seed in 0..CHECKPOINTS {
            let mut random = Random::new(seed << 8 | family.len() as u64);
            let shape = Shape::random(family, &mut random);
            let tensors = shape.tensors(&mut random);
            let tokens: Vec<u32> =
                (0..random.size(20, 60)).map(|_| random.size(0, shape.vocab - 1) as u32).collect();
            let want = scalar::logits(&shape, &tensors, &tokens);
            let check = |how: &str, kind: KvCacheKind, model: &Model, size: usize| {
                assert_eq!(model.dtype, DType::F32);
                for (at, got) in computed(model, kind, &tokens, size) {
                    let error = distance(&got, &want[at]);
                    assert!(error < 1e-4, "{how}, seed {seed}, position {at}: {error:.1e}; {shape:?}");
                }
            };
            let directory = tempfile::tempdir().expect("a temporary directory");
            shape::write(directory.path(), &shape.config(), &tensors, random.size(1, 3));
            let model = Model::load(&Source::Directory(directory.path().to_owned()), None);
            let model = model.unwrap_or_else(|error| panic!("seed {seed}: {error}; {shape:?}"));
            check("paged", KvCacheKind::Paged, &model, random.size(1, 30));
            check("contiguous", KvCacheKind::Contiguous, &model, tokens.len());
            if convert::can_write(&shape.config()) {
                let parts = random.size(1, 3);
                let path =
                    convert::convert_in(directory.path(), "model", GgmlDType::F32, parts, directory.path());
                let source = Source::gguf(&path);
                let model = source.and_then(|source| Model::load(&source, None));
                let model = model.unwrap_or_else(|error| panic!("seed {seed} as GGUF: {error}; {shape:?}"));
                check("GGUF", KvCacheKind::Paged, &model, tokens.len());
            }
        }
    }
}
