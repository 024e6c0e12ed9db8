//! Instructions that compute, by tables of operands and results from the PTX ISA's description of each.

mod common;

use common::{Memory, run};

/// The result of one instruction. Operand `i` is given as `%d<i>`, `%r<i>`, `%f<i>`, `%h<i>`, `%g<i>` and `%p<i>`; the
/// result is register 9 of the kind that the instruction writes.
fn result(instruction: &str, operands: &[u64]) -> u64 {
    let mut body = String::new();
    for index in 0..operands.len() {
        body += &format!(
            "ld.global.u64 %d{index}, [%d30+{}];\ncvt.u32.u64 %r{index}, %d{index};\ncvt.u16.u32 %h{index}, %r{index};\n\
             mov.b32 %f{index}, %r{index};\nmov.b64 %g{index}, %d{index};\nsetp.ne.s32 %p{index}, %r{index}, 0;\n",
            8 * index
        );
    }
    body += &format!("{instruction};\n");
    body += match instruction.split_once(" %").map(|(_, rest)| &rest[..1]) {
        Some("h") => "cvt.u64.u16 %d9, %h9;\n",
        Some("r") => "cvt.u64.u32 %d9, %r9;\n",
        Some("f") => "mov.b32 %r9, %f9;\ncvt.u64.u32 %d9, %r9;\n",
        Some("g") => "mov.b64 %d9, %g9;\n",
        Some("p") => "selp.b64 %d9, 1, 0, %p9;\n",
        _ => "",
    };
    body += "setp.ne.s32 %p8, %r30, 0;\n@%p8 bra $end;\nst.global.u64 [%d30+32], %d9;\n$end:\n";
    let mut words = vec![0; 10];
    for (index, operand) in operands.iter().enumerate() {
        (words[2 * index], words[2 * index + 1]) = (*operand as u32, (*operand >> 32) as u32);
    }
    let mut memory = Memory::new(&words);
    run(80, &body, 32, 0, &mut memory).expect(instruction);
    let words = memory.words();
    u64::from(words[8]) | u64::from(words[9]) << 32
}

fn check(instruction: &str, cases: &[(&[u64], u64)]) {
    for (operands, wanted) in cases {
        let found = result(instruction, operands);
        assert_eq!(found, *wanted, "{instruction} of {operands:x?}: {found:#x} for {wanted:#x}");
    }
}

fn bits(number: f32) -> u64 {
    number.to_bits().into()
}

const NAN: u64 = 0x7fff_ffff;
/// A NaN that no operation makes.
const ODD_NAN: u64 = 0xff80_0001;
const INFINITY: u64 = 0x7f80_0000;

#[test]
fn conversions_to_16_bits_round_to_nearest_even() {
    check(
        "cvt.rn.bf16.f32 %h9, %f0",
        &[
            (&[0x3f80_8000], 0x3f80),
            (&[0x3f81_8000], 0x3f82),
            (&[0x3f80_8001], 0x3f81),
            (&[0x3f80_7fff], 0x3f80),
            (&[0xff7f_ffff], 0xff80),
            (&[0x0000_8000], 0),
            (&[0x0001_8000], 2),
            (&[INFINITY], 0x7f80),
            (&[ODD_NAN], 0x7fff),
        ],
    );
    check(
        "cvt.rn.f16.f32 %h9, %f0",
        &[
            (&[0x3f80_1000], 0x3c00),
            (&[0x3f80_3000], 0x3c02),
            (&[0x3f80_1001], 0x3c01),
            (&[0x477f_efff], 0x7bff),
            (&[0x477f_f000], 0x7c00),
            (&[0xc77f_f000], 0xfc00),
            (&[0x3300_0000], 0),
            (&[0x3300_0001], 1),
            (&[0x33c0_0000], 2),
            (&[ODD_NAN], 0x7fff),
        ],
    );
    let halves: &[(&[u64], u64)] =
        &[(&[0x0001], 0x3380_0000), (&[0xfc00], 0xff80_0000), (&[0x3555], 0x3eaa_a000), (&[0xfc01], NAN)];
    check("cvt.f32.f16 %f9, %h0", halves);
}

