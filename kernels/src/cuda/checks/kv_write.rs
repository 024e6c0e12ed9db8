//! Rope, biases and norms of heads, and keys and values in their slots.

use std::sync::Arc;

use super::support::{Effort, compare, indexes, numbers, poisoned, said, tolerance};
use crate::cuda::{Buffer, Device, KvWriteParams, NONE, Type, kv_write, kv_write_whole};
use crate::{Random, RopeTable, reference};

const TYPES: [Type; 3] = [Type::F32, Type::Bf16, Type::F16];
/// Of the table of angles.
const POSITIONS: u32 = 600;

/// Rows of queries, keys and values, what is done to them, and where keys and values go.
struct Rows {
    ty: Type,
    heads: usize,
    kv_heads: usize,
    /// Dimensions of a head.
    width: usize,
    qkv: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// Of queries and of keys.
    norms: Option<[Vec<f32>; 2]>,
    /// Whether a norm is that of all heads together, and not of each.
    whole: bool,
    frequencies: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    block_size: usize,
    /// Of the pool.
    blocks: usize,
}

/// What the kernel wrote, or should have written; NaN elsewhere in the pool.
struct Written {
    qkv: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Rows {
    const EPSILON: f32 = 1e-6;

    fn new(random: &mut Random, effort: Effort, ty: Type, case: usize) -> Self {
        let (with_bias, with_norm, whole) = (case & 1 > 0, case >= 2, case >= 4);
        let kv_heads = random.size(1, 3);
        let heads = kv_heads * random.size(1, 5);
        // A lane has eight pairs, or at widths that are no multiples of 16 a few single ones.
        let width = random.one_of(&[16, 64, 80, 96, 128, 256, 2, 72, 250]);
        let block_size = random.one_of(&[1, 5, 16, 32]);
        let tokens = random.size(1, effort.pick(5, 300));
        let all = heads + 2 * kv_heads;
        let qkv = random.rounded(ty, tokens * all * width);
        let bias = with_bias.then(|| random.rounded(Type::F32, all * width));
        let of_norm = |heads: usize| if whole { heads * width } else { width };
        let norms =
            with_norm.then(|| [heads, kv_heads].map(|heads| random.rounded(Type::F32, of_norm(heads))));
        let last = POSITIONS as usize - 1;
        let mut positions: Vec<u32> = (0..tokens).map(|_| random.size(0, last) as u32).collect();
        let mut slots: Vec<u32> = (0..tokens).map(|t| 2 * t as u32 + (t as u32 & 1)).collect();
        if tokens > 2 {
            (slots[1], positions[1]) = (NONE, NONE);
        }
        Self {
            ty,
            heads,
            kv_heads,
            width,
            qkv,
            bias,
            norms,
            whole,
            frequencies: (0..width / 2).map(|i| 1.0 / (1.0 + i as f32 * 3.0)).collect(),
            positions,
            slots,
            block_size,
            blocks: (2 * tokens).div_ceil(block_size) + 1,
        }
    }

    fn row_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.width
    }

    fn pool_numbers(&self) -> usize {
        self.blocks * self.block_size * self.kv_heads * self.width
    }

