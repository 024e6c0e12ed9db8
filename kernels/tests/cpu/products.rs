//! Matrix products in every format of weights, with what is included in them.

use infer_kernels::{Activation, Format, Inputs, Rows, Then, reference};

use crate::common::{FORMATS, loaded, packed, packed_gated, random, seeds, unpacked, unpacked_inputs};
use crate::{assert_close, cpus};

/// All activations.
const ACTIVATIONS: [Activation; 3] =
    [Activation::Silu, Activation::GeluTanh, Activation::ClampedSwish { alpha: 1.702, limit: 7.0 }];

#[test]
fn products_match_for_ragged_shapes_and_all_formats() {
    for seed in seeds(12) {
        let mut random = random(seed);
        let (m, n, k) = (random.size(1, 60), random.size(1, 200), random.size(1, 600));
        let (x, w, bias) = (random.numbers(m * (k + 3)), random.numbers(n * k), random.numbers(n));
        // Rows are parts of wider rows, as after projections.
        let rows = Rows { data: &x, offset: 2, stride: k + 3, width: k };
        for format in FORMATS {
            let matrix = packed(format, &w, k);
            let mut wants = Vec::new();
            for cpu in cpus() {
                let context = format!("seed {seed}, {m} x {n} x {k}, {format:?}, {:?}", cpu.isa());
                let inputs = loaded(&cpu, rows, m, format);
                if wants.is_empty() {
                    wants = reference::matmul(&unpacked_inputs(&inputs), &unpacked(&matrix), k);
                }
                let mut out = vec![f32::NAN; m * n];
                cpu.matmul(&inputs, &matrix, None, Then::Store, &mut out);
                assert_close(&out, &wants, 1e-4, &context);
                cpu.matmul(&inputs, &matrix, Some(&bias), Then::Add, &mut out);
                let twice: Vec<f32> = wants.iter().enumerate().map(|(i, x)| 2.0 * x + bias[i % n]).collect();
                assert_close(&out, &twice, 2e-4, &format!("added, {context}"));
            }
        }
    }
}

#[test]
fn gated_products_match_for_ragged_widths() {
    for seed in seeds(8) {
        let mut random = random(seed);
        let (m, n, k) = (random.size(1, 9), random.size(1, 150), random.size(1, 200));
        let (x, w, bias) = (random.numbers(m * k), random.numbers(2 * n * k), random.numbers(2 * n));
        for format in FORMATS {
            let rounded = unpacked(&packed(format, &w, k));
            let matrix = packed_gated(format, &w, k);
            for (cpu, activation) in cpus().zip(ACTIVATIONS.into_iter().cycle()) {
                let inputs = loaded(&cpu, Rows::dense(&x, k), m, format);
                let sums = reference::matmul(&unpacked_inputs(&inputs), &rounded, k);
                for bias in [None, Some(bias.as_slice())] {
                    let want: Vec<f32> = (0..m * n)
                        .map(|i| {
                            let sum = |j: usize| sums[i / n * 2 * n + j] + bias.map_or(0.0, |bias| bias[j]);
                            reference::gated(activation, sum(i % n), sum(n + i % n))
                        })
                        .collect();
                    let mut out = Inputs::default();
                    cpu.gated(&inputs, &matrix, bias, activation, Format::F32, &mut out);
                    let context = format!("seed {seed}, {m} x {n} x {k}, {format:?}, {:?}", cpu.isa());
                    assert_close(&unpacked_inputs(&out), &want, 2e-4, &context);
                    let loose = loaded(&cpu, Rows::dense(&unpacked_inputs(&out), n), m, format);
                    cpu.gated(&inputs, &matrix, bias, activation, format, &mut out);
                    assert_eq!(unpacked_inputs(&out), unpacked_inputs(&loose), "rounded at once, {context}");
                }
            }
        }
    }
}

#[test]
fn activations_match_up_to_large_arguments() {
    let gates: Vec<f32> = (-400..=400).map(|i| i as f32 * 0.25).collect();
    let n = gates.len();
    // Products with one input that is 1: the sums are the weights.
    let matrix = packed_gated(Format::F32, &[gates.clone(), vec![1.5; n]].concat(), 1);
    for activation in ACTIVATIONS {
        let want: Vec<f32> = gates.iter().map(|gate| reference::gated(activation, *gate, 1.5)).collect();
        for cpu in cpus() {
            let one = loaded(&cpu, Rows::dense(&[1.0], 1), 1, Format::F32);
            let mut out = Inputs::default();
            cpu.gated(&one, &matrix, None, activation, Format::F32, &mut out);
            assert_close(&unpacked_inputs(&out), &want, 1e-6, &format!("{activation:?}, {:?}", cpu.isa()));
        }
    }
}

