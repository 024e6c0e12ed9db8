//! `mov`, `cvt` and `cvta`. From float to integer, values out of range become the nearest one, and NaN becomes 0, or with
//! 64 bits on either side the highest bit alone. NaN as bf16 or f16 is 0x7fff.

use super::float::canonical;
use super::{Form, Value, form};

pub(super) fn forms() -> Vec<Form> {
    vec![
        form!("mov.pred", |a: bool| -> bool { a }),
        form!("mov.u16", |a: u16| -> u16 { a }),
        form!("mov.b16", |a: u16| -> u16 { a }),
        form!("mov.u32", |a: u32| -> u32 { a }),
        form!("mov.b32", |a: u32| -> u32 { a }),
        form!("mov.f32", |a: u32| -> u32 { a }),
        form!("mov.u64", |a: u64| -> u64 { a }),
        form!("mov.b64", |a: u64| -> u64 { a }),
        form!("mov.f64", |a: u64| -> u64 { a }),
        // Generic addresses of global memory are the same.
        form!("cvta.to.global.u64", |a: u64| -> u64 { a }),
        form!("cvt.u16.u32", |a: u32| -> u16 { a as u16 }),
        form!("cvt.u32.u16", |a: u16| -> u32 { u32::from(a) }),
        form!("cvt.u32.u64", |a: u64| -> u32 { a as u32 }),
        form!("cvt.u64.u16", |a: u16| -> u64 { u64::from(a) }),
        form!("cvt.u64.u32", |a: u32| -> u64 { u64::from(a) }),
        form!("cvt.s64.s32", |a: i32| -> i64 { i64::from(a) }),
        form!("cvt.rn.f32.u32", |a: u32| -> f32 { a as f32 }),
        form!("cvt.rn.f32.u64", |a: u64| -> f32 { a as f32 }),
        form!("cvt.rn.f64.u32", |a: u32| -> f64 { f64::from(a) }),
        form!("cvt.rn.f64.u64", |a: u64| -> f64 { a as f64 }),
        form!("cvt.f64.f32", |a: f32| -> f64 { f64::from(a) }),
        form!("cvt.rzi.u32.f32", |a: f32| -> u32 { a as u32 }),
        form!("cvt.rzi.u64.f32", |a: f32| -> u64 { if a.is_nan() { 1 << 63 } else { a as u64 } }),
        form!("cvt.rzi.u64.f64", |a: f64| -> u64 { if a.is_nan() { 1 << 63 } else { a as u64 } }),
        form!("cvt.rn.bf16.f32", |a: f32| -> u16 { bf16(a) }),
        form!("cvt.rn.f16.f32", |a: f32| -> u16 { f16(a) }),
        form!("cvt.f32.f16", |a: u16| -> f32 { canonical(half::f16::from_bits(a).to_f32()) }),
    ]
}

/// To nearest even.
pub(super) fn f16(value: f32) -> u16 {
    if value.is_nan() { 0x7fff } else { half::f16::from_f32(value).to_bits() }
}

/// To nearest even.
pub(super) fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    match value.is_nan() {
        true => 0x7fff,
        false => ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
    }
}
