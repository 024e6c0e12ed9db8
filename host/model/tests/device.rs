//! The decoder on the emulated device: golden logits of every family, graphs, block tables, faults.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use infer_core::{
    AdapterId, Batch, BlockCopy, BlockId, Executor, LogitsSlot, Row, SamplingExtras, SamplingParams,
    SequenceId, StepOutput,
};
use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::{Buffer, Device, Switches, Type, fill_random};
use infer_model::cuda::checks::{self, Extent, Report};
use infer_model::cuda::{DeviceExecutor, DeviceModel, DeviceOptions};
use infer_model::{
    ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelExecutor, Quantize, Source, WeightType,
};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn emulator() -> Option<Arc<Emulator>> {
    let emulator = Emulator::new(7);
    if emulator.is_none() {
        eprintln!("skipped: no C++ compiler");
    }
    emulator.map(Arc::new)
}

fn passes(outcome: Result<String, String>) {
    if let Err(wrong) = outcome {
        panic!("{wrong}");
    }
}

fn golden_logits(name: &str) {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::golden(&device, &golden().join(name), Extent::UpTo(12)));
}

#[test]
fn golden_logits_of_llama() {
    golden_logits("llama-f32");
    golden_logits("llama-bf16");
}

#[test]
fn golden_logits_of_qwen2() {
    golden_logits("qwen2-bf16");
}

#[test]
fn golden_logits_of_qwen3() {
    golden_logits("qwen3-bf16");
    // Heads of a width without a fast kernel, in f16.
    golden_logits("qwen3-yarn-f16");
}

#[test]
fn golden_logits_of_mistral() {
    golden_logits("mistral-bf16");
}

#[test]
fn golden_logits_of_gemma3() {
    golden_logits("gemma3-f32");
    golden_logits("gemma3-bf16");
}

/// Layers without a position embedding have a table like the others, so they need no kernels of their own.
#[test]
fn golden_logits_of_smollm3() {
    golden_logits("smollm3-bf16");
}

/// Nor do projections that the checkpoint has in one, and heads of which a part is rotated.
#[test]
fn golden_logits_of_phi3() {
    golden_logits("phi3-bf16");
}

#[test]
fn golden_embeddings() {
    for fused in [true, false] {
        let Some(mut emulator) = Emulator::new(7) else { return };
        emulator.switch(Switches { fused, ..Switches::default() });
        let device: Arc<dyn Device> = Arc::new(emulator);
        passes(checks::embeddings(&device, &golden().join("qwen3-embedding-bf16"), Extent::UpTo(18)));
    }
}

/// The kernels of real models' head widths, with each kind of products in prefill.
#[test]
fn golden_logits_of_heads_as_wide_as_real_ones() {
    for name in ["llama-wide-bf16", "qwen3-wide-bf16", "gemma3-wide-bf16"] {
        for wgmma in [false, true] {
            let Some(mut emulator) = Emulator::new(7) else { return };
            emulator.switch(Switches { wgmma, ..Switches::default() });
            let emulator = Arc::new(emulator);
            let device: Arc<dyn Device> = emulator.clone();
            passes(checks::golden(&device, &golden().join(name), Extent::UpTo(70)));
            let by_warpgroups = emulator.launches().keys().any(|kernel| kernel.contains("wgmma"));
            assert_eq!(by_warpgroups, wgmma, "{name}");
        }
    }
}

