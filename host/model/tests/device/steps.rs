//! Single steps: the device's samples, vectors and faults are those of the CPU's executor.

use std::sync::Arc;

use infer_core::{
    AdapterId, Batch, BlockCopy, BlockId, Executor, LogitsSlot, Row, SamplingExtras, SamplingParams,
    SequenceId, StepOutput,
};
use infer_kernels::cuda::Device;
use infer_model::cuda::{DeviceExecutor, DeviceOptions};
use infer_model::{ExecutorOptions, KvCacheKind, Model, ModelConfig, ModelExecutor, WeightType};

use crate::{emulator, load, model};

pub fn options(deterministic: bool) -> DeviceOptions {
    DeviceOptions {
        block_size: 4,
        total_blocks: 64,
        max_rows: 6,
        max_tokens: 64,
        max_seq_len: 64,
        prompt_cache_entries: 4,
        deterministic,
        graphs: true,
    }
}

pub fn executor(model: &Model, device: &Arc<dyn Device>, deterministic: bool) -> DeviceExecutor {
    let executor = model.to_device(device).and_then(|model| model.executor(options(deterministic)));
    executor.expect("a small executor")
}

/// A row of `tokens` whose blocks begin at block `first`.
pub fn row(batch: &mut Batch, first: u32, tokens: &[u32], sampling: SamplingParams) {
    let blocks = (tokens.len() as u32).div_ceil(4);
    batch.rows.push(Row {
        sequence: SequenceId(u64::from(first)),
        adapter: AdapterId::NONE,
        token_start: batch.tokens.len() as u32,
        token_len: tokens.len() as u32,
        context_len: tokens.len() as u32,
        input_from: None,
        table_start: batch.block_tables.len() as u32,
        table_len: blocks,
        sample: true,
        guesses: 0,
        generated: 0,
        sampling,
        history_start: batch.history.len() as u32,
        history_len: tokens.len() as u32,
        forbidden_start: 0,
        forbidden_len: 0,
        logits_to: None,
        logits_from: None,
    });
    batch.tokens.extend_from_slice(tokens);
    batch.history.extend_from_slice(tokens);
    batch.positions.extend(0..tokens.len() as u32);
    batch.slots.extend((0..tokens.len() as u32).map(|i| 4 * first + i));
    batch.block_tables.extend((first..first + blocks).map(BlockId));
}

/// The CPU's executor, as large as the device's.
pub fn beside(model: &Model) -> ModelExecutor {
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: 4,
        total_blocks: 64,
        max_running: 6,
        max_seq_len: 64,
        prompt_cache_entries: 4,
        threads: 1,
    };
    model.executor(options).expect("a small executor")
}

