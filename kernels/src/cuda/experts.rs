//! Layers of experts: the choice of each row's experts and the sums of what they make (`cuda/route.cu`), and the products
//! between (`cuda/product_experts.cu`). How many rows an expert gets is known on the device only. So products have blocks for
//! as many tiles as any choice needs, and every launch depends on the number of rows alone.

use super::device::{Device, Launch, Type};
use super::error::CudaError;
use super::few::{fuses_norms, has_fragments};
use super::params::{CombineParams, ExpertsParams, Params, RouteParams};
use super::product::ProductKind;
use crate::Activation;

/// Maximum experts of a layer.
pub const MOST_EXPERTS: u32 = 1_024;
/// Rows whose experts one block chooses and lists.
const FEW_ROWS: u32 = 32;
/// Mean rows of an expert up to which tiles of 8 are multiplied, and those of 16.
const ROWS_OF_8: u32 = 4;
const ROWS_OF_16: u32 = 8;

/// A layer of gated experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// How weights and activations are stored.
    pub ty: Type,
    /// Experts to choose from, at most [`MOST_EXPERTS`].
    pub experts: u32,
    /// Experts that compute a row.
    pub per_row: u32,
    /// Width of rows.
    pub hidden: u32,
    /// Width of an expert.
    pub intermediate: u32,
}

/// How the rows of an expert are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertForm {
    /// Up to 8 rows at a time: weights are read as they come.
    Few8,
    /// Up to 16.
    Few16,
    /// Up to 64, by tiles. A row's bits depend on that row alone.
    Tiled,
    /// Up to 64, without tensor cores. A row's bits depend on that row alone.
    Plain,
}

impl ExpertForm {
    /// Rows of a tile.
    pub(super) fn tile_rows(self) -> u32 {
        match self {
            Self::Few8 => 8,
            Self::Few16 => 16,
            Self::Tiled | Self::Plain => 64,
        }
    }

    /// The grid of a product. Blocks that run at the same time, those of the first dimension, share a tile of few rows, or the
    /// weights of tiles of many. The first dimension is also the only one for more than 65,535 tiles.
    fn grid(self, groups: u32, tiles: u32) -> [u32; 3] {
        match self {
            Self::Few8 | Self::Few16 => [groups, tiles, 1],
            Self::Tiled | Self::Plain => [tiles, groups, 1],
        }
    }
}

impl ExpertShape {
    /// How the experts of `rows` rows are multiplied.
    pub fn form(&self, kind: ProductKind, rows: u32) -> ExpertForm {
        if !has_fragments(self.ty, self.hidden) || !has_fragments(self.ty, self.intermediate) {
            return ExpertForm::Plain;
        }
        let mean = (rows * self.per_row).div_ceil(self.experts);
        if kind == ProductKind::RowByRow || mean > ROWS_OF_16 {
            ExpertForm::Tiled
        } else if mean > ROWS_OF_8 {
            ExpertForm::Few16
        } else {
            ExpertForm::Few8
        }
    }

    /// Tiles that any choice of `rows` rows needs at most.
    pub(super) fn tiles(&self, form: ExpertForm, rows: u32) -> u32 {
        let (pairs, tile) = (rows * self.per_row, form.tile_rows());
        // Each expert with rows may have one tile that isn't full.
        (pairs + pairs.min(self.experts) * (tile - 1)) / tile
    }

    /// Bytes of the lists of up to `rows` rows: [`RouteParams`]'s `chosen`, `weights`, `pairs` and `tiles`.
    pub fn list_bytes(&self, rows: u32) -> [usize; 4] {
        // Of the smallest tiles there are most.
        let tiles = self.tiles(ExpertForm::Few8, rows);
        let pairs = 4 * rows as usize * self.per_row as usize;
        [pairs, pairs, pairs, 16 * tiles as usize]
    }
}

/// Chooses the experts of `params.rows` rows and lists them for products of this form. Sizes are the shape's; see
/// `RouteParams` for the others.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device; the lists are as large as [`ExpertShape::list_bytes`].
pub unsafe fn route(
    device: &dyn Device,
    shape: &ExpertShape,
    form: ExpertForm,
    params: &RouteParams,
) -> Result<(), CudaError> {
    let ExpertShape { experts, per_row, hidden: width, .. } = *shape;
    assert!((1..=experts).contains(&per_row) && experts <= MOST_EXPERTS, "{shape:?}");
    let rows = params.rows;
    if rows == 0 {
        return Ok(());
    }
    let (tile_rows, room) = (form.tile_rows(), shape.tiles(form, rows));
    let params = RouteParams { experts, per_row, tile_rows, room, width, ..*params };
    let launch = |kernel, blocks, threads, shared_bytes| {
        let launch = Launch { kernel, grid: [blocks, 1, 1], threads, shared_bytes, params: params.bytes() };
        // SAFETY: the caller's promise.
        unsafe { device.launch(launch) }
    };
    if rows <= FEW_ROWS {
        return launch("route_few", 1, 1_024, 4 * experts);
    }
    launch("route_rows", rows.div_ceil(8), 256, 0)?;
    launch("route_lists", experts.div_ceil(8), 256, 4 * experts)
}

