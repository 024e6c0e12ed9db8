//! Guarantees to the engine: faults name their rows, kept logits replace forward passes, options are validated, and nothing
//! ends the process.

use std::sync::{Arc, Mutex};

use infer_core::{
    Batch, Constraint, DeviceFaultKind, Executor, LogitsSlot, SamplingExtras, SamplingParams, StepOutput,
};
use infer_model::sampler::logprobs;
use infer_model::{DType, ExecutorOptions, KvCacheKind, Model, ModelErrorKind, Source};

use crate::common::{Chunk, Driver, golden, model};

const PROMPT: &[u32] = &[506, 12, 40, 77, 3, 200, 41, 8, 90, 91, 92, 17, 300, 301, 4, 5, 6, 7];

fn llama() -> Model {
    model("llama-f32", DType::F32)
}

fn chunk(sequence: u64, tokens: &[u32]) -> Chunk<'_> {
    Chunk { sequence, start: 0, tokens }
}

#[test]
fn a_token_beyond_the_vocabulary_is_a_fault_of_its_row_alone() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let batch = driver.batch(&[chunk(1, PROMPT), chunk(2, &[5, 512]), chunk(3, PROMPT)]);
    let fault = driver.try_run(&batch).1.expect_err("512 is no token");
    assert_eq!((fault.kind, fault.rows), (DeviceFaultKind::Failed, Some(vec![1])));
}

#[test]
fn a_row_without_usable_logits_fails_alone_and_the_others_draw() {
    let mut files: Vec<(&str, Vec<u8>)> = ["config.json", "model.safetensors"]
        .map(|file| (file, std::fs::read(golden("llama-bf16").join(file)).expect("golden files are there")))
        .into();
    poison_embedding(&mut files[1].1, 7);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let model = Model::load(&Source::Embedded(&files), None).expect("NaN is a number here");
    let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 1);
    let batch = driver.batch(&[chunk(1, &[5, 6]), chunk(2, &[5, 7]), chunk(3, &[8])]);
    let (output, result) = driver.try_run(&batch);
    assert_eq!(result.expect_err("row 1 is lost").rows, Some(vec![1]));
    assert!(output.sampled[0].is_some() && output.sampled[1].is_none() && output.sampled[2].is_some());
}

/// Makes one row of the (untied, bf16) embedding NaN.
fn poison_embedding(file: &mut [u8], token: usize) {
    let header = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let json: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).expect("JSON");
    let entry = &json["model.embed_tokens.weight"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
    let (start, width) = (number(&entry["data_offsets"][0]), number(&entry["shape"][1]));
    let row = 8 + header + start + token * width * 2;
    file[row..row + width * 2].fill(0xff);
}

#[test]
fn a_panic_becomes_a_fault_and_the_next_batch_runs() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let mut batch = driver.batch(&[chunk(1, PROMPT)]);
    batch.slots[0] = u32::MAX;
    let fault = driver.try_run(&batch).1.expect_err("no such slot");
    assert_eq!(fault.rows, None);
    assert!(fault.message.contains("beyond the pool"), "{}", fault.message);
    driver.run(&[chunk(2, PROMPT)]);
}

#[test]
fn kept_logits_answer_a_repeated_prompt_without_a_forward_pass() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let first = driver.run(&[chunk(1, PROMPT)]).remove(0).1;
    assert_eq!(driver.walk.executor.forward_passes(), 1);
    let mut batch = driver.batch(&[chunk(2, &[])]);
    batch.rows[0].logits_to = None;
    batch.rows[0].logits_from = Some(LogitsSlot(0));
    let (output, result) = driver.try_run(&batch);
    assert_eq!((output.sampled, result), (vec![Some(first)], Ok(())));
    assert_eq!(driver.walk.executor.forward_passes(), 1);

    batch.rows[0].logits_from = Some(LogitsSlot(1));
    let (output, result) = driver.try_run(&batch);
    assert_eq!(output.sampled, vec![None]);
    assert_eq!(result.expect_err("nothing was kept there").rows, Some(vec![0]));
}

#[test]
fn blocks_copied_to_another_executor_continue_with_the_same_bits() {
    for (name, dtype, threads) in [("llama-f32", DType::F32, 1), ("gemma3-bf16", DType::Bf16, 2)] {
        let model = model(name, dtype);
        let mut first = Driver::new(&model, KvCacheKind::Paged, 16, 1);
        let prompt: Vec<u32> = (0..64).map(|at| at * 29 % 500).collect();
        first.run(&[chunk(1, &prompt)]);
        let blocks = first.walk.read_blocks(1).expect("blocks are copied");
        let mut second = Driver::new(&model, KvCacheKind::Paged, 16, threads);
        second.run(&[chunk(2, PROMPT)]);
        second.walk.write_blocks(1, &blocks).expect("blocks are copied");
        assert_ne!(first.table(1), second.table(1));
        let next = [Chunk { sequence: 1, start: 64, tokens: &[9, 8, 7] }];
        assert_eq!(first.run(&next), second.run(&next), "{name}");
        second.run(&[chunk(3, &prompt)]);
        assert_eq!(second.walk.read_blocks(3), Ok(blocks), "computed again");
    }
    let driver = Driver::new(&llama(), KvCacheKind::Contiguous, 16, 1);
    assert_eq!(driver.walk.executor.block_bytes(), 0);
}

