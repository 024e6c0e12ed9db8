//! Matrices that are packed, and read back row by row.

use super::*;
use half::bf16;

/// Ragged in both directions; numbers differ in their low bits, so that rounding shows.
#[test]
fn rows_come_back_as_they_were_rounded_on_every_instruction_set() {
    for isa in Isa::available() {
        let cpu = Cpu::with_isa(isa, 2).unwrap();
        let mut packer = Packer { cpu, arena: Arena::default() };
        for (format, outputs, inputs) in
            [Format::F32, Format::Bf16, Format::Int8, Format::Int4, Format::Mxfp4].into_iter().flat_map(
                |format| [(1, 1), (16, 32), (70, 33), (130, 100), (256, 64)].map(|(n, k)| (format, n, k)),
            )
        {
            let number = |row: usize, i: usize| (((row * 131 + i * 17) % 1009) as f32 - 504.3) / 7.1;
            let fill = |row: usize, out: &mut [f32]| {
                out.iter_mut().enumerate().for_each(|(i, x)| *x = number(row, i));
            };
            let mut matrices = vec![packer.matrix(format, outputs, inputs, fill).unwrap()];
            if outputs.is_multiple_of(2) {
                matrices.push(packer.gated(format, outputs / 2, inputs, fill).unwrap());
            }
            let mut got = vec![f32::NAN; inputs];
            for (matrix, row) in matrices.iter().flat_map(|matrix| (0..outputs).map(move |row| (matrix, row)))
            {
                matrix.unpack_row(row, 1.0, &mut got);
                check_groups(matrix, row, &got);
                for (i, got) in got.iter().enumerate() {
                    let (want, group) = (number(row, i), i / GROUP * GROUP);
                    let numbers = (group..inputs.min(group + GROUP)).map(|i| number(row, i));
                    let largest = numbers.fold(0.0_f32, |largest, x| largest.max(x.abs()));
                    let right = match format {
                        Format::F32 => *got == want,
                        Format::Bf16 => *got == bf16::from_f32(want).to_f32(),
                        Format::Int8 => (got - want).abs() <= 0.51 * largest / 127.0,
                        Format::Int4 => (got - want).abs() <= 2.0 * largest / 15.0,
                        // The largest may be between 6 and 8 units.
                        Format::Mxfp4 => (got - want).abs() <= largest / 4.0,
                    };
                    assert!(right, "{isa:?}, {format:?}, row {row} of {outputs}, {i}: {got}, not {want}");
                }
            }
        }
    }
}

/// The groups of a row of integers are what the row is made from.
fn check_groups(matrix: &Matrix, row: usize, numbers: &[f32]) {
    for (index, numbers) in numbers.chunks(GROUP).enumerate() {
        let group = matrix.group(row, index);
        let is_integers = matches!(matrix.format(), Format::Int8 | Format::Int4);
        assert_eq!(group.is_some(), is_integers, "{:?}", matrix.format());
        let Some(group) = group else { continue };
        let (scale, base) = (group.scale.to_f32(), group.base.to_f32());
        let widened = group.numbers.map(|n| f32::from(n) * scale + base);
        assert_eq!(widened[..numbers.len()], *numbers, "{:?}, row {row}", matrix.format());
    }
}

#[test]
fn rows_of_blocks_stay_as_they_are_on_every_instruction_set() {
    for isa in Isa::available() {
        let mut packer = Packer { cpu: Cpu::with_isa(isa, 2).unwrap(), arena: Arena::default() };
        for (outputs, inputs) in [(16, 32), (70, 96), (130, 45_usize)] {
            // All exponents but that of NaN.
            let block = |row: usize, block: usize| Mx4 {
                exponent: ((row * 5 + block * 111) % 255) as u8,
                codes: std::array::from_fn(|i| ((row * 7 + block * 3 + i * 5) % 16) as u8),
            };
            let fill = |row: usize, out: &mut [Mx4]| {
                assert_eq!(out.len(), inputs.div_ceil(GROUP));
                out.iter_mut().enumerate().for_each(|(i, out)| *out = block(row, i));
            };
            let matrices = [
                packer.matrix_of(outputs, inputs, fill).unwrap(),
                packer.gated_of(outputs / 2, inputs, fill).unwrap(),
            ];
            let mut got = vec![f32::NAN; inputs];
            for (matrix, row) in matrices.iter().flat_map(|matrix| (0..outputs).map(move |row| (matrix, row)))
            {
                matrix.unpack_row(row, 1.0, &mut got);
                for (i, got) in got.iter().enumerate() {
                    let want = block(row, i / GROUP).numbers()[i % GROUP];
                    assert_eq!(*got, want, "{isa:?}, row {row} of {outputs}, {i} of {inputs}");
                }
            }
        }
    }
}

#[test]
fn rows_of_groups_stay_as_they_are_on_every_instruction_set() {
    for isa in Isa::available() {
        let mut packer = Packer { cpu: Cpu::with_isa(isa, 2).unwrap(), arena: Arena::default() };
        for (outputs, inputs) in [(16, 32), (70, 96), (130, 45_usize)] {
            let group = |row: usize, group: usize| Group4 {
                scale: f16::from_f32((1 + row) as f32 / 64.0),
                base: f16::from_f32(group as f32 - row as f32 / 16.0),
                integers: std::array::from_fn(|i| ((row * 7 + group * 3 + i * 5) % 16) as u8),
            };
            let fill = |row: usize, out: &mut [Group4]| {
                assert_eq!(out.len(), inputs.div_ceil(GROUP));
                out.iter_mut().enumerate().for_each(|(i, out)| *out = group(row, i));
            };
            let matrices = [
                packer.matrix_of(outputs, inputs, fill).unwrap(),
                packer.gated_of(outputs / 2, inputs, fill).unwrap(),
            ];
            let mut got = vec![f32::NAN; inputs];
            for (matrix, row) in matrices.iter().flat_map(|matrix| (0..outputs).map(move |row| (matrix, row)))
            {
                matrix.unpack_row(row, 1.0, &mut got);
                for (i, got) in got.iter().enumerate() {
                    let Group4 { scale, base, integers } = group(row, i / GROUP);
                    let want = f32::from(integers[i % GROUP]) * scale.to_f32() + base.to_f32();
                    assert_eq!(*got, want, "{isa:?}, row {row} of {outputs}, {i} of {inputs}");
                }
            }
        }
    }
}
