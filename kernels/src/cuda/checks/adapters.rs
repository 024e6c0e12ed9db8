//! What adapters add to products: ragged ranks, adapters of some parts or of none, rows without an adapter, which must keep their
//! bits, and adapters without rows, of which nothing may be read.

use std::sync::Arc;

use super::few::weights;
use super::support::{Effort, compare, indexes, numbers, poisoned, rounded, said, tolerance};
use crate::cuda::{
    ADAPTER_PARTS, AdapterDelta, AdapterLists, AdapterPart, AdapterRows, AdapterShape, AdaptersParams,
    Buffer, Device, ProductKind, Type, add_adapters, padded_rank,
};
use crate::{Random, reference};

/// One projection's matrices, on the host.
struct Part {
    first: usize,
    outputs: usize,
    rank: usize,
    scale: f32,
    narrow: Vec<f32>,
    wide: Vec<f32>,
}

/// A product, its adapters, and a batch.
struct Case {
    ty: Type,
    inputs: usize,
    outputs: usize,
    adapters: Vec<Vec<Part>>,
    /// Of each row.
    chosen: Vec<Option<usize>>,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Case {
    fn random(random: &mut Random, ty: Type, [inputs, most_rank, rows]: [usize; 3], whole: bool) -> Self {
        let projections = random.size(1, ADAPTER_PARTS);
        let width = |random: &mut Random| match whole {
            true => 2 * random.size(1, 90),
            false => random.size(1, 180),
        };
        let widths: Vec<usize> = (0..projections).map(|_| width(random)).collect();
        let adapter = |random: &mut Random| {
            let mut first = 0;
            let mut parts = Vec::new();
            for outputs in &widths {
                if random.size(0, 3) > 0 {
                    let rank = random.size(1, most_rank);
                    let scale = random.one_of(&[0.5, 1.0, 2.0]);
                    let narrow = weights(random, ty, rank, inputs);
                    let wide = weights(random, ty, *outputs, rank);
                    parts.push(Part { first, outputs: *outputs, rank, scale, narrow, wide });
                }
                first += outputs;
            }
            parts
        };
        let count = random.size(1, 5);
        // The last one adds nothing.
        let adapters: Vec<Vec<Part>> = (0..count).map(|_| adapter(random)).chain([Vec::new()]).collect();
        let choice = |random: &mut Random| random.flag().then(|| random.size(0, count));
        let chosen: Vec<_> = (0..rows).map(|_| choice(random)).collect();
        let outputs = widths.iter().sum();
        let (x, y) = (random.rounded(ty, rows * inputs), random.rounded(ty, rows * outputs));
        Self { ty, inputs, outputs, adapters, chosen, x, y }
    }

    /// What an adapter adds, and its matrices, which are not numbers if no row has it.
    fn upload(
        &self,
        device: &Arc<dyn Device>,
        adapter: usize,
    ) -> Result<(AdapterDelta, Vec<Buffer>), String> {
        let used = self.chosen.contains(&Some(adapter));
        let stored = |list: Vec<f32>| match used {
            true => numbers(device, self.ty, &list),
            false => poisoned(device, self.ty, list.len()),
        };
        let (mut narrow, mut matrices) = (Vec::new(), Vec::new());
        let mut delta = AdapterDelta::default();
        for (to, part) in delta.parts.iter_mut().zip(&self.adapters[adapter]) {
            let padded = padded_rank(part.rank);
            narrow.extend_from_slice(&part.narrow);
            narrow.resize(narrow.len() + (padded - part.rank) * self.inputs, 0.0);
            let row = |row: &[f32]| row.iter().copied().chain([0.0; 8]).take(padded).collect::<Vec<f32>>();
            let wide = stored(part.wide.chunks(part.rank).flat_map(row).collect())?;
            delta.ranks += padded as u32;
            *to = AdapterPart {
                wide: wide.at(),
                first: part.first as u32,
                outputs: part.outputs as u32,
                rank: padded as u32,
                scale: part.scale,
            };
            matrices.push(wide);
        }
        let narrow = stored(narrow)?;
        delta.narrow = narrow.at();
        matrices.push(narrow);
        Ok((delta, matrices))
    }

    /// What the kernels make of some rows.
    fn run(
        &self,
        device: &Arc<dyn Device>,
        kind: ProductKind,
        rows: &[usize],
        filled: bool,
    ) -> Result<Vec<f32>, String> {
        let (ty, inputs, outputs) = (self.ty, self.inputs, self.outputs);
        let adapters = (0..self.adapters.len()).map(|adapter| self.upload(device, adapter));
        let adapters: Vec<(AdapterDelta, Vec<Buffer>)> = adapters.collect::<Result<_, _>>()?;
        let bytes: Vec<u8> = adapters.iter().flat_map(|(delta, _)| delta.as_bytes()).copied().collect();
        let deltas = Buffer::from_bytes(device, &bytes).map_err(said)?;
        let parts = || self.adapters.iter().flatten();
        let shape = AdapterShape {
            ty,
            inputs: inputs as u32,
            outputs: outputs as u32,
            ranks: adapters.iter().map(|(delta, _)| delta.ranks).max().unwrap_or(0),
            even: parts().all(|part| part.first.is_multiple_of(2) && part.outputs.is_multiple_of(2)),
        };
        let of = |list: &[f32], width: usize| -> Vec<f32> {
            rows.iter().flat_map(|row| &list[row * width..(row + 1) * width]).copied().collect()
        };
        let y = numbers(device, ty, &of(&self.y, outputs))?;
        let x = numbers(device, ty, &of(&self.x, inputs))?;
        let listed = rows.iter().filter(|row| self.chosen[**row].is_some()).count() as u32;
        let room = if filled { rows.len() as u32 } else { listed };
        let count = adapters.len() as u32;
        let (mut places, mut tiles) = (vec![0; room as usize], vec![0; AdapterRows::tile_words(room, count)]);
        let mut lists = AdapterLists::new(&mut places, &mut tiles, room);
        for adapter in 0..adapters.len() {
            let own = (0..).zip(rows).filter(|(_, row)| self.chosen[**row] == Some(adapter));
            lists.add(adapter as u32, &own.map(|(at, _)| at).collect::<Vec<u32>>());
        }
        let listed = match filled {
            true => lists.filled(AdapterRows::room(room, count)),
            false => lists.exact(),
        };
        let (places, tiles) = (indexes(device, &places)?, indexes(device, &tiles)?);
        let narrow = shape.narrow_bytes(kind, room, device.properties());
        let narrow = poisoned(device, Type::F32, narrow / 4)?;
        let params = AdaptersParams {
            x: x.at(),
            y: y.at(),
            deltas: deltas.at(),
            narrow: narrow.at(),
            places: places.at(),
            tiles: tiles.at(),
            ..AdaptersParams::default()
        };
        if shape.ranks > 0 {
            // SAFETY: shapes as allocated.
            unsafe { add_adapters(device.as_ref(), kind, &shape, listed, &params) }.map_err(said)?;
        }
        y.read_numbers(ty, rows.len() * outputs).map_err(said)
    }

    /// A row by the reference.
    fn row(&self, row: usize) -> Vec<f32> {
        let mut y = self.y[row * self.outputs..][..self.outputs].to_vec();
        let x = &self.x[row * self.inputs..][..self.inputs];
        for part in self.chosen[row].iter().flat_map(|adapter| &self.adapters[*adapter]) {
            let narrow = reference::matmul(x, &part.narrow, self.inputs);
            let narrow: Vec<f32> = narrow.into_iter().map(|x| rounded(self.ty, x)).collect();
            let wide = reference::matmul(&narrow, &part.wide, part.rank);
            y[part.first..].iter_mut().zip(wide).for_each(|(y, added)| *y += part.scale * added);
        }
        y.into_iter().map(|y| rounded(self.ty, y)).collect()
    }

    fn compare(&self, got: &[f32], what: &str) -> Result<(), String> {
        for (row, got) in got.chunks(self.outputs).enumerate() {
            let want = self.row(row);
            let adds = self.chosen[row].is_some_and(|adapter| !self.adapters[adapter].is_empty());
            if !adds && bits(got) != bits(&want) {
                return Err(format!("{what}: row {row} changed, to which nothing is added"));
            }
            compare(got, &want, self.outputs).near(tolerance(self.ty), &format!("{what}, row {row}"))?;
        }
        Ok(())
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

pub(super) fn adapters(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in [Type::F32, Type::Bf16, Type::F16] {
        for case in 0..7 {
            let whole = case < 5;
            // More than one slice; more ranks than are multiplied at once; more rows than small tiles are for.
            let long = case == 1 || case == 6;
            let mut inputs = match long {
                true => 8 * random.size(130, effort.pick(260, 1_800)),
                false => 8 * random.size(1, effort.pick(40, 500)),
            };
            if !whole {
                inputs += random.size(1, 7);
            }
            let most_rank = if case == 2 { 90 } else { random.one_of(&[4, 16, 40]) };
            let rows = match case {
                3 | 4 => random.size(140, effort.pick(160, 900)),
                _ => random.size(1, effort.pick(24, 60)),
            };
            let case = Case::random(random, ty, [inputs, most_rank, rows], whole);
            let (all, filled): (Vec<usize>, bool) = ((0..rows).collect(), random.flag());
            let what =
                format!("{ty:?}, {rows} rows of {inputs}, {} outputs, ranks up to {most_rank}", case.outputs);
            for kind in [ProductKind::Fastest, ProductKind::RowByRow] {
                let what = format!("{what}, {kind:?}, filled up: {filled}");
                let got = case.run(device, kind, &all, filled).map_err(|wrong| format!("{what}: {wrong}"))?;
                case.compare(&got, &what)?;
                if kind == ProductKind::RowByRow {
                    let row = random.size(0, rows - 1);
                    let alone = case.run(device, kind, &[row], true)?;
                    if bits(&got[row * case.outputs..][..case.outputs]) != bits(&alone) {
                        return Err(format!("{what}: row {row} differs alone"));
                    }
                }
            }
        }
    }
    Ok("three types, few rows and many, up to three parts, ragged ranks, rows alone and without adapters"
        .to_owned())
}
