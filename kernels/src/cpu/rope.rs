//! Rotary position embedding (Su et al. 2021), in the half-split layout of Hugging Face checkpoints: dimensions `i` and
//! `i + head_dim / 2` are rotated together. Angles come from tables; the model applies scaling rules.

use super::{Cpu, Shared};
use crate::Rows;
use crate::element::Element;
use crate::paged::PagedLayer;
use crate::simd::{Isa, Simd, on_isa};

/// Cosines and sines of every position, in f32 for all weight formats.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    /// For each position its cosines, then its sines.
    table: Vec<f32>,
}

impl RopeTable {
    /// Computes tables for `positions` positions; `scale` multiplies both functions. Pairs whose frequency is 0 stay as they
    /// are, unscaled, too.
    pub fn new(inverse_frequencies: &[f32], positions: usize, scale: f32) -> Self {
        let half = inverse_frequencies.len();
        let mut table = Vec::with_capacity(2 * half * positions);
        for position in 0..positions {
            // Round the angle to f32, as the checkpoints' reference code does, but compute its functions in f64.
            let angles = inverse_frequencies.iter().map(|f| (*f, f64::from(position as f32 * f)));
            let cosine = |(f, angle): (f32, f64)| if f == 0.0 { 1.0 } else { angle.cos() as f32 * scale };
            table.extend(angles.clone().map(cosine));
            table.extend(angles.map(|(_, angle)| angle.sin() as f32 * scale));
        }
        Self { half, table }
    }

    /// Numbers of a head.
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Cosines and sines of a position.
    ///
    /// # Panics
    /// If the table does not reach that far.
    pub fn at(&self, position: u32) -> (&[f32], &[f32]) {
        self.table[position as usize * 2 * self.half..][..2 * self.half].split_at(self.half)
    }
}

/// Queries, keys and values of tokens, side by side in dense rows, and where the tokens are.
#[derive(Debug)]
pub struct Qkv<'a> {
    /// Rows of `(heads + 2 * kv_heads) * head_dim`.
    pub data: &'a mut [f32],
    /// Query heads.
    pub heads: usize,
    /// Key heads, and as many value heads.
    pub kv_heads: usize,
    /// Each token's position.
    pub positions: &'a [u32],
    /// Rotates queries and keys; defines the width of a head.
    pub rope: &'a RopeTable,
}

impl Qkv<'_> {
    /// Queries of all tokens.
    pub fn q(&self) -> Rows<'_> {
        self.part(0, self.heads)
    }

    /// Keys of all tokens.
    pub fn k(&self) -> Rows<'_> {
        self.part(self.heads, self.kv_heads)
    }

    /// Values of all tokens.
    pub fn v(&self) -> Rows<'_> {
        self.part(self.heads + self.kv_heads, self.kv_heads)
    }

    fn part(&self, first: usize, heads: usize) -> Rows<'_> {
        let width = self.rope.head_dim();
        Rows { data: self.data, offset: first * width, stride: self.stride(), width: heads * width }
    }

    fn stride(&self) -> usize {
        let heads = self.kv_heads.checked_mul(2).and_then(|heads| heads.checked_add(self.heads));
        heads.and_then(|heads| heads.checked_mul(self.rope.head_dim())).expect("a row lies in memory")
    }

    fn check(&self) {
        let numbers = self.positions.len().checked_mul(self.stride());
        assert_eq!(Some(self.data.len()), numbers, "one row per position");
    }
}

impl Cpu {
    /// Rotates queries and keys in place.
    ///
    /// # Panics
    /// If a position is beyond the table or lengths disagree.
    pub fn rope(&self, qkv: &mut Qkv<'_>) {
        self.turn_heads(qkv, |_, _| {});
    }

    /// Rotates queries and keys in place, and stores keys and values at `slots` as [`PagedLayer::write`] does.
    ///
    /// # Panics
    /// If a position is beyond the table, a slot beyond the pool, or shapes disagree.
    pub fn rope_and_store<T: Element>(&self, qkv: &mut Qkv<'_>, slots: &[u32], layer: &mut PagedLayer<T>) {
        let (width, layout) = (qkv.rope.head_dim(), *layer.layout());
        assert!(
            layout.head_dim == width && layout.kv_heads == qkv.kv_heads,
            "heads must be those of the pool"
        );
        assert_eq!(slots.len(), qkv.positions.len(), "one slot per token");
        let pool = layer.heads(slots);
        let (stride, values) = (qkv.stride(), qkv.kv_heads * width);
        self.turn_heads(qkv, |head, keys| {
            for (token, slot) in slots.iter().enumerate() {
                // SAFETY: rows were checked and the value is as far behind the key; this head is one item.
                unsafe {
                    let key = keys.add(token * stride).cast_const();
                    let value = std::slice::from_raw_parts(key.add(values), width);
                    pool.store(*slot, head, std::slice::from_raw_parts(key, width), value);
                }
            }
        });
    }

    /// Rotates all heads, each on one thread, and passes key heads to `then` with their first row.
    fn turn_heads(&self, qkv: &mut Qkv<'_>, then: impl Fn(usize, *mut f32) + Sync) {
        qkv.check();
        let (heads, stride, width) = (qkv.heads, qkv.stride(), qkv.rope.head_dim());
        let (positions, rope, isa) = (qkv.positions, qkv.rope, self.isa);
        let data = Shared(qkv.data.as_mut_ptr());
        self.for_each(heads + qkv.kv_heads, 4 * positions.len() * stride, |head| {
            // Without tokens nothing is read here.
            let first = data.get().wrapping_add(head * width);
            turn_rows(isa, first, stride, positions, rope);
            if head >= heads {
                then(head - heads, first);
            }
        });
    }
}

fn turn_rows(isa: Isa, first: *mut f32, stride: usize, positions: &[u32], rope: &RopeTable) {
    on_isa!(isa, turn_lanes(first: *mut f32, stride: usize, positions: &[u32], rope: &RopeTable));
}

#[inline(always)]
fn turn_lanes<S: Simd>(_: S, first: *mut f32, stride: usize, positions: &[u32], rope: &RopeTable) {
    for (row, position) in positions.iter().enumerate() {
        // SAFETY: `turn_heads` checked that each row has the head, which this call alone uses.
        let head = unsafe { std::slice::from_raw_parts_mut(first.add(row * stride), rope.head_dim()) };
        let (cos, sin) = rope.at(*position);
        let (low, high) = head.split_at_mut(cos.len());
        for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let (x, y) = (*low, *high);
            *low = x * cos - y * sin;
            *high = y * cos + x * sin;
        }
    }
}
