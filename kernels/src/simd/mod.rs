//! Sixteen-lane vectors behind one trait, so that each kernel is written once and compiled per instruction set. A value of an
//! implementing type proves that the CPU has the instructions: [`on_isa!`] creates it inside a function compiled for them.
//! Tile registers don't fit this model: `cpu/amx` uses them for products if the CPU has them.
//!
//! AVX2, AVX-512 and NEON give the same bits, except that the bf16 dot product instruction treats denormals as zeros. The
//! portable form does not fuse multiply and add on x86, so it may differ from them in the last place.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use half::bf16;

use crate::inputs::Layout;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// Lanes of every vector, whatever the width of the registers.
pub(crate) const LANES: usize = 16;

/// An array of vectors, built by index. A closure or `array::from_fn` would be a separate function: if the compiler doesn't
/// inline it, it is compiled without the instruction set, and each instruction becomes a call.
macro_rules! vectors {
    ($count:expr, $any:expr, |$at:ident| $vector:expr) => {{
        let mut all = [$any; $count];
        for ($at, vector) in all.iter_mut().enumerate() {
            *vector = $vector;
        }
        all
    }};
}
pub(crate) use vectors;

/// Operations on sixteen f32 lanes.
pub trait Simd: Copy {
    /// Sixteen lanes.
    type V: Copy;
    /// Sixteen 32-bit words: integers, pairs of bf16, or four bytes each.
    type W: Copy;
    /// Columns (in vectors) of a matrix tile of several rows: as many as fit the registers.
    const TILE_VECTORS: usize;
    /// Query heads that share one pass over keys: as many as fit the registers.
    const SHARED_QUERIES: usize;
    /// Whether [`Simd::dot_bf16`] is an instruction.
    const PAIRS: bool;
    /// Maximum rows of a tile of a bf16 product.
    const BF16_ROWS: usize;
    /// Rows of a tile of an int8 product, which holds integer and float sums.
    const INT8_ROWS: usize;
    /// Whether [`Simd::dot_int8`] takes the bytes of weights as they are stored, 128 too large.
    const BIASED: bool = true;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// Sixteen numbers are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// # Safety
    /// Sixteen numbers are readable at `from`.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::V;
    /// # Safety
    /// Sixteen numbers are writable at `to`.
    unsafe fn store(self, to: *mut f32, v: Self::V);
    /// # Safety
    /// Sixteen words are readable at `from`, which needs no alignment.
    unsafe fn load_words(self, from: *const u32) -> Self::W;
    /// # Safety
    /// Sixteen words are writable at `to`, which needs no alignment.
    unsafe fn store_words(self, to: *mut u32, w: Self::W);
    /// # Safety
    /// Sixteen IEEE half floats are readable at `from`.
    unsafe fn load_f16(self, from: *const u16) -> Self::V;
    fn splat_word(self, x: u32) -> Self::W;
    /// Interleaves the words of both, `a`'s first: the lower halves, and the upper halves.
    fn zip(self, a: Self::W, b: Self::W) -> (Self::W, Self::W);
    /// The odd inputs of bf16 pairs, widened.
    fn high(self, w: Self::W) -> Self::V;
    /// The even ones.
    fn low(self, w: Self::W) -> Self::V;
    /// `sum + w.high * x.high`, rounded, `+ w.low * x.low`, rounded: bf16 pairs, the odd input first.
    #[inline(always)]
    fn dot_bf16(self, sum: Self::V, w: Self::W, x: Self::W) -> Self::V {
        let sum = self.fma(self.high(w), self.high(x), sum);
        self.fma(self.low(w), self.low(x), sum)
    }
    /// `sum` plus the four products of unsigned bytes of `w`, less 128 unless [`Simd::BIASED`], and signed bytes of `x`;
    /// exact.
    fn dot_int8(self, sum: Self::W, w: Self::W, x: Self::W) -> Self::W;
    /// `sum` plus the four products of bytes of `w`, each 0 to 24, and signed bytes of `x`; exact.
    fn dot_int4(self, sum: Self::W, w: Self::W, x: Self::W) -> Self::W;
    /// The low half of each byte.
    fn low_halves(self, w: Self::W) -> Self::W;
    /// The high half of each byte.
    fn high_halves(self, w: Self::W) -> Self::W;
    /// The bytes of `RAISED` at indexes that are 0 to 15.
    fn raised(self, w: Self::W) -> Self::W;
    /// Signed integers to floats.
    fn widen_words(self, w: Self::W) -> Self::V;
    /// Prefetches the cache line at `from`, any address, into the L2 cache. Requests into the L1 cache would occupy its few
    /// places for misses, which loads need, too.
    #[inline(always)]
    fn prefetch<T>(self, from: *const T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64; a prefetch of any address is allowed.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(from.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch of any address is allowed.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) from, options(readonly, nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = from;
    }
    /// `a * b + c`.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`, which keeps a NaN in `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`, which keeps a NaN in `b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? yes : no`.
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Two to the integer that was rounded into the low bits of `t` by adding 1.5 * 2^23.
    fn exp2_rounded(self, t: Self::V) -> Self::V;

    /// Transposes sixteen vectors: lane `i` of vector `j` becomes lane `j` of vector `i`.
    #[inline(always)]
    fn turn(self, mut vectors: [Self::W; LANES]) -> [Self::W; LANES] {
        // Each round moves the highest bit of a word's vector index to the lowest bit of its lane index, and the highest
        // bit of its lane index to the lowest bit of its vector index.
        for _ in 0..LANES.ilog2() {
            let from = vectors;
            for i in 0..LANES / 2 {
                (vectors[2 * i], vectors[2 * i + 1]) = self.zip(from[i], from[i + LANES / 2]);
            }
        }
        vectors
    }

    /// Sum of all lanes, adding halves: 16 -> 8 -> 4 -> 2 -> 1.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        self.fold(v, |a, b| a + b)
    }