#[test]
fn an_empty_batch_computes_nothing() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let (output, result) = driver.try_run(&Batch::default());
    assert_eq!((output.sampled.len(), result, driver.walk.executor.forward_passes()), (0, Ok(()), 0));
}

#[test]
fn a_chunk_that_does_not_sample_draws_nothing() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let mut batch = driver.batch(&[chunk(1, PROMPT), chunk(2, PROMPT)]);
    batch.rows[0].sample = false;
    batch.rows[0].logits_to = None;
    let (output, _) = driver.try_run(&batch);
    assert!(output.sampled[0].is_none() && output.sampled[1].is_some());
}

#[test]
fn forbidden_tokens_and_penalties_change_the_greedy_choice() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let first = driver.run(&[chunk(1, PROMPT)]).remove(0).1;
    let mut batch = driver.batch(&[chunk(2, PROMPT), chunk(3, PROMPT)]);
    batch.forbidden.push(first);
    (batch.rows[0].forbidden_start, batch.rows[0].forbidden_len) = (0, 1);
    batch.history.extend([first, first]);
    (batch.rows[1].history_start, batch.rows[1].history_len) = (0, 2);
    batch.rows[1].sampling.repetition_penalty = 100.0;
    let (output, _) = driver.try_run(&batch);
    assert!(output.sampled.iter().all(|token| token.is_some_and(|token| token != first)));
}

#[test]
fn a_seeded_draw_is_the_same_in_any_batch() {
    let sampling = SamplingParams { temperature: 1.5, seed: 42, ..SamplingParams::default() };
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let mut alone = driver.batch(&[chunk(1, PROMPT)]);
    alone.rows[0].sampling = sampling.clone();
    let want = driver.try_run(&alone).0.sampled[0];
    let mut mixed = driver.batch(&[chunk(2, &PROMPT[..5]), chunk(3, PROMPT), chunk(4, &PROMPT[..1])]);
    mixed.rows[1].sampling = sampling;
    assert_eq!(driver.try_run(&mixed).0.sampled[1], want);
}

#[test]
fn the_contiguous_cache_reuses_slots_of_released_sequences_and_refuses_beyond_them() {
    let options = ExecutorOptions { kv_cache: KvCacheKind::Contiguous, max_running: 2, ..options() };
    let mut executor = llama().executor(options).expect("small");
    let mut batches = Driver::new(&llama(), KvCacheKind::Contiguous, 16, 1);
    let mut output = StepOutput::default();
    let batch = batches.batch(&[chunk(1, PROMPT), chunk(2, PROMPT), chunk(3, PROMPT)]);
    let fault = executor.execute(&batch, &mut output).expect_err("two slots, three sequences");
    assert_eq!((fault.kind, fault.rows), (DeviceFaultKind::OutOfMemory, Some(vec![2])));

    batches.release(1);
    let batch = batches.batch(&[chunk(3, PROMPT)]);
    executor.execute(&batch, &mut output).expect("a slot is free again");
    let middle = batches.batch(&[Chunk { sequence: 2, start: PROMPT.len() + 4, tokens: &[1] }]);
    let fault = executor.execute(&middle, &mut output).expect_err("four tokens are missing");
    assert_eq!(fault.rows, Some(vec![0]));
}

#[test]
fn a_refused_batch_still_releases_the_sequences_that_ended() {
    let options = ExecutorOptions { kv_cache: KvCacheKind::Contiguous, max_running: 1, ..options() };
    let mut executor = llama().executor(options).expect("small");
    let mut batches = Driver::new(&llama(), KvCacheKind::Contiguous, 16, 1);
    let mut output = StepOutput::default();
    executor.execute(&batches.batch(&[chunk(1, PROMPT)]), &mut output).expect("one slot, one sequence");

    batches.release(1);
    let refused = batches.batch(&[chunk(2, &[512])]);
    executor.execute(&refused, &mut output).expect_err("512 is no token");
    executor.execute(&batches.batch(&[chunk(3, PROMPT)]), &mut output).expect("the slot is free");
}

fn options() -> ExecutorOptions {
    ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: 16,
        total_blocks: 16,
        max_running: 4,
        max_seq_len: 256,
        prompt_cache_entries: 4,
        threads: 1,
    }
}

