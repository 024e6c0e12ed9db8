//! Attention of several consecutive tokens of one sequence: a chunk of a prompt. Each tile of the context is widened once
//! into scratch that stays in the L1 and L2 caches, where all tokens and all query heads of the group read it. The work is
//! then two small dense products with the softmax between them.
//!
//! A row goes through the same operations in the same order as in `attention`, which reads the pool directly for single
//! tokens, so its bits are the same. Tokens whose window starts within a tile use that code for the tile, and finished pieces
//! are merged the same way.

use std::mem::MaybeUninit;

use super::attention::{Context, MAX_HEAD_DIM, TILE, soften};
use super::piece::{Head, PIECE, merge, whole};
use super::tile::{accumulate, scores};
use crate::element::Element;
use crate::simd::{LANES, Simd, vectors};

/// Rows (tokens times query heads of a group) that share a tile.
pub(super) const ROWS: usize = 64;
/// Tokens that share a tile.
pub(super) const TOKENS: usize = 16;
/// Numbers from one dimension's keys of a tile to the next. Padded so that a vector load at the last position stays inside.
const KEY_STRIDE: usize = TILE + LANES;

/// Query heads of a group, of consecutive tokens. Public only inside a sealed trait.
#[derive(Clone, Copy)]
pub struct Queries {
    /// First query of the first token, followed by the others of its group.
    pub(super) q: *const f32,
    /// Numbers from one token's queries to the next token's.
    pub(super) q_stride: usize,
    /// Where results go, in the same layout.
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
    pub(super) tokens: usize,
    /// Query heads of the group.
    pub(super) group: usize,
}

/// State of a block of rows while it goes through the tiles. Nothing is read before it was written.
struct State {
    keys: [MaybeUninit<f32>; MAX_HEAD_DIM * KEY_STRIDE],
    values: [MaybeUninit<f32>; TILE * MAX_HEAD_DIM],
    weights: [[MaybeUninit<f32>; TILE + LANES]; ROWS],
    /// Softmax state of the current piece.
    sums: [MaybeUninit<f32>; ROWS * MAX_HEAD_DIM],
    largest: [f32; ROWS],
    total: [f32; ROWS],
    /// Softmax state of the pieces before it.
    before: [MaybeUninit<f32>; ROWS * MAX_HEAD_DIM],
    before_largest: [f32; ROWS],
    before_total: [f32; ROWS],
    decay: [f32; ROWS],
}