/// For all sampling parameters of a request, device and CPU give the same result.
#[test]
fn device_samples_the_same_tokens_as_the_cpu() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let model = model();
    let mut cpu = beside(&model);
    let mut gpu = executor(&model, &device, true);
    let extras = |extras| Some(Arc::new(extras));
    let plain = SamplingParams { seed: 5, ..SamplingParams::default() };
    let wishes = [
        SamplingParams { temperature: 0.0, ..plain.clone() },
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.9, repetition_penalty: 1.3, ..plain.clone() },
        SamplingParams { min_p: 0.05, frequency_penalty: 0.5, presence_penalty: 0.5, ..plain.clone() },
        SamplingParams {
            temperature: 0.0,
            extras: extras(SamplingExtras { logit_bias: vec![(77, 100.0)], ..SamplingExtras::default() }),
            ..plain.clone()
        },
        SamplingParams {
            extras: extras(SamplingExtras {
                logprobs: Some(3),
                prompt_logprobs: Some(2),
                ..SamplingExtras::default()
            }),
            ..plain
        },
    ];
    let mut batch = Batch::default();
    for (i, wish) in wishes.into_iter().enumerate() {
        let tokens: Vec<u32> = (0..5 + i as u32).map(|t| 10 + t % 3 + i as u32).collect();
        row(&mut batch, 4 * i as u32, &tokens, wish);
    }
    batch.rows[0].logits_to = Some(LogitsSlot(2));
    let (mut wanted, mut got) = (StepOutput::default(), StepOutput::default());
    cpu.execute(&batch, &mut wanted).expect("the CPU runs");
    gpu.execute(&batch, &mut got).expect("the device runs");
    assert_eq!(got.sampled, wanted.sampled);
    assert_eq!(got.sampled[3], Some(77));
    let close = |a: f32, b: f32| (a - b).abs() < 1e-3;
    let same = |a: &infer_core::TokenLogprobs, b: &infer_core::TokenLogprobs| {
        close(a.logprob, b.logprob) && a.top.iter().zip(&b.top).all(|(a, b)| a.0 == b.0 && close(a.1, b.1))
    };
    assert_eq!(got.logprobs.len(), 1);
    assert!(same(&got.logprobs[0].1, &wanted.logprobs[0].1));
    let (got, wanted) = (&got.prompt_logprobs[0], &wanted.prompt_logprobs[0]);
    assert_eq!((got.0, got.1.len()), (wanted.0, wanted.1.len()));
    assert!(got.1.iter().zip(&wanted.1).all(|(a, b)| same(a, b)));

    // Kept logits serve the same prompt again without a forward pass.
    let mut again = Batch::default();
    row(&mut again, 0, &[], SamplingParams { temperature: 0.0, ..SamplingParams::default() });
    again.rows[0].logits_from = Some(LogitsSlot(2));
    let passes = gpu.forward_passes();
    let mut output = StepOutput::default();
    gpu.execute(&again, &mut output).expect("the device runs");
    assert_eq!(output.sampled, [wanted_first(&mut cpu, &again)]);
    assert_eq!(gpu.forward_passes(), passes);
}

/// A row's vector is the CPU's, and leaves the samples and the prompt log-probabilities beside it as they are.
#[test]
fn vectors_beside_samples_are_the_same_as_on_the_cpu() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let model = model();
    let mut cpu = beside(&model);
    let mut gpu = executor(&model, &device, true);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let with = |extras| SamplingParams { extras: Some(Arc::new(extras)), ..greedy.clone() };
    let embed = with(SamplingExtras { embed: true, ..SamplingExtras::default() });
    let asks =
        with(SamplingExtras { logprobs: Some(1), prompt_logprobs: Some(0), ..SamplingExtras::default() });
    let mut batch = Batch::default();
    for (i, sampling) in [embed.clone(), greedy, embed, asks].into_iter().enumerate() {
        let tokens: Vec<u32> = (0..4 + i as u32).map(|t| 20 + 5 * t + i as u32).collect();
        row(&mut batch, 4 * i as u32, &tokens, sampling);
    }
    let (mut wanted, mut got) = (StepOutput::default(), StepOutput::default());
    cpu.execute(&batch, &mut wanted).expect("the CPU runs");
    gpu.execute(&batch, &mut got).expect("the device runs");
    assert_eq!(got.sampled, wanted.sampled);
    assert!(got.sampled[1].is_some() && got.sampled[0].is_none() && got.sampled[2].is_none());
    let close = |a: &f32, b: &f32| (a - b).abs() < 1e-3;
    for (got, wanted) in got.embeddings.iter().zip(&wanted.embeddings) {
        assert_eq!((got.0, got.1.len()), (wanted.0, 64));
        assert!(got.1.iter().zip(&wanted.1).all(|(a, b)| close(a, b)), "{got:?} {wanted:?}");
    }
    assert_eq!(got.embeddings.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [0, 2]);
    let (got, wanted) = (&got.prompt_logprobs[0].1, &wanted.prompt_logprobs[0].1);
    assert_eq!(got.len(), wanted.len());
    assert!(got.iter().zip(wanted).all(|(a, b)| close(&a.logprob, &b.logprob)));
}