#[test]
fn conversions_to_integers_truncate_and_saturate() {
    let words: &[(&[u64], u64)] =
        &[(&[bits(2.9)], 2), (&[bits(-1.5)], 0), (&[0x4f80_0000], 0xffff_ffff), (&[ODD_NAN], 0)];
    check("cvt.rzi.u32.f32 %r9, %f0", words);
    let doubles: &[(&[u64], u64)] =
        &[(&[bits(2.9)], 2), (&[bits(-1.5)], 0), (&[INFINITY], u64::MAX), (&[ODD_NAN], 1 << 63)];
    check("cvt.rzi.u64.f32 %d9, %f0", doubles);
    let from_doubles: &[(&[u64], u64)] =
        &[(&[2.9_f64.to_bits()], 2), (&[f64::NAN.to_bits()], 1 << 63), (&[1e300_f64.to_bits()], u64::MAX)];
    check("cvt.rzi.u64.f64 %d9, %g0", from_doubles);
}

#[test]
fn conversions_from_integers_round_to_nearest_even() {
    let words: &[(&[u64], u64)] =
        &[(&[0xffff_ffff], 0x4f80_0000), (&[16_777_217], 0x4b80_0000), (&[16_777_219], 0x4b80_0002)];
    check("cvt.rn.f32.u32 %f9, %r0", words);
    check("cvt.rn.f32.u64 %f9, %d0", &[(&[(1 << 40) + (1 << 16)], 0x5380_0000), (&[u64::MAX], 0x5f80_0000)]);
    check("cvt.rn.f64.u64 %g9, %d0", &[(&[(1 << 53) + 1], ((1_u64 << 53) as f64).to_bits())]);
    check("cvt.u16.u32 %h9, %r0", &[(&[0x1234_fedc], 0xfedc)]);
    check("cvt.u64.u32 %d9, %r0", &[(&[0xffff_ffff_ffff_fffe], 0xffff_fffe)]);
}

#[test]
fn bytes_are_permuted() {
    let [a, b] = [0x3322_1100, 0x7766_5544];
    check(
        "prmt.b32 %r9, %r0, %r1, %r2",
        &[
            (&[a, b, 0x5410], 0x5544_1100),
            (&[a, b, 0x7632], 0x7766_3322),
            (&[a, b, 0xffff_0123], 0x0011_2233),
            (&[0x80, 0x7f00_0000, 0x0008], 0x8080_80ff),
            (&[0x80, 0x7f00_0000, 0xf888], 0x00ff_ffff),
        ],
    );
}

#[test]
fn three_bits_are_looked_up() {
    let words = [0x0f0f, 0x3333, 0xff55_5555];
    check("lop3.b32 %r9, %r0, %r1, %r2, 234", &[(&words, 0x0f0f & 0x3333 | 0xff55_5555)]);
    check("lop3.b32 %r9, %r0, %r1, %r2, 150", &[(&words, 0x0f0f ^ 0x3333 ^ 0xff55_5555)]);
}

#[test]
fn bits_are_inserted_reversed_and_found() {
    check(
        "bfi.b32 %r9, %r0, %r1, %r2, %r3",
        &[
            (&[0xff, 0x1234_5678, 4, 8], 0x1234_5ff8),
            (&[0, 0x1234_5678, 4, 8], 0x1234_5008),
            (&[0xff, 0x1234_5678, 28, 8], 0xf234_5678),
            (&[0xff, 0x1234_5678, 4, 0], 0x1234_5678),
            (&[0xff, 0x1234_5678, 32, 8], 0x1234_5678),
            (&[0xabcd_ef01, 0x1234_5678, 0, 255], 0xabcd_ef01),
            (&[0xff, 0x1234_5678, 0x104, 0x108], 0x1234_5ff8),
        ],
    );
    check("brev.b32 %r9, %r0", &[(&[0x8000_0006], 0x6000_0001)]);
    let found: &[(&[u64], u64)] =
        &[(&[0], 0xffff_ffff), (&[1], 31), (&[0x8000_0000], 0), (&[0x0001_8000], 15)];
    check("bfind.shiftamt.u32 %r9, %r0", found);
}

