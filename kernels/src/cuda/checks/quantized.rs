//! Weights that stay integers: products with them, and where they are widened.

use std::sync::Arc;

use super::few::{rows, weights};
use super::support::{Effort, Weights, compare, indexes, numbers, poisoned, said, tolerance};
use crate::cuda::{
    Buffer, Device, Factors, NONE, ProductKind, ProductParams, Quantized, Type, embed_integers,
    fill_integers, product, widen,
};
use crate::{GROUP, Random, reference};

const STORED: [Quantized; 2] = [Quantized::Int8, Quantized::Int4];
const TYPES: [Type; 2] = [Type::Bf16, Type::F16];

/// Rows of a table are the integers' weights exactly, times the scale.
pub(super) fn embeddings(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for stored in STORED {
        // Also by more than one block.
        let width = [GROUP * random.size(1, effort.pick(10, 128)), 2_048 + GROUP * random.size(1, 10)]
            [random.size(0, 1)];
        let (vocab, count) = (random.size(1, 100), random.size(1, effort.pick(9, 300)));
        let table =
            Weights::new(device, (Type::Bf16, Some(stored)), &random.numbers(vocab * width), width, false)?;
        let mut tokens: Vec<u32> = (0..count).map(|_| random.size(0, vocab - 1) as u32).collect();
        tokens[0] = NONE;
        let scale = 3.5;
        let (given, out) = (indexes(device, &tokens)?, poisoned(device, Type::F32, count * width)?);
        let places = [table.at(), given.at(), out.at()];
        // SAFETY: shapes as allocated.
        unsafe { embed_integers(device.as_ref(), stored, places, (width as u32, scale), count as u32) }
            .map_err(said)?;
        let want: Vec<f32> = tokens
            .iter()
            .flat_map(|token| {
                let row = |i| table.numbers[*token as usize * width + i];
                (0..width).map(move |i| if *token == NONE { 0.0 } else { row(i) * scale })
            })
            .collect();
        if out.read_numbers(Type::F32, count * width).map_err(said)? != want {
            return Err(format!("{stored:?}, {count} rows of {width}: the rows differ"));
        }
    }
    Ok("8 and 4 bits, padding".to_owned())
}

/// A widened matrix is that of the host, rounded; and one that is filled at random has weights within its range.
pub(super) fn widened(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for (stored, ty) in STORED.into_iter().flat_map(|stored| TYPES.map(|ty| (stored, ty))) {
        let (outputs, inputs) = (random.size(1, effort.pick(90, 2_000)), GROUP * random.size(1, 12));
        let what = format!("{stored:?} {ty:?} {outputs} x {inputs}");
        let given = random.numbers(outputs * inputs);
        let matrix = Weights::new(device, (ty, Some(stored)), &given, inputs, false)?;
        let sides = [outputs as u32, inputs as u32];
        let out = poisoned(device, ty, outputs * inputs)?;
        // SAFETY: shapes as allocated.
        unsafe { widen(device.as_ref(), (ty, stored), [matrix.at(), out.at()], sides) }.map_err(said)?;
        let mut want = Vec::new();
        matrix.numbers.iter().for_each(|number| ty.write(*number, &mut want));
        if out.read(outputs * inputs * ty.bytes()).map_err(said)? != want {
            return Err(format!("{what}: the numbers differ"));
        }
        let filled = poisoned(device, Type::F16, stored.bytes([outputs, inputs]) / 2)?;
        // SAFETY: as above.
        unsafe {
            fill_integers(device.as_ref(), stored, filled.at(), [outputs, inputs], (7, 0.25))
                .and_then(|()| widen(device.as_ref(), (ty, stored), [filled.at(), out.at()], sides))
        }
        .map_err(said)?;
        let filled = out.read_numbers(ty, outputs * inputs).map_err(said)?;
        let square = filled.iter().map(|x| x * x).sum::<f32>() / filled.len() as f32;
        // Evenly distributed numbers have a third of the largest square.
        let is_even = filled.len() < 1_000 || (0.25_f32.powi(2) / 3.0 / square).ln().abs() < 0.3;
        if !filled.iter().all(|x| x.abs() <= 0.2501) || !is_even {
            return Err(format!("{what}: random weights with a mean square of {square}"));
        }
    }
    Ok("8 and 4 bits, two types, bit by bit; random ones".to_owned())
}

