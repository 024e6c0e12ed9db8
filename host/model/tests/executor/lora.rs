//! Rows with adapters: the same bits whatever else is in the batch, what a step reads of them, faults, and adapters that come
//! and go.

use infer_core::{AdapterId, Executor, SequenceId};
use infer_model::{AdapterSize, DType, KvCacheKind, Model, Quantize};

use crate::common::{ADAPTED, Chunk, Driver, adapter, golden, model, stored_as};
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

/// An adapter that comes later has any number that is larger.
#[test]
fn adapters_that_come_while_others_are_there_compute_what_they_would_from_the_start() {
    let names = ["all", "some"];
    let mut from_start = model(ADAPTED, DType::Bf16);
    let ids = names.map(|name| from_start.add_adapter(&adapter(name)).expect("golden adapters load"));
    let wanted = ids.map(|id| alone(&from_start, KvCacheKind::Paged, id));
    let mut later = model(ADAPTED, DType::Bf16);
    later.add_random_adapter(3, 1).expect("it is small");
    let loader = later.adapter_loader();
    let load = |name: &str| {
        let files = loader.read(&golden("qwen3-lora").join(name), 1 << 20).expect("they are there");
        let (weights, size) = loader.load(&files).expect("golden adapters load");
        let measured = loader.measure(&files).expect("they are sound");
        assert!(measured.rank == size.rank && measured.bytes <= size.bytes, "{name}: {measured:?}, {size:?}");
        (weights, size)
    };
    let mut driver = Driver::new(&later, KvCacheKind::Paged, 16, 1);
    let mut sizes = Vec::new();
    for (name, id) in names.into_iter().zip([7, 9].map(AdapterId)) {
        let (weights, size) = load(name);
        driver.walk.executor.load_adapter(id, weights).expect("it was made for this executor");
        sizes.push(size);
    }
    assert_eq!(sizes, from_start.adapter_sizes().collect::<Vec<AdapterSize>>());
    let mut got = |id: u32| {
        driver.walk.adapt(1, AdapterId(id));
        together::alone(&mut driver, &prompts())
    };
    assert_eq!([got(7), got(9)], wanted);
    let executor = &mut driver.walk.executor;
    assert!(
        executor.unload_adapter(AdapterId(7)).is_some() && executor.unload_adapter(AdapterId(7)).is_none()
    );
    driver.walk.adapt(1, AdapterId(9));
    assert_eq!(together::alone(&mut driver, &prompts()), wanted[1], "after one before it has left");
    driver.walk.adapt(1, AdapterId(7));
    let batch = driver.batch(&[Chunk { sequence: 1, start: 0, tokens: &[5] }]);
    let (_, result) = driver.try_run(&batch);
    assert_eq!(result.expect_err("it has left").rows, Some(vec![0]));
}

#[test]
fn weights_for_something_else_are_no_adapter() {
    let mut driver = Driver::new(&model(ADAPTED, DType::Bf16), KvCacheKind::Paged, 16, 1);
    let refused = driver.walk.executor.load_adapter(AdapterId(1), Box::new(7)).expect_err("it is a number");
    assert!(refused.message.contains("for another device"), "{}", refused.message);
}
