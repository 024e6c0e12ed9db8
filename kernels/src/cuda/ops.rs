//! Launches of all kernels but attention and products.

use super::device::{Device, Launch, Type};
use super::error::CudaError;
use super::params::{
    CopyParams, EmbedParams, FillParams, FollowParams, GatedParams, KvWriteParams, NormParams, Params,
    SampleParams,
};
use crate::Activation;

/// `out[i] = norm(residual[i] += delta[i] * factor)` for `rows` rows, also without norm or delta. See `NormParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device.
pub unsafe fn add_norm(
    device: &dyn Device,
    ty: Type,
    params: &NormParams,
    rows: u32,
) -> Result<(), CudaError> {
    // A block of 512 threads keeps a row in registers: 8 numbers per thread, or 16.
    let kernel = match params.width {
        width if !width.is_multiple_of(8) || width > 8_192 => {
            ty.pick("add_norm_float", "add_norm_bf16", "add_norm_f16")
        }
        ..=4_096 => ty.pick("add_norm_float_1", "add_norm_bf16_1", "add_norm_f16_1"),
        _ => ty.pick("add_norm_float_2", "add_norm_bf16_2", "add_norm_f16_2"),
    };
    let launch =
        Launch { kernel, grid: [rows, 1, 1], threads: 512, shared_bytes: 64, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Applies bias, head norms and rope. Queries stay in place, keys and values go to their slots. See `KvWriteParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device; slots lie in the pool. No kernel in flight writes biases, norms, rope, positions
/// or slots, which may be read before it ends.
pub unsafe fn kv_write(device: &dyn Device, ty: Type, params: &KvWriteParams) -> Result<(), CudaError> {
    assert!(params.head_dim <= 256 && params.head_dim.is_multiple_of(2), "heads of {}", params.head_dim);
    let kernel = ty.pick("kv_write_float", "kv_write_bf16", "kv_write_f16");
    // Lanes of a head: one for eight pairs, or a warp.
    let lanes = match params.head_dim.is_multiple_of(16) {
        true => (params.head_dim / 16).next_power_of_two(),
        false => 32,
    };
    let grid = [((params.heads + 2 * params.kv_heads) * lanes).div_ceil(128), params.tokens, 1];
    let launch = Launch { kernel, grid, threads: 128, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// What [`kv_write`] does, with norms of all query heads together, and of all key heads.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`kv_write`]; `q_norm` has weights for all query heads, and `k_norm` for all key heads.
pub unsafe fn kv_write_whole(device: &dyn Device, ty: Type, params: &KvWriteParams) -> Result<(), CudaError> {
    assert!(params.head_dim.is_multiple_of(2), "heads of {}", params.head_dim);
    assert!(params.q_norm != 0 && params.k_norm != 0, "norms of all heads need weights");
    let kernel = ty.pick("kv_write_whole_float", "kv_write_whole_bf16", "kv_write_whole_f16");
    let grid = [params.tokens, 1, 1];
    let launch = Launch { kernel, grid, threads: 512, shared_bytes: 64, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Which of the two activations of the kernels it is.
///
/// # Panics
/// If it is another.
pub(super) fn is_gelu(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::ClampedSwish { .. } => panic!("{activation:?} has no kernel"),
    }
}

/// `out[row][i] = activation(gate_up[row][i] + bias[i]) * (gate_up[row][width + i] + bias[width + i])`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// `gate_up` has `rows` rows of `2 * width`, `out` of `width`; `bias` has `2 * width` numbers or is 0.
pub unsafe fn gated(
    device: &dyn Device,
    ty: Type,
    activation: Activation,
    [gate_up, bias, out]: [u64; 3],
    width: u32,
    rows: u32,
) -> Result<(), CudaError> {
    let gelu = is_gelu(activation);
    let params = GatedParams { gate_up, out, bias, width, rows, gelu, unused: 0 };
    let kernel = ty.pick("gated_float", "gated_bf16", "gated_f16");
    let grid = [width.div_ceil(256 * 8), rows, 1];
    let launch = Launch { kernel, grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// `out[i] = table[tokens[i]] * scale`, in f32.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// Tokens are rows of the table (or `NONE`), `out` has `count` rows of `width`.
pub unsafe fn embed(
    device: &dyn Device,
    ty: Type,
    [table, tokens, out]: [u64; 3],
    width: u32,
    scale: f32,
    count: u32,
) -> Result<(), CudaError> {
    let params = EmbedParams { table, out, tokens, width, scale };
    let kernel = ty.pick("embed_float", "embed_bf16", "embed_f16");
    let grid = [count, width.div_ceil(256 * 8), 1];
    let launch = Launch { kernel, grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// `tokens[pair[0]] = drawn[pair[1]]` for `count` pairs.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The pairs are indexes into `tokens`, each at most once, and into `drawn`.
pub unsafe fn follow_draws(
    device: &dyn Device,
    [tokens, drawn, pairs]: [u64; 3],
    count: u32,
) -> Result<(), CudaError> {
    let params = FollowParams { tokens, drawn, pairs, count, unused: 0 };
    let grid = [count.div_ceil(256), 1, 1];
    let launch =
        Launch { kernel: "follow_draws", grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Copies `count` whole blocks of all layers, in no particular order. See `CopyParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The blocks lie in their pools, and none is both read and written.
pub unsafe fn copy_blocks(device: &dyn Device, params: &CopyParams, count: u32) -> Result<(), CudaError> {
    let grid = [count, params.parts, 1];
    let launch =
        Launch { kernel: "copy_blocks", grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// Fills memory with random numbers in `-scale..scale` that depend only on the seed and their index.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// `out` has room for `count` numbers.
pub unsafe fn fill_random(
    device: &dyn Device,
    ty: Type,
    out: u64,
    count: usize,
    seed: u64,
    scale: f32,
) -> Result<(), CudaError> {
    let params = FillParams { out, count: count as u64, seed, scale, unused: 0 };
    let kernel = ty.pick("fill_float", "fill_bf16", "fill_f16");
    let grid = [count.div_ceil(256).clamp(1, 4_096) as u32, 1, 1];
    let launch = Launch { kernel, grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

/// `Shared` of `sample.cuh`: the list, candidates to rank, bins, sums of warps, words of 64 bits, words of 32 bits.
const SAMPLE_SHARED: u32 = 8_192 * 8 + 128 * 16 + 1_024 * 16 + 3 * 32 * 8 + 9 * 8 + 8 * 4;

/// Samples a token for each of `rows` rows. See `SampleParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device.
pub unsafe fn sample(device: &dyn Device, params: &SampleParams, rows: u32) -> Result<(), CudaError> {
    assert!(params.vocab < 1 << 20, "a vocabulary of {} is more than the sampler's sums hold", params.vocab);
    let launch = Launch {
        kernel: "sample_token",
        grid: [rows, 1, 1],
        threads: 1_024,
        shared_bytes: SAMPLE_SHARED,
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}
