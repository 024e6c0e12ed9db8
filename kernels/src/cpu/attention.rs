//! Paged attention for a flattened batch: decodes and prefill chunks alike.
//!
//! Version 3. The context is cut into tiles of 64 absolute positions. In a tile, the scores of sixteen positions are one
//! vector (keys are stored transposed) and the query heads of a group share each load of keys and values; then online softmax
//! (Milakov and Gimelshein 2018) folds the tile in. Four tiles are a piece, which is independent of the others: if there are
//! fewer heads than the threads need, `split` distributes pieces. A single token reads the pool directly; several tokens of
//! one sequence go through `block` together. A token's tiles and pieces depend only on its position and window, and both ways
//! do the same operations in order, so chunking, batching, threads and block size don't change its bits. Scratch is on the
//! stack and independent of the context, except for pieces that threads share.
//!
//! Positions that a token may not see never enter arithmetic, so a stale NaN there is harmless. Rates: kernels/README.md.

use super::block::{self, Queries};
use super::math::{exp, tanh};
use super::piece::{PIECE, Seen, merge, whole};
use super::split::{Pieces, Target, leave, unit_len};
use super::tile::{accumulate, scores};
use super::{Cpu, Shared};
use crate::Rows;
use crate::attention_params::AttentionParams;
use crate::element::Element;
use crate::paged::PagedLayer;
use crate::simd::{Isa, LANES, Simd, on_isa};

/// Maximum width of a head.
pub const MAX_HEAD_DIM: usize = 256;

/// Positions whose scores are computed at once.
pub(super) const TILE: usize = 64;
/// Maximum query heads in one pass over keys.
const MAX_SHARED: usize = 4;

/// The queries: tokens are rows of `q`, at `positions`, and find their context through `runs`.
#[derive(Clone, Copy, Debug)]
pub struct PagedQuery<'a> {
    /// Rows of `heads * head_dim`.
    pub q: Rows<'a>,
    /// Each token's position; it attends to `0..=position`.
    pub positions: &'a [u32],
    /// All tokens, in order.
    pub runs: &'a [QueryRun],
    /// Block tables of all sequences.
    pub tables: &'a [u32],
}

/// Consecutive tokens of one sequence, whose context is in the blocks `tables[table_start..][..table_len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRun {
    /// First token.
    pub first: u32,
    /// How many, at most [`QueryRun::MOST`].
    pub count: u32,
    /// Where its block table starts.
    pub table_start: u32,
    /// Blocks in it.
    pub table_len: u32,
}

impl QueryRun {
    /// Maximum tokens of a run, which is a thread's unit of work.
    pub const MOST: u32 = block::TOKENS as u32;

    /// Appends `self` to `runs`, split into runs of at most [`QueryRun::MOST`] tokens.
    pub fn split(self, runs: &mut Vec<Self>) {
        for at in (0..self.count).step_by(block::TOKENS) {
            runs.push(Self { first: self.first + at, count: Self::MOST.min(self.count - at), ..self });
        }
    }
}

impl Cpu {
    /// Computes attention of each token over its context through its block table; `out` has dense rows of
    /// `heads * head_dim`. `scratch` is reusable; it grows with the contexts of small batches of decodes.
    ///
    /// # Panics
    /// If shapes disagree, a table is too short for its token, or it names a block beyond the pool.
    pub fn paged_attention<T: Element>(
        &self,
        layer: &PagedLayer<T>,
        params: &AttentionParams<'_>,
        query: PagedQuery<'_>,
        scratch: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let layout = *layer.layout();
        check(layer, params, &query, out.len());
        let group = params.heads / layout.kv_heads;
        let cost = query.positions.iter().map(|p| *p as usize + 1).sum::<usize>();
        let target = Shared(out.as_mut_ptr());
        let isa = self.isa;
        let all_of = |run: &QueryRun, head: usize| {
            let most = (block::ROWS / group).max(1) as u32;
            for token in (run.first..run.first + run.count).step_by(most as usize) {
                let at = head * group * layout.head_dim;
                let queries = Queries {
                    q: query.q.row(token as usize)[at..].as_ptr(),
                    q_stride: query.q.stride,
                    // SAFETY: each token and head belongs to one item, and `out` has a row for each token.
                    out: unsafe { target.get().add(token as usize * query.q.width + at) },
                    out_stride: query.q.width,
                    tokens: most.min(run.first + run.count - token) as usize,
                    group,
                };
                let context = Context {
                    layer,
                    params,
                    table: &query.tables[run.table_start as usize..][..run.table_len as usize],
                    head,
                    position: query.positions[token as usize],
                };
                T::attend(isa, context, queries);
            }
        };
        let cost = 2 * cost * query.q.width;
        let Some(pieces) = Pieces::of(self, params, &query, layout.kv_heads) else {
            return self.for_each(query.runs.len() * layout.kv_heads, cost, |item| {
                all_of(&query.runs[item / layout.kv_heads], item % layout.kv_heads);
            });
        };
        let (units, unit_len) = (pieces.units(), unit_len(group, layout.head_dim));
        scratch.resize(scratch.len().max(units * unit_len), 0.0);
        let parts = Shared(scratch.as_mut_ptr());
        self.for_each(units, cost, |number| {
            let unit = pieces.unit(number);
            let Some(piece) = unit.piece else { return all_of(&unit.run, unit.head) };
            let token = unit.run.first as usize;
            let width = group * layout.head_dim;
            let context = Context {
                layer,
                params,
                table: &query.tables[unit.run.table_start as usize..][..unit.run.table_len as usize],
                head: unit.head,
                position: query.positions[token],
            };
            // SAFETY: `scratch` has `unit_len` numbers for each unit, and this item alone uses these.
            let parts =
                unsafe { std::slice::from_raw_parts_mut(parts.get().add(number * unit_len), unit_len) };
            T::attend_piece(isa, context, &query.q.row(token)[unit.head * width..][..width], piece, parts);
        });
        pieces.merge(self, layout.head_dim, scratch, target);
    }
}

