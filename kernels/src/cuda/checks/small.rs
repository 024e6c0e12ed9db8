//! Embedding, activations, norms, block copies.

use std::sync::Arc;

use super::support::{Effort, compare, indexes, numbers, poisoned, rounded, said, tolerance};
use crate::Activation;
use crate::Random;
use crate::cuda::{Buffer, CopyParams, Device, HostBuffer, NONE, NormParams, Type};
use crate::cuda::{add_norm as launch_norm, copy_blocks as launch_copy, embed as launch_embed};
use crate::cuda::{follow_draws as launch_follow, gated as launch_gated};
use crate::reference;

const TYPES: [Type; 3] = [Type::F32, Type::Bf16, Type::F16];

pub(super) fn embed(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    for ty in TYPES {
        let most = effort.pick(300, 4_096);
        // Any width, and eight numbers at a time, also by more than one block.
        let width = [random.size(1, most), 8 * random.size(1, most / 8), 2_048 + 8 * random.size(1, 40)]
            [random.size(0, 2)];
        let vocab = random.size(1, 100);
        let count = random.size(1, effort.pick(9, 300));
        let table = random.rounded(ty, vocab * width);
        let mut tokens: Vec<u32> = (0..count).map(|_| random.size(0, vocab - 1) as u32).collect();
        tokens[0] = NONE;
        let scale = 3.5;
        let (on_device, given) = (numbers(device, ty, &table)?, indexes(device, &tokens)?);
        let out = poisoned(device, Type::F32, count * width)?;
        let places = [on_device.at(), given.at(), out.at()];
        // SAFETY: shapes as allocated.
        unsafe { launch_embed(device.as_ref(), ty, places, width as u32, scale, count as u32) }
            .map_err(said)?;
        let want: Vec<f32> = tokens
            .iter()
            .flat_map(|token| {
                (0..width)
                    .map(|i| if *token == NONE { 0.0 } else { table[*token as usize * width + i] * scale })
            })
            .collect();
        let got = out.read_numbers(Type::F32, count * width).map_err(said)?;
        if got != want {
            return Err(format!("{ty:?}, {count} rows of {width}: the rows differ"));
        }
    }
    Ok("three types, padding".to_owned())
}

pub(super) fn gated(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<String, String> {
    for ty in TYPES {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for biased in [false, true] {
                let most = effort.pick(2_200, 14_336);
                let width = [random.size(1, most), 8 * random.size(1, most / 8)][random.size(0, 1)];
                let rows = random.size(1, effort.pick(3, 60));
                let wide = |x: &mut f32| *x = rounded(ty, *x * 6.0);
                let mut gate_up = random.rounded(ty, 2 * width * rows);
                gate_up.iter_mut().for_each(wide);
                let bias = random.rounded(Type::F32, 2 * width);
                let (given, biases) = (numbers(device, ty, &gate_up)?, numbers(device, Type::F32, &bias)?);
                let out = poisoned(device, ty, width * rows)?;
                let places = [given.at(), if biased { biases.at() } else { 0 }, out.at()];
                // SAFETY: shapes as allocated.
                unsafe { launch_gated(device.as_ref(), ty, activation, places, width as u32, rows as u32) }
                    .map_err(said)?;
                let plus = |i: usize| if biased { bias[i] } else { 0.0 };
                let want: Vec<f32> = (0..rows * width)
                    .map(|at| {
                        let (row, i) = (at / width, at % width);
                        let row = &gate_up[2 * row * width..];
                        reference::gated(activation, row[i] + plus(i), row[width + i] + plus(width + i))
                    })
                    .collect();
                let got = out.read_numbers(ty, width * rows).map_err(said)?;
                compare(&got, &want, width)
                    .close(tolerance(ty), &format!("{ty:?} {activation:?} {rows} x {width}"))?;
            }
        }
    }
    Ok("three types, two activations, with and without bias".to_owned())
}

