//! Rows with adapters: the same bits whatever else is in the batch, what a step reads of them, and faults.

use infer_core::{AdapterId, SequenceId};
use infer_model::{DType, KvCacheKind, Model, Quantize};

use crate::common::{ADAPTED, Chunk, Driver, adapter, model, stored_as};
use crate::together::{self, together};

const KINDS: [KvCacheKind; 2] = [KvCacheKind::Paged, KvCacheKind::Contiguous];

/// Models of every format of weights, each with adapters of all projections and of some.
fn adapted() -> impl Iterator<Item = (String, Model, Vec<AdapterId>)> {
    let cases = [
        ("llama-f32", DType::F32, Quantize::Off),
        ("llama-bf16", DType::Bf16, Quantize::Q8),
        ("llama-bf16", DType::Bf16, Quantize::Q4),
        ("qwen3-bf16", DType::Bf16, Quantize::Off),
        ("gemma3-bf16", DType::Bf16, Quantize::Off),
        ("qwen3moe-bf16", DType::Bf16, Quantize::Off),
    ];
    cases.into_iter().map(|(name, dtype, quantize)| {
        let mut model = stored_as(name, dtype, quantize);
        let mut ids: Vec<AdapterId> = [(6, 1), (3, 2)]
            .map(|(rank, seed)| model.add_random_adapter(rank, seed).expect("it is small"))
            .into();
        if name == ADAPTED {
            ids.push(model.add_adapter(&adapter("some")).expect("golden adapters load"));
        }
        (format!("{name}, {quantize:?}"), model, ids)
    })
}

fn prompts() -> Vec<Vec<u32>> {
    together::prompts(&[1, 5, 17, 63, 130], 300)
}

fn alone(model: &Model, kind: KvCacheKind, adapter: AdapterId) -> Vec<[Vec<u32>; 2]> {
    let mut driver = Driver::new(model, kind, 16, 1);
    driver.walk.adapt(1, adapter);
    together::alone(&mut driver, &prompts())
}

#[test]
fn logits_have_the_same_bits_whichever_adapters_the_other_rows_have() {
    for (name, model, ids) in adapted() {
        let mut all = vec![AdapterId::NONE];
        all.extend(&ids);
        for kind in KINDS {
            let want: Vec<_> = all.iter().map(|id| alone(&model, kind, *id)).collect();
            for (one, other) in (0..all.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                assert_ne!(want[one], want[other], "{name}: adapters {one} and {other} change nothing");
            }
            for (size, threads, block_size) in [(400, 1, 16), (1, 2, 16), (7, 2, 8), (17, 1, 5)] {
                let how = format!("{name}, {kind:?}, chunks of {size}, {threads} threads");
                let mut driver = Driver::new(&model, kind, block_size, threads);
                let prompts = prompts();
                // Neighbours have different adapters.
                let streams: Vec<(usize, usize)> = (0..prompts.len())
                    .flat_map(|i| (0..all.len()).map(move |adapter| (i, adapter)))
                    .collect();
                for (at, (_, adapter)) in streams.iter().enumerate() {
                    driver.walk.adapt(at as u64 + 1, all[*adapter]);
                }
                let texts: Vec<_> = streams.iter().map(|(i, _)| &prompts[*i]).collect();
                together(&mut driver, &texts, size, |at, step, got| {
                    let (i, adapter) = streams[at];
                    assert_eq!(got, want[adapter][i][step], "{how}: {i} of {adapter}, {step}");
                });
            }
        }
    }
}

#[test]
fn rows_without_an_adapter_are_those_of_a_model_that_has_none() {
    for (name, dtype) in [("llama-f32", DType::F32), ("gemma3-bf16", DType::Bf16)] {
        let bare = model(name, dtype);
        let mut with = bare.clone();
        with.add_random_adapter(4, 1).expect("it is small");
        let wants = alone(&bare, KvCacheKind::Paged, AdapterId::NONE);
        assert_eq!(alone(&with, KvCacheKind::Paged, AdapterId::NONE), wants, "{name}");
        assert_eq!(with.weight_bytes(), bare.weight_bytes());
        assert!(with.adapter_bytes() > 0 && bare.adapter_bytes() == 0);
    }
}

#[test]
fn steps_read_the_adapters_of_their_rows() {
    let mut model = model(ADAPTED, DType::Bf16);
    model.add_random_adapter(4, 1).expect("it is small");
    let first = model.adapter_bytes();
    model.add_random_adapter(16, 2).expect("it is small");
    let second = model.adapter_bytes() - first;
    let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
    driver.walk.adapt(2, AdapterId(2));
    driver.walk.adapt(3, AdapterId(1));
    for (sequences, bytes) in [(vec![1], 0), (vec![1, 2], second), (vec![3, 2], first + second)] {
        let chunks: Vec<_> =
            sequences.iter().map(|sequence| Chunk { sequence: *sequence, start: 0, tokens: &[7] }).collect();
        driver.run(&chunks);
        assert_eq!(driver.walk.executor.read_bytes(), model.step_bytes() + bytes, "{sequences:?}");
    }
}

#[test]
fn a_row_with_an_adapter_that_is_not_there_is_a_fault_of_its_row() {
    let mut model = model(ADAPTED, DType::Bf16);
    let there = model.add_random_adapter(4, 1).expect("it is small");
    for kind in KINDS {
        let mut driver = Driver::new(&model, kind, 16, 1);
        driver.walk.adapt(1, there);
        driver.walk.adapt(2, AdapterId(2));
        let batch = driver.batch(&[1, 2].map(|sequence| Chunk { sequence, start: 0, tokens: &[5] }));
        assert_eq!(batch.rows[1].sequence, SequenceId(2));
        let (_, result) = driver.try_run(&batch);
        assert_eq!(result.expect_err("there is one adapter").rows, Some(vec![1]), "{kind:?}");
    }
}
