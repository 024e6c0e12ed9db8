//! Chooses between the vendor's library and our kernels for a matrix product.

use super::device::{Device, Launch, Type};
use super::error::CudaError;
use super::few::{FEW, few_rows, has_fragments, product_scaled};
use super::params::{FewParams, Params, ProductParams};
use super::quantized::{Factors, Quantized, widen};

/// Maximum rows of the narrow tiles, which give the same bits as the large ones.
const NARROW: u32 = 64;
/// Maximum rows of `product_few` if the vendor's library is available and [`super::Switches`] say nothing else.
pub(super) const FEW_BESIDE_VENDOR: u32 = 8;

/// What computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKind {
    /// The fastest for the shape.
    Fastest,
    /// Tiles that sum inputs in the same order for any number of rows, so that a row's bits depend on that row alone.
    RowByRow,
    /// Our kernels only.
    Own,
    /// The vendor's library, or our kernels if it is missing or refuses; for checks.
    Vendor,
}

/// `y = x * w^T`. See `ProductParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device; if `inputs` is a multiple of eight, rows of `x` and `w` start at multiples
/// of 16 bytes. No kernel in flight writes `w`, which may be read before they end.
pub unsafe fn product(
    device: &dyn Device,
    factors: impl Into<Factors>,
    kind: ProductKind,
    params: &ProductParams,
) -> Result<(), CudaError> {
    let factors @ Factors { ty, weights, .. } = factors.into();
    if let Some(weights) = weights {
        // SAFETY: the caller's promise.
        return unsafe { product_of_integers(device, factors, weights, kind, params) };
    }
    let ProductParams { x, w, y, rows, inputs, outputs, out_f32 } = *params;
    if rows == 0 {
        return Ok(());
    }
    let vendor = wants_vendor(few_rows(device), ty, kind, rows);
    // SAFETY: the caller's promise.
    if vendor && unsafe { device.vendor_product(ty, params) }? {
        return Ok(());
    }
    let launch = |kernel, grid, shared_bytes| {
        let launch = Launch { kernel, grid, threads: 256, shared_bytes, params: params.bytes() };
        // SAFETY: the caller's promise.
        unsafe { device.launch(launch) }
    };
    if !has_fragments(ty, inputs) {
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
    let params = FewParams { x, w, y, rows, inputs, outputs, out_f32, ..FewParams::default() };
    // SAFETY: the caller's promise.
    unsafe { product_scaled(device, ty, &params) }
}

/// The same of integers. Up to 32 rows are multiplied with them as they are. For more, and for any number if a row's bits must be
/// those of a product of many, they are widened. Without memory for that, rows are multiplied 32 at a time, which gives a row the
/// same bits whatever their number.
///
/// # Safety
/// As for [`product`].
unsafe fn product_of_integers(
    device: &dyn Device,
    factors: Factors,
    weights: Quantized,
    kind: ProductKind,
    params: &ProductParams,
) -> Result<(), CudaError> {
    let Factors { ty, scratch, .. } = factors;
    let ProductParams { x, w, y, rows, inputs, outputs, out_f32 } = *params;
    if rows == 0 {
        return Ok(());
    }
    if scratch != 0 && (rows > FEW || kind == ProductKind::RowByRow) {
        // SAFETY: the caller's promise.
        unsafe { widen(device, (ty, weights), [w, scratch], [outputs, inputs]) }?;
        // SAFETY: as above. Only the kernel for few rows would read weights before the one that widens them ends.
        return unsafe { product(device, ty, kind, &ProductParams { w: scratch, ..*params }) };
    }
    let out_bytes = if out_f32 != 0 { Type::F32.bytes() } else { ty.bytes() };
    for first in (0..rows).step_by(FEW as usize) {
        let at =
            |start: u64, width: u32, bytes: usize| start + u64::from(first) * u64::from(width) * bytes as u64;
        let few = FewParams {
            x: at(x, inputs, ty.bytes()),
            w,
            y: at(y, outputs, out_bytes),
            rows: (rows - first).min(FEW),
            inputs,
            outputs,
            out_f32,
            ..FewParams::default()
        };
        // SAFETY: the caller's promise.
        unsafe { product_scaled(device, factors, &few) }?;
    }
    Ok(())
}

/// Whether the vendor's library is asked first.
fn wants_vendor(few_rows: u32, ty: Type, kind: ProductKind, rows: u32) -> bool {
    match kind {
        ProductKind::Fastest => rows > few_rows || ty == Type::F32,
        ProductKind::Vendor => true,
        ProductKind::RowByRow | ProductKind::Own => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fastest_products_of_few_rows_are_ours_up_to_the_switch() {
        for (few_rows, rows, vendor) in [(16, 16, false), (16, 17, true), (32, 32, false), (0, 1, true)] {
            let wanted = |ty, kind| wants_vendor(few_rows, ty, kind, rows);
            assert_eq!(wanted(Type::Bf16, ProductKind::Fastest), vendor, "{rows} rows, switch {few_rows}");
            assert!(wanted(Type::F32, ProductKind::Fastest) && wanted(Type::Bf16, ProductKind::Vendor));
            assert!(!wanted(Type::F16, ProductKind::RowByRow) && !wanted(Type::F16, ProductKind::Own));
        }
    }
}
