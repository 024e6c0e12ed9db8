//! Integer arithmetic. Sums and products wrap; 16-bit constants were cut to their width when they were read.

use super::{Form, Value, form};

pub(super) fn forms() -> Vec<Form> {
    let mut forms = vec![
        form!("add.s32", |a: u32, b: u32| -> u32 { a.wrapping_add(b) }),
        form!("add.s64", |a: u64, b: u64| -> u64 { a.wrapping_add(b) }),
        form!("sub.s16", |a: u16, b: u16| -> u16 { a.wrapping_sub(b) }),
        form!("sub.s32", |a: u32, b: u32| -> u32 { a.wrapping_sub(b) }),
        form!("sub.s64", |a: u64, b: u64| -> u64 { a.wrapping_sub(b) }),
        form!("mul.lo.s16", |a: u16, b: u16| -> u16 { a.wrapping_mul(b) }),
        form!("mul.lo.s32", |a: u32, b: u32| -> u32 { a.wrapping_mul(b) }),
        form!("mul.lo.s64", |a: u64, b: u64| -> u64 { a.wrapping_mul(b) }),
        form!("mul.wide.u16", |a: u16, b: u16| -> u32 { u32::from(a) * u32::from(b) }),
        form!("mul.wide.u32", |a: u32, b: u32| -> u64 { u64::from(a) * u64::from(b) }),
        form!("mul.wide.s32", |a: i32, b: i32| -> i64 { i64::from(a) * i64::from(b) }),
        form!("mad.lo.s32", |a: u32, b: u32, c: u32| -> u32 { a.wrapping_mul(b).wrapping_add(c) }),
        form!("neg.s32", |a: u32| -> u32 { a.wrapping_neg() }),
        form!("min.u32", |a: u32, b: u32| -> u32 { a.min(b) }),
        form!("max.u32", |a: u32, b: u32| -> u32 { a.max(b) }),
        form!("min.s32", |a: i32, b: i32| -> i32 { a.min(b) }),
        form!("max.s32", |a: i32, b: i32| -> i32 { a.max(b) }),
        form!("min.u64", |a: u64, b: u64| -> u64 { a.min(b) }),
        form!("max.u64", |a: u64, b: u64| -> u64 { a.max(b) }),
    ];
    // The interpreter refuses a divisor of 0 before it calls these.
    let divisions = [
        form!("div.u32", |a: u32, b: u32| -> u32 { a / b }),
        form!("rem.u32", |a: u32, b: u32| -> u32 { a % b }),
        form!("div.u64", |a: u64, b: u64| -> u64 { a / b }),
        form!("rem.u64", |a: u64, b: u64| -> u64 { a % b }),
    ];
    forms.extend(divisions.map(|form| Form { divides: true, ..form }));
    forms
}
