//! Products, gated ones, and the choice of experts.

use infer_kernels::{
    Activation, Aside, Cpu, Format, Gating, Inputs, Isa, Matrix, Router, Routes, Rows, Share, Then,
};

use super::{bits, cpu, fused};
use crate::common::{FORMATS, loaded, packed, packed_gated, random, seeds, unpacked_inputs};

fn product(cpu: &Cpu, x: &[f32], k: usize, matrix: &Matrix) -> Vec<u32> {
    let inputs = loaded(cpu, Rows::dense(x, k), x.len() / k, matrix.format());
    if matrix.is_gated() {
        let mut out = Inputs::default();
        cpu.gated(&inputs, matrix, None, Activation::Silu, matrix.format(), &mut out);
        return bits(&unpacked_inputs(&out));
    }
    let mut out = vec![f32::NAN; inputs.rows() * matrix.outputs()];
    cpu.matmul(&inputs, matrix, None, Then::Store, &mut out);
    bits(&out)
}

#[test]
fn product_row_has_the_same_bits_alone_and_in_any_batch() {
    for seed in seeds(8) {
        let mut random = random(seed);
        let (m, n, k) = (random.size(2, 110), 2 * random.size(1, 150), random.size(1, 700));
        let (x, w) = (random.numbers(m * k), random.numbers(n * k));
        for format in FORMATS {
            for matrix in [packed(format, &w, k), packed_gated(format, &w, k)] {
                for isa in Isa::available() {
                    let alone = cpu(isa, 1);
                    let solo: Vec<u32> =
                        x.chunks(k).flat_map(|row| product(&alone, row, k, &matrix)).collect();
                    for threads in [1, 2, 3] {
                        let together = product(&cpu(isa, threads), &x, k, &matrix);
                        let how =
                            format!("seed {seed}, {m} x {n} x {k}, {format:?}, {isa:?}, {threads} threads");
                        assert!(together == solo, "{how}");
                    }
                }
            }
        }
    }
}

/// Sizes at which an item of work has several panels, the last one narrow, and rows are cut into several items.
const LARGE: [(usize, usize, usize); 3] = [(130, 600, 300), (136, 1_040, 70), (257, 200, 33)];

#[test]
fn row_has_the_same_bits_alone_and_in_items_of_several_panels() {
    let mut random = random(12);
    for (m, n, k) in LARGE {
        let (x, w) = (random.numbers(m * k), random.numbers(n * k));
        for format in FORMATS {
            let matrix = packed(format, &w, k);
            for isa in Isa::available() {
                let alone = cpu(isa, 1);
                let solo: Vec<u32> = x.chunks(k).flat_map(|row| product(&alone, row, k, &matrix)).collect();
                for threads in [1, 2] {
                    let together = product(&cpu(isa, threads), &x, k, &matrix);
                    assert!(together == solo, "{m} x {n} x {k}, {format:?}, {isa:?}, {threads} threads");
                }
            }
        }
    }
}

/// Every batch size up to where tiles repeat, at a size that uses several threads.
#[test]
fn large_product_has_the_same_bits_at_every_batch_size() {
    let mut random = random(11);
    let (m, n, k) = (50, 200, 800);
    let (x, w) = (random.numbers(m * k), random.numbers(n * k));
    for format in FORMATS {
        let matrix = packed(format, &w, k);
        let (one, two) = (cpu(Isa::detect(), 1), cpu(Isa::detect(), 2));
        let whole = product(&one, &x, k, &matrix);
        for rows in 1..=m {
            assert!(
                product(&two, &x[..rows * k], k, &matrix) == whole[..rows * n],
                "{rows} rows, {format:?}"
            );
        }
    }
}

/// The rows of an expert are some of a batch's, moved to other places of tiles.
#[test]
fn gathered_rows_have_the_same_products_as_in_their_batch() {
    for seed in seeds(6) {
        let mut random = random(seed);
        let (m, n, k) = (random.size(2, 90), 2 * random.size(1, 80), random.size(1, 300));
        let (x, w) = (random.numbers(m * k), random.numbers(n * k));
        let mut shares: Vec<Share> = (0..m as u32).map(|row| Share { row, weight: 1.0 }).collect();
        shares.retain(|_| random.flag());
        for format in FORMATS {
            let matrix = packed(format, &w, k);
            for isa in Isa::available() {
                let cpu = cpu(isa, 2);
                let whole = product(&cpu, &x, k, &matrix);
                let all = loaded(&cpu, Rows::dense(&x, k), m, format);
                let mut some = Inputs::default();
                cpu.gather(&all, &shares, &mut some);
                let mut out = vec![f32::NAN; shares.len() * n];
                cpu.matmul(&some, &matrix, None, Then::Store, &mut out);
                let want = shares.iter().flat_map(|share| &whole[share.row as usize * n..][..n]);
                let how = format!("seed {seed}, {m} x {n} x {k}, {format:?}, {isa:?}");
                assert!(bits(&out).iter().eq(want), "{how}");
            }
        }
    }
}

