//! A sequence's logits have the same bits alone, in a mixed batch, in chunks of any size, on any number of threads and in
//! blocks of any size. Swaps, preemption and cache hits rely on this.

use infer_core::BlockCopy;
use infer_model::{DType, KvCacheKind, Model, Quantize, Source, WeightType};

use crate::bits;
use crate::common::{Chunk, Driver, MAX_SEQ_LEN, golden, model, stored_as};
use crate::together::{self, together};

const CASES: &[(&str, DType)] = &[
    ("llama-f32", DType::F32),
    ("llama-bf16", DType::Bf16),
    ("qwen3-bf16", DType::Bf16),
    ("gemma3-f32", DType::F32),
    ("qwen3moe-bf16", DType::Bf16),
    ("gptoss-bf16", DType::Bf16),
];

/// Weights as integers, whose products round their inputs and have kernels of their own.
const INTEGERS: &[(&str, Quantize)] = &[
    ("llama-bf16", Quantize::Q8),
    ("llama-bf16", Quantize::Q4),
    ("qwen3moe-bf16", Quantize::Q8),
    ("qwen3moe-bf16", Quantize::Q4),
];

/// All models, and what each is called.
fn models() -> impl Iterator<Item = (String, Model)> {
    let floats = CASES.iter().map(|(name, dtype)| ((*name).to_owned(), model(name, *dtype)));
    let integers = INTEGERS
        .iter()
        .map(|(name, quantize)| (format!("{name} as {quantize:?}"), stored_as(name, DType::Bf16, *quantize)));
    let held =
        Model::load(&Source::Directory(golden("gptoss-mxfp4")), None).expect("golden checkpoints load");
    floats.chain(integers).chain([("gptoss-mxfp4 as stored".to_owned(), held)])
}

fn prompts() -> Vec<Vec<u32>> {
    together::prompts(&[1, 5, 16, 17, 40, 63, 130, 200], 512)
}

fn alone(model: &Model, kind: KvCacheKind) -> Vec<[Vec<u32>; 2]> {
    together::alone(&mut Driver::new(model, kind, 16, 1), &prompts())
}

#[test]
fn logits_have_the_same_bits_in_any_batch_chunk_thread_count_and_block_size() {
    for (name, model) in models() {
        let of_integers = matches!(model.weight_type, WeightType::Q8 | WeightType::Q4 | WeightType::Mxfp4);
        for kind in [KvCacheKind::Paged, KvCacheKind::Contiguous] {
            // Storage of keys and values knows nothing of weights.
            if of_integers && kind == KvCacheKind::Contiguous {
                continue;
            }
            let want = alone(&model, kind);
            for (size, threads, block_size) in
                [(400, 1, 16), (400, 2, 16), (1, 1, 16), (7, 4, 8), (16, 3, 32), (17, 1, 5)]
            {
                let how =
                    format!("{name} {kind:?}, chunks of {size}, {threads} threads, blocks of {block_size}");
                let mut driver = Driver::new(&model, kind, block_size, threads);
                let prompts = prompts();
                together(&mut driver, &prompts.iter().collect::<Vec<_>>(), size, |i, step, got| {
                    assert_eq!(got, want[i][step], "{how}: prompt {i}, step {step}");
                });
            }
        }
    }
}

/// Sum of squared distances of two sets of logits, and sum of squares of the first.
fn distance(a: &[[Vec<u32>; 2]], b: &[[Vec<u32>; 2]]) -> (f64, f64) {
    let number = |bits: &u32| f64::from(f32::from_bits(*bits));
    let pairs = || a.iter().flatten().flatten().zip(b.iter().flatten().flatten());
    let apart = pairs().map(|(a, b)| (number(a) - number(b)).powi(2)).sum();
    (apart, pairs().map(|(a, _)| number(a).powi(2)).sum())
}

/// In bf16, sums in another order may round differently, so the backends differ, but by less than either differs from the
/// same weights computed in f32.
#[test]
fn both_kv_caches_agree_within_rounding() {
    for (name, dtype) in CASES {
        let stored = model(name, *dtype);
        let (paged, contiguous) =
            (alone(&stored, KvCacheKind::Paged), alone(&stored, KvCacheKind::Contiguous));
        let (apart, whole) = distance(&paged, &contiguous);
        if *dtype == DType::F32 {
            assert!((apart / whole).sqrt() < 1e-5, "{name}: {:.1e}", (apart / whole).sqrt());
            continue;
        }
        let (rounding, _) = distance(&contiguous, &alone(&model(name, DType::F32), KvCacheKind::Contiguous));
        assert!(apart < rounding, "{name}: {:.1e} apart, rounding {:.1e}", apart.sqrt(), rounding.sqrt());
    }
}

/// A prefix hit: a second sequence reads the first one's full blocks and a copy of its partial one.
#[test]
fn sequence_starting_from_cached_blocks_has_the_same_bits_as_one_that_computed_them() {
    for (name, model) in models() {
        let prompt: Vec<u32> = (0..60).map(|i| (i * 13 + 5) % 512).collect();
        let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
        let want = driver.run(&[Chunk { sequence: 1, start: 0, tokens: &prompt }]).remove(0).0;
        // 50 tokens are cached: three full blocks, and two tokens of the fourth.
        let mut batch = driver.batch(&[Chunk { sequence: 2, start: 50, tokens: &prompt[50..] }]);
        let own = batch.block_tables[3];
        let shared = driver.table(1);
        batch.block_tables[..3].copy_from_slice(&shared[..3]);
        batch.copies.push(BlockCopy { from: shared[3], to: own, tokens: 2 });
        let (_, result) = driver.try_run(&batch);
        assert_eq!(result, Ok(()));
        assert_eq!(bits(driver.kept(0)), bits(&want), "{name}");
    }
}

#[test]
fn longest_sequence_fits_and_one_more_token_is_a_fault_of_its_row() {
    let model = model("llama-f32", DType::F32);
    for kind in [KvCacheKind::Paged, KvCacheKind::Contiguous] {
        let tokens = vec![9; MAX_SEQ_LEN as usize];
        let mut driver = Driver::new(&model, kind, 16, 1);
        driver.run(&[Chunk { sequence: 1, start: 0, tokens: &tokens }]);
        let batch = driver.batch(&[Chunk { sequence: 1, start: tokens.len(), tokens: &[1] }]);
        let (_, result) = driver.try_run(&batch);
        assert_eq!(result.expect_err("too long").rows, Some(vec![0]), "{kind:?}");
    }
}