#[test]
fn shifts_by_the_width_or_more_leave_nothing() {
    check("shl.b32 %r9, %r0, %r1", &[(&[3, 31], 0x8000_0000), (&[3, 32], 0), (&[3, 0xffff_ffff], 0)]);
    check("shr.u32 %r9, %r0, %r1", &[(&[0xf000_0000, 31], 1), (&[0xf000_0000, 32], 0)]);
    check("shr.s32 %r9, %r0, %r1", &[(&[0xf000_0000, 4], 0xff00_0000), (&[0xf000_0000, 40], 0xffff_ffff)]);
    check("shl.b64 %d9, %d0, %r1", &[(&[3, 63], 1 << 63), (&[3, 64], 0)]);
    check("shr.u64 %d9, %d0, %r1", &[(&[u64::MAX, 63], 1), (&[u64::MAX, 64], 0)]);
    check("shl.b16 %h9, %h0, %r1", &[(&[0x8181, 1], 0x0302), (&[0x8181, 16], 0)]);
    check("shr.u16 %h9, %h0, %r1", &[(&[0xf_8181, 1], 0x40c0), (&[0x8181, 16], 0)]);
}

#[test]
fn integers_wrap_at_their_width() {
    check("add.s32 %r9, %r0, %r1", &[(&[0xffff_ffff, 2], 1)]);
    check("sub.s16 %h9, %h0, %h1", &[(&[1, 2], 0xffff)]);
    check("mul.lo.s16 %h9, %h0, %h1", &[(&[0x101, 0x101], 0x0201)]);
    check("mul.wide.u16 %r9, %h0, -21845", &[(&[3], 0x2_0001)]);
    check("mul.wide.u32 %d9, %r0, %r1", &[(&[0xffff_ffff, 0xffff_ffff], 0xffff_fffe_0000_0001)]);
    check("mul.lo.s64 %d9, %d0, -3", &[(&[2], (-6_i64) as u64)]);
    check("mad.lo.s32 %r9, %r0, %r1, %r2", &[(&[0x1_0001, 0x1_0001, 5], 0x0002_0006)]);
    check("neg.s32 %r9, %r0", &[(&[1], 0xffff_ffff), (&[0x8000_0000], 0x8000_0000)]);
    check("max.u32 %r9, %r0, -129", &[(&[5], 0xffff_ff7f)]);
    check("rem.u32 %r9, %r0, %r1", &[(&[0xffff_ffff, 10], 5)]);
}

#[test]
fn comparisons_with_nan_hold_only_if_unordered() {
    let one = bits(1.0);
    for (name, less, equal, more, unordered) in [
        ("eq", 0, 1, 0, 0),
        ("ne", 1, 0, 1, 0),
        ("lt", 1, 0, 0, 0),
        ("le", 1, 1, 0, 0),
        ("gt", 0, 0, 1, 0),
        ("ge", 0, 1, 1, 0),
        ("equ", 0, 1, 0, 1),
        ("neu", 1, 0, 1, 1),
        ("ltu", 1, 0, 0, 1),
        ("leu", 1, 1, 0, 1),
        ("gtu", 0, 0, 1, 1),
        ("geu", 0, 1, 1, 1),
        ("num", 1, 1, 1, 0),
        ("nan", 0, 0, 0, 1),
    ] {
        let cases: &[(&[u64], u64)] = &[
            (&[one, bits(2.0)], less),
            (&[one, one], equal),
            (&[0x8000_0000, 0], equal),
            (&[bits(2.0), one], more),
            (&[ODD_NAN, one], unordered),
            (&[one, NAN], unordered),
        ];
        check(&format!("setp.{name}.f32 %p9, %f0, %f1"), cases);
    }
    check("setp.lt.s32 %p9, %r0, %r1", &[(&[0xffff_ffff, 0], 1)]);
    check("setp.lt.u32 %p9, %r0, %r1", &[(&[0xffff_ffff, 0], 0)]);
    check("setp.eq.s16 %p9, %h0, -1", &[(&[0x1_ffff], 1)]);
}

#[test]
fn the_larger_of_a_number_and_nan_is_the_number() {
    let one = bits(1.0);
    let larger: &[(&[u64], u64)] = &[
        (&[one, bits(2.0)], bits(2.0)),
        (&[ODD_NAN, one], one),
        (&[one, ODD_NAN], one),
        (&[ODD_NAN, ODD_NAN], NAN),
        (&[0x8000_0000, 0], 0),
        (&[0, 0x8000_0000], 0),
    ];
    check("max.f32 %f9, %f0, %f1", larger);
    let smaller: &[(&[u64], u64)] = &[
        (&[one, bits(2.0)], one),
        (&[ODD_NAN, one], one),
        (&[ODD_NAN, NAN], NAN),
        (&[0, 0x8000_0000], 0x8000_0000),
    ];
    check("min.f32 %f9, %f0, %f1", smaller);
    check("copysign.f32 %f9, %f0, %f1", &[(&[bits(-2.0), one], bits(-1.0))]);
    check("abs.f32 %f9, %f0", &[(&[bits(-2.0)], bits(2.0))]);
}

