//! Instructions that only compute: a table from opcode to a function on a thread's slots. Values are stored with zeros
//! above their width.

mod bits;
mod compare;
mod convert;
mod float;
mod integer;

use std::collections::HashMap;

pub(crate) use float::canonical;

use crate::program::{Combine, Compute, Op};

/// Width of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Predicate,
    Half,
    Word,
    Double,
}

/// A type of values.
pub(crate) trait Value: Copy {
    const CLASS: Class;
    fn get(slot: u64) -> Self;
    fn put(self) -> u64;
}

macro_rules! values {
    ($($ty:ty, $class:ident, |$get:ident| $from:expr, |$put:ident| $to:expr;)*) => {
        $(impl Value for $ty {
            const CLASS: Class = Class::$class;
            fn get($get: u64) -> Self { $from }
            fn put(self) -> u64 { let $put = self; $to }
        })*
    };
}

values! {
    bool, Predicate, |slot| slot != 0, |value| u64::from(value);
    u16, Half, |slot| slot as u16, |value| u64::from(value);
    i16, Half, |slot| slot as i16, |value| u64::from(value as u16);
    u32, Word, |slot| slot as u32, |value| u64::from(value);
    i32, Word, |slot| slot as i32, |value| u64::from(value as u32);
    u64, Double, |slot| slot, |value| value;
    i64, Double, |slot| slot as i64, |value| value as u64;
    f32, Word, |slot| f32::from_bits(slot as u32), |value| u64::from(value.to_bits());
    f64, Double, |slot| f64::from_bits(slot), |value| value.to_bits();
}

/// An instruction that computes.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) name: &'static str,
    /// Of the result and the operands.
    pub(crate) classes: &'static [Class],
    run: Compute,
    divides: bool,
}

impl Form {
    pub(crate) fn op(&self) -> Op {
        match self.divides {
            true => Op::Divide(self.run),
            false => Op::Compute(self.run),
        }
    }
}

/// `form!("name", |a: u32, b: u32| -> u32 { a + b })`.
macro_rules! form {
    ($name:expr, |$a:ident: $ta:ty| -> $td:ty { $value:expr }) => {
        crate::ops::form!(@ $name, [$td, $ta], |slots, args| {
            let $a = <$ta as Value>::get(slots[usize::from(args[1])]);
            <$td as Value>::put($value)
        })
    };
    ($name:expr, |$a:ident: $ta:ty, $b:ident: $tb:ty| -> $td:ty { $value:expr }) => {
        crate::ops::form!(@ $name, [$td, $ta, $tb], |slots, args| {
            let $a = <$ta as Value>::get(slots[usize::from(args[1])]);
            let $b = <$tb as Value>::get(slots[usize::from(args[2])]);
            <$td as Value>::put($value)
        })
    };
    ($name:expr, |$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty| -> $td:ty { $value:expr }) => {
        crate::ops::form!(@ $name, [$td, $ta, $tb, $tc], |slots, args| {
            let $a = <$ta as Value>::get(slots[usize::from(args[1])]);
            let $b = <$tb as Value>::get(slots[usize::from(args[2])]);
            let $c = <$tc as Value>::get(slots[usize::from(args[3])]);
            <$td as Value>::put($value)
        })
    };
    ($name:expr, |$a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty, $e:ident: $te:ty| -> $td:ty { $value:expr }) => {
        crate::ops::form!(@ $name, [$td, $ta, $tb, $tc, $te], |slots, args| {
            let $a = <$ta as Value>::get(slots[usize::from(args[1])]);
            let $b = <$tb as Value>::get(slots[usize::from(args[2])]);
            let $c = <$tc as Value>::get(slots[usize::from(args[3])]);
            let $e = <$te as Value>::get(slots[usize::from(args[4])]);
            <$td as Value>::put($value)
        })
    };
    (@ $name:expr, [$($ty:ty),*], |$slots:ident, $args:ident| $body:block) => {
        crate::ops::Form {
            name: $name,
            classes: &[$(<$ty as Value>::CLASS),*],
            run: |$slots, $args| {
                let value = $body;
                $slots[usize::from($args[0])] = value;
            },
            divides: false,
        }
    };
}
pub(crate) use form;

/// All instructions that compute.
pub(crate) struct Forms(HashMap<&'static str, Form>);

impl Forms {
    pub(crate) fn new() -> Self {
        let groups = [integer::forms(), float::forms(), convert::forms(), bits::forms(), compare::forms()];
        Self(groups.into_iter().flatten().map(|form| (form.name, form)).collect())
    }

    pub(crate) fn get(&self, opcode: &str) -> Option<&Form> {
        self.0.get(opcode)
    }
}

/// What an atomic operation of this name and type does.
pub(crate) fn combine(what: &str, ty: &str) -> Option<Combine> {
    Some(match (what, ty) {
        ("add", "u32") => |old, value| u64::from((old as u32).wrapping_add(value as u32)),
        ("inc", "u32") => |old, last| if old >= last { 0 } else { old + 1 },
        ("or", "b32") => |old, value| old | value,
        ("max", "u32" | "u64") => |old, value| old.max(value),
        _ => return None,
    })
}
