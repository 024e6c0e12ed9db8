//! Different ways of computing the same bits, and running out of device memory.

use std::path::Path;
use std::sync::Arc;

use infer_core::{AdapterId, Executor};
use infer_kernels::cuda::Device;

use super::walk::{Chunk, Draws, Mode, Walk};
use crate::cuda::{DeviceModel, DeviceOptions};
use crate::{Model, ModelError, Source};

const MAX_SEQ_LEN: u32 = 200;
/// Lengths of the prompts.
const PROMPTS: [u32; 5] = [1, 5, 17, 40, 90];
/// Ranks of two adapters.
pub(super) const RANKS: [usize; 2] = [6, 19];

/// Prompts without common prefixes, and the tokens sampled after them at temperature 1, which is sensitive to any difference
/// in the logits. Returns also the number of graph launches.
fn sampled(
    model: &DeviceModel,
    block_size: u32,
    mode: Mode,
    steps: usize,
) -> Result<(Vec<Vec<u32>>, u64), String> {
    let mut walk = Walk::new(model, block_size, MAX_SEQ_LEN, mode)?;
    adapt(&mut walk.inner, model.adapters());
    let vocab = model.config().vocab as u32;
    let prompt = |len: u32| (0..len).map(|i| (i * 31 + len * 7) % vocab).collect();
    let mut streams: Vec<Vec<u32>> = PROMPTS.map(prompt).into();
    for step in 0..steps {
        // One sequence ends half-way, so that batches of several sizes are recorded.
        if step == steps / 2 {
            walk.inner.release(4);
            streams.truncate(4);
        }
        let start = |stream: &[u32]| if step == 0 { 0 } else { stream.len() - 1 };
        let chunks: Vec<Chunk<'_>> = (streams.iter().enumerate())
            .map(|(i, stream)| Chunk {
                sequence: i as u64,
                start: start(stream),
                tokens: &stream[start(stream)..],
            })
            .collect();
        let draws = Draws { temperature: 1.0, index: step as u32, ..Draws::GREEDY };
        let tokens = walk.run(&chunks, draws)?;
        streams.iter_mut().zip(tokens).for_each(|(stream, token)| stream.push(token));
    }
    Ok((streams, walk.inner.executor.graph_launches()))
}

/// Gives the sequences in turn no adapter and each of so many.
pub(super) fn adapt<E: Executor>(walk: &mut crate::walk::Walk<E>, adapters: u32) {
    for sequence in 0..PROMPTS.len() as u64 {
        walk.adapt(sequence, AdapterId(sequence as u32 % (adapters + 1)));
    }
}

/// Adds random adapters of these ranks.
pub(super) fn add_adapters(model: &mut Model, ranks: &[usize]) -> Result<(), ModelError> {
    (1..).zip(ranks).try_for_each(|(seed, rank)| model.add_random_adapter(*rank, seed).map(|_| ()))
}

