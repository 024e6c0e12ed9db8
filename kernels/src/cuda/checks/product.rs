//! Matrix products.

use std::sync::Arc;

use super::support::{Effort, compare, numbers, poisoned, rounded, said, tolerance};
use crate::Random;
use crate::cuda::{Device, ProductKind, ProductParams, Type, product};
use crate::reference;

pub(super) fn products(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    let kinds = [ProductKind::Fastest, ProductKind::RowByRow, ProductKind::Own, ProductKind::Vendor];
    for ty in [Type::F32, Type::Bf16, Type::F16] {
        for kind in kinds {
            for rows in [1, random.size(2, 8), random.size(9, 16), random.size(17, 32), random.size(33, 140)]
            {
                let most = effort.pick(200, 3_000);
                let outputs = random.size(1, most);
                // Every third width doesn't fit the tensor cores' fragments.
                let inputs =
                    if random.size(0, 2) == 0 { random.size(1, most) } else { 8 * random.size(1, most / 8) };
                let out_f32 = random.size(0, 1) == 1;
                let what = format!("{ty:?} {kind:?} {rows} x {outputs} x {inputs}, out in f32: {out_f32}");
                let (x, w) = (random.rounded(ty, rows * inputs), random.rounded(ty, outputs * inputs));
                let out_ty = if out_f32 { Type::F32 } else { ty };
                let got = run(device, ty, kind, [&x, &w], [rows, inputs, outputs], out_f32)
                    .map_err(|wrong| format!("{what}: {wrong}"))?;
                // Individual sums may cancel, so a row's error is relative to at least the typical size of its sums.
                let want = reference::matmul(&x, &w, inputs);
                let want: Vec<f32> = want.iter().map(|x| rounded(out_ty, *x)).collect();
                let size = (inputs as f64 / 9.0).sqrt() * (outputs as f64).sqrt();
                compare(&got, &want, outputs).within(tolerance(ty), size, &what)?;
            }
        }
    }
    Ok("three types, four ways, 1 to 140 rows, widths that are multiples of nothing".to_owned())
}

/// A row's bits don't depend on the number of rows, for the kernels that guarantee it.
pub(super) fn rows_alone(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        // Narrow tiles, large tiles, and the kernel for few rows.
        let ways =
            [(ProductKind::RowByRow, 2, 64), (ProductKind::RowByRow, 65, 150), (ProductKind::Own, 2, 32)];
        for (kind, least, most) in ways {
            let (inputs, outputs) =
                (8 * random.size(1, effort.pick(40, 500)), random.size(1, effort.pick(150, 2_000)));
            let rows = random.size(least, most);
            let (x, w) = (random.rounded(ty, rows * inputs), random.rounded(ty, outputs * inputs));
            let together = run(device, ty, kind, [&x, &w], [rows, inputs, outputs], true)?;
            let row = random.size(0, rows - 1);
            let alone = &x[row * inputs..(row + 1) * inputs];
            let alone = run(device, ty, kind, [alone, &w], [1, inputs, outputs], true)?;
            if alone[..] != together[row * outputs..(row + 1) * outputs] {
                return Err(format!(
                    "{ty:?} {kind:?} {rows} x {outputs} x {inputs}: row {row} differs alone"
                ));
            }
        }
    }
    Ok("bits of a row alone and among others".to_owned())
}

fn run(
    device: &Arc<dyn Device>,
    ty: Type,
    kind: ProductKind,
    [x, w]: [&[f32]; 2],
    [rows, inputs, outputs]: [usize; 3],
    out_f32: bool,
) -> Result<Vec<f32>, String> {
    let out_ty = if out_f32 { Type::F32 } else { ty };
    let (x, w) = (numbers(device, ty, x)?, numbers(device, ty, w)?);
    let y = poisoned(device, out_ty, rows * outputs)?;
    let params = ProductParams {
        x: x.at(),
        w: w.at(),
        y: y.at(),
        rows: rows as u32,
        inputs: inputs as u32,
        outputs: outputs as u32,
        out_f32: u32::from(out_f32),
    };
    // SAFETY: shapes as allocated.
    unsafe { product(device.as_ref(), ty, kind, &params) }.map_err(said)?;
    y.read_numbers(out_ty, rows * outputs).map_err(said)
}