pub(super) fn add_norm(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    let epsilon = 1e-5;
    for ty in TYPES {
        for case in 0..8 {
            let (with_delta, with_bias, with_norm) = (case & 1 > 0, case & 2 > 0, case & 4 > 0);
            // Any width, and those kept in registers: up to 4,096 and up to 8,192.
            let any = random.size(1, effort.pick(700, 10_000));
            let width = [any, 8 * random.size(1, 512), 8 * random.size(513, 1_024)][random.size(0, 2)];
            let tokens = random.size(1, effort.pick(4, 200));
            let residual = random.rounded(Type::F32, width * tokens);
            let delta = random.rounded(ty, width * tokens);
            let [bias, delta_weight, weight] = [0; 3].map(|_| random.rounded(Type::F32, width));
            let select: Vec<u32> = (0..tokens as u32).rev().map(|t| if t == 1 { NONE } else { t }).collect();
            let selected = random.size(0, 1) == 1;
            let (factor, unnormed) = (random.one_of(&[1.0, 0.22]), random.size(0, 3) == 0);
            let on_device = |x: &[f32]| numbers(device, Type::F32, x);
            let (stream, deltas) = (on_device(&residual)?, numbers(device, ty, &delta)?);
            let (biases, delta_weights, weights) =
                (on_device(&bias)?, on_device(&delta_weight)?, on_device(&weight)?);
            let chosen = indexes(device, &select)?;
            let out = poisoned(device, ty, width * tokens)?;
            let or_absent = |there: bool, buffer: &Buffer| if there { buffer.at() } else { 0 };
            let norm = NormParams {
                residual: stream.at(),
                delta: or_absent(with_delta, &deltas),
                delta_bias: or_absent(with_bias, &biases),
                delta_norm: or_absent(with_norm, &delta_weights),
                weight: or_absent(!unnormed, &weights),
                out: out.at(),
                select: or_absent(selected, &chosen),
                width: width as u32,
                epsilon,
                delta_factor: factor,
                ..NormParams::default()
            };
            // SAFETY: shapes as allocated.
            unsafe { launch_norm(device.as_ref(), ty, &norm, tokens as u32) }.map_err(said)?;
            let what = format!(
                "{ty:?} {tokens} x {width}, case {case}, selected {selected}, times {factor}, unnormed {unnormed}"
            );
            let got = out.read_numbers(ty, width * tokens).map_err(said)?;
            let stream = stream.read_numbers(Type::F32, width * tokens).map_err(said)?;
            for row in 0..tokens {
                let token = if selected { select[row] } else { row as u32 };
                let got = &got[row * width..(row + 1) * width];
                if token == NONE {
                    if got.iter().any(|x| !x.is_nan()) {
                        return Err(format!("{what}: padding was written"));
                    }
                    continue;
                }
                let span = token as usize * width..(token as usize + 1) * width;
                let mut x = residual[span.clone()].to_vec();
                if with_delta {
                    let mut added: Vec<f32> = delta[span.clone()].to_vec();
                    if with_bias {
                        added.iter_mut().zip(&bias).for_each(|(x, b)| *x += b);
                    }
                    if with_norm {
                        added = reference::rms_norm(&added, &delta_weight, epsilon);
                    }
                    x.iter_mut().zip(&added).for_each(|(x, d)| *x += d * factor);
                }
                compare(&stream[span], &x, width).close(1e-5, &format!("{what}, residual"))?;
                let want = if unnormed { x } else { reference::rms_norm(&x, &weight, epsilon) };
                compare(got, &want, width).close(tolerance(ty), &what)?;
            }
        }
    }
    Ok("three types, all combinations of delta, bias, own norm and selection, factors, rows without a norm"
        .to_owned())
}