/// Few rows get the sums of unrounded weights; many rows those of widened ones, or the same as few if there is no memory to
/// widen.
pub(super) fn products(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    let kinds = [ProductKind::Fastest, ProductKind::RowByRow, ProductKind::Own, ProductKind::Vendor];
    for (stored, ty) in STORED.into_iter().flat_map(|stored| TYPES.map(|ty| (stored, ty))) {
        for rows in rows(random).into_iter().chain([random.size(33, 140)]) {
            let kind = random.one_of(&kinds);
            let (outputs, inputs) =
                (random.size(1, effort.pick(200, 3_000)), GROUP * random.size(1, effort.pick(9, 90)));
            let (with_scratch, out_f32) = (random.flag(), random.flag());
            let what =
                format!("{stored:?} {ty:?} {kind:?} {rows} x {outputs} x {inputs}, widened {with_scratch}");
            let case = Case::new(device, random, (ty, stored), [rows, inputs, outputs])?;
            let got = case.run(device, kind, &case.x, (with_scratch, out_f32))?;
            let want = reference::matmul(&case.x, &case.matrix.numbers, inputs);
            let is_widened = with_scratch && (rows > 32 || kind == ProductKind::RowByRow);
            let rounded = is_widened || !out_f32;
            let tolerance = if rounded { tolerance(ty) } else { tolerance(Type::F32) };
            compare(&got, &want, outputs).near(tolerance, &what)?;
        }
    }
    Ok("8 and 4 bits, two types, four ways, 1 to 140 rows, with and without memory to widen".to_owned())
}

/// A row's bits don't depend on the number of rows: up to 32, without memory to widen, and widened for products row by row.
pub(super) fn rows_alone(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for (stored, ty) in STORED.into_iter().flat_map(|stored| TYPES.map(|ty| (stored, ty))) {
        let ways = [
            (ProductKind::Own, 32, false),
            (ProductKind::RowByRow, 90, false),
            (ProductKind::RowByRow, 90, true),
        ];
        for (kind, most, with_scratch) in ways {
            let (outputs, inputs) =
                (random.size(1, effort.pick(150, 2_000)), GROUP * random.size(1, effort.pick(9, 90)));
            let rows = random.size(2, most);
            let case = Case::new(device, random, (ty, stored), [rows, inputs, outputs])?;
            let together = case.run(device, kind, &case.x, (with_scratch, true))?;
            let row = random.size(0, rows - 1);
            let alone = case.run(device, kind, &case.x[row * inputs..][..inputs], (with_scratch, true))?;
            if alone[..] != together[row * outputs..][..outputs] {
                return Err(format!(
                    "{stored:?} {ty:?} {kind:?} {rows} x {outputs} x {inputs}, widened {with_scratch}: row {row} differs \
                     alone"
                ));
            }
        }
    }
    Ok("bits of a row alone and among others".to_owned())
}

/// A matrix and rows.
struct Case {
    matrix: Weights,
    x: Vec<f32>,
    /// For its numbers.
    scratch: Buffer,
    inputs: usize,
    outputs: usize,
}

impl Case {
    fn new(
        device: &Arc<dyn Device>,
        random: &mut Random,
        (ty, stored): (Type, Quantized),
        [rows, inputs, outputs]: [usize; 3],
    ) -> Result<Self, String> {
        let given = weights(random, Type::F32, outputs, inputs);
        Ok(Self {
            matrix: Weights::new(device, (ty, Some(stored)), &given, inputs, false)?,
            x: random.rounded(ty, rows * inputs),
            scratch: poisoned(device, ty, outputs * inputs)?,
            inputs,
            outputs,
        })
    }

    fn run(
        &self,
        device: &Arc<dyn Device>,
        kind: ProductKind,
        x: &[f32],
        (with_scratch, out_f32): (bool, bool),
    ) -> Result<Vec<f32>, String> {
        let Factors { ty, .. } = self.matrix.factors;
        let scratch = if with_scratch { self.scratch.at() } else { 0 };
        let factors = Factors { scratch, ..self.matrix.factors };
        let (rows, out_ty) = (x.len() / self.inputs, if out_f32 { Type::F32 } else { ty });
        let (x, y) = (numbers(device, ty, x)?, poisoned(device, out_ty, rows * self.outputs)?);
        let params = ProductParams {
            x: x.at(),
            w: self.matrix.at(),
            y: y.at(),
            rows: rows as u32,
            inputs: self.inputs as u32,
            outputs: self.outputs as u32,
            out_f32: u32::from(out_f32),
        };
        // SAFETY: shapes as allocated.
        unsafe { product(device.as_ref(), factors, kind, &params) }.map_err(said)?;
        y.read_numbers(out_ty, rows * self.outputs).map_err(said)
    }
}