/// Rows whose sums are added to before the activation, among others.
#[test]
fn gated_rows_with_additions_depend_on_themselves_and_leave_the_others_alone() {
    for seed in seeds(8) {
        let mut random = random(seed);
        let (m, n, k) = (random.size(1, 110), random.size(1, 150), random.size(1, 300));
        let (x, w, bias) = (random.numbers(m * k), random.numbers(2 * n * k), random.numbers(2 * n));
        let bias = random.flag().then_some(bias.as_slice());
        let mut rows = vec![None; m];
        // In another order than that of the rows.
        let chosen: Vec<usize> = (0..m).rev().filter(|_| random.flag()).collect();
        for (at, row) in chosen.iter().enumerate() {
            rows[*row] = Some(at as u32);
        }
        let added = random.numbers(chosen.len() * 2 * n);
        let activation = Activation::GeluTanh;
        for format in FORMATS {
            let matrix = packed_gated(format, &w, k);
            for isa in Isa::available() {
                let cpu = cpu(isa, 2);
                let how = format!("seed {seed}, {m} x {n} x {k}, {format:?}, {isa:?}");
                let run = |x: &[f32], rows: &[Option<u32>], sums: &[f32]| {
                    let inputs = loaded(&cpu, Rows::dense(x, k), rows.len(), format);
                    let (mut out, mut outputs) = (Inputs::default(), vec![f32::NAN; rows.len() * n]);
                    let aside = Some(Aside { rows, sums, outputs: &mut outputs });
                    cpu.gated_aside(&inputs, &matrix, Gating { bias, activation, format, aside }, &mut out);
                    (unpacked_inputs(&out), outputs)
                };
                let inputs = loaded(&cpu, Rows::dense(&x, k), m, format);
                let mut plain = Inputs::default();
                cpu.gated(&inputs, &matrix, bias, activation, format, &mut plain);
                let plain = unpacked_inputs(&plain);
                let (together, exact) = run(&x, &rows, &added);
                for (row, place) in rows.iter().enumerate() {
                    let of = |numbers: &[f32]| bits(&numbers[row * n..][..n]);
                    let Some(at) = place else {
                        assert_eq!(of(&together), of(&plain), "row {row}, {how}");
                        assert!(exact[row * n..][..n].iter().all(|x| x.is_nan()), "row {row}, {how}");
                        continue;
                    };
                    let added = &added[*at as usize * 2 * n..][..2 * n];
                    let (solo, output) = run(&x[row * k..][..k], &[Some(0)], added);
                    assert_eq!((of(&together), of(&exact)), (bits(&solo), bits(&output)), "row {row}, {how}");
                    // The same as a bias of its own.
                    let own: Vec<f32> =
                        added.iter().enumerate().map(|(i, x)| x + bias.map_or(0.0, |bias| bias[i])).collect();
                    let alone = loaded(&cpu, Rows::dense(&x[row * k..][..k], k), 1, format);
                    let mut want = Inputs::default();
                    cpu.gated(&alone, &matrix, Some(&own), activation, Format::F32, &mut want);
                    for (got, want) in output.iter().zip(unpacked_inputs(&want)) {
                        assert!((got - want).abs() <= 1e-3 * want.abs().max(1.0), "row {row}, {how}");
                    }
                    let rounded = unpacked_inputs(&loaded(&cpu, Rows::dense(&output, n), 1, format));
                    assert_eq!(of(&together), bits(&rounded), "row {row}, {how}");
                }
            }
        }
    }
}

#[test]
fn experts_of_a_row_are_the_same_alone_and_in_any_batch_on_every_instruction_set() {
    let router = Router { experts: 100, per_row: 7, normalized: true };
    let logits = random(14).numbers(60 * router.experts);
    let routed = |cpu: &Cpu, logits: &[f32]| {
        let mut routes = Routes::default();
        cpu.route(logits, router, &mut routes);
        let choices = (0..logits.len() / router.experts).flat_map(|row| routes.of_row(row).to_vec());
        choices.map(|choice| (choice.expert, choice.weight.to_bits())).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for isa in Isa::available() {
        let alone = cpu(isa, 1);
        let solo: Vec<_> = logits.chunks(router.experts).flat_map(|row| routed(&alone, row)).collect();
        for threads in [1, 2, 3] {
            assert_eq!(routed(&cpu(isa, threads), &logits), solo, "{isa:?}, {threads} threads");
        }
        if fused().contains(&isa) {
            all.push(solo);
        }
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Tile registers are left out for bf16, whose products they sum in another order.
#[test]
fn instruction_sets_agree_on_products_bit_for_bit() {
    let wide = fused();
    let mut random = random(13);
    let small = || (random.size(1, 40), 2 * random.size(1, 100), random.size(1, 700));
    let sizes: Vec<_> = LARGE.into_iter().chain(std::iter::repeat_with(small).take(6)).collect();
    for (m, n, k) in sizes {
        let (x, w) = (random.numbers(m * k), random.numbers(n * k));
        for format in FORMATS {
            let isas = wide.iter().filter(|isa| **isa != Isa::Amx || format != Format::Bf16);
            for matrix in [packed(format, &w, k), packed_gated(format, &w, k)] {
                let all: Vec<_> = isas.clone().map(|isa| product(&cpu(*isa, 1), &x, k, &matrix)).collect();
                assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{m} x {n} x {k}, {format:?}");
            }
        }
    }
}
