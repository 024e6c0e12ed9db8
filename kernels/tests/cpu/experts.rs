//! The choice of experts, and their shares of rows.

use infer_kernels::{Cpu, Format, Inputs, Router, Routes, Rows, Share, reference};

use crate::common::{FORMATS, loaded, random, seeds, unpacked_inputs};
use crate::{assert_close, cpus};

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