/// What an expert does to the rows that it multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertProduct {
    /// `y = activation(x * gate^T) * (x * up^T)` with biases, of the layer's rows: `x` is `[row][hidden]`, and `w` has an
    /// expert's gate and then its other half.
    Gated(Activation),
    /// `y = x * w^T` with biases, of what the former wrote: back to the layer's width.
    Down,
}

/// Multiplies the rows of all experts that [`route`] listed for this form. Sizes and activation are set here; see
/// `ExpertsParams` for the others.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device, whose rows start at multiples of 16 bytes if widths are multiples of 8; `pairs`
/// and `tiles` are those of `rows` rows.
pub unsafe fn product_experts(
    device: &dyn Device,
    shape: &ExpertShape,
    form: ExpertForm,
    product: ExpertProduct,
    params: &ExpertsParams,
    rows: u32,
) -> Result<(), CudaError> {
    let ExpertShape { ty, per_row, hidden, intermediate, .. } = *shape;
    let params = match product {
        ExpertProduct::Gated(activation) => {
            let (activation, [alpha, limit]) = match activation {
                Activation::Silu => (0, [0.0; 2]),
                Activation::GeluTanh => (1, [0.0; 2]),
                Activation::ClampedSwish { alpha, limit } => (2, [alpha, limit]),
            };
            let (inputs, outputs, sharing) = (hidden, 2 * intermediate, per_row);
            ExpertsParams { inputs, outputs, sharing, activation, alpha, limit, ..*params }
        }
        ExpertProduct::Down => ExpertsParams { inputs: intermediate, outputs: hidden, sharing: 1, ..*params },
    };
    // Kernels count an expert's weights in 32 bits.
    let weights = u64::from(params.inputs) * u64::from(params.outputs);
    assert!(hidden > 0 && intermediate > 0 && weights < u64::from(u32::MAX), "{shape:?}");
    if rows == 0 {
        return Ok(());
    }
    let gated = matches!(product, ExpertProduct::Gated(_));
    // Outputs of a block, those of both halves if gated, and its shared memory.
    let (outputs, shared_bytes) = match form {
        ExpertForm::Few8 | ExpertForm::Few16 => (16, 8 * 4 * 64 * 16 * 2),
        ExpertForm::Tiled => (256, 3 * (64 + 256) * 32 * 2),
        ExpertForm::Plain => (64, 2 * 16 * 68 * 4),
    };
    let groups = match gated {
        true => (params.outputs / 2).div_ceil(outputs / 2),
        false => params.outputs.div_ceil(outputs),
    };
    let launch = Launch {
        kernel: kernel(form, gated, ty),
        grid: form.grid(groups, shape.tiles(form, rows)),
        threads: 256,
        shared_bytes,
        params: params.bytes(),
    };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

fn kernel(form: ExpertForm, gated: bool, ty: Type) -> &'static str {
    match (form, gated) {
        (ExpertForm::Few8, false) => ty.pick("", "experts_few_bf16_1", "experts_few_f16_1"),
        (ExpertForm::Few8, true) => ty.pick("", "experts_gated_few_bf16_1", "experts_gated_few_f16_1"),
        (ExpertForm::Few16, false) => ty.pick("", "experts_few_bf16_2", "experts_few_f16_2"),
        (ExpertForm::Few16, true) => ty.pick("", "experts_gated_few_bf16_2", "experts_gated_few_f16_2"),
        (ExpertForm::Tiled, false) => ty.pick("", "experts_tiled_bf16", "experts_tiled_f16"),
        (ExpertForm::Tiled, true) => ty.pick("", "experts_gated_tiled_bf16", "experts_gated_tiled_f16"),
        (ExpertForm::Plain, false) => {
            ty.pick("experts_plain_float", "experts_plain_bf16", "experts_plain_f16")
        }
        (ExpertForm::Plain, true) => {
            ty.pick("experts_gated_plain_float", "experts_gated_plain_bf16", "experts_gated_plain_f16")
        }
    }
}

