//! Products of few rows, alone and with the operations around them: `cuda/product_few.cu`.

use super::device::{Device, Launch, Properties, Type};
use super::error::CudaError;
use super::ops::is_gelu;
use super::params::{FewParams, KvWriteParams, Params, RopeParams};
use super::product::ProductKind;
use super::quantized::{Factors, Quantized};
use crate::{Activation, GROUP};

/// Maximum rows, for which weights are read once.
pub const FEW: u32 = 32;
const THREADS: u32 = 256;
/// Outputs of a group: what a block multiplies at a time.
const OUTPUTS: u32 = 16;
/// Up to so many rows blocks can walk from group to group: the eight warps' sums then have room of their own.
const WALKING_ROWS: u32 = 8;
/// Inputs of the first turns. With more, a block has requests left while others end, and nothing is gained by walking.
const WALKING_INPUTS: u32 = 8 * 4 * 64;
const SUM_BYTES: u32 = 8 * (WALKING_ROWS / 2) * (2 * OUTPUTS + 8) * 4;
/// Shared memory of a block. `MOST_BLOCKS` fit a multiprocessor.
const SHARED_BYTES: u32 = {
    let (most, walking) = (shared_bytes_of(FEW), shared_bytes_of(WALKING_ROWS) + SUM_BYTES);
    if most > walking { most } else { walking }
};
/// Blocks that fit a multiprocessor of compute capability 9.x at once, by their registers and shared memory.
const MOST_BLOCKS: u32 = 3;
/// Shared memory of such a multiprocessor.
const MULTIPROCESSOR_BYTES: u32 = 228 << 10;

/// Eight warps, each with four turns of 64 inputs for 16 outputs, and behind them `End` of `product_few.cu`: two weights of
/// each output, residuals of all rows, each thread's sums of squares, and an address per row.
const fn shared_bytes_of(rows: u32) -> u32 {
    8 * 4 * 64 * OUTPUTS * 2 + 4 * (2 * OUTPUTS + rows * OUTPUTS + rows / 8 * THREADS) + 8 * rows
}

