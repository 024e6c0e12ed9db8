//! Every operation of every instruction set against the scalar reference, on ragged random shapes.

mod common;

use common::{
    FORMATS, Paged, head_dim, loaded, packed, packed_gated, random, seeds, unpacked, unpacked_inputs,
};
use half::bf16;
use infer_kernels::{
    Activation, Arena, AttentionParams, ContiguousLayer, ContiguousQuery, Cpu, Element, Format, HeadRows,
    Inputs, Isa, MAX_HEAD_DIM, Norm, PagedLayer, PagedLayout, PagedQuery, Qkv, QueryRun, RopeTable, Router,
    Routes, Rows, Share, Targets, Then, reference,
};

/// All activations.
const ACTIVATIONS: [Activation; 3] =
    [Activation::Silu, Activation::GeluTanh, Activation::ClampedSwish { alpha: 1.702, limit: 7.0 }];

fn cpus() -> impl Iterator<Item = Cpu> {
    Isa::available().into_iter().map(|isa| Cpu::with_isa(isa, 1).expect("no threads are needed"))
}

fn assert_close(got: &[f32], want: &[f32], tolerance: f32, context: &str) {
    assert_eq!(got.len(), want.len(), "{context}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / want.abs().max(1.0);
        assert!(error <= tolerance, "{context}: element {i} is {got}, should be {want}");
    }
}

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

#[test]
fn norms_match_for_rows_and_for_heads() {
    for seed in seeds(8) {
        let mut random = random(seed);
        let (rows, width) = (random.size(1, 5), random.size(1, 130));
        let (x, weight) = (random.numbers(rows * width), random.numbers(width));
        let want: Vec<f32> = x.chunks(width).flat_map(|x| reference::rms_norm(x, &weight, 1e-5)).collect();
        for cpu in cpus() {
            let context = format!("seed {seed}, {rows} rows of {width}, {:?}", cpu.isa());
            let mut out = vec![f32::NAN; rows * width];
            cpu.rms_norm(Rows::dense(&x, width), &weight, 1e-5, &mut out);
            assert_close(&out, &want, 1e-5, &context);
            for format in FORMATS {
                let mut inputs = Inputs::default();
                let norm = Norm { weight: &weight, epsilon: 1e-5 };
                cpu.rms_norm_inputs(Rows::dense(&x, width), rows, norm, format, &mut inputs);
                let rounded = loaded(&cpu, Rows::dense(&out, width), rows, format);
                assert_eq!(unpacked_inputs(&inputs), unpacked_inputs(&rounded), "{format:?}, {context}");
            }
            let mut heads = x.clone();
            let shape = HeadRows { rows: 1, stride: 0, offset: 0, heads: rows };
            cpu.rms_norm_heads(&mut heads, shape, &weight, 1e-5);
            assert_close(&heads, &want, 1e-5, &context);
        }
    }
}

