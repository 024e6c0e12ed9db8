//! The product of queries, keys and values with bias, rope and KV writes.

use std::sync::Arc;

use super::few::{inputs, rows, weights};
use super::support::{Effort, Weights, compare, indexes, numbers, poisoned, said, tolerance};
use crate::cuda::{Device, FewParams, KvWriteParams, NONE, Quantized, Type, product_rope};
use crate::{Random, RopeTable, reference};

const EPSILON: f32 = 1e-5;
const POSITIONS: usize = 600;

pub(super) fn writes(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    writes_of(device, effort, random, None)
}

pub(super) fn writes_of_integers(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    writes_of(device, effort, random, Some(Quantized::Int8))?;
    writes_of(device, effort, random, Some(Quantized::Int4))
}

fn writes_of(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
    stored: Option<Quantized>,
) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        for rows in rows(random) {
            for (biased, scaled) in [(false, true), (true, true), (true, false)] {
                let layer = Layer::new(effort, random, (ty, stored), [biased, scaled]);
                let matrix = layer.matrix(device, stored)?;
                let layer = Layer { weights: matrix.numbers.clone(), ..layer };
                let batch = Rows::new(random, &layer, rows);
                let got = layer.run(device, &matrix, &batch)?;
                let Layer { heads, kv_heads, width, inputs, .. } = layer;
                let shape = format!("{heads}/{kv_heads} heads of {width} x {inputs}");
                let what =
                    format!("{ty:?} {stored:?} {rows} rows, {shape}, biased: {biased}, scaled: {scaled}");
                layer.compare(&got, &batch, &what)?;
                let row = random.size(0, rows - 1);
                let alone = layer.run(device, &matrix, &batch.only(row))?;
                if layer.bits(&got, &batch, row) != layer.bits(&alone, &batch.only(row), 0) {
                    return Err(format!("{what}: row {row} has other bits alone"));
                }
            }
        }
    }
    Ok("two types, eight widths, 1 to 32 rows, with and without bias and scale, padding; nothing else written"
        .to_owned())
}

/// A projection to queries, keys and values.
struct Layer {
    ty: Type,
    heads: usize,
    kv_heads: usize,
    /// Dimensions of a head.
    width: usize,
    inputs: usize,
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// Whether inputs lack the scale of their norm.
    scaled: bool,
    frequencies: Vec<f32>,
    block_size: usize,
    /// Slots of the pool.
    slots: usize,
}

/// What it projects, and where to.
#[derive(Clone)]
struct Rows {
    inputs: Vec<Vec<f32>>,
    /// Shares of the sums of squares.
    squares: Vec<Vec<f32>>,
    positions: Vec<u32>,
    slots: Vec<u32>,
}

/// In rows and slots.
struct Written {
    qkv: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Rows {
    fn new(random: &mut Random, layer: &Layer, rows: usize) -> Self {
        let mut slots: Vec<u32> = (0..rows as u32).map(|row| 2 * row + (row & 1)).collect();
        let mut positions: Vec<u32> = (0..rows).map(|_| random.size(0, POSITIONS - 1) as u32).collect();
        if rows > 2 {
            let unused = random.size(0, rows - 1);
            (slots[unused], positions[unused]) = (NONE, NONE);
        }
        Self {
            inputs: (0..rows).map(|_| random.rounded(layer.ty, layer.inputs)).collect(),
            squares: (0..rows)
                .map(|_| {
                    let shares = random.numbers(layer.inputs.div_ceil(16));
                    shares.into_iter().map(|share| 16.0 * share.abs()).collect()
                })
                .collect(),
            positions,
            slots,
        }
    }

    fn only(&self, row: usize) -> Self {
        Self {
            inputs: vec![self.inputs[row].clone()],
            squares: vec![self.squares[row].clone()],
            positions: vec![self.positions[row]],
            slots: vec![self.slots[row]],
        }
    }
}

impl Layer {
    fn new(
        effort: Effort,
        random: &mut Random,
        (ty, stored): (Type, Option<Quantized>),
        [biased, scaled]: [bool; 2],
    ) -> Self {
        let kv_heads = random.size(1, 3);
        let heads = kv_heads * random.size(1, effort.pick(3, 8));
        let width = random.one_of(&[16, 32, 48, 64, 80, 96, 128, 256]);
        let inputs = inputs(random, effort.pick(20, 500), stored);
        let outputs = (heads + 2 * kv_heads) * width;
        let block_size = random.one_of(&[1, 5, 16, 32]);
        Self {
            ty,
            heads,
            kv_heads,
            width,
            inputs,
            weights: weights(random, ty, outputs, inputs),
            bias: biased.then(|| random.numbers(outputs)),
            scaled,
            frequencies: (0..width / 2).map(|i| 1.0 / (1.0 + i as f32 * 3.0)).collect(),
            block_size,
            slots: 66_usize.next_multiple_of(block_size),
        }
    }

    /// The weights as they are stored.
    fn matrix(&self, device: &Arc<dyn Device>, stored: Option<Quantized>) -> Result<Weights, String> {
        Weights::new(device, (self.ty, stored), &self.weights, self.inputs, false)
    }

    fn outputs(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.width
    }

