//! Blocks of GGUF's 4-bit types as the groups that the kernels multiply. Layouts: `ggml-common.h` of llama.cpp.

use candle_core::quantized::GgmlDType;
use half::f16;
use infer_kernels::{GROUP, Group4};

/// Sub-blocks of a block of Q4_K: as many groups.
const PARTS: usize = 8;
/// Bytes of their 6-bit scales and minimums.
const SCALES: usize = 12;

/// Whether blocks of a type are whole groups.
pub(super) fn is_four_bits(kind: GgmlDType) -> bool {
    matches!(kind, GgmlDType::Q4_0 | GgmlDType::Q4_1 | GgmlDType::Q4K)
}

/// Converts a row of blocks of one of these types. Integers stay as they are; the scales and minimums of Q4_K, which are
/// products there, and the base of Q4_0 are rounded to f16, clamped to its range.
///
/// # Panics
/// If the type is another, or the row has other groups.
pub(super) fn groups(kind: GgmlDType, bytes: &[u8], groups: &mut [Group4]) {
    assert_eq!(bytes.len() / kind.type_size() * kind.block_size(), groups.len() * GROUP, "as many groups");
    let blocks = bytes.chunks_exact(kind.type_size());
    match kind {
        GgmlDType::Q4_0 => blocks.zip(groups).for_each(|(block, group)| {
            let scale = half(block, 0);
            *group = Group4 { scale, base: clamped(-8.0 * scale.to_f32()), integers: halves(&block[2..]) };
        }),
        GgmlDType::Q4_1 => blocks.zip(groups).for_each(|(block, group)| {
            *group = Group4 { scale: half(block, 0), base: half(block, 2), integers: halves(&block[4..]) };
        }),
        GgmlDType::Q4K => blocks.zip(groups.chunks_exact_mut(PARTS)).for_each(|(block, groups)| {
            let (scale, minimum) = (half(block, 0).to_f32(), half(block, 2).to_f32());
            let (scales, integers) = block[4..].split_at(SCALES);
            // Each 32 bytes hold two groups: one in the low halves, one in the high halves.
            let bytes = integers.chunks_exact(GROUP);
            for (pair, (groups, bytes)) in groups.chunks_exact_mut(2).zip(bytes).enumerate() {
                for (high, group) in groups.iter_mut().enumerate() {
                    let (unit, offset) = six_bits(scales, 2 * pair + high);
                    *group = Group4 {
                        scale: clamped(scale * f32::from(unit)),
                        base: clamped(-minimum * f32::from(offset)),
                        integers: std::array::from_fn(|i| bytes[i] >> (4 * high) & 15),
                    };
                }
            }
        }),
        other => panic!("{other:?} isn't a type of 4-bit groups"),
    }
}

fn half(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// The nearest finite number. What is infinite or NaN in the file stays so, and the logits show it.
fn clamped(x: f32) -> f16 {
    match x.is_finite() {
        true => f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())),
        false => f16::from_f32(x),
    }
}

/// The low halves of sixteen bytes, then the high halves.
fn halves(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| bytes[i % (GROUP / 2)] >> (i / (GROUP / 2) * 4) & 15)
}

/// Scale and minimum of a part. The first four of both are the low six bits of a byte each; of the others the low four bits
/// share a byte, and the high two are those of the first ones' bytes.
fn six_bits(packed: &[u8], part: usize) -> (u8, u8) {
    match part {
        0..4 => (packed[part] & 63, packed[part + 4] & 63),
        _ => {
            let (low, high) = (packed[part + 4], |at: usize| packed[at] >> 6 << 4);
            (low & 15 | high(part - 4), low >> 4 | high(part))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{RowOrder, Stored, StoredType};

    /// Against candle's reading of random blocks; scales are of a size that f16 holds exactly, or nearly.
    #[test]
    fn groups_are_the_numbers_that_the_blocks_stand_for() {
        let mut state = 7_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        for (kind, tolerance) in [(GgmlDType::Q4_0, 0.0), (GgmlDType::Q4_1, 0.0), (GgmlDType::Q4K, 1e-3)] {
            let (inputs, rows) = (512, 9);
            let blocks = rows * inputs / kind.block_size();
            let mut bytes: Vec<u8> = (0..blocks * kind.type_size()).map(|_| byte()).collect();
            for (i, block) in bytes.chunks_exact_mut(kind.type_size()).enumerate() {
                let scales = [0.01 + i as f32 / 1e3, 0.3 - i as f32 / 1e3].map(f16::from_f32);
                let count = if kind == GgmlDType::Q4_0 { 1 } else { 2 };
                for (at, scale) in scales.into_iter().take(count).enumerate() {
                    block[2 * at..2 * at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            let stored = Stored {
                name: "x".to_owned(),
                kind: StoredType::Blocks(kind),
                shape: vec![rows, inputs],
                order: RowOrder::Plain,
                bytes: &bytes,
                scales: &[],
                codes: None,
            };
            let (mut want, mut got) = (vec![0.0; inputs], vec![Group4::default(); inputs / GROUP]);
            for row in 0..rows {
                stored.row(row, &mut want).unwrap();
                stored.groups(row, &mut got).unwrap();
                for (i, want) in want.iter().enumerate() {
                    let Group4 { scale, base, integers } = got[i / GROUP];
                    let got = f32::from(integers[i % GROUP]) * scale.to_f32() + base.to_f32();
                    let largest = scale.to_f32() * 15.0 + base.to_f32().abs();
                    assert!(
                        (got - want).abs() <= tolerance * largest,
                        "{kind:?}, {row}, {i}: {got}, not {want}"
                    );
                }
            }
        }
    }

    /// The group of the last part of a block with this scale and minimum, of which it has 63 each.
    fn group(kind: GgmlDType, units: [f16; 2]) -> Group4 {
        let mut block = vec![0xff; kind.type_size()];
        for (at, unit) in units.into_iter().enumerate().take(if kind == GgmlDType::Q4_0 { 1 } else { 2 }) {
            block[2 * at..2 * at + 2].copy_from_slice(&unit.to_le_bytes());
        }
        let mut row = vec![Group4::default(); kind.block_size() / GROUP];
        groups(kind, &block, &mut row);
        *row.last().unwrap()
    }

    #[test]
    fn products_beyond_f16_are_clamped_and_faults_stay() {
        let (large, zero) = (f16::from_f32(9_000.0), f16::ZERO);
        let Group4 { scale, base, .. } = group(GgmlDType::Q4_0, [large, zero]);
        assert_eq!((scale, base), (large, f16::MIN));
        let Group4 { scale, base, .. } = group(GgmlDType::Q4_0, [-large, zero]);
        assert_eq!((scale, base), (-large, f16::MAX));
        let Group4 { scale, base, .. } = group(GgmlDType::Q4K, [large, large]);
        assert_eq!((scale, base), (f16::MAX, f16::MIN));
        let Group4 { scale, base, .. } = group(GgmlDType::Q4K, [-large, -large]);
        assert_eq!((scale, base), (f16::MIN, f16::MAX));
        for kind in [GgmlDType::Q4_0, GgmlDType::Q4_1, GgmlDType::Q4K] {
            for fault in [f16::NAN, f16::INFINITY] {
                let Group4 { scale, base, .. } = group(kind, [fault; 2]);
                assert!(!scale.is_finite() && !base.is_finite(), "{kind:?}, {fault}: {scale}, {base}");
            }
        }
    }
}