fn check<T: Element>(
    layer: &PagedLayer<T>,
    params: &AttentionParams<'_>,
    query: &PagedQuery<'_>,
    out_len: usize,
) {
    let layout = layer.layout();
    let tokens = query.positions.len();
    assert!(layout.head_dim <= MAX_HEAD_DIM, "heads wider than {MAX_HEAD_DIM}");
    assert!(params.heads.is_multiple_of(layout.kv_heads), "query heads must be a multiple of key heads");
    assert_eq!(query.q.width, params.heads * layout.head_dim, "query rows must hold all heads");
    assert!(params.sinks.is_none_or(|sinks| sinks.len() == params.heads), "one sink per query head");
    assert_eq!(out_len, tokens * query.q.width, "one output row per token");
    query.q.check(tokens);
    let blocks = layer.blocks();
    assert!(query.tables.iter().all(|block| (*block as usize) < blocks), "a table leaves the pool");
    let mut next = 0;
    for run in query.runs {
        assert!(run.first == next && run.count <= QueryRun::MOST, "runs must name all tokens in order");
        next += run.count;
        assert!(
            (run.table_start + run.table_len) as usize <= query.tables.len(),
            "a table leaves the tables"
        );
        let positions = &query.positions[run.first as usize..][..run.count as usize];
        assert!(positions.windows(2).all(|pair| pair[1] == pair[0] + 1), "positions of a run must follow");
        let room = run.table_len as usize * layout.block_size;
        let last = positions.last().map_or(0, |last| *last as usize);
        assert!(last < room, "position {last} is beyond its {} blocks", run.table_len);
    }
    assert_eq!(next as usize, tokens, "runs must name all tokens in order");
}

/// One token's view of one key head. Public only inside a sealed trait.
pub struct Context<'a, T> {
    pub(super) layer: &'a PagedLayer<T>,
    pub(super) params: &'a AttentionParams<'a>,
    pub(super) table: &'a [u32],
    pub(super) head: usize,
    pub(super) position: u32,
}

impl<T: Element> Context<'_, T> {
    /// The sink of a query head of the group.
    #[inline(always)]
    pub(super) fn sink(&self, of_group: usize) -> Option<f32> {
        let group = self.params.heads / self.layer.layout().kv_heads;
        self.params.sink(self.head * group + of_group)
    }
}