/// `out[row] = sum over the row's experts of weight * x[row][expert]`, in ascending order of experts. See `CombineParams`.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device for `rows` rows, at multiples of 16 bytes if widths are multiples of 8.
pub unsafe fn combine(
    device: &dyn Device,
    ty: Type,
    params: &CombineParams,
    rows: u32,
) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    unsafe { launch_sum(device, ty.pick("combine_float", "combine_bf16", "combine_f16"), params, rows) }
}

/// The same times `factor` added to `residual`; then, if there is a `norm`, `out = residual * norm` and `shares_out`, with which
/// the next product scales it, as [`super::product_add`] does. For types that [`super::fuses_norms`] allows.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// As for [`combine`].
pub unsafe fn combine_add(
    device: &dyn Device,
    ty: Type,
    params: &CombineParams,
    rows: u32,
) -> Result<(), CudaError> {
    assert!(fuses_norms(ty) && params.width.is_multiple_of(8), "a sum of {} numbers in {ty:?}", params.width);
    assert!(params.factor != 0.0, "what experts add would be nothing");
    // SAFETY: the caller's promise.
    unsafe { launch_sum(device, "combine_add_bf16", params, rows) }
}

/// # Safety
/// As for [`combine`].
unsafe fn launch_sum(
    device: &dyn Device,
    kernel: &'static str,
    params: &CombineParams,
    rows: u32,
) -> Result<(), CudaError> {
    let grid = [rows, params.width.div_ceil(256 * 8), 1];
    let launch = Launch { kernel, grid, threads: 256, shared_bytes: 0, params: params.bytes() };
    // SAFETY: the caller's promise.
    unsafe { device.launch(launch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ExpertShape =
        ExpertShape { ty: Type::Bf16, experts: 128, per_row: 8, hidden: 2_048, intermediate: 768 };

    #[test]
    fn more_rows_per_expert_take_larger_tiles_but_the_same_ones_if_bits_must_not_depend_on_the_batch() {
        for (rows, form) in [
            (1, ExpertForm::Few8),
            (64, ExpertForm::Few8),
            (65, ExpertForm::Few16),
            (128, ExpertForm::Few16),
            (129, ExpertForm::Tiled),
        ] {
            assert_eq!(SHAPE.form(ProductKind::Fastest, rows), form, "{rows} rows");
            assert_eq!(SHAPE.form(ProductKind::RowByRow, rows), ExpertForm::Tiled);
            for other in [
                ExpertShape { ty: Type::F32, ..SHAPE },
                ExpertShape { hidden: 2_047, ..SHAPE },
                ExpertShape { intermediate: 764, ..SHAPE },
            ] {
                assert_eq!(other.form(ProductKind::Fastest, rows), ExpertForm::Plain);
                assert_eq!(other.form(ProductKind::RowByRow, rows), ExpertForm::Plain);
            }
        }
    }

    /// Every distribution of pairs that has the most tiles: all experts but one have one row more than whole tiles.
    #[test]
    fn there_are_tiles_for_any_choice_and_room_for_those_of_any_form() {
        for (shape, rows) in [(SHAPE, 1), (SHAPE, 15), (SHAPE, 16), (SHAPE, 17), (SHAPE, 2_048)] {
            let pairs = rows * shape.per_row;
            for form in [ExpertForm::Few8, ExpertForm::Few16, ExpertForm::Tiled] {
                let tile = form.tile_rows();
                let mut left = pairs;
                let mut most = 0;
                for expert in 0..shape.experts.min(pairs) {
                    let others = shape.experts.min(pairs) - expert - 1;
                    let own = if others == 0 { left } else { 1 };
                    most += own.div_ceil(tile);
                    left -= own;
                }
                assert!(most <= shape.tiles(form, rows), "{rows} rows, {form:?}");
                assert!(shape.tiles(form, rows) <= pairs, "{rows} rows, {form:?}");
                assert!(16 * shape.tiles(form, rows) as usize <= shape.list_bytes(rows)[3]);
            }
        }
    }

    #[test]
    fn tiles_of_the_longest_step_fit_a_grid_even_if_all_experts_compute_each_row() {
        for experts in [1, 8, 128, MOST_EXPERTS] {
            for per_row in [1, experts] {
                let shape = ExpertShape { experts, per_row, ..SHAPE };
                for rows in [1, 8 * experts / per_row, 65_535] {
                    for kind in [ProductKind::Fastest, ProductKind::RowByRow] {
                        let form = shape.form(kind, rows);
                        let [_, second, third] = form.grid(256, shape.tiles(form, rows));
                        assert!(second.max(third) <= 65_535, "{rows} rows, {per_row} of {experts} experts");
                    }
                }
            }
        }
    }
}
