//! Matrix product `out[m, n] = x[m, k] * w[n, k]^T` over packed weights, f32 or bf16.
//!
//! Version 1: register tiles of up to 6 rows by 64 columns (AVX-512) or 6 by 16 (AVX2). Each output is one
//! chain of fused multiply-adds over k in order, so tile shape, batch and threads can't change its bits.
//! Threads share panels of 64 columns and, with many rows, blocks of rows. Rates: see kernels/README.md.

use super::{Cpu, Shared};
use crate::Rows;
use crate::element::Element;
use crate::matrix::{Matrix, PANEL, Packed};
use crate::simd::{Isa, LANES, Simd, on_isa};

/// Rows of a unit of work: a multiple of the tile's rows, few enough that the inputs stay in cache.
const ROW_BLOCK: usize = 48;

impl Cpu {
    /// `out[i][j] = sum over k of x[i][k] * w[j][k]`; `out` is dense.
    ///
    /// # Panics
    /// Where shapes disagree.
    pub fn matmul(&self, x: Rows<'_>, w: &Matrix, out: &mut [f32]) {
        match w {
            Matrix::F32(packed) => self.matmul_packed(x, packed, out),
            Matrix::Bf16(packed) => self.matmul_packed(x, packed, out),
        }
    }

    /// [`Cpu::matmul`] for one storage type.
    ///
    /// # Panics
    /// Where shapes disagree.
    pub fn matmul_packed<T: Element>(&self, x: Rows<'_>, w: &Packed<T>, out: &mut [f32]) {
        let (n, k) = (w.outputs(), w.inputs());
        assert_eq!(x.width, k, "input rows must have {k} numbers");
        assert!(n > 0 && out.len().is_multiple_of(n), "output must be whole rows of {n}");
        let m = out.len() / n;
        x.check(m);
        let (panels, row_blocks) = (w.panels(), m.div_ceil(ROW_BLOCK));
        let target = Shared(out.as_mut_ptr());
        self.for_each(panels * row_blocks, m * n * k, |item| {
            let (panel, row) = (item / row_blocks, item % row_blocks * ROW_BLOCK);
            let (weights, width) = w.panel(panel);
            let column = panel * PANEL;
            let block = Block {
                x: x.data[x.offset + row * x.stride..].as_ptr(),
                x_stride: x.stride,
                rows: (m - row).min(ROW_BLOCK),
                inputs: k,
                weights,
                width,
                // SAFETY: row < m and column < n, so the place lies in `out`.
                out: unsafe { target.get().add(row * n + column) },
                out_stride: n,
                columns: (n - column).min(width),
            };
            run(self.isa, block);
        });
    }
}

/// How far ahead of a single row's product weights are fetched.
const PREFETCH_BYTES: usize = 2048;

/// One panel against some rows.
struct Block<'a, T> {
    x: *const f32,
    x_stride: usize,
    rows: usize,
    inputs: usize,
    weights: &'a [T],
    width: usize,
    out: *mut f32,
    out_stride: usize,
    columns: usize,
}

fn run<T: Element>(isa: Isa, block: Block<'_, T>) {
    on_isa!(isa, panel[T: Element](block: Block<'_, T>));
}

#[inline(always)]
fn panel<S: Simd, T: Element>(simd: S, block: Block<'_, T>) {
    debug_assert_eq!(block.weights.len(), block.width * block.inputs);
    let mut row = 0;
    while row < block.rows {
        let left = block.rows - row;
        // One row is bound by memory: take the whole panel in one pass, so that it is read front to back.
        row += match left {
            1 => columns::<S, T, 1, 4>(simd, &block, row),
            2 | 3 if S::TILE_VECTORS == 4 => columns::<S, T, 2, 4>(simd, &block, row),
            4 | 5 if S::TILE_VECTORS == 4 => columns::<S, T, 4, 4>(simd, &block, row),
            _ if S::TILE_VECTORS == 4 => columns::<S, T, 6, 4>(simd, &block, row),
            2 | 3 => columns::<S, T, 2, 1>(simd, &block, row),
            4 | 5 => columns::<S, T, 4, 1>(simd, &block, row),
            _ => columns::<S, T, 6, 1>(simd, &block, row),
        };
    }
}

/// `R` rows against all columns of the panel, `C` vectors at a time. Returns `R`.
#[inline(always)]
fn columns<S: Simd, T: Element, const R: usize, const C: usize>(
    simd: S,
    block: &Block<'_, T>,
    row: usize,
) -> usize {
    let mut column = 0;
    while column < block.width {
        if block.width - column >= C * LANES {
            tile::<S, T, R, C>(simd, block, row, column);
            column += C * LANES;
        } else {
            tile::<S, T, R, 1>(simd, block, row, column);
            column += LANES;
        }
    }
    R
}

#[inline(always)]
fn tile<S: Simd, T: Element, const R: usize, const C: usize>(
    simd: S,
    block: &Block<'_, T>,
    row: usize,
    column: usize,
) {
    debug_assert!(row + R <= block.rows && column + C * LANES <= block.width);
    let mut sums = [[simd.splat(0.0); C]; R];
    // SAFETY: `Cpu::matmul_packed` checked that `x` holds `rows` rows of `inputs`; the panel holds `inputs`
    // rows of `width`, and the tile lies inside both.
    unsafe {
        let x = block.x.add(row * block.x_stride);
        let mut weights = block.weights.as_ptr().add(column);
        for k in 0..block.inputs {
            if R == 1 {
                // One row is bound by memory, and the hardware's own look-ahead ends at each page.
                let ahead = weights.wrapping_byte_add(PREFETCH_BYTES);
                let line = 64 / size_of::<T>();
                (0..C * LANES).step_by(line).for_each(|i| simd.prefetch(ahead.wrapping_add(i)));
            }
            let w: [S::V; C] = std::array::from_fn(|c| T::load(simd, weights.add(c * LANES)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = simd.splat(*x.add(r * block.x_stride + k));
                for c in 0..C {
                    sums[c] = simd.fma(x, w[c], sums[c]);
                }
            }
            weights = weights.wrapping_add(block.width);
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            let first = column + c * LANES;
            let count = block.columns.saturating_sub(first).min(LANES);
            // SAFETY: `count` columns from `first` on lie in the output row; no other item writes them.
            unsafe {
                let out = block.out.add((row + r) * block.out_stride + first);
                store_some(simd, out, *sum, count);
            }
        }
    }
}

/// Stores the first `count` lanes.
///
/// # Safety
/// `count` numbers are writable at `to`.
#[inline(always)]
pub(super) unsafe fn store_some<S: Simd>(simd: S, to: *mut f32, v: S::V, count: usize) {
    if count == LANES {
        // SAFETY: sixteen places, by the caller's promise.
        unsafe { simd.store(to, v) };
    } else if count > 0 {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` has sixteen places; `count` places at `to`, by the caller's promise.
        unsafe {
            simd.store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
}