/// What products of few rows include isn't launched by itself, and makes no difference but in the last places.
#[test]
fn products_of_few_rows_include_what_surrounds_them() {
    // Per layer two norms, a gate and a KV write. The first layer's norm stays; the last norm is of chosen rows, with or
    // without a sum. Gemma 3 has norms of heads and behind its projections, which need whole rows.
    for (name, layers, saved) in [("llama-bf16", 4, 4 * 4 - 1), ("gemma3-bf16", 8, 8)] {
        let model = load(name);
        let run = |fused: bool| {
            let mut emulator = Emulator::new(7)?;
            emulator.switch(Switches { fused, ..Switches::default() });
            let emulator = Arc::new(emulator);
            let device: Arc<dyn Device> = emulator.clone();
            let mut executor = executor(&model, &device, false);
            let launched = || emulator.launches().values().sum::<u64>();
            let ask = |prompt_logprobs| {
                let extras = SamplingExtras { prompt_logprobs, ..SamplingExtras::default() };
                let mut batch = Batch::default();
                for first in [0, 4] {
                    let extras = prompt_logprobs.map(|_| Arc::new(extras.clone()));
                    let wish = SamplingParams { temperature: 0.0, extras, ..SamplingParams::default() };
                    row(&mut batch, first, &[5, 9, 2, 7, 5 + first, 1], wish);
                }
                batch
            };
            let mut outputs = [StepOutput::default(), StepOutput::default()];
            let before = launched();
            executor.execute(&ask(None), &mut outputs[0]).expect("the device runs");
            let launches = launched() - before;
            executor.execute(&ask(Some(0)), &mut outputs[1]).expect("the device runs");
            Some((launches, emulator.launches(), outputs))
        };
        let (Some(fused), Some(apart)) = (run(true), run(false)) else { return };
        assert_eq!(model.config.layers.len(), layers, "{name}");
        assert_eq!(fused.0 + saved, apart.0, "{name}");
        let has = |kernel: &str| [&fused.1, &apart.1].map(|launches| launches.contains_key(kernel));
        assert_eq!(has("product_gated_bf16_2"), [true, false], "{name}");
        assert_eq!(has("product_add_bf16_2"), [name == "llama-bf16", false], "{name}");
        assert_eq!(has("product_rope_bf16_2"), [name == "llama-bf16", false], "{name}");
        assert_eq!(has("gated_bf16"), [false, true], "{name}");
        assert_eq!(has("kv_write_bf16"), [name != "llama-bf16", true], "{name}");
        for (fused, apart) in fused.2.iter().zip(&apart.2) {
            assert_eq!(fused.sampled, apart.sampled, "{name}");
            let tokens = |output: &StepOutput| -> Vec<f32> {
                output
                    .prompt_logprobs
                    .iter()
                    .flat_map(|(_, tokens)| tokens.iter().map(|t| t.logprob))
                    .collect()
            };
            let (fused, apart) = (tokens(fused), tokens(apart));
            assert_eq!(fused.len(), apart.len());
            assert!(
                fused.iter().zip(&apart).all(|(a, b)| (a - b).abs() < 0.1),
                "{name}: {fused:?} {apart:?}"
            );
        }
        assert_eq!(tokens_asked_about(&fused.2[1]), 2 * 5, "{name}");
    }
}

fn tokens_asked_about(output: &StepOutput) -> usize {
    output.prompt_logprobs.iter().map(|(_, tokens)| tokens.len()).sum()
}

#[test]
fn golden_logits_without_fusion() {
    for name in ["llama-bf16", "qwen3-bf16", "gemma3-bf16"] {
        let Some(mut emulator) = Emulator::new(7) else { return };
        emulator.switch(Switches { fused: false, ..Switches::default() });
        let device: Arc<dyn Device> = Arc::new(emulator);
        passes(checks::golden(&device, &golden().join(name), Extent::UpTo(12)));
    }
}

#[test]
fn recorded_decodes_draw_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::graphs_are_eager(&device, &golden().join("gemma3-bf16")));
}

#[test]
fn deterministic_tokens_depend_only_on_those_before_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::tokens_stand_alone(&device, &golden().join("gemma3-bf16")));
}

#[test]
fn draft_tokens_change_no_token() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::drafts_change_no_token(&device, &golden().join("qwen3-bf16")));
}

#[test]
fn scattered_blocks_draw_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::contiguous_is_paged(&device, &golden().join("qwen3-bf16")));
}

#[test]
fn copied_blocks_are_continued_with_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::copied_blocks_continue(&device, &golden().join("gemma3-bf16")));
}

#[test]
fn a_pool_beyond_the_device_is_refused_with_advice() {
    let Some(device) = emulator() else { return };
    device.limit_memory(64 << 20);
    let device: Arc<dyn Device> = device;
    passes(checks::memory_runs_out(&device, &golden().join("llama-bf16")));
}

#[test]
fn weights_beyond_the_device_are_refused_with_other_advice_than_a_pool() {
    let Some(device) = emulator() else { return };
    device.limit_memory(1 << 10);
    let device: Arc<dyn Device> = device;
    let error = model().to_device(&device).err().expect("a kilobyte holds no model").to_string();
    assert!(error.contains("the weights don't fit: ") && error.contains("smaller model"), "{error}");
    assert!(!error.contains("kv-memory"), "{error}");
}

#[test]
fn layers_of_experts_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for (name, model_type) in [("qwen3moe-bf16", "qwen3_moe"), ("gptoss-mxfp4", "gpt_oss")] {
        let model = load(name);
        let error = model.to_device(&device).err().expect("there are no kernels").to_string();
        let named = format!("experts (model_type {model_type})");
        assert!(error.contains(&named) && error.contains("--device cpu"), "{error}");
        let random = DeviceModel::random(&model.config, model.dtype, &device, 1);
        assert_eq!(random.err().expect("there are no kernels").to_string(), error);
    }
}

#[test]
fn factors_of_branches_and_logits_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut model = load("granite-bf16");
    let refused = |model: &Model| {
        let error = model.to_device(&device).err().expect("there are no kernels").to_string();
        let named = "factors of residual branches and logits (model_type granite) have no kernels on GPUs";
        assert!(error.contains(named) && error.contains("--device cpu"), "{error}");
    };
    refused(&model);
    model.config.branch_scale = None;
    refused(&model);
    // Those of embeddings and scores are in the kernels.
    model.config.logit_divisor = None;
    assert!(model.to_device(&device).is_ok());
}