#[test]
fn rope_rotates_queries_and_keys_by_position_and_stores_the_rotated_keys() {
    let mut random = random(1);
    let frequencies: Vec<f32> = (0..12).map(|i| 10_000_f32.powf(-i as f32 / 12.0)).collect();
    let table = RopeTable::new(&frequencies, 900, 1.0);
    let (positions, slots, heads, kv_heads, width) = ([0, 899, 17], [7, 12, 9], 4, 2, 24);
    let stride = (heads + 2 * kv_heads) * width;
    let data = random.numbers(3 * stride);
    for cpu in cpus().chain([Cpu::new(3).unwrap()]) {
        let mut turned = data.clone();
        let mut qkv = Qkv { data: &mut turned, heads, kv_heads, positions: &positions, rope: &table };
        let layout = PagedLayout { block_size: 4, kv_heads, head_dim: width };
        let mut layer = PagedLayer::<f32>::new(layout, 4, &mut Arena::default()).unwrap();
        layer.fill(f32::NAN);
        cpu.rope_and_store(&mut qkv, &slots, &mut layer);
        for (row, position) in positions.iter().enumerate() {
            for head in 0..heads + kv_heads {
                let at = row * stride + head * width..row * stride + (head + 1) * width;
                let want = reference::rope(&data[at.clone()], &frequencies, *position);
                assert_close(&turned[at], &want, 1e-5, &format!("position {position}"));
            }
            let values = row * stride + (heads + kv_heads) * width..(row + 1) * stride;
            assert_eq!(turned[values.clone()], data[values], "values are left alone");
        }
        let mut only_turned = data.clone();
        cpu.rope(&mut Qkv { data: &mut only_turned, heads, kv_heads, positions: &positions, rope: &table });
        assert_eq!(only_turned, turned);
        // A plain write stores the same: attention over both pools gives the same result.
        let mut plain = PagedLayer::<f32>::new(layout, 4, &mut Arena::default()).unwrap();
        plain.fill(f32::NAN);
        let rows =
            |first: usize| Rows { data: &turned, offset: first * width, stride, width: kv_heads * width };
        plain.write(&slots, rows(heads), rows(heads + kv_heads));
        for slot in slots {
            let params =
                AttentionParams { heads: kv_heads, scale: 1.0, soft_cap: None, window: Some(1), sinks: None };
            let q = vec![1.0; kv_heads * width];
            let [ours, theirs] = [&layer, &plain].map(|layer| {
                let mut out = vec![f32::NAN; q.len()];
                let run = QueryRun { first: 0, count: 1, table_start: 0, table_len: 1 };
                let (positions, tables) = ([slot % 4], [slot / 4]);
                let q = Rows::dense(&q, q.len());
                let query = PagedQuery { q, positions: &positions, runs: &[run], tables: &tables };
                cpu.paged_attention(layer, &params, query, &mut Vec::new(), &mut out);
                out
            });
            assert!(ours == theirs && ours.iter().all(|x| x.is_finite()), "slot {slot}");
        }
    }
}

#[test]
fn pairs_without_a_frequency_are_neither_rotated_nor_scaled() {
    let table = RopeTable::new(&[0.5, 0.0], 30, 3.0);
    for position in [0, 29] {
        let (cosines, sines) = table.at(position);
        let angle = f64::from(position) * 0.5;
        assert_eq!(cosines, [3.0 * angle.cos() as f32, 1.0]);
        assert_eq!(sines, [3.0 * angle.sin() as f32, 0.0]);
    }
}

/// Sizes that overflow to something small must not pass as valid.
#[test]
fn rows_beyond_all_memory_are_refused() {
    let cpu = Cpu::new(1).expect("no threads are needed");
    let weight = [1.0; 4];
    for (rows, stride, offset, heads) in [
        (2, 9, 0, 1),
        (2, usize::MAX - 3, 0, 1),
        (1, 4, usize::MAX - 3, 1),
        (usize::MAX, 4, 0, 1),
        (1, 0, 0, usize::MAX / 4 + 1),
    ] {
        let shape = HeadRows { rows, stride, offset, heads };
        let mut data = [1.0; 12];
        let norm = || cpu.rms_norm_heads(&mut data, shape, &weight, 1e-5);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(norm));
        assert!(outcome.is_err(), "{shape:?}");
    }
    let table = RopeTable::new(&[1.0], 4, 1.0);
    for (heads, kv_heads) in [(usize::MAX, 1), (1, usize::MAX / 2 + 1), (usize::MAX / 2 + 2, 0)] {
        let mut data = [1.0; 2];
        let mut qkv = Qkv { data: &mut data, heads, kv_heads, positions: &[0], rope: &table };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cpu.rope(&mut qkv)));
        assert!(outcome.is_err(), "{heads} and {kv_heads} heads");
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
fn experts_of_rows_match_and_ties_go_to_the_lower_index() {
    for seed in seeds(12) {
        let mut random = random(seed);
        let (rows, experts) = (random.size(1, 40), random.size(1, 140));
        let per_row = random.size(1, experts.min(20));
        let router = Router { experts, per_row, normalized: random.flag() };
        // Multiples of a half, of which many are equal.
        let coarse = |x: f32| (x * 12.0).round() / 2.0;
        let logits: Vec<f32> = random.numbers(rows * experts).into_iter().map(coarse).collect();
        let mut routes = Routes::default();
        for cpu in cpus() {
            let context = format!("seed {seed}, {router:?}, {:?}", cpu.isa());
            // The buffers were larger before.
            let before = vec![1.0; (rows + 3) * experts];
            cpu.route(&before, router, &mut routes);
            cpu.route(&logits, router, &mut routes);
            let mut by_expert = vec![Vec::new(); experts];
            for (row, logits) in logits.chunks(experts).enumerate() {
                let want = reference::route(logits, per_row, router.normalized);
                let got = routes.of_row(row);
                let chosen: Vec<usize> = got.iter().map(|choice| choice.expert as usize).collect();
                assert_eq!(chosen, want.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), "{context}");
                let [got, want]: [Vec<f32>; 2] = [
                    got.iter().map(|choice| choice.weight).collect(),
                    want.iter().map(|(_, weight)| *weight).collect(),
                ];
                assert_close(&got, &want, 1e-5, &context);
                for (expert, weight) in chosen.into_iter().zip(got) {
                    by_expert[expert].push(Share { row: row as u32, weight });
                }
            }
            let some = by_expert.into_iter().enumerate().filter(|(_, shares)| !shares.is_empty());
            let got: Vec<_> = routes.experts().map(|(expert, shares)| (expert, shares.to_vec())).collect();
            assert_eq!(got, some.collect::<Vec<_>>(), "{context}");
        }
    }
}