/// Sinks take part in the softmax of each head, of prompts and of single tokens.
#[test]
fn sinks_weigh_as_much_as_on_the_cpu() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for (name, weight_type) in [("llama-f32", WeightType::F32), ("llama-bf16", WeightType::Bf16)] {
        let run = |sinks| {
            let config = ModelConfig { sinks, ..load(name).config };
            let model = Model::random(config, weight_type, 3).expect("it is small");
            let extras =
                SamplingExtras { logprobs: Some(0), prompt_logprobs: Some(0), ..SamplingExtras::default() };
            let extras = Some(Arc::new(extras));
            let wish = SamplingParams { temperature: 0.0, extras, ..SamplingParams::default() };
            let mut batch = Batch::default();
            row(&mut batch, 0, &[5, 9, 2, 7, 5, 1, 40], wish.clone());
            row(&mut batch, 4, &[11], wish);
            let mut outputs = [StepOutput::default(), StepOutput::default()];
            beside(&model).execute(&batch, &mut outputs[0]).expect("the CPU runs");
            executor(&model, &device, false).execute(&batch, &mut outputs[1]).expect("the device runs");
            outputs.map(|output| -> Vec<f32> {
                let prompts = output.prompt_logprobs.iter().flat_map(|(_, tokens)| tokens);
                prompts.chain(output.logprobs.iter().map(|(_, token)| token)).map(|t| t.logprob).collect()
            })
        };
        let ([cpu, gpu], [without, _]) = (run(true), run(false));
        assert_eq!((cpu.len(), gpu.len()), (6 + 2, 6 + 2), "{name}");
        let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let (error, effect) = (distance(&gpu, &cpu), distance(&cpu, &without));
        assert!(error < 0.1 * effect, "{name}: off by {error}, and without sinks by {effect}");
    }
}

fn wanted_first(cpu: &mut ModelExecutor, batch: &Batch) -> Option<u32> {
    let mut output = StepOutput::default();
    cpu.execute(batch, &mut output).expect("the CPU runs");
    output.sampled[0]
}

#[test]
fn bad_rows_and_empty_slots_are_named_and_the_next_step_works() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut gpu = executor(&model(), &device, true);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let mut output = StepOutput::default();
    let mut batch = Batch::default();
    row(&mut batch, 0, &[1, 2, 3], greedy.clone());
    row(&mut batch, 4, &[1, 99_999], greedy.clone());
    assert_eq!(gpu.execute(&batch, &mut output).unwrap_err().rows, Some(vec![1]));
    let mut batch = Batch::default();
    row(&mut batch, 0, &[1, 2, 3], greedy.clone());
    row(&mut batch, 4, &[], greedy.clone());
    batch.rows[1].logits_from = Some(LogitsSlot(3));
    assert_eq!(gpu.execute(&batch, &mut output).unwrap_err().rows, Some(vec![1]));
    assert!(output.sampled[0].is_some() && output.sampled[1].is_none());
    let mut batch = Batch::default();
    row(&mut batch, 0, &[1; 65], greedy.clone());
    let fault = gpu.execute(&batch, &mut output).unwrap_err();
    assert!(fault.rows.is_none() && fault.message.contains("larger"), "{fault:?}");
    let mut batch = Batch::default();
    row(&mut batch, 0, &[1, 2, 3], greedy);
    let first = gpu.execute(&batch, &mut output).map(|()| output.sampled[0]).expect("it works on");
    // A copy of the block gives the same result as the block.
    batch.copies = vec![BlockCopy { from: BlockId(0), to: BlockId(9), tokens: 3 }];
    let (last, decode) = (first.expect("a token"), &mut Batch::default());
    for block in [0, 9] {
        *decode = Batch { copies: std::mem::take(&mut batch.copies), ..Batch::default() };
        row(
            decode,
            block,
            &[1, 2, 3, last],
            SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        );
        let table = decode.block_tables.clone();
        *decode = Batch {
            tokens: vec![last],
            positions: vec![3],
            slots: vec![4 * block + 3],
            block_tables: table,
            copies: std::mem::take(&mut decode.copies),
            rows: vec![Row { token_start: 0, token_len: 1, ..decode.rows[0].clone() }],
            history: decode.history.clone(),
            ..Batch::default()
        };
        gpu.execute(decode, &mut output).expect("it runs");
        batch.tokens.push(output.sampled[0].expect("a token"));
    }
    assert_eq!(batch.tokens[3], batch.tokens[4]);
}