#[test]
fn norms_of_all_heads_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for family in ["olmo2", "olmo3"] {
        let model = load(&format!("{family}-bf16"));
        let error = model.to_device(&device).err().expect("there are no kernels").to_string();
        let named = format!("norms of all heads together (model_type {family}) have no kernels on GPUs");
        assert!(error.contains(&named) && error.contains("--device cpu"), "{error}");
        let random = DeviceModel::random(&model.config, model.dtype, &device, 1);
        assert_eq!(random.err().expect("there are no kernels").to_string(), error);
    }
}

#[test]
fn weights_as_integers_are_refused() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for quantize in [Quantize::Q8, Quantize::Q4] {
        let load = |for_gpu| {
            let options = LoadOptions { for_gpu, quantize, ..LoadOptions::default() };
            let source = Source::Directory(golden().join("llama-bf16"));
            Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(()))
        };
        let error = load(true).err().expect("there are no kernels").to_string();
        assert!(error.contains("on CPUs only"), "{error}");
        let model = load(false).expect("a CPU has kernels");
        let error = model.to_device(&device).err().expect("there are no kernels").to_string();
        assert!(error.contains(&format!("integers ({})", model.weight_type)), "{error}");
    }
    let model = load("llama-bf16");
    assert_eq!(model.weight_type, WeightType::Bf16);
    let placed = model.to_device(&device).expect("it fits");
    assert_eq!(placed.weight_bytes(), model.weight_bytes());
}

#[test]
fn adapters_are_refused_with_the_device_that_computes_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut model = model();
    model.add_random_adapter(4, 1).expect("it is small");
    let error = model.to_device(&device).err().expect("there are no kernels").to_string();
    assert!(error.contains("adapters have no kernels on GPUs") && error.contains("--device cpu"), "{error}");
}

#[test]
fn report_ends_at_a_fault_that_leaves_the_device_unusable() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut lines = Vec::new();
    let mut say = |line| lines.push(line);
    let mut report = Report::new(&device, &[], &mut say);
    report.check("first", || Err("differs".to_owned()));
    report.check("second", || {
        let buffer = Buffer::new(&device, 16).map_err(|error| error.message)?;
        // SAFETY: just after the buffer, in the emulator's guard.
        unsafe { fill_random(device.as_ref(), Type::F32, buffer.at() + 16, 1, 1, 1.0) }
            .and_then(|()| device.wait())
            .map_err(|error| error.message)?;
        Ok("not reached".to_owned())
    });
    report.check("third", || panic!("the device is lost"));
    let summary = report.finish().unwrap_err();
    for part in ["`second`", "CUDA_LAUNCH_BLOCKING=1", "`--seeds 1`"] {
        assert!(summary.contains(part), "{summary}");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "FAILED  first: differs");
    assert!(lines[1].starts_with("FAILED  second: fill_float wrote outside"), "{lines:?}");
}

#[test]
fn golden_checkpoints_are_a_directory_or_those_in_it() {
    let all = checks::checkpoints(&golden()).expect("the repository's");
    let names: Vec<_> = all.iter().map(|path| path.file_name().expect("a folder").to_owned()).collect();
    assert!(names.contains(&"llama-f32".into()) && names.is_sorted(), "{names:?}");
    for name in ["qwen3moe-bf16", "granite-bf16", "olmo2-bf16", "olmo3-bf16"] {
        assert!(!names.contains(&name.into()), "{name} has no kernels on GPUs: {names:?}");
    }
    assert_eq!(checks::checkpoints(&all[0]), Ok(vec![all[0].clone()]));
    let empty = checks::checkpoints(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(empty.unwrap_err().ends_with("contains no golden checkpoints"));
}

fn model() -> Model {
    load("llama-f32")
}

fn load(name: &str) -> Model {
    Model::load(&Source::Directory(golden().join(name)), None).expect("it loads")
}

fn executor(model: &Model, device: &Arc<dyn Device>, deterministic: bool) -> DeviceExecutor {
    let options = DeviceOptions {
        block_size: 4,
        total_blocks: 64,
        max_rows: 6,
        max_tokens: 64,
        max_seq_len: 64,
        prompt_cache_entries: 4,
        deterministic,
        graphs: true,
    };
    model.to_device(device).and_then(|model| model.executor(options)).expect("a small executor")
}

/// A row of `tokens` whose blocks begin at block `first`.
fn row(batch: &mut Batch, first: u32, tokens: &[u32], sampling: SamplingParams) {
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
fn beside(model: &Model) -> ModelExecutor {
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