/// A row that has NaN is never computed as if it had none, and others don't notice.
#[test]
fn nan_among_a_rows_logits_is_in_all_its_weights_and_no_others() {
    let router = Router { experts: 21, per_row: 4, normalized: true };
    let sound = random(4).numbers(3 * 21);
    for (fault, at) in [(f32::NAN, 0), (f32::NAN, 20), (f32::INFINITY, 7)] {
        let mut logits = sound.clone();
        logits[21 + at] = fault;
        for cpu in cpus() {
            let (mut routes, mut untouched) = (Routes::default(), Routes::default());
            cpu.route(&logits, router, &mut routes);
            cpu.route(&sound, router, &mut untouched);
            let context = format!("{fault} at {at}, {:?}", cpu.isa());
            assert!(routes.of_row(1).iter().all(|choice| choice.weight.is_nan()), "{context}");
            assert!(routes.of_row(1).is_sorted_by(|a, b| a.expert < b.expert), "{context}");
            for row in [0, 2] {
                assert_eq!(routes.of_row(row), untouched.of_row(row), "{context}");
            }
        }
    }
}

#[test]
fn shares_of_an_expert_are_gathered_and_added_to_their_rows() {
    for seed in seeds(8) {
        let mut random = random(seed);
        let (rows, width) = (random.size(1, 70), random.size(1, 130));
        let x = random.numbers(rows * width);
        let mut shares: Vec<Share> =
            (0..rows as u32).map(|row| Share { row, weight: random.number() }).collect();
        shares.retain(|_| random.flag());
        let (results, before) = (random.numbers(shares.len() * width), random.numbers(rows * width));
        let mut want = before.clone();
        for (share, result) in shares.iter().zip(results.chunks(width)) {
            for (want, x) in want[share.row as usize * width..].iter_mut().zip(result) {
                *want += share.weight * x;
            }
        }
        for cpu in cpus().chain([Cpu::new(3).expect("threads can be started")]) {
            let mut out = before.clone();
            cpu.add_shares(&results, &shares, &mut out);
            assert_eq!(out, want, "seed {seed}, {:?}", cpu.isa());
            for format in FORMATS {
                let all = loaded(&cpu, Rows::dense(&x, width), rows, format);
                // The buffers had another shape before.
                let mut some = loaded(&cpu, Rows::dense(&x, width), rows, Format::F32);
                cpu.gather(&all, &shares, &mut some);
                let all = unpacked_inputs(&all);
                let chosen = shares.iter().flat_map(|share| &all[share.row as usize * width..][..width]);
                let context = format!("seed {seed}, {format:?}, {:?}", cpu.isa());
                assert!(unpacked_inputs(&some).iter().eq(chosen), "{context}");
            }
        }
    }
}

