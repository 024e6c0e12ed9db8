//! Logic, shifts, selections and other operations on bits. Shifts by the width or more leave no bit of the value.

use super::{Form, Value, form};

pub(super) fn forms() -> Vec<Form> {
    vec![
        form!("and.pred", |a: bool, b: bool| -> bool { a & b }),
        form!("or.pred", |a: bool, b: bool| -> bool { a | b }),
        form!("xor.pred", |a: bool, b: bool| -> bool { a ^ b }),
        form!("not.pred", |a: bool| -> bool { !a }),
        form!("and.b16", |a: u16, b: u16| -> u16 { a & b }),
        form!("or.b16", |a: u16, b: u16| -> u16 { a | b }),
        form!("and.b32", |a: u32, b: u32| -> u32 { a & b }),
        form!("or.b32", |a: u32, b: u32| -> u32 { a | b }),
        form!("xor.b32", |a: u32, b: u32| -> u32 { a ^ b }),
        form!("not.b32", |a: u32| -> u32 { !a }),
        form!("and.b64", |a: u64, b: u64| -> u64 { a & b }),
        form!("or.b64", |a: u64, b: u64| -> u64 { a | b }),
        form!("xor.b64", |a: u64, b: u64| -> u64 { a ^ b }),
        form!("not.b64", |a: u64| -> u64 { !a }),
        // The number of bits is always a word.
        form!("shl.b16", |a: u16, n: u32| -> u16 { a.checked_shl(n).unwrap_or(0) }),
        form!("shl.b32", |a: u32, n: u32| -> u32 { a.checked_shl(n).unwrap_or(0) }),
        form!("shl.b64", |a: u64, n: u32| -> u64 { a.checked_shl(n).unwrap_or(0) }),
        form!("shr.u16", |a: u16, n: u32| -> u16 { a.checked_shr(n).unwrap_or(0) }),
        form!("shr.u32", |a: u32, n: u32| -> u32 { a.checked_shr(n).unwrap_or(0) }),
        form!("shr.u64", |a: u64, n: u32| -> u64 { a.checked_shr(n).unwrap_or(0) }),
        form!("shr.s16", |a: i16, n: u32| -> i16 { a >> n.min(15) }),
        form!("shr.s32", |a: i32, n: u32| -> i32 { a >> n.min(31) }),
        form!("shr.s64", |a: i64, n: u32| -> i64 { a >> n.min(63) }),
        form!("selp.u16", |a: u16, b: u16, which: bool| -> u16 { if which { a } else { b } }),
        form!("selp.b16", |a: u16, b: u16, which: bool| -> u16 { if which { a } else { b } }),
        form!("selp.u32", |a: u32, b: u32, which: bool| -> u32 { if which { a } else { b } }),
        form!("selp.b32", |a: u32, b: u32, which: bool| -> u32 { if which { a } else { b } }),
        form!("selp.f32", |a: u32, b: u32, which: bool| -> u32 { if which { a } else { b } }),
        form!("selp.b64", |a: u64, b: u64, which: bool| -> u64 { if which { a } else { b } }),
        form!("brev.b32", |a: u32| -> u32 { a.reverse_bits() }),
        // How far to shift left until the highest set bit is on top.
        form!("bfind.shiftamt.u32", |a: u32| -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }),
        form!("bfi.b32", |a: u32, b: u32, start: u32, length: u32| -> u32 { inserted(a, b, start, length) }),
        form!("lop3.b32", |a: u32, b: u32, c: u32, table: u32| -> u32 { looked_up([a, b, c], table) }),
        form!("prmt.b32", |a: u32, b: u32, select: u32| -> u32 { permuted(a, b, select) }),
    ]
}

/// The low `length` bits of `a` in `b`, from `start` on. Both numbers are bytes; what lies beyond bit 31 is dropped.
fn inserted(a: u32, b: u32, start: u32, length: u32) -> u32 {
    let (start, length) = (start & 0xff, length & 0xff);
    let field = 1_u64.checked_shl(length).map_or(u64::MAX, |bit| bit - 1);
    let mask = field.checked_shl(start).unwrap_or(0) as u32;
    let value = u64::from(a).checked_shl(start).unwrap_or(0) as u32;
    b & !mask | value & mask
}

/// Any function of three bits, for each bit of a word: the bit of the table at the number that these make.
fn looked_up([a, b, c]: [u32; 3], table: u32) -> u32 {
    let bit = |at: u32| {
        let number = (a >> at & 1) << 2 | (b >> at & 1) << 1 | c >> at & 1;
        (table >> number & 1) << at
    };
    (0..32).map(bit).sum()
}

/// Each hexadecimal digit of `select` chooses one of the eight bytes of `b` and `a`; its highest bit asks for copies of that
/// byte's sign instead.
fn permuted(a: u32, b: u32, select: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |at: u32| {
        let digit = select >> (4 * at);
        let byte = (bytes >> (8 * (digit & 7))) as u8;
        match digit & 8 != 0 {
            true => (byte as i8 >> 7) as u8,
            false => byte,
        }
    };
    u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
}
