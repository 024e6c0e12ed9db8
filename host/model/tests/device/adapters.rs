//! Adapters on the device: golden logits, recorded decodes, rows that depend on themselves alone, and what is launched.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use infer_core::{AdapterId, AdapterWeights, Batch, Executor, SamplingParams, StepOutput};
use infer_cuda_emulator::{Emulator, Operation};
use infer_kernels::cuda::{CudaError, Device};
use infer_model::cuda::DeviceExecutor;
use infer_model::cuda::checks::{self, Extent};
use infer_model::{AdapterLoader, Model, Source};

use crate::steps::{beside, executor, options, row};
use crate::{emulator, golden, load, passes};

#[test]
fn golden_logits_of_adapters() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::adapters(&device, &golden(), Extent::UpTo(33)));
}

#[test]
fn recorded_decodes_with_adapters_draw_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::adapted_graphs_are_eager(&device, &golden().join("gemma3-bf16")));
}

#[test]
fn deterministic_tokens_with_adapters_depend_only_on_those_before_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for name in ["llama-bf16", "qwen3moe-bf16"] {
        passes(checks::adapted_tokens_stand_alone(&device, &golden().join(name)));
    }
}

#[test]
fn draft_tokens_change_no_token_with_adapters() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::adapted_drafts_change_no_token(&device, &golden().join("llama-bf16")));
}

#[test]
fn adapters_are_added_to_products_of_integers() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::adapted_integers(&device, &golden().join("llama-bf16")));
}

#[test]
fn adapters_that_come_and_go_between_decodes_compute_as_in_a_fresh_executor() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for name in ["gemma3-bf16", "qwen3moe-bf16"] {
        passes(checks::adapters_come_and_go(&device, &golden().join(name)));
    }
}

/// A batch of rows with these adapters.
fn batch(adapters: &[u32], sampling: &SamplingParams) -> Batch {
    let mut batch = Batch::default();
    for (nth, adapter) in (0..).zip(adapters) {
        row(&mut batch, 4 * nth, &[5, 9, 2, 7, 5 + nth, 1], sampling.clone());
        batch.rows[nth as usize].adapter = AdapterId(*adapter);
    }
    batch
}

/// The same with rows that are decoded, each a sequence of one token.
fn decode(adapters: &[u32], sampling: &SamplingParams) -> Batch {
    let mut batch = Batch::default();
    for (nth, adapter) in (0..).zip(adapters) {
        row(&mut batch, 4 * nth, &[5 + nth], sampling.clone());
        batch.rows[nth as usize].adapter = AdapterId(*adapter);
    }
    batch
}

/// What is launched of adapters for a batch, by kernel.
fn launches(
    emulator: &Emulator,
    executor: &mut DeviceExecutor,
    batch: &Batch,
) -> BTreeMap<&'static str, u64> {
    let count = || -> BTreeMap<&'static str, u64> {
        emulator.launches().into_iter().filter(|(kernel, _)| kernel.starts_with("adapters_")).collect()
    };
    let before = count();
    executor.execute(batch, &mut StepOutput::default()).expect("the device runs");
    let launched =
        count().into_iter().map(|(kernel, count)| (kernel, count - before.get(kernel).unwrap_or(&0)));
    launched.filter(|(_, count)| *count > 0).collect()
}

/// A model with an adapter of all projections and another.
fn adapted(name: &str) -> Model {
    let mut model = load(name);
    for (rank, seed) in [(6, 1), (20, 2)] {
        model.add_random_adapter(rank, seed).expect("it is small");
    }
    model
}

#[test]
fn only_steps_with_adapters_launch_them_and_as_many_whichever_rows_have_which() {
    let Some(emulator) = emulator() else { return };
    let device: Arc<dyn Device> = emulator.clone();
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    for name in ["llama-bf16", "qwen3moe-bf16"] {
        let model = adapted(name);
        // Four products of each layer; of layers of experts, two.
        let products = model.config.layers.iter().map(|layer| if layer.experts.is_none() { 4 } else { 2 });
        let expected: u64 = products.sum();
        let mut executor = executor(&model, &device, false);
        assert_eq!(launches(&emulator, &mut executor, &batch(&[0, 0], &sampling)), BTreeMap::new(), "{name}");
        for adapters in [[1, 0], [0, 2], [1, 2]] {
            let launched = launches(&emulator, &mut executor, &batch(&adapters, &sampling));
            let both = ["adapters_expand_bf16_1", "adapters_shrink_bf16_1"].map(|kernel| (kernel, expected));
            assert_eq!(launched, BTreeMap::from(both), "{name}, {adapters:?}");
        }
    }
}