#[test]
fn shares_beyond_the_rows_or_out_of_order_are_refused() {
    let cpu = Cpu::new(1).expect("no threads are needed");
    let share = |row| Share { row, weight: 1.0 };
    let rows = loaded(&cpu, Rows::dense(&[1.0; 6], 2), 3, Format::F32);
    let gather = || cpu.gather(&rows, &[share(3)], &mut Inputs::default());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(gather)).is_err());
    for shares in [[share(1), share(3)], [share(2), share(1)], [share(1), share(1)]] {
        let mut out = [0.0; 6];
        let add = || cpu.add_shares(&[1.0; 4], &shares, &mut out);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(add)).is_err(), "{shares:?}");
    }
    for (experts, per_row) in [(4, 0), (4, 5), (5, 2)] {
        let router = Router { experts, per_row, normalized: true };
        let route = || cpu.route(&[0.0; 8], router, &mut Routes::default());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(route)).is_err(), "{router:?}");
    }
}

#[test]
fn scaled_rows_are_added_to_parts_of_rows() {
    for seed in seeds(8) {
        let mut random = random(seed);
        let (rows, width) = (random.size(1, 90), random.size(1, 600));
        let (first, after) = (random.size(0, 9), random.size(0, 9));
        let stride = first + width + after;
        let mut to: Vec<u32> = (0..rows as u32).collect();
        to.retain(|_| random.flag());
        let (x, before) = (random.numbers(to.len() * width), random.numbers(rows * stride));
        let scale = random.number();
        let mut want = before.clone();
        for (row, x) in to.iter().zip(x.chunks(width)) {
            for (want, x) in want[*row as usize * stride + first..].iter_mut().zip(x) {
                *want += scale * x;
            }
        }
        for threads in [1, 3] {
            let cpu = Cpu::new(threads).expect("threads can be started");
            let mut out = before.clone();
            cpu.add_scaled(&x, scale, Targets { rows: &to, stride, first }, &mut out);
            assert_eq!(out, want, "seed {seed}, {threads} threads");
        }
    }
}

#[test]
fn scaled_rows_beyond_the_output_or_out_of_order_are_refused() {
    let cpu = Cpu::new(1).expect("no threads are needed");
    for (rows, stride, first) in
        [([1, 3], 2, 0), ([2, 1], 2, 0), ([1, 1], 2, 0), ([0, 1], 2, 1), ([0, 1], 1, 0), ([0, 1], 6, 0)]
    {
        let mut out = [0.0; 6];
        let to = Targets { rows: &rows, stride, first };
        let add = || cpu.add_scaled(&[1.0; 4], 1.0, to, &mut out);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(add)).is_err(), "{rows:?}, {stride}");
    }
}

/// Compares attention with heads of `head_dim` and `group` query heads per key head.
fn attention_matches<T: Element>(seed: u64, head_dim: usize, group: usize, tolerance: f32) {
    let mut random = random(seed);
    let paged = Paged::<T>::random(&mut random, head_dim);
    let heads = paged.layout.kv_heads * group;
    // Some far above, and some far below all scores.
    let sinks: Vec<f32> =
        random.numbers(heads).iter().map(|x| if *x < 0.8 { 3.0 * x } else { 200.0 * x }).collect();
    let params = AttentionParams {
        heads,
        scale: 0.3,
        soft_cap: seed.is_multiple_of(3).then_some(5.0),
        window: seed.is_multiple_of(2).then_some(random.size(1, 400) as u32),
        sinks: (seed % 4 >= 2).then_some(&sinks),
    };
    let width = paged.layout.head_dim;
    let q = random.numbers(paged.positions.len() * params.heads * width);
    let group = params.heads / paged.layout.kv_heads;
    let want: Vec<f32> = (0..paged.positions.len() * params.heads)
        .flat_map(|i| {
            let (token, head) = (i / params.heads, i % params.heads);
            let (keys, values) = paged.head(token, head / group);
            let position = paged.positions[token];
            let sink = params.sinks.map(|sinks| sinks[head]);
            reference::attention(&q[i * width..(i + 1) * width], &keys, &values, position, &params, sink)
        })
        .collect();
    let q = Rows::dense(&q, params.heads * width);
    for cpu in cpus() {
        let context = format!("seed {seed}, {:?}, {params:?}, {:?}", cpu.isa(), paged.layout);
        let mut out = vec![f32::NAN; want.len()];
        let query =
            PagedQuery { q, positions: &paged.positions, runs: &paged.runs(0), tables: &paged.tables };
        cpu.paged_attention(&paged.layer, &params, query, &mut Vec::new(), &mut out);
        assert_close(&out, &want, tolerance, &context);

        let mut layer =
            ContiguousLayer::<T>::try_new(paged.contexts.len(), 1_100, paged.layout.kv_heads, width)
                .expect("small");
        layer.fill(f32::NAN);
        for (slot, context) in paged.contexts.iter().enumerate() {
            for position in 0..context.len {
                let row =
                    position * paged.layout.kv_heads * width..(position + 1) * paged.layout.kv_heads * width;
                layer.write(slot as u32, position as u32, &context.keys[row.clone()], &context.values[row]);
            }
        }
        let query = ContiguousQuery { q, positions: &paged.positions, slots: &paged.sequences };
        cpu.contiguous_attention(&layer, &params, query, &mut Vec::new(), &mut out);
        assert_close(&out, &want, tolerance, &format!("contiguous, {context}"));
    }
}

