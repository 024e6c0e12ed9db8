//! `setp`. Comparisons of floats are false if an operand is NaN, and those that end in `u` then are true.

use super::{Form, Value, form};

macro_rules! compare {
    ($($ty:ident: $rust:ty),*) => {
        [$(
            form!(concat!("setp.eq.", stringify!($ty)), |a: $rust, b: $rust| -> bool { a == b }),
            form!(concat!("setp.lt.", stringify!($ty)), |a: $rust, b: $rust| -> bool { a < b }),
            form!(concat!("setp.le.", stringify!($ty)), |a: $rust, b: $rust| -> bool { a <= b }),
            form!(concat!("setp.gt.", stringify!($ty)), |a: $rust, b: $rust| -> bool { a > b }),
            form!(concat!("setp.ge.", stringify!($ty)), |a: $rust, b: $rust| -> bool { a >= b }),
        )*]
    };
}

pub(super) fn forms() -> Vec<Form> {
    let mut forms = Vec::from(compare!(
        u16: u16, s16: i16, u32: u32, s32: i32, u64: u64, s64: i64, f32: f32, f64: f64
    ));
    forms.extend([
        form!("setp.eq.b32", |a: u32, b: u32| -> bool { a == b }),
        form!("setp.ne.b32", |a: u32, b: u32| -> bool { a != b }),
        form!("setp.ne.s16", |a: u16, b: u16| -> bool { a != b }),
        form!("setp.ne.s32", |a: u32, b: u32| -> bool { a != b }),
        form!("setp.ne.s64", |a: u64, b: u64| -> bool { a != b }),
        form!("setp.ne.f32", |a: f32, b: f32| -> bool { !a.is_nan() && !b.is_nan() && a != b }),
        form!("setp.equ.f32", |a: f32, b: f32| -> bool { a.is_nan() || b.is_nan() || a == b }),
        form!("setp.neu.f32", |a: f32, b: f32| -> bool { a != b }),
        form!("setp.ltu.f32", |a: f32, b: f32| -> bool { a.is_nan() || b.is_nan() || a < b }),
        form!("setp.leu.f32", |a: f32, b: f32| -> bool { a.is_nan() || b.is_nan() || a <= b }),
        form!("setp.gtu.f32", |a: f32, b: f32| -> bool { a.is_nan() || b.is_nan() || a > b }),
        form!("setp.geu.f32", |a: f32, b: f32| -> bool { a.is_nan() || b.is_nan() || a >= b }),
        form!("setp.num.f32", |a: f32, b: f32| -> bool { !a.is_nan() && !b.is_nan() }),
        form!("setp.nan.f32", |a: f32, b: f32| -> bool { a.is_nan() || b.is_nan() }),
    ]);
    forms
}
