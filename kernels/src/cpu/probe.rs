//! The machine's limits, measured: read bandwidth, and the rate of the instructions that products use. Benchmarks print
//! their results relative to these.

use std::hint::black_box;
use std::time::Instant;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx;
use super::{Cpu, Shared};
use crate::matrix::Format;
use crate::memory::{Arena, OutOfMemory, Pages};
use crate::simd::{Isa, LANES, Simd, on_dot_isa, on_isa, on_pair_isa, vectors};

/// Bytes of a thread's unit of reading.
const PART: usize = 256 << 10;
/// Independent sums: more than an instruction's latency times its rate.
const CHAINS: usize = 12;

impl Cpu {
    /// Bytes per second at which all threads together read `bytes` bytes of memory: the best of `passes`.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn read_bandwidth(&self, pages: Pages, bytes: usize, passes: usize) -> Result<f64, OutOfMemory> {
        let mut words = Arena::with_pages(pages).numbers::<u32>(bytes / PART * (PART / 4))?;
        words.fill(1);
        let parts = words.chunks_exact(PART / 4);
        let count = parts.len();
        let mut sums = vec![0.0_f32; count];
        let out = Shared(sums.as_mut_ptr());
        let isa = self.isa;
        let seconds = best(passes, || {
            self.for_each(count, usize::MAX, |i| {
                let sum = read(isa, &words[i * (PART / 4)..][..PART / 4]);
                // SAFETY: one element per item.
                unsafe { out.get().add(i).write(sum) };
            });
        });
        black_box(&sums);
        Ok((count * PART) as f64 / seconds)
    }

    /// Operations per second (two per multiply-add) of all threads together, in registers, in the instructions
    /// of a format's products: the best of `passes`.
    pub fn peak_rate(&self, format: Format, passes: usize) -> f64 {
        const STEPS: usize = 1 << 16;
        let format = format.inputs();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if format != Format::F32 && self.isa == Isa::Amx {
            let items = 8 * self.threads();
            let seconds = best(passes, || {
                // SAFETY: the instruction set is there.
                self.for_each(items, usize::MAX, |_| unsafe { amx::multiply(format, STEPS) });
            });
            return (items * amx::operations(format, STEPS)) as f64 / seconds;
        }
        let per_step = match format {
            Format::Bf16 if self.isa == Isa::Avx512Bf16 => 2,
            Format::F32 | Format::Bf16 => 1,
            Format::Int8 | Format::Int4 | Format::Mxfp4 => 4,
        };
        let items = 8 * self.threads();
        let isa = self.isa;
        let seconds = best(passes, || {
            self.for_each(items, usize::MAX, |_| _ = black_box(multiply(isa, format, STEPS)));
        });
        (2 * items * STEPS * CHAINS * LANES * per_step) as f64 / seconds
    }
}

fn best(passes: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..passes.max(1)).map(|_| {
        let begin = Instant::now();
        run();
        begin.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

fn read(isa: Isa, words: &[u32]) -> f32 {
    on_isa!(isa, read_lanes(words: &[u32]) -> f32)
}

#[inline(always)]
fn read_lanes<S: Simd>(simd: S, words: &[u32]) -> f32 {
    let mut sums = [simd.splat(0.0); 4];
    for part in words.as_chunks::<{ 4 * LANES }>().0 {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the part has four vectors; any address may be prefetched.
            unsafe {
                let from = part.as_ptr().add(i * LANES);
                simd.prefetch(from.wrapping_add(1 << 10));
                *sum = simd.add(*sum, simd.load(from.cast()));
            }
        }
    }
    simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
}

/// Runs `steps` operations on each of `CHAINS` sums.
macro_rules! chain {
    ($zero:expr, $steps:expr, |$sum:ident| $step:expr) => {{
        let mut sums = [$zero; CHAINS];
        for _ in 0..$steps {
            for place in &mut sums {
                let $sum = *place;
                *place = $step;
            }
        }
        sums
    }};
}

fn multiply(isa: Isa, format: Format, steps: usize) -> f32 {
    match format {
        Format::Bf16 => on_pair_isa!(isa, multiply_lanes(format: Format, steps: usize) -> f32),
        _ => on_dot_isa!(isa, multiply_lanes(format: Format, steps: usize) -> f32),
    }
}

#[inline(always)]
fn multiply_lanes<S: Simd>(simd: S, format: Format, steps: usize) -> f32 {
    // Values opaque to the optimizer.
    let (x, y) = (simd.splat(black_box(1e-9)), simd.splat_word(black_box(0x0001_0001)));
    match format {
        Format::Bf16 if const { S::PAIRS } => {
            sum(simd, chain!(simd.splat(0.0), steps, |sum| simd.dot_bf16(sum, y, y)))
        }
        // Without the instruction, arithmetic is in f32.
        Format::F32 | Format::Bf16 => sum(simd, chain!(simd.splat(0.0), steps, |sum| simd.fma(x, x, sum))),
        Format::Int8 | Format::Int4 | Format::Mxfp4 => {
            let integers = chain!(simd.splat_word(0), steps, |sum| simd.dot_int8(sum, y, y));
            sum(simd, vectors!(CHAINS, simd.splat(0.0), |at| simd.widen_words(integers[at])))
        }
    }
}

#[inline(always)]
fn sum<S: Simd>(simd: S, sums: [S::V; CHAINS]) -> f32 {
    let mut all = 0.0;
    for of_one in sums {
        all += simd.sum(of_one);
    }
    all
}