/// Unwritten positions contain NaN, so that reading one is detected.
#[test]
fn attention_matches_through_scattered_blocks_and_reads_nothing_else() {
    for seed in seeds(24) {
        let mut random = random(!seed);
        let (head_dim, group) = (head_dim(&mut random), random.size(1, 6));
        attention_matches::<f32>(seed, head_dim, group, 2e-5);
        attention_matches::<bf16>(seed, head_dim, group, 2e-5);
    }
}

/// The widest heads fill scratch completely. With larger groups fewer tokens share a tile, down to a single one.
#[test]
fn attention_matches_with_the_widest_heads_and_the_largest_groups() {
    for (seed, (head_dim, group)) in
        [(MAX_HEAD_DIM, 1), (MAX_HEAD_DIM, 4), (MAX_HEAD_DIM, 5), (16, 17), (16, 33), (6, 64), (6, 65)]
            .into_iter()
            .enumerate()
    {
        attention_matches::<f32>(seed as u64, head_dim, group, 2e-5);
        attention_matches::<bf16>(seed as u64, head_dim, group, 2e-5);
    }
}

#[test]
fn copied_block_gives_the_same_attention_as_its_source() {
    let mut random = random(3);
    let mut paged = Paged::<f32>::random(&mut random, 64);
    let blocks = paged.layer.blocks() as u32;
    let (from, to) = (paged.tables[0], blocks - 1);
    let tokens = paged.layout.block_size.min(paged.positions[0] as usize + 1) as u32;
    let params = AttentionParams {
        heads: paged.layout.kv_heads,
        scale: 1.0,
        soft_cap: None,
        window: None,
        sinks: None,
    };
    let q = random.numbers(params.heads * paged.layout.head_dim);
    let cpu = Cpu::new(1).expect("no threads are needed");
    let run = |paged: &Paged<f32>, table: &[u32]| {
        let mut out = vec![0.0; q.len()];
        let query = PagedQuery {
            q: Rows::dense(&q, q.len()),
            positions: &[tokens - 1],
            runs: &[QueryRun { first: 0, count: 1, table_start: 0, table_len: 1 }],
            tables: table,
        };
        cpu.paged_attention(&paged.layer, &params, query, &mut Vec::new(), &mut out);
        out
    };
    let before = run(&paged, &[from]);
    paged.layer.copy_block(from, to, tokens);
    assert_eq!(run(&paged, &[to]), before);
}

/// A kernel is compiled for an instruction set by inlining everything it calls. Code that isn't inlined (a closure, say) is
/// compiled without the set, and each of its intrinsics becomes a call with operands in memory: correct, but many times
/// slower. This executable contains all kernels, so no intrinsic may be a function in it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn every_vector_intrinsic_is_inlined() {
    use object::{Object, ObjectSymbol};
    let own = std::env::current_exe().expect("tests have a file");
    let bytes = std::fs::read(own).expect("it can be read");
    let file = object::File::parse(&*bytes).expect("it is an executable");
    let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    assert!(names.iter().any(|name| name.contains("infer_kernels")), "symbols are there");
    // Names are mangled in two ways: `15__mm512_add_ps` and `14_mm512_add_ps17h`.
    let is_instruction = |name: &str| name.contains("core_arch") && name.contains("_mm");
    let left: Vec<_> = names.into_iter().filter(|name| is_instruction(name)).collect();
    assert!(left.is_empty(), "called from somewhere in kernels/src: {left:#?}");
}