#[test]
fn impossible_options_are_refused_by_name() {
    let huge = ExecutorOptions { block_size: u32::MAX, total_blocks: u32::MAX, ..options() };
    let vast = ExecutorOptions { total_blocks: 1 << 27, ..options() };
    for (options, kind, named) in [
        (ExecutorOptions { max_seq_len: 1_000_000, ..options() }, ModelErrorKind::Unsupported, "max-seq-len"),
        (ExecutorOptions { max_seq_len: 0, ..options() }, ModelErrorKind::Unsupported, "max-seq-len"),
        (ExecutorOptions { block_size: 0, ..options() }, ModelErrorKind::Unsupported, "block-size"),
        (huge, ModelErrorKind::Unsupported, "kv-memory"),
        (vast, ModelErrorKind::Machine, "kv-memory"),
    ] {
        let error = llama().executor(options).err().expect("impossible");
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

#[test]
fn a_model_knows_its_shapes() {
    let model = llama();
    assert_eq!(model.kv_bytes_per_token(), 4 * 2 * 2 * 16 * 4);
    assert_eq!(model.stop_tokens(), [511, 507, 510]);
    assert_eq!((model.context_length(), model.vocab_size()), (1_024, 512));
}

fn greedy_with(extras: SamplingExtras) -> SamplingParams {
    SamplingParams { temperature: 0.0, extras: Some(Arc::new(extras)), ..SamplingParams::default() }
}

#[test]
fn each_prompt_token_is_as_likely_as_the_tokens_before_it_make_it() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let ask = greedy_with(SamplingExtras { prompt_logprobs: Some(2), ..SamplingExtras::default() });
    let mut told = Vec::new();
    for (start, end) in [(0, 7), (7, PROMPT.len())] {
        let mut batch = driver.batch(&[Chunk { sequence: 1, start, tokens: &PROMPT[start..end] }]);
        batch.history.extend_from_slice(PROMPT);
        batch.rows[0].history_len = PROMPT.len() as u32;
        batch.rows[0].sampling = ask.clone();
        let (output, result) = driver.try_run(&batch);
        result.expect("it runs");
        assert_eq!(output.prompt_logprobs.len(), 1);
        told.extend(output.prompt_logprobs.into_iter().flat_map(|(_, told)| told));
    }
    for at in 1..PROMPT.len() {
        let (logits, _) = driver.run(&[chunk(100 + at as u64, &PROMPT[..at])]).remove(0);
        assert_eq!(told[at - 1], logprobs(&logits, PROMPT[at], 2), "token {at}");
    }
    assert_eq!(told.len(), PROMPT.len() - 1);
}

/// Allows one token, or fails; records the outputs it sees.
#[derive(Debug)]
struct Only(Option<u32>, Mutex<Vec<u32>>);

impl Constraint for Only {
    fn restrict(&self, output: &[u32], logits: &mut [f32]) -> bool {
        assert_eq!(output, [9, 8], "the output alone");
        let Some(only) = self.0 else { return false };
        for (token, logit) in logits.iter_mut().enumerate() {
            if token as u32 != only {
                *logit = f32::NEG_INFINITY;
            }
        }
        true
    }

    fn drawn(self: Arc<Self>, token: u32) {
        self.1.lock().unwrap().push(token);
    }
}

#[test]
fn a_constraint_decides_for_its_row_and_fails_it_alone() {
    let mut driver = Driver::new(&llama(), KvCacheKind::Paged, 16, 1);
    let free = driver.run(&[chunk(1, PROMPT)]).remove(0).1;
    let only = free ^ 1;
    let mut batch = driver.batch(&[chunk(2, PROMPT), chunk(3, PROMPT), chunk(4, PROMPT)]);
    batch.history.extend([5, 9, 8]);
    let constraints = [Some(only), None].map(|token| Arc::new(Only(token, Mutex::default())));
    for (row, constraint) in constraints.iter().enumerate() {
        let extras = SamplingExtras {
            logprobs: Some(1),
            constraint: Some(constraint.clone()),
            ..SamplingExtras::default()
        };
        batch.rows[row].sampling = greedy_with(extras);
        (batch.rows[row].history_len, batch.rows[row].generated) = (3, 2);
    }
    let (output, result) = driver.try_run(&batch);
    assert_eq!((output.sampled, result), (vec![Some(only), None, Some(free)], Ok(())));
    assert_eq!(constraints.map(|one| one.1.lock().unwrap().clone()), [vec![only], vec![]], "what was drawn");
    // Log-probabilities are the model's, before the constraint.
    assert_eq!(output.logprobs.len(), 1);
    let (row, told) = &output.logprobs[0];
    assert_eq!((*row, told.top[0].0), (0, free));
    assert!(told.logprob < told.top[0].1);
}