#[test]
fn arithmetic_keeps_subnormal_numbers_and_makes_one_nan() {
    check("div.rn.f32 %f9, %f0, %f1", &[(&[0x0080_0000, bits(2.0)], 0x0040_0000), (&[0, 0], NAN)]);
    check("sub.f32 %f9, %f0, %f1", &[(&[INFINITY, INFINITY], NAN)]);
    check("mul.f32 %f9, %f0, %f1", &[(&[0x0000_0001, bits(1.0)], 1), (&[ODD_NAN, bits(1.0)], NAN)]);
    // The product alone would round to 1.
    let fused: &[(&[u64], u64)] = &[(&[0x3f80_0001, 0x3f7f_fffe, bits(-1.0)], 0xa880_0000)];
    check("fma.rn.f32 %f9, %f0, %f1, %f2", fused);
    // 133 - 128 and 256 - 128; 1,029 - 1,024 and a sum that is rounded to even.
    let pairs: &[(&[u64], u64)] = &[(&[0x4305_4380, 0x3f80_3f80, 0xc300_c300], 0x40a0_4300)];
    check("fma.rn.bf16x2 %r9, %r0, %r1, %r2", pairs);
    let pairs: &[(&[u64], u64)] = &[(&[0x6405_6801, 0x3c00_3c00, 0xe400_3c00], 0x4500_6802)];
    check("fma.rn.f16x2 %r9, %r0, %r1, %r2", pairs);
    check("sqrt.rn.f32 %f9, %f0", &[(&[bits(2.0)], bits(std::f32::consts::SQRT_2)), (&[bits(-1.0)], NAN)]);
    check("rcp.rn.f32 %f9, %f0", &[(&[0x7e80_0000], 0x0080_0000), (&[0x7f00_0000], 0x0040_0000)]);
}

#[test]
fn approximations_flush_subnormal_numbers() {
    check(
        "ex2.approx.ftz.f32 %f9, %f0",
        &[
            (&[bits(-126.0)], 0x0080_0000),
            (&[bits(-127.0)], 0),
            (&[0xff80_0000], 0),
            (&[0x0000_0001], bits(1.0)),
            (&[bits(3.0)], bits(8.0)),
            (&[bits(128.0)], INFINITY),
            (&[ODD_NAN], NAN),
        ],
    );
    check(
        "rcp.approx.ftz.f32 %f9, %f0",
        &[(&[bits(4.0)], bits(0.25)), (&[0x8000_0001], 0xff80_0000), (&[0x7f00_0000], 0), (&[INFINITY], 0)],
    );
    check(
        "rsqrt.approx.ftz.f32 %f9, %f0",
        &[(&[bits(4.0)], bits(0.5)), (&[0x8000_0000], 0xff80_0000), (&[1], INFINITY), (&[bits(-1.0)], NAN)],
    );
}

#[test]
fn words_are_packed_with_the_first_part_low() {
    check("mov.b32 %r9, {%h0, %h1}", &[(&[0x1111, 0x2222], 0x2222_1111)]);
    check("mov.b64 %d9, {%r0, %r1}", &[(&[0x1111, 0x2222], 0x2222_0000_1111)]);
    check("mov.u32 %r9, 0;\nmov.b64 {%r8, %r9}, %d0", &[(&[0x2222_0000_1111], 0x2222)]);
    check("mov.u32 %r9, 0;\nmov.b64 {%r9, %r8}, %d0", &[(&[0x2222_0000_1111], 0x1111)]);
    check("selp.b32 %r9, %r0, %r1, %p2", &[(&[7, 8, 1], 7), (&[7, 8, 0], 8)]);
}

#[test]
fn guards_skip_instructions() {
    check("mov.u32 %r9, 1;\n@%p0 mov.u32 %r9, 2", &[(&[0], 1), (&[1], 2)]);
    check("mov.u32 %r9, 1;\n@!%p0 mov.u32 %r9, 2", &[(&[0], 2), (&[1], 1)]);
}
