//! Operations on rows: norms, rope with the write of keys and values, and sums.

use infer_kernels::{
    Arena, AttentionParams, Cpu, HeadRows, Inputs, Norm, PagedLayer, PagedLayout, PagedQuery, Qkv, QueryRun,
    RopeTable, Rows, Targets, reference,
};

use crate::common::{FORMATS, loaded, random, seeds, unpacked_inputs};
use crate::{assert_close, cpus};

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