    /// The largest lane; may ignore NaN.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        self.fold(v, f32::max)
    }

    #[inline(always)]
    fn fold(self, v: Self::V, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` has sixteen numbers.
        unsafe { self.store(lanes.as_mut_ptr(), v) };
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] = f(lanes[i], lanes[i + width]);
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// An instruction set with kernels in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the compiler makes of plain arrays.
    Portable,
    /// 128-bit vectors of AArch64.
    Neon,
    /// The same, and dot products of bytes.
    NeonDot,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// 512-bit vectors, and dot products of bytes.
    Avx512Vnni,
    /// 512-bit vectors, and dot products of bytes and of bf16 pairs.
    Avx512Bf16,
    /// The same, and tile registers for products of bf16 and of bytes.
    Amx,
}

impl Isa {
    /// The fastest on this CPU. Intel's cores run the bf16 instruction at half the rate of f32 multiply-adds, so widening
    /// weights is faster there; AMD's run it at twice the rate.
    pub fn detect() -> Self {
        let quick = |isa: &Self| *isa != Self::Avx512Bf16 || !made_by_intel();
        Self::available().into_iter().rfind(quick).unwrap_or(Self::Portable)
    }

    /// Layout of inputs of products.
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Amx => Layout::Tiles,
            Self::Avx512Bf16 => Layout::Pairs,
            _ => Layout::Wide,
        }
    }

    /// All instruction sets of this CPU, narrowest first.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "other processors add nothing to it")]
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Self::Neon);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                all.push(Self::NeonDot);
            }
        }
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                all.push(Self::Avx2);
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                    all.push(Self::Avx512);
                    if is_x86_feature_detected!("avx512vnni") {
                        all.push(Self::Avx512Vnni);
                        if is_x86_feature_detected!("avx512bf16") {
                            all.push(Self::Avx512Bf16);
                            #[cfg(target_os = "linux")]
                            if amx::is_granted() {
                                all.push(Self::Amx);
                            }
                        }
                    }
                }
            }
        }
        all
    }
}

fn made_by_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let answer = std::arch::x86_64::__cpuid(0);
        [answer.ebx, answer.edx, answer.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Calls `body(token, args...)` compiled for `isa`, which must come from [`Isa::available`]; `Cpu` ensures that.
macro_rules! on_isa {
    ($isa:expr, $body:ident $([$($generic:ident : $bound:path),*])? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2$(<$($generic: $bound),*>)?($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function runs only where AVX2, FMA and F16C are.
            $body(unsafe { $crate::simd::Avx2::assume() }, $($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
        fn avx512$(<$($generic: $bound),*>)?($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function runs only where AVX-512F and BW are.
            $body(unsafe { $crate::simd::Avx512::<false, false>::assume() }, $($arg),*)
        }
        match $isa {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512
            | $crate::simd::Isa::Avx512Vnni
            | $crate::simd::Isa::Avx512Bf16
            // SAFETY: `Isa::available` lists it only where the CPU has it.
            | $crate::simd::Isa::Amx => unsafe { avx512($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Isa::Neon | $crate::simd::Isa::NeonDot => $body($crate::simd::Neon::new(), $($arg),*),
            _ => $body($crate::simd::Portable, $($arg),*),
        }
    }};
}
pub(crate) use on_isa;

/// [`on_isa!`] with separate forms for the dot products of bytes.
macro_rules! on_dot_isa {
    ($isa:expr, $body:ident ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
        fn avx512_vnni($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function runs only where AVX-512 with VNNI is.
            $body(unsafe { $crate::simd::Avx512::<true, false>::assume() }, $($arg),*)
        }
        #[cfg(target_arch = "aarch64")]
        #[target_feature(enable = "dotprod")]
        fn neon_dot($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function runs only where dot products are.
            $body(unsafe { $crate::simd::Neon::<true>::assume() }, $($arg),*)
        }
        match $isa {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512Vnni
            | $crate::simd::Isa::Avx512Bf16
            // SAFETY: `Isa::available` lists it only where the CPU has it.
            | $crate::simd::Isa::Amx => unsafe { avx512_vnni($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Isa::NeonDot => unsafe { neon_dot($($arg),*) },
            isa => $crate::simd::on_isa!(isa, $body ($($arg : $ty),*) $(-> $ret)?),
        }
    }};
}
pub(crate) use on_dot_isa;

/// [`on_isa!`] with a separate form for the dot products of bf16 pairs.
macro_rules! on_pair_isa {
    ($isa:expr, $body:ident ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512vnni,avx2,fma,f16c")]
        fn avx512_bf16($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function runs only where AVX-512 with VNNI and BF16 is.
            $body(unsafe { $crate::simd::Avx512::<true, true>::assume() }, $($arg),*)
        }
        match $isa {
            // SAFETY: `Isa::available` lists it only where the CPU has it.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512Bf16 | $crate::simd::Isa::Amx => unsafe { avx512_bf16($($arg),*) },
            isa => $crate::simd::on_isa!(isa, $body ($($arg : $ty),*) $(-> $ret)?),
        }
    }};
}
pub(crate) use on_pair_isa;
