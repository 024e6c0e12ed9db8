//! Logits of the golden adapters, beside each other and beside the model itself, against what PEFT computed; and adapters that
//! come and go.

use std::path::Path;
use std::sync::Arc;

use infer_core::{AdapterId, Executor};
use infer_kernels::cuda::Device;

use super::golden::{Case, Extent, limits, load, read_prompts};
use super::same::{RANKS, add_adapters};
use super::walk::{Chunk, Draws, Mode, Walk};
use crate::{DType, Model, ModelError, Source};

/// The golden checkpoint that has adapters, and their folder.
const MODEL: &str = "qwen3-bf16";
const ADAPTERS: &str = "qwen3-lora";

/// The adapters that are there, round by round: their numbers, and which of two they are.
const ROUNDS: [&[(u32, usize)]; 6] = [&[], &[(1, 0)], &[(1, 0), (2, 1)], &[(2, 1)], &[(2, 1), (3, 0)], &[]];
/// Sequences of a batch, and tokens that each samples.
const SEQUENCES: u64 = 3;
const STEPS: u32 = 4;

/// Checks the golden adapters in every type: prompts of both and of the model share batches, in chunks of mixed lengths.
///
/// # Errors
/// Names the adapter, prompt and position that differs, or the file that can't be read.
pub fn adapters(device: &Arc<dyn Device>, directory: &Path, extent: Extent) -> Result<String, String> {
    let mut covered = Vec::new();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let name = format!("{ADAPTERS} in {dtype:?}");
        let wrong = |error: ModelError| format!("{name}: {error}");
        let path = directory.join(MODEL);
        let mut model = load(&path, Some(dtype)).map_err(wrong)?;
        let (tolerance, margin) = limits(dtype);
        let files = ["golden.json", "golden.safetensors"];
        let (mut prompts, mut safe_margin) = read_prompts(&path, files, margin, extent)?;
        for adapter in ["all", "some"] {
            let path = directory.join(ADAPTERS).join(adapter);
            let files = ["expected.json", "expected.safetensors"];
            let (mut own, own_margin) = read_prompts(&path, files, margin, extent)?;
            let id = model.add_adapter(&Source::Directory(path)).map_err(wrong)?;
            for prompt in &mut own {
                prompt.adapter = id;
                prompt.name = format!("{adapter}, {}", prompt.name);
            }
            prompts.append(&mut own);
            safe_margin = safe_margin.max(own_margin);
        }
        let on_device = model.to_device(device).map_err(wrong)?;
        let case = Case { name: name.clone(), prompts, tolerance, safe_margin };
        let worst = case.prompts_in_chunks(&on_device)?;
        covered.push(format!("{dtype:?} {worst:.1e} of {tolerance:.0e}"));
    }
    Ok(format!("two adapters beside the model, relative error up to {}", covered.join(", ")))
}

/// With `--deterministic`, adapters that come after decodes were recorded compute as those that a fresh executor has, and those
/// that go leave nothing behind. Decodes without adapters are recorded once.
///
/// # Errors
/// Says what differs, and in which round.
pub fn adapters_come_and_go(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    let said = |error: ModelError| error.to_string();
    let mut model = Model::load(&Source::Directory(checkpoint.to_owned()), None).map_err(said)?;
    let loader = model.device_adapter_loader();
    let mut bare = model.to_device(device).map_err(said)?;
    // No memory is expected, so that it must grow.
    bare.reserve_adapters(RANKS.len() as u32, 0);
    add_adapters(&mut model, &RANKS).map_err(said)?;
    let from_start = model.to_device(device).map_err(said)?;
    let walk = |model| Walk::new(model, 16, 16, Mode { graphs: true, deterministic: true });
    let (mut here, mut before): (Walk, &[(u32, usize)]) = (walk(&bare)?, &[]);
    for (round, adapters) in ROUNDS.into_iter().enumerate() {
        let executor = &mut here.inner.executor;
        for (id, _) in before.iter().filter(|adapter| !adapters.contains(adapter)) {
            let gone = executor.unload_adapter(AdapterId(*id));
            gone.ok_or_else(|| format!("round {round}: adapter {id} wasn't there"))?;
        }
        for (id, which) in adapters.iter().filter(|adapter| !before.contains(adapter)) {
            let (weights, _) = loader.random(RANKS[*which], 1 + *which as u64).map_err(said)?;
            executor.load_adapter(AdapterId(*id), weights).map_err(|fault| fault.message)?;
        }
        before = adapters;
        let launches = executor.graph_launches();
        let got = without_and_with(&mut here, adapters.iter().map(|(id, _)| *id))?;
        let launches = here.inner.executor.graph_launches() - launches;
        let wanted =
            without_and_with(&mut walk(&from_start)?, adapters.iter().map(|(_, which)| 1 + *which as u32))?;
        if got != wanted {
            return Err(format!("round {round}: sampled {got:?}, and a fresh executor {wanted:?}"));
        }
        if launches < u64::from(2 * STEPS - 1) {
            return Err(format!("round {round}: only {launches} recorded decodes were launched"));
        }
    }
    Ok(format!("{} rounds, {} graph launches", ROUNDS.len(), here.inner.executor.graph_launches()))
}

/// Tokens of sequences without an adapter and with each of these in turn, and then of as many without one. Each begins with a
/// single token, so that all steps are decodes.
fn without_and_with(walk: &mut Walk, adapters: impl Iterator<Item = u32>) -> Result<Vec<Vec<u32>>, String> {
    let choices: Vec<AdapterId> = std::iter::once(AdapterId::NONE).chain(adapters.map(AdapterId)).collect();
    let mut streams: Vec<Vec<u32>> = (0..2 * SEQUENCES as u32).map(|nth| vec![7 + 11 * nth]).collect();
    for sequence in 0..SEQUENCES {
        walk.inner.adapt(sequence, choices[sequence as usize % choices.len()]);
        walk.inner.adapt(SEQUENCES + sequence, AdapterId::NONE);
    }
    for (first, streams) in [0, SEQUENCES].into_iter().zip(streams.chunks_mut(SEQUENCES as usize)) {
        for index in 0..STEPS {
            let start = index as usize;
            let chunks: Vec<Chunk<'_>> = ((first..).zip(&*streams))
                .map(|(sequence, stream)| Chunk { sequence, start, tokens: &stream[start..] })
                .collect();
            let draws = Draws { temperature: 1.0, index, ..Draws::GREEDY };
            let tokens = walk.run(&chunks, draws)?;
            streams.iter_mut().zip(tokens).for_each(|(stream, token)| stream.push(token));
        }
    }
    (0..2 * SEQUENCES).for_each(|sequence| walk.inner.release(sequence));
    Ok(streams)
}
