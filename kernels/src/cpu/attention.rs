//! Paged attention for a flattened batch: decodes and prefill chunks alike, one token and one key head at a time.
//!
//! Version 1. The context is cut into tiles of 64 absolute positions. In a tile, the scores of sixteen
//! positions are one vector (keys are stored transposed) and the query heads of a group share each key and
//! value load; then online softmax (Milakov and Gimelshein 2018) folds the tile in. A token's tiles depend
//! on its own position and window only, so chunking and batching leave its bits alone, and so does the
//! block size. Scratch is on the stack and independent of the context. Positions that a token may not see
//! are never used in arithmetic: a stale NaN there is harmless. Rates: see kernels/README.md.

use super::math::{exp, tanh};
use super::tile::{accumulate, scores};
use super::{Cpu, Shared};
use crate::Rows;
use crate::attention_params::AttentionParams;
use crate::element::Element;
use crate::paged::PagedLayer;
use crate::simd::{Isa, LANES, Simd, on_isa};

/// Widest head.
pub const MAX_HEAD_DIM: usize = 256;

/// Positions whose scores are held at once.
pub(super) const TILE: usize = 64;
/// Most query heads in one pass over keys.
const MAX_SHARED: usize = 4;

/// What attends: token `i` is a row of `q`, at `positions[i]`, and finds its context in blocks
/// `tables[spans[i].0..][..spans[i].1]`.
#[derive(Clone, Copy, Debug)]
pub struct PagedQuery<'a> {
    /// Rows of `heads * head_dim`.
    pub q: Rows<'a>,
    /// Each token's position; it attends to `0..=position`.
    pub positions: &'a [u32],
    /// Each token's block table: start and length in `tables`.
    pub spans: &'a [(u32, u32)],
    /// Block tables of all sequences.
    pub tables: &'a [u32],
}

impl Cpu {
    /// Attends each token to its context through its block table; `out` has dense rows of `heads * head_dim`.
    ///
    /// # Panics
    /// Where shapes disagree, a table is too short for its token, or it names a block beyond the pool.
    pub fn paged_attention<T: Element>(
        &self,
        layer: &PagedLayer<T>,
        params: &AttentionParams,
        query: PagedQuery<'_>,
        out: &mut [f32],
    ) {
        let layout = *layer.layout();
        let tokens = query.positions.len();
        check(layer, params, &query, out.len());
        let group = params.heads / layout.kv_heads;
        let cost = query.positions.iter().map(|p| *p as usize + 1).sum::<usize>();
        let target = Shared(out.as_mut_ptr());
        let isa = self.isa;
        self.for_each(tokens * layout.kv_heads, 2 * cost * query.q.width, |item| {
            let (token, head) = (item / layout.kv_heads, item % layout.kv_heads);
            let (start, len) = query.spans[token];
            let first = head * group * layout.head_dim;
            let len_out = group * layout.head_dim;
            // SAFETY: each token and head is one item, and `out` has a row for each token.
            let out = unsafe {
                std::slice::from_raw_parts_mut(target.get().add(token * query.q.width + first), len_out)
            };
            let context = Context {
                layer,
                params,
                table: &query.tables[start as usize..(start + len) as usize],
                head,
                position: query.positions[token],
            };
            T::attend(isa, context, &query.q.row(token)[first..first + len_out], out);
        });
    }
}

fn check<T: Element>(
    layer: &PagedLayer<T>,
    params: &AttentionParams,
    query: &PagedQuery<'_>,
    out_len: usize,
) {
    let layout = layer.layout();
    let tokens = query.positions.len();
    assert!(layout.head_dim <= MAX_HEAD_DIM, "heads wider than {MAX_HEAD_DIM}");
    assert!(params.heads.is_multiple_of(layout.kv_heads), "query heads must be a multiple of key heads");
    assert_eq!(query.q.width, params.heads * layout.head_dim, "query rows must hold all heads");
    assert_eq!(out_len, tokens * query.q.width, "one output row per token");
    assert_eq!(query.spans.len(), tokens, "one block table per token");
    query.q.check(tokens);
    let blocks = layer.blocks();
    assert!(query.tables.iter().all(|block| (*block as usize) < blocks), "a table leaves the pool");
    for (position, (start, len)) in query.positions.iter().zip(query.spans) {
        assert!((start + len) as usize <= query.tables.len(), "a table leaves the tables");
        let room = *len as usize * layout.block_size;
        assert!((*position as usize) < room, "position {position} is beyond its {len} blocks");
    }
}

/// One token's view of one key head. Public only inside a sealed trait.
pub struct Context<'a, T> {
    pub(super) layer: &'a PagedLayer<T>,
    pub(super) params: &'a AttentionParams,
    pub(super) table: &'a [u32],
    pub(super) head: usize,
    pub(super) position: u32,
}

pub(crate) fn attend<T: Element>(isa: Isa, context: Context<'_, T>, q: &[f32], out: &mut [f32]) {
    on_isa!(isa, attend_lanes[T: Element](context: Context<'_, T>, q: &[f32], out: &mut [f32]));
}

/// Splits a group of query heads into passes that fit the registers.
#[inline(always)]
fn attend_lanes<S: Simd, T: Element>(simd: S, context: Context<'_, T>, q: &[f32], out: &mut [f32]) {
    let width = context.layer.layout().head_dim;
    let mut done = 0;
    while done < q.len() {
        let left = (q.len() - done) / width;
        let (q, out) = (&q[done..], &mut out[done..]);
        done += width
            * match left {
                1 => pass::<S, T, 1>(simd, &context, q, out),
                2 => pass::<S, T, 2>(simd, &context, q, out),
                _ if S::SHARED_QUERIES < 3 => pass::<S, T, 2>(simd, &context, q, out),
                3 => pass::<S, T, 3>(simd, &context, q, out),
                _ => pass::<S, T, 4>(simd, &context, q, out),
            };
    }
}

/// Attends `Q` query heads. Returns `Q`.
#[inline(always)]
fn pass<S: Simd, T: Element, const Q: usize>(
    simd: S,
    context: &Context<'_, T>,
    q: &[f32],
    out: &mut [f32],
) -> usize {
    const { assert!(Q <= MAX_SHARED) };
    let width = context.layer.layout().head_dim;
    let mut sums = [[0.0_f32; MAX_HEAD_DIM]; Q];
    let mut largest = [f32::NEG_INFINITY; Q];
    let mut total = [0.0_f32; Q];
    let mut position = context.params.first_position(context.position) as usize;
    let end = context.position as usize + 1;
    while position < end {
        let count = (TILE - position % TILE).min(end - position);
        let mut weights = [[0.0_f32; TILE + LANES]; Q];
        scores::<S, T, Q>(simd, context, q, position, count, &mut weights);
        let mut decay = [0.0; Q];
        for i in 0..Q {
            decay[i] = soften(simd, context.params, &mut weights[i], count, &mut largest[i], &mut total[i]);
        }
        accumulate::<S, T, Q>(simd, context, position, count, &weights, &decay, &mut sums);
        position += count;
    }
    for i in 0..Q {
        for (out, sum) in out[i * width..(i + 1) * width].iter_mut().zip(&sums[i]) {
            *out = sum / total[i];
        }
    }
    Q
}

/// Turns raw products into weights relative to the largest score so far, adds them to `total`, and returns
/// the factor by which everything before this tile shrinks.
#[inline(always)]
fn soften<S: Simd>(
    simd: S,
    params: &AttentionParams,
    weights: &mut [f32; TILE + LANES],
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
        // The cap made something finite of the lanes that don't exist.
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