/// Names of a kernel for up to 8, 16 and 32 rows, in bf16 and in f16.
type Names = [[&'static str; 2]; 3];

/// Names of a kernel by how its weights are stored.
#[derive(Debug, PartialEq, Eq)]
struct Kernels {
    plain: Names,
    int8: Names,
    int4: Names,
}

macro_rules! names {
    (@ $start:expr) => {
        [
            [concat!($start, "_bf16_1"), concat!($start, "_f16_1")],
            [concat!($start, "_bf16_2"), concat!($start, "_f16_2")],
            [concat!($start, "_bf16_4"), concat!($start, "_f16_4")],
        ]
    };
    ($($name:ident = $start:literal),* $(,)?) => {$(
        const $name: Kernels = Kernels {
            plain: names!(@ $start),
            int8: names!(@ concat!($start, "_int8")),
            int4: names!(@ concat!($start, "_int4")),
        };
    )*};
}
names!(STORE = "product_few", GATE = "product_gated", ROPE = "product_rope", ADD = "product_add");

impl Kernels {
    fn of(&self, weights: Option<Quantized>) -> &Names {
        match weights {
            None => &self.plain,
            Some(Quantized::Int8) => &self.int8,
            Some(Quantized::Int4) => &self.int4,
        }
    }
}

/// Up to how many rows the fastest products are ours, if weights aren't integers.
pub(super) fn few_rows(device: &dyn Device) -> u32 {
    let properties = device.properties();
    if properties.vendor_products.is_some() { properties.switches.few_rows } else { FEW }
}

/// Whether `rows` rows of this width can be multiplied by [`product_scaled`], [`product_gated`] and [`product_rope`],
/// instead of by [`super::product`] and the kernels around it. The vendor's library has no products with integers of groups.
pub fn fuses(
    device: &dyn Device,
    factors: impl Into<Factors>,
    kind: ProductKind,
    [rows, inputs]: [u32; 2],
) -> bool {
    let Factors { ty, weights, .. } = factors.into();
    let most = if weights.is_some() { FEW } else { few_rows(device) };
    let fused = device.properties().switches.fused;
    fused && kind == ProductKind::Fastest && rows <= most && has_fragments(ty, inputs)
}

/// Whether residual sums and norms can be part of products, too ([`product_add`]). A row that still lacks the scale of
/// its norm may be too large for f16.
pub fn fuses_norms(ty: Type) -> bool {
    ty == Type::Bf16
}

/// Whether rope and KV writes can be part of a product ([`product_rope`]), if there are no norms of heads.
pub fn fuses_rope(head_dim: u32) -> bool {
    head_dim.is_multiple_of(OUTPUTS)
}

/// Shares per row that [`product_add`] writes.
pub fn shares(outputs: u32) -> u32 {
    outputs.div_ceil(OUTPUTS)
}

/// Whether tensor cores multiply rows of this width.
pub(super) fn has_fragments(ty: Type, inputs: u32) -> bool {
    ty != Type::F32 && inputs.is_multiple_of(8)
}

/// `y = x * w^T`, times the scale of each row's norm if there are `squares`. See `FewParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device, whose rows start at multiples of 16 bytes. No kernel in flight writes `w`,
/// `bias` or `norm`, which may be read before they end.
pub unsafe fn product_scaled(
    device: &dyn Device,
    factors: impl Into<Factors>,
    params: &FewParams,
) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    unsafe { launch(device, factors.into(), &STORE, params, params, params.outputs.div_ceil(OUTPUTS)) }
}

/// `y = activation(x * gate^T) * (x * up^T)`, where `w` is the gate's rows and then as many of the other matrix.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`product_scaled`].
pub unsafe fn product_gated(
    device: &dyn Device,
    factors: impl Into<Factors>,
    activation: Activation,
    params: &FewParams,
) -> Result<(), CudaError> {
    let factors = factors.into();
    let halves = if factors.weights.is_some() { OUTPUTS } else { 2 };
    assert!(params.outputs.is_multiple_of(halves), "two halves of {} outputs", params.outputs);
    let params = FewParams { gelu: is_gelu(activation), ..*params };
    // SAFETY: the caller's promise.
    unsafe { launch(device, factors, &GATE, &params, &params, (params.outputs / 2).div_ceil(OUTPUTS / 2)) }
}

/// `residual += x * w^T * factor`; then, if there is a `norm`, `y = residual * norm` and `shares_out`, with which the next
/// product scales it. For types that [`fuses_norms`] allows.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`product_scaled`].
pub unsafe fn product_add(
    device: &dyn Device,
    factors: impl Into<Factors>,
    params: &FewParams,
) -> Result<(), CudaError> {
    let factors @ Factors { ty, .. } = factors.into();
    assert!(fuses_norms(ty) && params.squares == 0, "a product of {ty:?}, squares at {:#x}", params.squares);
    assert!(params.factor != 0.0, "what a product adds would be nothing");
    // SAFETY: the caller's promise.
    unsafe { launch(device, factors, &ADD, params, params, shares(params.outputs)) }
}

/// The product of queries, keys and values, and what [`super::kv_write`] does with them, except for keys and values in
/// `write.qkv`, which are not written. For heads that [`fuses_rope`] allows, without norms.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`product_scaled`] and [`super::kv_write`].
pub unsafe fn product_rope(
    device: &dyn Device,
    factors: impl Into<Factors>,
    few: &FewParams,
    write: &KvWriteParams,
) -> Result<(), CudaError> {
    let KvWriteParams { heads, kv_heads, head_dim, tokens, .. } = *write;
    let widths = [few.rows, few.outputs];
    assert_eq!(widths, [tokens, (heads + 2 * kv_heads) * head_dim], "rows and outputs");
    assert!(fuses_rope(head_dim) && write.q_norm == 0 && write.k_norm == 0, "{write:?}");
    let few = FewParams { bias: write.bias, ..*few };
    let params = RopeParams { few, write: *write };
    // SAFETY: the caller's promise.
    unsafe { launch(device, factors.into(), &ROPE, &few, &params, few.outputs / OUTPUTS) }
}

/// Blocks of one of these kernels. Those that request all weights of a group at once, and read nothing else at its end,
/// take several groups in turn, and are as many as run at once.
fn blocks_of(kernels: &Kernels, [rows, inputs, groups]: [u32; 3], properties: &Properties) -> u32 {
    let few = rows <= WALKING_ROWS && inputs <= WALKING_INPUTS;
    if !few || ![&STORE, &GATE].contains(&kernels) || !properties.switches.walk {
        return groups;
    }
    groups.min(properties.blocks_at_once(MOST_BLOCKS, SHARED_BYTES))
}

/// Shared memory of each of so many blocks. A kernel that starts early takes places as blocks of the one ahead of it end, so
/// multiprocessors that get free first would take all that fit, and others none. With more memory than they use, no more fit
/// than an even spread needs.
fn spread_bytes(blocks: u32, multiprocessors: u32) -> u32 {
    match blocks.div_ceil(multiprocessors) {
        even if even < MOST_BLOCKS => MULTIPROCESSOR_BYTES / (even + 1),
        _ => SHARED_BYTES,
    }
}

/// Launches a kernel that takes `params`, of which `few` are a part.
///
/// # Safety
/// As for [`product_scaled`].
unsafe fn launch(
    device: &dyn Device,
    Factors { ty, weights, .. }: Factors,
    kernels: &Kernels,
    few: &FewParams,
    params: &impl Params,
    groups: u32,
) -> Result<(), CudaError> {
    let FewParams { rows, inputs, .. } = *few;
    assert!(has_fragments(ty, inputs) && inputs > 0 && rows <= FEW, "{rows} rows of {inputs}, {ty:?}");
    assert!(weights.is_none() || inputs.is_multiple_of(GROUP as u32), "{inputs} inputs are no whole groups");
    if rows == 0 {
        return Ok(());
    }
    let [bf16, f16] = kernels.of(weights)[match rows.div_ceil(8) {
        1 => 0,
        2 => 1,
        _ => 2,
    }];
    let kernel = ty.pick("", bf16, f16);
    let properties = device.properties();
    let blocks = blocks_of(kernels, [rows, inputs, groups], properties);
    let spread = properties.early && properties.switches.spread;
    let launch = Launch {
        kernel,
        grid: [blocks, 1, 1],
        threads: THREADS,
        shared_bytes: if spread { spread_bytes(blocks, properties.multiprocessors) } else { SHARED_BYTES },
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Switches;
    use crate::cuda::device::RESERVED_BYTES;

    #[test]
    fn no_more_blocks_fit_a_multiprocessor_than_an_even_spread_needs() {
        // A block may have 1 KiB less than a multiprocessor.
        let fit = |bytes: u32| MULTIPROCESSOR_BYTES / (bytes + RESERVED_BYTES);
        assert_eq!(fit(SHARED_BYTES), MOST_BLOCKS);
        for (blocks, even) in [(1, 1), (128, 1), (132, 1), (133, 2), (256, 2), (264, 2)] {
            let bytes = spread_bytes(blocks, 132);
            assert_eq!(fit(bytes), even, "{blocks} blocks");
            assert!((SHARED_BYTES..=MULTIPROCESSOR_BYTES - 1_024).contains(&bytes), "{blocks} blocks");
        }
        for blocks in [265, 384, 8_016] {
            assert_eq!(spread_bytes(blocks, 132), SHARED_BYTES, "{blocks} blocks");
        }
    }

    #[test]
    fn blocks_walk_where_not_all_run_at_once() {
        let properties = |multiprocessors, shared_kib, walk| {
            Properties::hopper(multiprocessors, shared_kib, Switches { walk, ..Switches::default() })
        };
        let (h100, ada) = (properties(132, 228, true), properties(128, 100, true));
        for (kernels, sides, properties, blocks) in [
            (&GATE, [1, 2_048, 1_024], &h100, 396),
            (&GATE, [8, 2_048, 1_024], &h100, 396),
            (&GATE, [9, 2_048, 1_024], &h100, 1_024),
            (&GATE, [1, 2_056, 1_024], &h100, 1_024),
            (&GATE, [1, 2_048, 1_024], &ada, 128),
            (&GATE, [1, 2_048, 1_024], &properties(132, 228, false), 1_024),
            (&GATE, [1, 2_048, 100], &h100, 100),
            (&STORE, [1, 2_048, 8_016], &h100, 396),
            (&ADD, [1, 2_048, 512], &h100, 512),
            (&ROPE, [1, 2_048, 512], &h100, 512),
        ] {
            assert_eq!(
                blocks_of(kernels, sides, properties),
                blocks,
                "{kernels:?}, {sides:?}, {properties:?}"
            );
        }
    }
}