pub(crate) fn attend<T: Element>(isa: Isa, context: Context<'_, T>, queries: Queries) {
    on_isa!(isa, attend_lanes[T: Element](context: Context<'_, T>, queries: Queries));
}

#[inline(always)]
fn attend_lanes<S: Simd, T: Element>(simd: S, context: Context<'_, T>, queries: Queries) {
    if queries.tokens > 1 {
        // SAFETY: `paged_attention` checked that queries and results exist; this item alone uses them.
        unsafe { block::attend(simd, &context, queries) };
    } else {
        let numbers = queries.group * context.layer.layout().head_dim;
        // SAFETY: as above.
        let (q, out) = unsafe {
            (
                std::slice::from_raw_parts(queries.q, numbers),
                std::slice::from_raw_parts_mut(queries.out, numbers),
            )
        };
        one_token(simd, &context, q, Target::Rows(out));
    }
}

/// Splits a group of query heads into passes that fit the registers.
#[inline(always)]
pub(super) fn one_token<S: Simd, T: Element>(
    simd: S,
    context: &Context<'_, T>,
    q: &[f32],
    mut target: Target<'_>,
) {
    let width = context.layer.layout().head_dim;
    let mut done = 0;
    while done * width < q.len() {
        let left = q.len() / width - done;
        let (q, target) = (&q[done * width..], target.after(done, width));
        let heads = (done, q);
        done += match left {
            1 => pass::<S, T, 1>(simd, context, heads, target),
            2 => pass::<S, T, 2>(simd, context, heads, target),
            _ if const { S::SHARED_QUERIES < 3 } => pass::<S, T, 2>(simd, context, heads, target),
            3 => pass::<S, T, 3>(simd, context, heads, target),
            _ => pass::<S, T, 4>(simd, context, heads, target),
        };
    }
}

/// Computes attention of `Q` query heads: which of their group is the first, and the queries from it on. Returns `Q`.
#[inline(always)]
fn pass<S: Simd, T: Element, const Q: usize>(
    simd: S,
    context: &Context<'_, T>,
    (first, q): (usize, &[f32]),
    target: Target<'_>,
) -> usize {
    const { assert!(Q <= MAX_SHARED) };
    let width = context.layer.layout().head_dim;
    let mut piece = Seen::<Q>::nothing();
    match target {
        Target::Piece { from, end, parts } => {
            tiles(simd, context, q, from, end, &mut piece);
            leave(&piece, width, parts);
        }
        Target::Rows(out) => {
            let mut all = Seen::<Q>::nothing();
            let mut position = context.params.first_position(context.position) as usize;
            let last = context.position as usize;
            while position <= last {
                let end = (last + 1).min((position / PIECE + 1) * PIECE);
                piece.clear(width);
                tiles(simd, context, q, position, end, &mut piece);
                for i in 0..Q {
                    merge(simd, all.head(i, width), piece.head(i, width));
                }
                position = end;
            }
            for i in 0..Q {
                let total = whole(simd, all.largest[i], all.total[i], context.sink(first + i));
                for (out, sum) in out[i * width..(i + 1) * width].iter_mut().zip(&all.sums[i]) {
                    *out = sum / total;
                }
            }
        }
    }
    Q
}

/// Folds the positions from `position` to `end` in, a tile at a time.
#[inline(always)]
fn tiles<S: Simd, T: Element, const Q: usize>(
    simd: S,
    context: &Context<'_, T>,
    q: &[f32],
    mut position: usize,
    end: usize,
    seen: &mut Seen<Q>,
) {
    while position < end {
        let count = (TILE - position % TILE).min(end - position);
        let mut weights = [[0.0_f32; TILE + LANES]; Q];
        scores::<S, T, Q>(simd, context, q, position, count, &mut weights);
        let mut decay = [0.0; Q];
        for i in 0..Q {
            let (largest, total) = (&mut seen.largest[i], &mut seen.total[i]);
            decay[i] = soften(simd, context.params, &mut weights[i], count, largest, total);
        }
        accumulate::<S, T, Q>(simd, context, position, count, &weights, &decay, &mut seen.sums);
        position += count;
    }
}

/// Turns raw products into weights relative to the largest score so far, adds them to `total`, and returns the factor by
/// which everything before this tile must be scaled. The products fill whole vectors.
#[inline(always)]
pub(super) fn soften<S: Simd>(
    simd: S,
    params: &AttentionParams<'_>,
    weights: &mut [f32],
    count: usize,
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    weights[count..count.next_multiple_of(LANES)].fill(f32::NEG_INFINITY);
    let (scale, before) = (simd.splat(params.scale), *largest);
    let mut tile_largest = simd.splat(f32::NEG_INFINITY);
    let vectors = &mut weights[..count.next_multiple_of(LANES)];
    for vector in vectors.chunks_exact_mut(LANES) {
        // SAFETY: sixteen places.
        unsafe {
            let mut score = simd.mul(simd.load(vector.as_ptr()), scale);
            if let Some(cap) = params.soft_cap {
                score = simd.mul(simd.splat(cap), tanh(simd, simd.mul(score, simd.splat(1.0 / cap))));
            }
            simd.store(vector.as_mut_ptr(), score);
        }
    }
    if params.soft_cap.is_some() {
        // The cap made the unused lanes finite.
        vectors[count..].fill(f32::NEG_INFINITY);
    }
    for vector in vectors.chunks_exact(LANES) {
        // SAFETY: sixteen numbers.
        tile_largest = simd.max(tile_largest, unsafe { simd.load(vector.as_ptr()) });
    }
    *largest = before.max(simd.largest(tile_largest));
    let mut sum = simd.splat(0.0);
    for vector in vectors.chunks_exact_mut(LANES) {
        // SAFETY: sixteen places.
        unsafe {
            let weight = exp(simd, simd.sub(simd.load(vector.as_ptr()), simd.splat(*largest)));
            simd.store(vector.as_mut_ptr(), weight);
            sum = simd.add(sum, weight);
        }
    }
    let mut decay = [0.0; LANES];
    // SAFETY: sixteen places.
    unsafe { simd.store(decay.as_mut_ptr(), exp(simd, simd.splat(before - *largest))) };
    *total = *total * decay[0] + simd.sum(sum);
    decay[0]
}