#[test]
fn clamped_activation_bounds_both_halves_and_keeps_nan() {
    let activation = Activation::ClampedSwish { alpha: 1.702, limit: 7.0 };
    let numbers = [-1e30, -50.0, -7.5, -7.0, -0.5, 0.0, 3.0, 7.0, 7.5, 50.0, 1e30, f32::NAN];
    let (gates, ups): (Vec<f32>, Vec<f32>) =
        numbers.iter().flat_map(|gate| numbers.iter().map(move |up| (*gate, *up))).unzip();
    let matrix = packed_gated(Format::F32, &[gates.clone(), ups.clone()].concat(), 1);
    for cpu in cpus() {
        let one = loaded(&cpu, Rows::dense(&[1.0], 1), 1, Format::F32);
        let mut out = Inputs::default();
        cpu.gated(&one, &matrix, None, activation, Format::F32, &mut out);
        for ((gate, up), got) in gates.iter().zip(&ups).zip(unpacked_inputs(&out)) {
            let want = reference::gated(activation, *gate, *up);
            let right = match gate.is_nan() || up.is_nan() {
                true => got.is_nan(),
                false => (got - want).abs() <= 1e-6 * want.abs().max(1.0),
            };
            assert!(right, "{:?}, {gate} and {up}: {got}, not {want}", cpu.isa());
        }
    }
}

#[test]
fn packed_rows_unpack_within_the_rounding_of_their_format() {
    for seed in seeds(6) {
        let mut random = random(seed);
        let (n, k) = (random.size(1, 180), random.size(1, 100));
        let w: Vec<f32> = random.numbers(n * k).iter().map(|w| w * 0.02).collect();
        for format in FORMATS {
            let matrix = packed(format, &w, k);
            let mut row = vec![f32::NAN; k];
            for (index, want) in w.chunks(k).enumerate() {
                matrix.unpack_row(index, 2.0, &mut row);
                for (group, (got, want)) in row.chunks(32).zip(want.chunks(32)).enumerate() {
                    let largest = want.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                    let range = range(want);
                    for (got, want) in got.iter().zip(want) {
                        let tolerance = match format {
                            Format::F32 => 0.0,
                            Format::Bf16 => want.abs() / 256.0,
                            // Half a unit, plus the rounding of the scale to f16.
                            Format::Int8 => largest / 127.0 * 0.51,
                            // Fitting may move either end by half a unit more.
                            Format::Int4 => range / 15.0,
                            // Half a step of 2, or what is beyond 6, of a largest number from 4 to 8.
                            Format::Mxfp4 => largest / 4.0,
                        };
                        let context = format!("seed {seed}, {format:?}, row {index}, group {group}");
                        assert!((got / 2.0 - want).abs() <= tolerance, "{context}: {got} for {want}");
                    }
                }
            }
        }
    }
}

/// From the lowest to the highest number of a group, which zeros complete.
fn range(group: &[f32]) -> f32 {
    let start = if group.len() < 32 { 0.0 } else { group[0] };
    let (low, high) = group.iter().fold((start, start), |(low, high), x| (x.min(low), x.max(high)));
    high - low
}

/// Weights that are already 8-bit groups lose nothing.
#[test]
fn groups_with_an_f16_scale_are_packed_without_loss() {
    let mut random = random(5);
    for scale in [1.0_f32, 0.003_173_828, 6.0e-8, 2.4e-7, 500.0] {
        let scale = half::f16::from_f32(scale).to_f32();
        let mut w: Vec<f32> = (0..320).map(|_| random.size(0, 254) as f32 - 127.0).collect();
        w.chunks_mut(32).for_each(|group| group[7] = -127.0);
        w.iter_mut().for_each(|w| *w *= scale);
        assert_eq!(unpacked(&packed(Format::Int8, &w, 64)), w, "scale {scale:e}");
    }
}

/// NaN or infinity among the inputs is never rounded away.
#[test]
fn nan_and_infinite_inputs_propagate_to_every_output_of_their_row() {
    let w: Vec<f32> = random(2).numbers(70 * 40);
    for format in FORMATS {
        let matrix = packed(format, &w, 40);
        for cpu in cpus() {
            for (fault, rows) in [(f32::NAN, 3), (f32::NAN, 20), (f32::INFINITY, 3), (f32::INFINITY, 20)] {
                let wrong = rows - 2;
                let mut x = vec![0.5; rows * 40];
                x[wrong * 40 + 33] = fault;
                let mut out = vec![0.0; rows * 70];
                let inputs = loaded(&cpu, Rows::dense(&x, 40), rows, format);
                cpu.matmul(&inputs, &matrix, None, Then::Store, &mut out);
                for (row, out) in out.chunks(70).enumerate() {
                    let faulty = out.iter().filter(|x| !x.is_finite()).count();
                    let expected = if row == wrong { 70 } else { 0 };
                    assert_eq!(faulty, expected, "{fault}, {format:?}, {:?}, row {row}", cpu.isa());
                }
            }
        }
    }
}

/// Nor among the weights.
#[test]
fn nan_and_infinite_weights_propagate_to_every_row_of_their_output() {
    for format in FORMATS {
        for fault in [f32::NAN, f32::NEG_INFINITY] {
            let mut w: Vec<f32> = random(3).numbers(70 * 40);
            w[20 * 40 + 37] = fault;
            let matrix = packed(format, &w, 40);
            for cpu in cpus() {
                for rows in [2, 20] {
                    let inputs = loaded(&cpu, Rows::dense(&[0.5; 20 * 40], 40), rows, format);
                    let mut out = vec![0.0; rows * 70];
                    cpu.matmul(&inputs, &matrix, None, Then::Store, &mut out);
                    for (i, x) in out.iter().enumerate() {
                        assert_eq!(x.is_finite(), i % 70 != 20, "{format:?}, {:?}, {i}: {x}", cpu.isa());
                    }
                }
            }
        }
    }
}