fn load(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<DeviceModel, String> {
    load_with(device, checkpoint, &[])
}

/// With random adapters of these ranks.
fn load_with(device: &Arc<dyn Device>, checkpoint: &Path, ranks: &[usize]) -> Result<DeviceModel, String> {
    let said = |error: ModelError| error.to_string();
    let mut model = Model::load(&Source::Directory(checkpoint.to_owned()), None).map_err(said)?;
    add_adapters(&mut model, ranks).map_err(said)?;
    model.to_device(device).map_err(said)
}

/// Recorded decodes sample the same tokens as launched ones.
///
/// # Errors
/// Says what differs.
pub fn graphs_are_eager(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    recorded_is_launched(&load(device, checkpoint)?)
}

/// The same of rows without and with adapters, in common batches and in turns.
///
/// # Errors
/// Says what differs.
pub fn adapted_graphs_are_eager(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    let model = load_with(device, checkpoint, &RANKS)?;
    let together = recorded_is_launched(&model)?;
    let (eager, recorded) = (in_turns(&model, Mode::LAUNCHED)?, in_turns(&model, Mode::RECORDED)?);
    match eager == recorded {
        true => Ok(format!("{together}, and in turns")),
        false => Err(format!("in turns, sampled {recorded:?} with graphs and {eager:?} without")),
    }
}

/// Tokens of sequences that are decoded one after another in each round, without an adapter and with each.
fn in_turns(model: &DeviceModel, mode: Mode) -> Result<Vec<Vec<u32>>, String> {
    let mut walk = Walk::new(model, 16, MAX_SEQ_LEN, mode)?;
    adapt(&mut walk.inner, model.adapters());
    let mut streams = vec![vec![7_u32]; 1 + model.adapters() as usize];
    for index in 0..6 {
        for (sequence, stream) in (0..).zip(&mut streams) {
            let start = stream.len() - 1;
            let draws = Draws { temperature: 1.0, index, ..Draws::GREEDY };
            let token = walk.run(&[Chunk { sequence, start, tokens: &stream[start..] }], draws)?[0];
            stream.push(token);
        }
    }
    Ok(streams)
}

pub(super) fn recorded_is_launched(model: &DeviceModel) -> Result<String, String> {
    let (eager, none) = sampled(model, 16, Mode::LAUNCHED, 12)?;
    let (recorded, launches) = sampled(model, 16, Mode::RECORDED, 12)?;
    if none != 0 || launches < 6 {
        return Err(format!("{launches} recorded decodes were launched, {none} where there should be none"));
    }
    if eager != recorded {
        return Err(format!("sampled {recorded:?} with graphs and {eager:?} without"));
    }
    Ok(format!("{launches} graph launches"))
}

/// Scattered blocks of 16 give the same tokens as one block per sequence.
///
/// # Errors
/// Says what differs.
pub fn contiguous_is_paged(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    let model = load(device, checkpoint)?;
    let (paged, _) = sampled(&model, 16, Mode::LAUNCHED, 8)?;
    let (contiguous, _) = sampled(&model, MAX_SEQ_LEN.next_multiple_of(16), Mode::LAUNCHED, 8)?;
    match paged == contiguous {
        true => Ok("five sequences, eight tokens each".to_owned()),
        false => Err(format!("sampled {paged:?} in blocks and {contiguous:?} in one piece")),
    }
}

/// Blocks that were copied to the host, and from there to other blocks of another executor, are continued with the same
/// tokens; and whoever computes them again has the same bits in them.
///
/// # Errors
/// Says what differs.
pub fn copied_blocks_continue(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    const TOKENS: usize = 80;
    let model = load(device, checkpoint)?;
    let vocab = model.config().vocab as u32;
    let prompt: Vec<u32> = (0..TOKENS as u32).map(|i| (i * 29 + 3) % vocab).collect();
    let walk = || Walk::new(&model, 16, MAX_SEQ_LEN, Mode::LAUNCHED);
    let compute = |walk: &mut Walk, sequence, tokens: &[u32]| {
        walk.inner.run(&[Chunk { sequence, start: 0, tokens }], Draws::NONE).map(|_| ())
    };
    let (mut first, mut second, mut third) = (walk()?, walk()?, walk()?);
    compute(&mut first, 0, &prompt)?;
    let blocks = first.inner.read_blocks(0)?;
    compute(&mut second, 0, &prompt)?;
    if second.inner.read_blocks(0)? != blocks {
        return Err("the same prompt has other bits when it is computed again".to_owned());
    }
    compute(&mut third, 1, &prompt[..33])?;
    third.inner.write_blocks(0, &blocks)?;
    let mut streams = [vec![3], vec![3]];
    for step in 0..8 {
        let draws = Draws { temperature: 1.0, index: step, ..Draws::GREEDY };
        for (walk, stream) in [&mut first, &mut third].into_iter().zip(&mut streams) {
            let start = TOKENS + step as usize;
            let tokens = &stream[step as usize..];
            stream.push(walk.run(&[Chunk { sequence: 0, start, tokens }], draws)?[0]);
        }
    }
    match streams[0] == streams[1] {
        true => Ok(format!("{} blocks, eight tokens after them", blocks.len())),
        false => {
            Err(format!("sampled {:?} after copied blocks and {:?} after their own", streams[1], streams[0]))
        }
    }
}

/// With `--deterministic` a token depends only on those before it, whatever else was computed and in which pieces: tokens
/// sampled in a batch, one per step and recorded, are sampled again alone, after the whole text at once and after the text
/// in two pieces.
///
/// # Errors
/// Says what differs.
pub fn tokens_stand_alone(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    each_stands_alone(&load(device, checkpoint)?)
}

/// The same of rows without and with adapters.
///
/// # Errors
/// Says what differs.
pub fn adapted_tokens_stand_alone(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    each_stands_alone(&load_with(device, checkpoint, &RANKS)?)
}

pub(super) fn each_stands_alone(model: &DeviceModel) -> Result<String, String> {
    let mode = Mode { graphs: true, deterministic: true };
    let (streams, launches) = sampled(model, 16, mode, 12)?;
    let mut walk = Walk::new(model, 16, MAX_SEQ_LEN, mode)?;
    adapt(&mut walk.inner, model.adapters());
    let mut compared = 0;
    for (sequence, (stream, prompt)) in (0_u64..).zip(streams.iter().zip(PROMPTS)) {
        for known in (prompt as usize..stream.len()).step_by(5) {
            let draws = Draws { temperature: 1.0, index: known as u32 - prompt, ..Draws::GREEDY };
            for cut in [0, 1, known / 3, known - 1].into_iter().filter(|cut| *cut < known) {
                let (first, last) = stream[..known].split_at(cut);
                if !first.is_empty() {
                    let quiet = Draws { sample: false, ..draws };
                    walk.inner.run(&[Chunk { sequence, start: 0, tokens: first }], quiet)?;
                }
                let token = walk.run(&[Chunk { sequence, start: cut, tokens: last }], draws)?[0];
                walk.inner.release(sequence);
                compared += 1;
                if token != stream[known] {
                    return Err(format!(
                        "token {known} of sequence {sequence} is {token} where {cut} tokens were computed first, {} in \
                         company",
                        stream[known]
                    ));
                }
            }
        }
    }
    Ok(format!("{compared} samples repeated, {launches} graph launches"))
}

/// With `--deterministic`, draft tokens change no token: those that are right are confirmed by what is sampled after them,
/// and those that are wrong leave nothing behind.
///
/// # Errors
/// Says what differs.
pub fn drafts_change_no_token(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    drafted_is_sampled(&load(device, checkpoint)?)
}

/// The same of sequences without and with adapters.
///
/// # Errors
/// Says what differs.
pub fn adapted_drafts_change_no_token(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    drafted_is_sampled(&load_with(device, checkpoint, &RANKS)?)
}

fn drafted_is_sampled(model: &DeviceModel) -> Result<String, String> {
    let mode = Mode { graphs: true, deterministic: true };
    let steps = 12;
    let (streams, _) = sampled(model, 16, mode, steps)?;
    // Those that were sampled to the end.
    let streams: Vec<(&[u32], usize)> = (streams.iter().zip(PROMPTS))
        .map(|(stream, prompt)| (stream.as_slice(), prompt as usize))
        .filter(|(stream, prompt)| stream.len() == prompt + steps)
        .collect();
    let mut walk = Walk::new(model, 16, MAX_SEQ_LEN, mode)?;
    adapt(&mut walk.inner, model.adapters());
    for (sequence, (stream, prompt)) in (0..).zip(&streams).filter(|(_, (_, prompt))| *prompt > 1) {
        walk.inner.run(&[Chunk { sequence, start: 0, tokens: &stream[..prompt - 1] }], Draws::NONE)?;
    }
    let (mut done, mut confirmed) = (0, 0);
    // Draft tokens of a step, and how many are right before the first wrong one.
    for (guesses, right) in [(4, 2), (3, 3), (4, 0), (3, 3)] {
        let inputs = streams.iter().map(|(stream, prompt)| {
            let due = prompt + done - 1;
            let mut tokens =
                stream[due..].iter().copied().chain([0; 4]).take(1 + guesses).collect::<Vec<_>>();
            tokens[1 + right..].iter_mut().for_each(|token| *token = (*token + 1) % 200);
            (due, tokens)
        });
        let inputs: Vec<(usize, Vec<u32>)> = inputs.collect();
        let chunks: Vec<Chunk<'_>> = ((0..).zip(&inputs))
            .map(|(sequence, (start, tokens))| Chunk { sequence, start: *start, tokens })
            .collect();
        let draws = Draws { temperature: 1.0, index: done as u32, guesses: guesses as u32, ..Draws::GREEDY };
        for ((stream, prompt), drawn) in streams.iter().zip(walk.draft(&chunks, draws)?) {
            let wanted = &stream[prompt + done..][..=right];
            if drawn[..=right] != *wanted {
                return Err(format!("sampled {drawn:?} after draft tokens and {wanted:?} without"));
            }
        }
        done += 1 + right;
        confirmed += right * streams.len();
    }
    match walk.inner.executor.graph_launches() {
        0 => Err("no decode with draft tokens was recorded".to_owned()),
        launches => Ok(format!("{confirmed} confirmed, {launches} graph launches")),
    }
}

/// A pool larger than the device's memory is refused with advice, and leaks nothing.
///
/// # Errors
/// Says what was missing.
pub fn memory_runs_out(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    let model = load(device, checkpoint)?;
    let before = device.memory().map_err(|error| error.message)?.free;
    let token_bytes = 2 * model.config().layers.len() * model.config().kv_width() * 2;
    let options = DeviceOptions {
        block_size: 16,
        total_blocks: (before / (16 * token_bytes as u64)).saturating_add(1_000).min(1 << 27) as u32,
        max_rows: 4,
        max_tokens: 64,
        max_seq_len: 64,
        prompt_cache_entries: 0,
        deterministic: false,
        graphs: false,
    };
    match model.executor(options) {
        Ok(_) => return Err("a pool larger than the device's memory was created".to_owned()),
        Err(error) if !error.to_string().contains("kv-memory") => {
            return Err(format!("the message gives no advice: {error}"));
        }
        Err(_) => {}
    }
    let after = device.memory().map_err(|error| error.message)?.free;
    // Drivers keep some memory for themselves.
    if after + (64 << 20) < before {
        return Err(format!("{} bytes leaked after the refusal", before - after));
    }
    sampled(&model, 16, Mode::LAUNCHED, 2)
        .map(|_| "refused with advice, and the device still works".to_owned())
}
