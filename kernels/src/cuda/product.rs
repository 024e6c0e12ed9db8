//! Which kernel multiplies: the vendor's library, or one of ours.

use super::device::{Device, Launch, Type};
use super::error::CudaError;
use super::params::{Params, ProductParams};

/// Most rows of the kernel that reads weights once for few rows.
const FEW: u32 = 32;
/// Most rows of narrow tiles, whose bits are those of the large ones.
const NARROW: u32 = 64;
/// Rows up to which the kernel for few is taken where the vendor's library is there too.
const FEW_BESIDE_VENDOR: u32 = 16;

/// Who multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKind {
    /// Whoever is fastest for the shape.
    Fastest,
    /// Tiles whose sums take their inputs in the same order whatever the number of rows, so that a row's bits depend on
    /// that row alone.
    RowByRow,
    /// Our kernels only.
    Own,
    /// The vendor's library, where there is one; for benchmarks.
    Vendor,
}

/// `y = x * w^T`. See `ProductParams`.
///
/// # Errors
/// Where the device refuses.
///
/// # Safety
/// The parameters describe memory on the device; rows of `x` and `w` start at multiples of 16 bytes where `inputs` is a
/// multiple of eight.
/// No kernel that may still be under way writes `w`: it may be read before their end.
pub unsafe fn product(
    device: &dyn Device,
    ty: Type,
    kind: ProductKind,
    params: &ProductParams,
) -> Result<(), CudaError> {
    let ProductParams { rows, inputs, outputs, .. } = *params;
    if rows == 0 {
        return Ok(());
    }
    let vendor = match kind {
        ProductKind::Fastest => rows > FEW_BESIDE_VENDOR || ty == Type::F32,
        ProductKind::Vendor => true,
        ProductKind::RowByRow | ProductKind::Own => false,
    };
    // SAFETY: the caller's promise.
    if vendor && unsafe { device.vendor_product(ty, params) }? {
        return Ok(());
    }
    let fragments = ty != Type::F32 && inputs.is_multiple_of(8);
    let launch = |kernel, grid, shared_bytes| {
        let launch = Launch { kernel, grid, threads: 256, shared_bytes, params: params.bytes() };
        // SAFETY: the caller's promise.
        unsafe { device.launch(launch) }
    };
    if !fragments {
        let kernel = ty.pick("product_plain_float", "product_plain_bf16", "product_plain_f16");
        let grid = [outputs.div_ceil(64), rows.div_ceil(64), 1];
        return launch(kernel, grid, 2 * 16 * 68 * 4);
    }
    if kind == ProductKind::RowByRow && rows <= NARROW {
        let kernel = ty.pick("", "product_narrow_bf16", "product_narrow_f16");
        let grid = [rows.div_ceil(16), outputs.div_ceil(64), 1];
        return launch(kernel, grid, 16 * (16 + 64) * 32 * 2);
    }
    if rows > FEW || kind == ProductKind::RowByRow {
        let kernel = ty.pick("", "product_tiled_bf16", "product_tiled_f16");
        let grid = [rows.div_ceil(128), outputs.div_ceil(128), 1];
        return launch(kernel, grid, 3 * (128 + 128) * 32 * 2);
    }
    let kernel = match rows.div_ceil(8) {
        1 => ty.pick("", "product_few_bf16_1", "product_few_f16_1"),
        2 => ty.pick("", "product_few_bf16_2", "product_few_f16_2"),
        _ => ty.pick("", "product_few_bf16_4", "product_few_f16_4"),
    };
    // Eight warps with four turns of 64 inputs for 16 outputs.
    launch(kernel, [outputs.div_ceil(16), 1, 1], 8 * 4 * 64 * 16 * 2)
}