    /// Where a head's keys or values begin in the pool.
    fn place(&self, slot: u32, kv_head: usize) -> usize {
        let (block, offset) = (slot as usize / self.block_size, slot as usize % self.block_size);
        ((block * self.kv_heads + kv_head) * self.block_size + offset) * self.width
    }

    fn run(&self, device: &Arc<dyn Device>, matrix: &Weights, batch: &Rows) -> Result<Written, String> {
        let (rows, outputs) = (batch.inputs.len(), self.outputs());
        let rope = RopeTable::new(&self.frequencies, POSITIONS, 1.0);
        let table: Vec<f32> =
            (0..POSITIONS as u32).flat_map(|at| [rope.at(at).0, rope.at(at).1].concat()).collect();
        let x = numbers(device, self.ty, &batch.inputs.concat())?;
        let squares = numbers(device, Type::F32, &batch.squares.concat())?;
        let bias = numbers(device, Type::F32, self.bias.as_deref().unwrap_or(&[0.0]))?;
        let rope = numbers(device, Type::F32, &table)?;
        let (positions, slots) = (indexes(device, &batch.positions)?, indexes(device, &batch.slots)?);
        let pool = self.slots * self.kv_heads * self.width;
        let [qkv, keys, values] =
            [rows * outputs, pool, pool].map(|numbers| poisoned(device, self.ty, numbers));
        let (qkv, keys, values) = (qkv?, keys?, values?);
        let few = FewParams {
            x: x.at(),
            w: matrix.at(),
            squares: if self.scaled { squares.at() } else { 0 },
            rows: rows as u32,
            inputs: self.inputs as u32,
            outputs: outputs as u32,
            epsilon: EPSILON,
            ..FewParams::default()
        };
        let write = KvWriteParams {
            qkv: qkv.at(),
            keys: keys.at(),
            values: values.at(),
            bias: if self.bias.is_some() { bias.at() } else { 0 },
            rope: rope.at(),
            positions: positions.at(),
            slots: slots.at(),
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.width as u32,
            block_size: self.block_size as u32,
            tokens: rows as u32,
            ..KvWriteParams::default()
        };
        // SAFETY: shapes as allocated.
        unsafe { product_rope(device.as_ref(), matrix.factors, &few, &write) }.map_err(said)?;
        let read = |buffer: &crate::cuda::Buffer, count| buffer.read_numbers(self.ty, count).map_err(said);
        Ok(Written {
            qkv: read(&qkv, rows * outputs)?,
            keys: read(&keys, pool)?,
            values: read(&values, pool)?,
        })
    }

    /// What a row should have written, NaN elsewhere.
    fn expected(&self, batch: &Rows) -> Written {
        let (outputs, width) = (self.outputs(), self.width);
        let pool = self.slots * self.kv_heads * width;
        let [mut qkv, mut keys, mut values] =
            [batch.inputs.len() * outputs, pool, pool].map(|numbers| vec![f32::NAN; numbers]);
        for (row, x) in batch.inputs.iter().enumerate().filter(|(row, _)| batch.slots[*row] != NONE) {
            let squares: f32 = batch.squares[row].iter().sum();
            let scale = if self.scaled { 1.0 / (squares / self.inputs as f32 + EPSILON).sqrt() } else { 1.0 };
            let x: Vec<f32> = x.iter().map(|x| x * scale).collect();
            let mut y = reference::matmul(&x, &self.weights, self.inputs);
            if let Some(bias) = &self.bias {
                y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
            for (head, y) in y.chunks(width).enumerate() {
                let roped = reference::rope(y, &self.frequencies, batch.positions[row]);
                if head < self.heads {
                    qkv[row * outputs + head * width..][..width].copy_from_slice(&roped);
                    continue;
                }
                let kv_head = (head - self.heads) % self.kv_heads;
                let place = self.place(batch.slots[row], kv_head);
                match head < self.heads + self.kv_heads {
                    true => keys[place..][..width].copy_from_slice(&roped),
                    false => values[place..][..width].copy_from_slice(y),
                }
            }
        }
        Written { qkv, keys, values }
    }

    fn compare(&self, got: &Written, batch: &Rows, what: &str) -> Result<(), String> {
        let want = self.expected(batch);
        let width = self.width;
        for (name, got, want) in [
            ("queries", &got.qkv, &want.qkv),
            ("keys", &got.keys, &want.keys),
            ("values", &got.values, &want.values),
        ] {
            for (place, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
                if !want[0].is_nan() {
                    compare(got, want, width)
                        .near(tolerance(self.ty), &format!("{what}, {name} at {place}"))?;
                } else if got.iter().any(|x| !x.is_nan()) {
                    return Err(format!("{what}: unused {name} at {place} were written"));
                }
            }
        }
        Ok(())
    }

    /// All that a row wrote.
    fn bits(&self, written: &Written, batch: &Rows, row: usize) -> Vec<u32> {
        let mut numbers = written.qkv[row * self.outputs()..][..self.heads * self.width].to_vec();
        if batch.slots[row] != NONE {
            for kv_head in 0..self.kv_heads {
                let place = self.place(batch.slots[row], kv_head);
                numbers.extend(&written.keys[place..][..self.width]);
                numbers.extend(&written.values[place..][..self.width]);
            }
        }
        numbers.into_iter().map(f32::to_bits).collect()
    }
}