pub(super) fn follow_draws(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    let count = random.size(1, effort.pick(600, 5_000));
    let mut tokens: Vec<u32> = (0..2 * count).map(|_| random.bits() as u32).collect();
    let drawn: Vec<u32> = (0..count).map(|_| random.bits() as u32).collect();
    // Every second token, with the draws in reverse order.
    let pairs: Vec<u32> = (0..count).flat_map(|i| [2 * i as u32, (count - 1 - i) as u32]).collect();
    let [to, from, list] = [&tokens, &drawn, &pairs].map(|words| indexes(device, words));
    let (to, from, list) = (to?, from?, list?);
    // SAFETY: the pairs are indexes into the buffers above.
    unsafe { launch_follow(device.as_ref(), [to.at(), from.at(), list.at()], count as u32) }.map_err(said)?;
    for pair in pairs.chunks(2) {
        tokens[pair[0] as usize] = drawn[pair[1] as usize];
    }
    let want: Vec<u8> = tokens.iter().flat_map(|token| token.to_ne_bytes()).collect();
    match to.read(want.len()).map_err(said)? == want {
        true => Ok("some of the tokens, others left".to_owned()),
        false => Err(format!("{count} of {} tokens: they differ", tokens.len())),
    }
}

/// Within the pool, and to pinned memory of the host and back.
pub(super) fn copy_blocks(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    let (blocks, parts) = (random.size(4, 12), 2 * random.size(1, 4));
    let block_bytes = 2 * random.size(1, effort.pick(600, 20_000));
    // In half of the cases blocks start at multiples of 16 bytes.
    let unit = [2, 16][random.size(0, 1)];
    let block_bytes = block_bytes.next_multiple_of(unit);
    let stride = blocks * block_bytes + random.size(0, 5) * unit;
    let before: Vec<u8> = (0..stride * parts).map(|_| random.bits() as u8).collect();
    let pool = Buffer::from_bytes(device, &before).map_err(said)?;
    let pairs = [0_u32, blocks as u32 - 1, 1, blocks as u32 - 2];
    let list = indexes(device, &pairs)?;
    let params = CopyParams {
        from: pool.at(),
        to: pool.at(),
        pairs: list.at(),
        from_stride: stride as u64,
        to_stride: stride as u64,
        block_bytes: block_bytes as u32,
        parts: parts as u32,
    };
    // SAFETY: the pool as allocated.
    unsafe { launch_copy(device.as_ref(), &params, 2) }.map_err(said)?;
    let mut want = before;
    let at = |part: usize, block: u32| part * stride + block as usize * block_bytes;
    for part in 0..parts {
        for pair in pairs.chunks(2) {
            let from = at(part, pair[0]);
            want.copy_within(from..from + block_bytes, at(part, pair[1]));
        }
    }
    let what = format!("{blocks} blocks of {block_bytes} bytes, {parts} parts");
    if pool.read(stride * parts).map_err(said)? != want {
        return Err(format!("{what}: the bytes differ"));
    }

    // Blocks 0 and 2 of the pool are blocks 1 and 0 of the host's, which return as blocks 1 and 3.
    let host_stride = 2 * block_bytes + random.size(0, 5) * unit;
    let host = HostBuffer::new(device, host_stride * parts).map_err(said)?;
    let lists = [indexes(device, &[0, 1, 2, 0])?, indexes(device, &[1, 1, 0, 3])?];
    let out = CopyParams { to: host.at(), pairs: lists[0].at(), to_stride: host_stride as u64, ..params };
    let back =
        CopyParams { from: host.at(), pairs: lists[1].at(), from_stride: host_stride as u64, ..params };
    // SAFETY: both pools as allocated; the host's has two blocks.
    unsafe { launch_copy(device.as_ref(), &out, 2).and_then(|()| launch_copy(device.as_ref(), &back, 2)) }
        .map_err(said)?;
    device.wait().map_err(said)?;
    for part in 0..parts {
        for (from, by_way_of, to) in [(0, 1, 1), (2, 0, 3)] {
            let (block, kept) = (at(part, from), part * host_stride + by_way_of * block_bytes);
            if host.bytes()[kept..kept + block_bytes] != want[block..block + block_bytes] {
                return Err(format!("{what}: the bytes on the host differ"));
            }
            want.copy_within(block..block + block_bytes, at(part, to));
        }
    }
    if pool.read(stride * parts).map_err(said)? != want {
        return Err(format!("{what}: the bytes differ after their return from the host"));
    }
    Ok("all layers, keys and values; within the pool, to the host and back".to_owned())
}
