//! One tile of the context, read directly from the pool: raw products of queries and keys, and the weighted sum of values.
//! `attention` chooses the positions of a tile and applies the softmax in between.

use super::attention::{Context, MAX_HEAD_DIM, TILE};
use crate::element::Element;
use crate::simd::{LANES, Simd, vectors};

/// Consecutive positions within one block.
pub(super) struct Run {
    block: usize,
    offset: usize,
    pub(super) count: usize,
}

impl<T: Element> Context<'_, T> {
    #[inline(always)]
    pub(super) fn run(&self, position: usize, limit: usize) -> Run {
        let size = self.layer.layout().block_size;
        let offset = position % size;
        Run { block: self.table[position / size] as usize, offset, count: (size - offset).min(limit) }
    }

    /// The first dimension of the keys of a run's positions.
    #[inline(always)]
    pub(super) fn keys(&self, run: &Run) -> *const T {
        let layout = self.layer.layout();
        self.layer.keys[layout.head_start(run.block, self.head) + run.offset..].as_ptr()
    }

    /// The values of a run.
    #[inline(always)]
    pub(super) fn values(&self, run: &Run) -> *const T {
        let layout = self.layer.layout();
        let start = layout.head_start(run.block, self.head) + run.offset * layout.head_dim;
        self.layer.values[start..].as_ptr()
    }
}

/// Computes raw products of `count` positions from `position` on, four vectors of positions at a time.
#[inline(always)]
pub(super) fn scores<S: Simd, T: Element, const Q: usize>(
    simd: S,
    context: &Context<'_, T>,
    q: &[f32],
    position: usize,
    count: usize,
    out: &mut [[f32; TILE + LANES]; Q],
) {
    let mut done = 0;
    while done < count {
        let mut keys = [std::ptr::null(); 4];
        let mut starts = [0; 4];
        let mut vectors = 0;
        while vectors < 4 && done < count {
            let run = context.run(position + done, (count - done).min(LANES));
            keys[vectors] = context.keys(&run);
            starts[vectors] = done;
            done += run.count;
            vectors += 1;
        }
        if const { S::SHARED_QUERIES == 4 } && vectors == 4 {
            products::<S, T, Q, 4>(simd, context, q, &keys, &starts, out);
        } else {
            for i in 0..vectors {
                products::<S, T, Q, 1>(simd, context, q, &keys[i..], &starts[i..], out);
            }
        }
    }
}

/// Computes products of `Q` queries with `C` vectors of keys. Lanes beyond a run are arbitrary; the next run overwrites them,
/// or `soften` masks them.
#[inline(always)]
fn products<S: Simd, T: Element, const Q: usize, const C: usize>(
    simd: S,
    context: &Context<'_, T>,
    q: &[f32],
    keys: &[*const T],
    starts: &[usize],
    out: &mut [[f32; TILE + LANES]; Q],
) {
    let layout = context.layer.layout();
    let (width, stride) = (layout.head_dim, layout.block_size);
    assert!(q.len() >= Q * width && keys.len() >= C && starts.len() >= C);
    let mut sums = [[simd.splat(0.0); C]; Q];
    for d in 0..width {
        // SAFETY: a run starts inside its head's keys, which have `width` rows of `stride`; the pool has sixteen more
        // numbers after its last one. `q` has `Q` heads.
        unsafe {
            let k = vectors!(C, simd.splat(0.0), |c| T::load(simd, keys[c].add(d * stride)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let q = simd.splat(*q.get_unchecked(i * width + d));
                for c in 0..C {
                    sums[c] = simd.fma(q, k[c], sums[c]);
                }
            }
        }
    }
    for c in 0..C {
        for i in 0..Q {
            let place = &mut out[i][starts[c]..starts[c] + LANES];
            // SAFETY: sixteen places.
            unsafe { simd.store(place.as_mut_ptr(), sums[i][c]) };
        }
    }
}

/// Folds a tile's values into the running sums.
#[inline(always)]
pub(super) fn accumulate<S: Simd, T: Element, const Q: usize>(
    simd: S,
    context: &Context<'_, T>,
    position: usize,
    count: usize,
    weights: &[[f32; TILE + LANES]; Q],
    decay: &[f32; Q],
    sums: &mut [[f32; MAX_HEAD_DIM]; Q],
) {
    let width = context.layer.layout().head_dim;
    let tile = Values { context, position, count, weights, decay };
    let mut d = 0;
    while d < width {
        if const { S::SHARED_QUERIES == 4 } && width - d >= 4 * LANES {
            tile.columns::<S, 4>(simd, d, sums);
            d += 4 * LANES;
        } else if width - d >= 2 * LANES {
            tile.columns::<S, 2>(simd, d, sums);
            d += 2 * LANES;
        } else {
            tile.columns::<S, 1>(simd, d, sums);
            d += LANES;
        }
    }
}

/// A tile's weights and the location of its values.
struct Values<'a, T, const N: usize> {
    context: &'a Context<'a, T>,
    position: usize,
    count: usize,
    weights: &'a [[f32; TILE + LANES]; N],
    decay: &'a [f32; N],
}

impl<T: Element, const N: usize> Values<'_, T, N> {
    /// Folds in `C` vectors of dimensions from `first` on. Lanes beyond the head's width are never read back.
    #[inline(always)]
    fn columns<S: Simd, const C: usize>(&self, simd: S, first: usize, sums: &mut [[f32; MAX_HEAD_DIM]; N]) {
        let width = self.context.layer.layout().head_dim;
        assert!(first + C * LANES <= MAX_HEAD_DIM.next_multiple_of(LANES));
        let mut registers = [[simd.splat(0.0); C]; N];
        for (i, registers) in registers.iter_mut().enumerate() {
            let decay = simd.splat(self.decay[i]);
            for (c, register) in registers.iter_mut().enumerate() {
                // SAFETY: inside the array, as asserted.
                let sum = unsafe { simd.load(sums[i].as_ptr().add(first + c * LANES)) };
                *register = simd.mul(sum, decay);
            }
        }
        let mut done = 0;
        while done < self.count {
            let run = self.context.run(self.position + done, self.count - done);
            let values = self.context.values(&run);
            for p in 0..run.count {
                // SAFETY: the run's rows lie in the block; the pool has sixteen more numbers after its last one.
                let v = unsafe {
                    vectors!(C, simd.splat(0.0), |c| T::load(simd, values.add(p * width + first + c * LANES)))
                };
                for (registers, weights) in registers.iter_mut().zip(self.weights) {
                    let weight = simd.splat(weights[done + p]);
                    for (register, v) in registers.iter_mut().zip(v) {
                        *register = simd.fma(weight, v, *register);
                    }
                }
            }
            done += run.count;
        }
        for (sums, registers) in sums.iter_mut().zip(registers) {
            for (c, register) in registers.into_iter().enumerate() {
                // SAFETY: inside the array, as asserted.
                unsafe { simd.store(sums.as_mut_ptr().add(first + c * LANES), register) };
            }
        }
    }
}
