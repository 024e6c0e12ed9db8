//! The softmax state of a token over part of its context, the merge of two such states, and what a sink adds to the last.
//!
//! The context is cut into pieces of 256 absolute positions. Within a piece, tiles are folded in one after another; a
//! finished piece is merged into the state before it, in order. Pieces are independent, so `split` may have several threads
//! compute them, and cuts depend on positions alone, so the bits are the same.

use super::attention::MAX_HEAD_DIM;
use super::math::exp;
use crate::simd::{LANES, Simd};

/// Positions of a piece; whole tiles.
pub(super) const PIECE: usize = 256;

/// The piece that contains a position.
pub(super) fn piece_of(position: usize) -> usize {
    position / PIECE
}

/// Softmax state of `Q` query heads: the largest score, the total of weights relative to it, and the weighted sums of values.
pub(super) struct Seen<const Q: usize> {
    pub sums: [[f32; MAX_HEAD_DIM]; Q],
    pub largest: [f32; Q],
    pub total: [f32; Q],
}

impl<const Q: usize> Seen<Q> {
    /// The empty state.
    #[inline(always)]
    pub(super) fn nothing() -> Self {
        Self { sums: [[0.0; MAX_HEAD_DIM]; Q], largest: [f32::NEG_INFINITY; Q], total: [0.0; Q] }
    }

    /// Resets the state, for heads of `width` numbers.
    #[inline(always)]
    pub(super) fn clear(&mut self, width: usize) {
        for i in 0..Q {
            self.sums[i][..width.next_multiple_of(LANES)].fill(0.0);
            (self.largest[i], self.total[i]) = (f32::NEG_INFINITY, 0.0);
        }
    }

    /// Query head `i`, for [`merge`].
    #[inline(always)]
    pub(super) fn head(&mut self, i: usize, width: usize) -> Head<'_> {
        let sums = &mut self.sums[i][..width.next_multiple_of(LANES)];
        Head { largest: &mut self.largest[i], total: &mut self.total[i], sums }
    }
}

/// One query head's softmax state; `sums` are whole vectors.
pub(super) struct Head<'a> {
    pub largest: &'a mut f32,
    pub total: &'a mut f32,
    pub sums: &'a mut [f32],
}

/// The total of all weights relative to the largest score, with the sink's if there is one. A sink far above all scores makes
/// it infinite, and the results 0.
#[inline(always)]
pub(super) fn whole<S: Simd>(simd: S, largest: f32, total: f32, sink: Option<f32>) -> f32 {
    let Some(sink) = sink else { return total };
    let mut lanes = [0.0; LANES];
    // SAFETY: sixteen places.
    unsafe { simd.store(lanes.as_mut_ptr(), exp(simd, simd.splat(sink - largest))) };
    total + lanes[0]
}

/// Merges a piece into the state before it. An empty piece changes nothing.
#[inline(always)]
pub(super) fn merge<S: Simd>(simd: S, before: Head<'_>, piece: Head<'_>) {
    assert_eq!(before.sums.len(), piece.sums.len(), "heads are equally wide");
    if *piece.total == 0.0 {
        return;
    }
    let largest = before.largest.max(*piece.largest);
    let mut factors = [0.0; LANES];
    (factors[0], factors[1]) = (*before.largest - largest, *piece.largest - largest);
    // SAFETY: sixteen places.
    unsafe { simd.store(factors.as_mut_ptr(), exp(simd, simd.load(factors.as_ptr()))) };
    let [old, new, ..] = factors;
    *before.largest = largest;
    *before.total = *before.total * old + *piece.total * new;
    let (old, new) = (simd.splat(old), simd.splat(new));
    for (before, piece) in before.sums.chunks_exact_mut(LANES).zip(piece.sums.chunks_exact(LANES)) {
        // SAFETY: sixteen numbers each.
        unsafe {
            let sum = simd.mul(simd.load(before.as_ptr()), old);
            simd.store(before.as_mut_ptr(), simd.fma(simd.load(piece.as_ptr()), new, sum));
        }
    }
}