/// Attends the tokens; the first is at `context.position`.
///
/// # Safety
/// The queries and results exist, and no other thread accesses the results.
#[inline(always)]
pub(super) unsafe fn attend<S: Simd, T: Element>(simd: S, context: &Context<'_, T>, queries: Queries) {
    let Queries { tokens, group, .. } = queries;
    assert!(tokens * group <= ROWS, "a block has at most {ROWS} rows");
    let width = context.layer.layout().head_dim;
    let mut state = State {
        keys: [const { MaybeUninit::uninit() }; MAX_HEAD_DIM * KEY_STRIDE],
        values: [const { MaybeUninit::uninit() }; TILE * MAX_HEAD_DIM],
        weights: [const { [const { MaybeUninit::uninit() }; TILE + LANES] }; ROWS],
        sums: [const { MaybeUninit::uninit() }; ROWS * MAX_HEAD_DIM],
        largest: [f32::NEG_INFINITY; ROWS],
        total: [0.0; ROWS],
        before: [const { MaybeUninit::uninit() }; ROWS * MAX_HEAD_DIM],
        before_largest: [f32::NEG_INFINITY; ROWS],
        before_total: [0.0; ROWS],
        decay: [0.0; ROWS],
    };
    let stride = width.next_multiple_of(LANES);
    state.sums[..tokens * group * stride].fill(MaybeUninit::new(0.0));
    state.before[..tokens * group * stride].fill(MaybeUninit::new(0.0));
    let mut block = Block { simd, context, queries, width, stride, state: &mut state };
    let position = |token: usize| context.position as usize + token;
    let first = |token: usize| context.params.first_position(position(token) as u32) as usize;
    for start in (first(0) / TILE * TILE..=position(tokens - 1)).step_by(TILE) {
        // Tokens that see the tile from its start come first, then those that see only its end.
        let from = start.saturating_sub(context.position as usize).min(tokens);
        let whole = (from..tokens).take_while(|token| first(*token) <= start).count();
        let cut = (from + whole..tokens).take_while(|token| first(*token) < start + TILE).count();
        // SAFETY: the caller's promise.
        unsafe {
            if start % PIECE == 0 {
                block.end_piece();
            }
            if whole > 0 {
                let last = position(from + whole - 1);
                block.gather(start, (last + 1 - start).min(TILE));
                block.tile(start, from, from + whole);
            }
            for token in from + whole..from + whole + cut {
                block.direct(token, start);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        block.end_piece();
        block.finish();
    }
}

struct Block<'a, S, T> {
    simd: S,
    context: &'a Context<'a, T>,
    queries: Queries,
    width: usize,
    /// Stride of values and sums: `width`, rounded up to whole vectors.
    stride: usize,
    state: &'a mut State,
}

impl<S: Simd, T: Element> Block<'_, S, T> {
    /// Widens keys and values of `count` positions from `start` on. Keys beyond them are arbitrary.
    #[inline(always)]
    unsafe fn gather(&mut self, start: usize, count: usize) {
        let (simd, size) = (self.simd, self.context.layer.layout().block_size);
        if count < TILE {
            for key in self.state.keys.chunks_exact_mut(KEY_STRIDE).take(self.width) {
                key[count..TILE].fill(MaybeUninit::new(0.0));
            }
        }
        let (keys, values) = (self.state.keys.as_mut_ptr(), self.state.values.as_mut_ptr());
        let mut done = 0;
        while done < count {
            let run = self.context.run(start + done, (count - done).min(LANES));
            let (key, value) = (self.context.keys(&run), self.context.values(&run));
            // SAFETY: a run lies in its block, and sixteen numbers follow the pool's last one; in the scratch
            // a vector from any position or dimension stays inside, and overruns are overwritten or unused.
            unsafe {
                for d in 0..self.width {
                    simd.store(keys.add(d * KEY_STRIDE + done).cast(), T::load(simd, key.add(d * size)));
                }
                for p in 0..run.count {
                    for d in (0..self.width).step_by(LANES) {
                        let v = T::load(simd, value.add(p * self.width + d));
                        simd.store(values.add((done + p) * self.stride + d).cast(), v);
                    }
                }
            }
            done += run.count;
        }
    }

    /// Folds the gathered tile into the rows of tokens `from..to`.
    #[inline(always)]
    unsafe fn tile(&mut self, start: usize, from: usize, to: usize) {
        let group = self.queries.group;
        // SAFETY: the caller's promise; all rows exist.
        unsafe {
            let mut row = from * group;
            while row < to * group {
                row += match to * group - row {
                    6.. if const { S::TILE_VECTORS == 4 } => self.scores::<6, 4>(row),
                    3.. if const { S::TILE_VECTORS == 4 } => self.scores::<3, 4>(row),
                    _ if const { S::TILE_VECTORS == 4 } => self.scores::<1, 4>(row),
                    4.. => self.scores::<4, 1>(row),
                    _ => self.scores::<1, 1>(row),
                };
            }
            let count = |token: usize| (self.context.position as usize + token + 1 - start).min(TILE);
            let mut token = from;
            while token < to {
                let seen = count(token);
                let same = (token..to).take_while(|other| count(*other) == seen).count();
                let end = (token + same) * group;
                let mut row = token * group;
                for row in row..end {
                    self.soften(row, seen);
                }
                while row < end {
                    row += match end - row {
                        6.. if const { S::TILE_VECTORS == 4 } => self.accumulate::<6>(row, seen),
                        3.. => self.accumulate::<3>(row, seen),
                        _ => self.accumulate::<1>(row, seen),
                    };
                }
                token += same;
            }
        }
    }

    /// Computes raw products of `R` rows with the tile, `C` vectors of positions at a time. Returns `R`.
    #[inline(always)]
    unsafe fn scores<const R: usize, const C: usize>(&mut self, row: usize) -> usize {
        let simd = self.simd;
        let q: [*const f32; R] = std::array::from_fn(|r| self.query(row + r));
        for first in (0..TILE).step_by(C * LANES) {
            let mut sums = [[simd.splat(0.0); C]; R];
            // SAFETY: `gather` wrote `width` rows of whole tiles.
            unsafe {
                let mut keys = self.state.keys.as_ptr().add(first).cast::<f32>();
                for d in 0..self.width {
                    let k = vectors!(C, simd.splat(0.0), |c| simd.load(keys.add(c * LANES)));
                    for r in 0..R {
                        let q = simd.splat(*q[r].add(d));
                        for c in 0..C {
                            sums[r][c] = simd.fma(q, k[c], sums[r][c]);
                        }
                    }
                    keys = keys.add(KEY_STRIDE);
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    let out = self.state.weights[row + r].as_mut_ptr().add(first).cast::<f32>();
                    for (c, sum) in sums.into_iter().enumerate() {
                        simd.store(out.add(c * LANES), sum);
                    }
                }
            }
        }
        R
    }

    #[inline(always)]
    fn soften(&mut self, row: usize, count: usize) {
        // SAFETY: `scores` wrote the whole tile.
        let weights = unsafe { &mut *self.state.weights[row].as_mut_ptr().cast::<[f32; TILE]>() };
        let (largest, total) = (&mut self.state.largest[row], &mut self.state.total[row]);
        self.state.decay[row] = soften(self.simd, self.context.params, weights, count, largest, total);
    }

    /// Folds `count` positions' values into the sums of `R` rows. Returns `R`.
    #[inline(always)]
    unsafe fn accumulate<const R: usize>(&mut self, row: usize, count: usize) -> usize {
        let mut d = 0;
        while d < self.stride {
            // SAFETY: the caller's promise.
            unsafe {
                d += LANES
                    * match (self.stride - d) / LANES {
                        4.. if const { S::TILE_VECTORS == 4 } => self.columns::<R, 4>(row, count, d),
                        2.. if const { S::TILE_VECTORS == 4 } => self.columns::<R, 2>(row, count, d),
                        _ => self.columns::<R, 1>(row, count, d),
                    };
            }
        }
        R
    }

    #[inline(always)]
    unsafe fn columns<const R: usize, const C: usize>(
        &mut self,
        row: usize,
        count: usize,
        d: usize,
    ) -> usize {
        let simd = self.simd;
        // SAFETY: rows of sums and values are whole vectors; `count` weights of each row were written.
        unsafe {
            let sums: [*mut f32; R] =
                std::array::from_fn(|r| self.state.sums.as_mut_ptr().add((row + r) * self.stride + d).cast());
            let weights: [*const f32; R] =
                std::array::from_fn(|r| self.state.weights[row + r].as_ptr().cast());
            let mut registers = vectors!(R, [simd.splat(0.0); C], |r| {
                let decay = simd.splat(self.state.decay[row + r]);
                vectors!(C, decay, |c| simd.mul(simd.load(sums[r].add(c * LANES)), decay))
            });
            let mut values = self.state.values.as_ptr().add(d).cast::<f32>();
            for p in 0..count {
                let v = vectors!(C, simd.splat(0.0), |c| simd.load(values.add(c * LANES)));
                for r in 0..R {
                    let weight = simd.splat(*weights[r].add(p));
                    for c in 0..C {
                        registers[r][c] = simd.fma(weight, v[c], registers[r][c]);
                    }
                }
                values = values.add(self.stride);
            }
            for (r, registers) in registers.into_iter().enumerate() {
                for (c, register) in registers.into_iter().enumerate() {
                    simd.store(sums[r].add(c * LANES), register);
                }
            }
        }
        C
    }

    /// Folds the tile into a token whose window begins inside it, reading the pool directly.
    #[inline(always)]
    unsafe fn direct(&mut self, token: usize, start: usize) {
        let position = self.context.position + token as u32;
        let begin = self.context.params.first_position(position) as usize;
        let count = (position as usize + 1).min(start + TILE) - begin;
        for row in token * self.queries.group..(token + 1) * self.queries.group {
            // SAFETY: a query has `width` numbers.
            let q = unsafe { std::slice::from_raw_parts(self.query(row), self.width) };
            let mut weights = [[0.0; TILE + LANES]; 1];
            scores::<S, T, 1>(self.simd, self.context, q, begin, count, &mut weights);
            let (largest, total) = (&mut self.state.largest[row], &mut self.state.total[row]);
            let decay = soften(self.simd, self.context.params, &mut weights[0], count, largest, total);
            let mut sums = [[0.0; MAX_HEAD_DIM]; 1];
            let own = &mut self.state.sums[row * self.stride..][..self.stride];
            // SAFETY: sums were filled at the start.
            let own = unsafe { &mut *(std::ptr::from_mut(own) as *mut [f32]) };
            sums[0][..self.stride].copy_from_slice(own);
            accumulate::<S, T, 1>(self.simd, self.context, begin, count, &weights, &[decay], &mut sums);
            own.copy_from_slice(&sums[0][..self.stride]);
        }
    }

    /// Merges the finished piece into the earlier ones and begins the next.
    #[inline(always)]
    unsafe fn end_piece(&mut self) {
        let stride = self.stride;
        for row in 0..self.queries.tokens * self.queries.group {
            let place = row * stride..(row + 1) * stride;
            // SAFETY: both sums were filled at the start; floats have no invalid bits.
            let (before, sums) = unsafe {
                let before = &mut self.state.before[place.clone()];
                let sums = &mut self.state.sums[place];
                (
                    &mut *(std::ptr::from_mut(before) as *mut [f32]),
                    &mut *(std::ptr::from_mut(sums) as *mut [f32]),
                )
            };
            let (largest, total) = (&mut self.state.largest[row], &mut self.state.total[row]);
            let before = Head {
                largest: &mut self.state.before_largest[row],
                total: &mut self.state.before_total[row],
                sums: before,
            };
            merge(self.simd, before, Head { largest: &mut *largest, total: &mut *total, sums: &mut *sums });
            sums.fill(0.0);
            (*largest, *total) = (f32::NEG_INFINITY, 0.0);
        }
    }

    /// A row's query.
    #[inline(always)]
    fn query(&self, row: usize) -> *const f32 {
        let Queries { q, q_stride, group, .. } = self.queries;
        q.wrapping_add(row / group * q_stride + row % group * self.width)
    }

    #[inline(always)]
    unsafe fn finish(&mut self) {
        let Queries { out, out_stride, group, tokens, .. } = self.queries;
        for row in 0..tokens * group {
            // SAFETY: the caller's promise; sums were filled at the start.
            unsafe {
                let out = out.add(row / group * out_stride + row % group * self.width);
                let sums = self.state.before.as_ptr().add(row * self.stride).cast::<f32>();
                let (largest, total) = (self.state.before_largest[row], self.state.before_total[row]);
                let total = whole(self.simd, largest, total, self.context.sink(row % group));
                for d in 0..self.width {
                    *out.add(d) = *sums.add(d) / total;
                }
            }
        }
    }
}