    fn run(&self, device: &Arc<dyn Device>) -> Result<Written, String> {
        let rope = RopeTable::new(&self.frequencies, POSITIONS as usize, 1.0);
        let table: Vec<f32> = (0..POSITIONS).flat_map(|at| [rope.at(at).0, rope.at(at).1].concat()).collect();
        let of_f32 = |given: &[f32]| numbers(device, Type::F32, given);
        let bias = self.bias.as_deref().map(of_f32).transpose()?;
        let [q_norm, k_norm] =
            [0, 1].map(|which: usize| self.norms.as_ref().map(|norms| of_f32(&norms[which])).transpose());
        let (q_norm, k_norm) = (q_norm?, k_norm?);
        let (qkv, rope) = (numbers(device, self.ty, &self.qkv)?, of_f32(&table)?);
        let (positions, slots) = (indexes(device, &self.positions)?, indexes(device, &self.slots)?);
        let pool = self.pool_numbers();
        let (keys, values) = (poisoned(device, self.ty, pool)?, poisoned(device, self.ty, pool)?);
        let at = |given: &Option<Buffer>| given.as_ref().map_or(0, Buffer::at);
        let params = KvWriteParams {
            qkv: qkv.at(),
            keys: keys.at(),
            values: values.at(),
            bias: at(&bias),
            q_norm: at(&q_norm),
            k_norm: at(&k_norm),
            rope: rope.at(),
            positions: positions.at(),
            slots: slots.at(),
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.width as u32,
            block_size: self.block_size as u32,
            epsilon: Self::EPSILON,
            tokens: self.slots.len() as u32,
        };
        let launch = if self.whole { kv_write_whole } else { kv_write };
        // SAFETY: shapes as allocated.
        unsafe { launch(device.as_ref(), self.ty, &params) }.map_err(said)?;
        let read = |buffer: &Buffer, count| buffer.read_numbers(self.ty, count).map_err(said);
        Ok(Written {
            qkv: read(&qkv, self.qkv.len())?,
            keys: read(&keys, pool)?,
            values: read(&values, pool)?,
        })
    }

    /// A row with its bias and its norms.
    fn normed(&self, token: usize) -> Vec<f32> {
        let mut row = self.qkv[token * self.row_width()..][..self.row_width()].to_vec();
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        if let Some([q_norm, k_norm]) = &self.norms {
            let (queries, others) = row.split_at_mut(self.heads * self.width);
            let keys = &mut others[..self.kv_heads * self.width];
            for (numbers, weight) in [(queries, q_norm), (keys, k_norm)] {
                for numbers in numbers.chunks_mut(weight.len()) {
                    numbers.copy_from_slice(&reference::rms_norm(numbers, weight, Self::EPSILON));
                }
            }
        }
        row
    }

    fn expected(&self) -> Written {
        let (heads, kv_heads, width) = (self.heads, self.kv_heads, self.width);
        let [keys, values] = [0; 2].map(|_| vec![f32::NAN; self.pool_numbers()]);
        let mut written = Written { qkv: self.qkv.clone(), keys, values };
        for (token, slot) in self.slots.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            for (head, x) in self.normed(token).chunks(width).enumerate() {
                let is_value = head >= heads + kv_heads;
                let x = match is_value {
                    true => x.to_vec(),
                    false => reference::rope(x, &self.frequencies, self.positions[token]),
                };
                if head < heads {
                    written.qkv[token * self.row_width() + head * width..][..width].copy_from_slice(&x);
                    continue;
                }
                let (slot, kv_head) = (*slot as usize, (head - heads) % kv_heads);
                let (block, offset) = (slot / self.block_size, slot % self.block_size);
                let place = ((block * kv_heads + kv_head) * self.block_size + offset) * width;
                let pool = if is_value { &mut written.values } else { &mut written.keys };
                pool[place..place + width].copy_from_slice(&x);
            }
        }
        written
    }

    fn compare(&self, got: &Written, what: &str) -> Result<(), String> {
        let (want, width, tolerance) = (self.expected(), self.width, tolerance(self.ty));
        compare(&got.qkv, &want.qkv, width).close(tolerance, &format!("{what}, queries"))?;
        for (name, got, want) in [("keys", &got.keys, &want.keys), ("values", &got.values, &want.values)] {
            for (place, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
                if !want[0].is_nan() {
                    compare(got, want, width).close(tolerance, &format!("{what}, {name} at {place}"))?;
                } else if got.iter().any(|x| !x.is_nan()) {
                    return Err(format!("{what}: unused {name} at {place} were written"));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn writes(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in TYPES {
        for case in 0..6 {
            let rows = Rows::new(random, effort, ty, case);
            let Rows { heads, kv_heads, width, .. } = &rows;
            let what = format!(
                "{ty:?} {} tokens, {heads}/{kv_heads} heads of {width}, case {case}",
                rows.slots.len()
            );
            rows.compare(&rows.run(device)?, &what)?;
        }
    }
    Ok("three types, nine widths, bias, norms of heads and of all together, padding; nothing else written"
        .to_owned())
}