#[test]
fn device_computes_with_adapters_what_the_cpu_does() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let model = adapted("llama-f32");
    let placed = model.to_device(&device).expect("it fits");
    assert!(placed.adapters() == 2 && placed.adapter_bytes() > 0);
    let loader = model.device_adapter_loader();
    let sizes = [(6, 1), (20, 2)].map(|(rank, seed)| loader.random(rank, seed).expect("it is small").1.bytes);
    assert_eq!(placed.bytes_of_adapters().collect::<Vec<u64>>(), sizes, "as those that come later");
    let bare = load("llama-f32").to_device(&device).expect("it fits");
    assert_eq!((bare.weight_bytes(), bare.adapter_bytes()), (placed.weight_bytes(), 0));
    let sampling = SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() };
    let (mut cpu, mut gpu) = (beside(&model), executor(&model, &device, true));
    let mut outputs = Vec::new();
    for adapters in [[0, 1, 2], [2, 0, 1], [1, 1, 0]] {
        let batch = batch(&adapters, &sampling);
        let (mut wanted, mut got) = (StepOutput::default(), StepOutput::default());
        cpu.execute(&batch, &mut wanted).expect("the CPU runs");
        gpu.execute(&batch, &mut got).expect("the device runs");
        assert_eq!(got.sampled, wanted.sampled, "{adapters:?}");
        outputs.push(got.sampled);
    }
    assert!(
        outputs[0] != outputs[1] && outputs[1] != outputs[2],
        "adapters change what is sampled: {outputs:?}"
    );
}

#[test]
fn a_row_without_an_adapter_keeps_its_bits_beside_others_and_one_with_an_unknown_one_is_at_fault() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let model = adapted("llama-bf16");
    let bare = load("llama-bf16");
    let extras = infer_core::SamplingExtras { logprobs: Some(5), ..infer_core::SamplingExtras::default() };
    let sampling = SamplingParams { extras: Some(Arc::new(extras)), ..SamplingParams::default() };
    let mut outputs = [StepOutput::default(), StepOutput::default()];
    let mut with = executor(&model, &device, true);
    with.execute(&batch(&[0, 1, 2], &sampling), &mut outputs[0]).expect("the device runs");
    executor(&bare, &device, true)
        .execute(&batch(&[0], &sampling), &mut outputs[1])
        .expect("the device runs");
    let of_first = |output: &StepOutput| {
        let (row, logprobs) = &output.logprobs[0];
        (*row, output.sampled[0], logprobs.logprob.to_bits(), logprobs.top.clone())
    };
    assert_eq!(of_first(&outputs[0]), of_first(&outputs[1]));
    let fault = with.execute(&batch(&[1, 3], &sampling), &mut outputs[0]).expect_err("there are two");
    assert_eq!(fault.rows, Some(vec![1]), "{}", fault.message);
}

fn folder(name: &str) -> PathBuf {
    golden().join("qwen3-lora").join(name)
}

/// A golden adapter, ready for an executor.
fn weights(loader: &AdapterLoader, name: &str) -> AdapterWeights {
    let files = loader.read(&folder(name), 1 << 20).expect("they are there");
    loader.load(&files).expect("golden adapters load").0
}

/// At temperature 1, which is sensitive to any difference.
fn sampling() -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() }
}

/// What rows with these adapters draw. The second and the third time are recorded and repeated.
fn draw(executor: &mut DeviceExecutor, adapters: &[u32]) -> Vec<Vec<Option<u32>>> {
    let mut output = StepOutput::default();
    let batch = decode(adapters, &sampling());
    (0..3)
        .map(|_| {
            executor.execute(&batch, &mut output).expect("the device runs");
            output.sampled.clone()
        })
        .collect()
}

/// The rows that are at fault for having adapters that aren't there.
fn unknown(executor: &mut DeviceExecutor, adapters: &[u32]) -> Option<Vec<usize>> {
    let outcome = executor.execute(&decode(adapters, &sampling()), &mut StepOutput::default());
    outcome.expect_err("an adapter isn't there").rows
}

