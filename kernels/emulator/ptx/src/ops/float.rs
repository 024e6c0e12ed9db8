//! Float arithmetic. Without a rounding modifier an operation rounds to nearest even, as the ISA's default says; a device
//! may contract a product and a sum, which is not done here. Results that are NaN have the canonical bits in f32. Subnormal
//! numbers are kept unless the instruction says `.ftz`.

use super::convert::{bf16, f16};
use super::{Form, Value, form};

/// The NaN of f32 results.
const NAN: f32 = f32::from_bits(0x7fff_ffff);

pub(super) fn forms() -> Vec<Form> {
    vec![
        form!("add.f32", |a: f32, b: f32| -> f32 { canonical(a + b) }),
        form!("sub.f32", |a: f32, b: f32| -> f32 { canonical(a - b) }),
        form!("mul.f32", |a: f32, b: f32| -> f32 { canonical(a * b) }),
        form!("fma.rn.f32", |a: f32, b: f32, c: f32| -> f32 { canonical(a.mul_add(b, c)) }),
        form!("fma.rn.bf16x2", |a: u32, b: u32, c: u32| -> u32 {
            pairs([a, b, c], |bits| f64::from(half::bf16::from_bits(bits)), bf16)
        }),
        form!("fma.rn.f16x2", |a: u32, b: u32, c: u32| -> u32 {
            pairs([a, b, c], |bits| f64::from(half::f16::from_bits(bits)), f16)
        }),
        form!("div.rn.f32", |a: f32, b: f32| -> f32 { canonical(a / b) }),
        form!("rcp.rn.f32", |a: f32| -> f32 { canonical(1.0 / a) }),
        form!("sqrt.rn.f32", |a: f32| -> f32 { canonical(a.sqrt()) }),
        form!("max.f32", |a: f32, b: f32| -> f32 { largest(a, b) }),
        form!("min.f32", |a: f32, b: f32| -> f32 { -largest_negated(a, b) }),
        form!("abs.f32", |a: f32| -> f32 { f32::from_bits(a.to_bits() & 0x7fff_ffff) }),
        form!("neg.f32", |a: f32| -> f32 { f32::from_bits(a.to_bits() ^ 0x8000_0000) }),
        // The sign of the first operand on the second.
        form!("copysign.f32", |a: f32, b: f32| -> f32 { b.copysign(a) }),
        // Approximations are computed in f64 and rounded once, which is within the errors that the ISA allows.
        form!("ex2.approx.ftz.f32", |a: f32| -> f32 { approximate(a, f64::exp2) }),
        form!("rcp.approx.ftz.f32", |a: f32| -> f32 { approximate(a, f64::recip) }),
        form!("rsqrt.approx.ftz.f32", |a: f32| -> f32 { approximate(a, |a| 1.0 / a.sqrt()) }),
        form!("mul.f64", |a: f64, b: f64| -> f64 { a * b }),
        form!("sub.f64", |a: f64, b: f64| -> f64 { a - b }),
        form!("add.f64", |a: f64, b: f64| -> f64 { a + b }),
        form!("fma.rn.f64", |a: f64, b: f64, c: f64| -> f64 { a.mul_add(b, c) }),
        form!("div.rn.f64", |a: f64, b: f64| -> f64 { a / b }),
    ]
}

/// By its bits: to compilers one NaN is as good as another, so they drop a replacement of a NaN by NaN.
pub(crate) fn canonical(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits << 1 > 0xff00_0000 { NAN } else { f32::from_bits(bits) }
}

/// The product of either half of two words plus that of a third. A product of such numbers is exact in f64; results that f32
/// doesn't hold are rounded twice.
fn pairs(words: [u32; 3], widen: fn(u16) -> f64, round: fn(f32) -> u16) -> u32 {
    let half = |shift: u32| {
        let [a, b, c] = words.map(|word| widen((word >> shift) as u16));
        u32::from(round((a * b + c) as f32)) << shift
    };
    half(0) | half(16)
}

/// The number if only one operand is; +0 is larger than -0.
fn largest(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        return canonical(if a.is_nan() { b } else { a });
    }
    match a == b {
        true => f32::from_bits(a.to_bits() & b.to_bits()),
        false if a > b => a,
        false => b,
    }
}

fn largest_negated(a: f32, b: f32) -> f32 {
    match largest(-a, -b) {
        // The caller negates once more.
        nan if nan.is_nan() => f32::from_bits(NAN.to_bits() ^ 0x8000_0000),
        number => number,
    }
}

fn approximate(value: f32, compute: fn(f64) -> f64) -> f32 {
    canonical(flushed(compute(f64::from(flushed(value))) as f32))
}

/// `.ftz`: a subnormal number becomes 0 of its sign.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}