/// What comes later computes as what was there from the start, also in decodes that were recorded before it came, and
/// leaves others as they were.
#[test]
fn adapters_come_and_go_between_steps() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut model = load("qwen3-bf16");
    let loader = model.device_adapter_loader();
    let weights = |name: &str| weights(&loader, name);
    let mut placed = model.to_device(&device).expect("it fits");
    placed.reserve_adapters(2, 1 << 20);
    let mut later = placed.executor(options(true)).expect("a small executor");
    for name in ["all", "some"] {
        model.add_adapter(&Source::Directory(folder(name))).expect("golden adapters load");
    }
    let mut from_start = executor(&model, &device, true);
    let wanted = [&[0, 0][..], &[1, 0], &[2, 1]].map(|adapters| draw(&mut from_start, adapters));
    assert_eq!(draw(&mut later, &[0, 0]), wanted[0]);
    later.load_adapter(AdapterId(5), weights("all")).expect("there is room");
    assert_eq!(draw(&mut later, &[5, 0]), wanted[1]);
    later.load_adapter(AdapterId(6), weights("some")).expect("there is room");
    assert_eq!(draw(&mut later, &[6, 5]), wanted[2]);
    let refused = later.load_adapter(AdapterId(7), weights("some")).expect_err("there are two");
    assert!(refused.message.contains("no room for another adapter"), "{}", refused.message);
    assert!(later.unload_adapter(AdapterId(6)).is_some() && later.unload_adapter(AdapterId(6)).is_none());
    assert_eq!(draw(&mut later, &[5, 0]), wanted[1], "the other is where it was");
    later.load_adapter(AdapterId(8), weights("some")).expect("there is room again");
    assert_eq!(draw(&mut later, &[8, 5]), wanted[2]);
    later.unload_adapter(AdapterId(5)).expect("it is there");
    later.unload_adapter(AdapterId(8)).expect("it is there");
    assert_eq!(draw(&mut later, &[0, 0]), wanted[0]);
    assert_eq!(unknown(&mut later, &[0, 8]), Some(vec![1]));
    assert!(later.graph_launches() > 0 && from_start.graph_launches() > 0, "decodes are recorded");
    let other = later.load_adapter(AdapterId(9), Box::new(7)).expect_err("it is a number");
    assert!(other.message.contains("for another device"), "{}", other.message);
}

#[test]
fn an_adapter_that_the_device_refuses_leaves_the_others_as_they_were_and_one_that_goes_needs_no_copy() {
    let Some(emulator) = emulator() else { return };
    let device: Arc<dyn Device> = emulator.clone();
    let model = load("qwen3-bf16");
    let loader = model.device_adapter_loader();
    let mut placed = model.to_device(&device).expect("it fits");
    placed.reserve_adapters(2, 1 << 20);
    let mut executor = placed.executor(options(true)).expect("a small executor");
    executor.load_adapter(AdapterId(5), weights(&loader, "all")).expect("there is room");
    let of_all = draw(&mut executor, &[5, 0]);
    let refused = || CudaError::failed("refused on request");
    // The copies of its matrices, and of the list.
    for before in [0, 1] {
        emulator.fail_after(before, Operation::CopyIn, refused());
        let fault = executor.load_adapter(AdapterId(6), weights(&loader, "some")).expect_err("a copy fails");
        assert!(fault.message.contains("refused on request"), "{}", fault.message);
        assert_eq!(unknown(&mut executor, &[5, 6]), Some(vec![1]), "after {before} copies");
        assert_eq!(draw(&mut executor, &[5, 0]), of_all, "after {before} copies");
    }
    let fault = executor.load_adapter(AdapterId(5), weights(&loader, "some")).expect_err("it is there");
    assert!(fault.message.contains("an adapter of this number"), "{}", fault.message);
    executor.load_adapter(AdapterId(6), weights(&loader, "some")).expect("there is room still");
    let of_some = draw(&mut executor, &[6, 0]);
    emulator.fail_next(Operation::CopyIn, refused());
    executor.unload_adapter(AdapterId(5)).expect("it is there");
    let mut output = StepOutput::default();
    executor.execute(&decode(&[6, 0], &sampling()), &mut output).expect_err("the step's copy is the next");
    assert_eq!(draw(&mut executor, &[6, 0]), of_some, "nothing of it is where the other was");
}

/// An executor whose pool takes what is left must have allocated before what its kernels need for adapters to come.
#[test]
fn adapters_within_the_memory_that_is_expected_take_none_but_for_their_matrices() {
    let Some(emulator) = emulator() else { return };
    let device: Arc<dyn Device> = emulator.clone();
    for name in ["qwen3-bf16", "qwen3moe-bf16"] {
        let mut model = load(name);
        let (weights, size) = model.device_adapter_loader().random(24, 1).expect("it is small");
        model.add_random_adapter(6, 2).expect("it is small");
        let mut placed = model.to_device(&device).expect("it fits");
        let options = options(true);
        let bare = placed.working_bytes(&options);
        placed.reserve_adapters(2, size.bytes);
        assert!(placed.working_bytes(&options) > bare, "{name}");
        let mut executor = placed.executor(options).expect("a small executor");
        let before = emulator.allocations();
        executor.load_adapter(AdapterId(2), weights).expect("there is room");
        assert_eq!(emulator.allocations() - before, 1, "{name}");
    }
}
