//! Every operation of every instruction set against the scalar reference, on ragged random shapes.

mod common;

use common::{Paged, random, seeds};
use half::bf16;
use infer_kernels::{
    Activation, AttentionParams, ContiguousLayer, ContiguousQuery, Cpu, Element, HeadRows, Isa, Matrix,
    Packed, PagedQuery, RopeTable, Rows, reference,
};

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
fn products_match_for_ragged_shapes_and_both_storage_types() {
    for seed in seeds(12) {
        let mut random = random(seed);
        let (m, n, k) = (random.size(1, 20), random.size(1, 200), random.size(1, 300));
        let (x, w) = (random.numbers(m * (k + 3)), random.numbers(n * k));
        let rounded: Vec<bf16> = w.iter().map(|w| bf16::from_f32(*w)).collect();
        let widened: Vec<f32> = rounded.iter().map(|w| w.to_f32()).collect();
        // Rows lie inside wider ones, as projections do.
        let rows = Rows { data: &x, offset: 2, stride: k + 3, width: k };
        let dense: Vec<f32> = (0..m).flat_map(|row| rows.row(row).to_vec()).collect();
        for cpu in cpus() {
            let context = format!("seed {seed}, {m} x {n} x {k}, {:?}", cpu.isa());
            let mut out = vec![f32::NAN; m * n];
            cpu.matmul(rows, &Matrix::F32(Packed::stack(k, &[&w])), &mut out);
            assert_close(&out, &reference::matmul(&dense, &w, k), 1e-4, &context);
            cpu.matmul(rows, &Matrix::Bf16(Packed::stack(k, &[&rounded])), &mut out);
            assert_close(&out, &reference::matmul(&dense, &widened, k), 1e-4, &context);
        }
    }
}

#[test]
fn stacked_matrices_give_their_rows_back() {
    for seed in seeds(6) {
        let mut random = random(seed);
        let (first, second, k) = (random.size(1, 90), random.size(1, 90), random.size(1, 40));
        let (a, b) = (random.numbers(first * k), random.numbers(second * k));
        let packed = Packed::stack(k, &[&a, &b]);
        let mut row = vec![0.0; k];
        for (index, want) in a.chunks(k).chain(b.chunks(k)).enumerate() {
            packed.unpack_row(index, 2.0, &mut row);
            let doubled: Vec<f32> = want.iter().map(|w| w * 2.0).collect();
            assert_eq!(row, doubled, "seed {seed}, row {index}");
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
            let mut heads = x.clone();
            let shape = HeadRows { rows: 1, stride: 0, offset: 0, heads: rows };
            cpu.rms_norm_heads(&mut heads, shape, &weight, 1e-5);
            assert_close(&heads, &want, 1e-5, &context);
        }
    }
}

#[test]
fn rope_turns_each_head_by_its_position() {
    let mut random = random(1);
    let frequencies: Vec<f32> = (0..12).map(|i| 10_000_f32.powf(-i as f32 / 12.0)).collect();
    let table = RopeTable::new(&frequencies, 900, 1.0);
    let positions = [0, 899, 17];
    let data = random.numbers(3 * 100);
    for cpu in cpus() {
        let mut turned = data.clone();
        let heads = HeadRows { rows: 3, stride: 100, offset: 24, heads: 3 };
        cpu.rope(&mut turned, heads, &positions, &table);
        for (row, position) in positions.iter().enumerate() {
            for head in 0..3 {
                let at = row * 100 + 24 + head * 24..row * 100 + 48 + head * 24;
                let want = reference::rope(&data[at.clone()], &frequencies, *position);
                assert_close(&turned[at], &want, 1e-5, &format!("position {position}"));
            }
            assert_eq!(turned[row * 100..row * 100 + 24], data[row * 100..row * 100 + 24]);
        }
    }
}

#[test]
fn activations_match_up_to_large_arguments() {
    let gates: Vec<f32> = (-400..=400).map(|i| i as f32 * 0.25).collect();
    let ups = vec![1.5; gates.len()];
    let input = [gates.clone(), ups].concat();
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let want: Vec<f32> = gates.iter().map(|gate| reference::gated(activation, *gate, 1.5)).collect();
        for cpu in cpus() {
            let mut out = vec![f32::NAN; gates.len()];
            cpu.gated(activation, &input, gates.len(), &mut out);
            assert_close(&out, &want, 1e-6, &format!("{activation:?}, {:?}", cpu.isa()));
        }
    }
}

fn attention_matches<T: Element>(seed: u64, tolerance: f32) {
    let mut random = random(seed);
    let paged = Paged::<T>::random(&mut random);
    let params = AttentionParams {
        heads: paged.layout.kv_heads * random.size(1, 6),
        scale: 0.3,
        soft_cap: seed.is_multiple_of(3).then_some(5.0),
        window: seed.is_multiple_of(2).then_some(random.size(1, 90) as u32),
    };
    let width = paged.layout.head_dim;
    let q = random.numbers(paged.positions.len() * params.heads * width);
    let group = params.heads / paged.layout.kv_heads;
    let want: Vec<f32> = (0..paged.positions.len() * params.heads)
        .flat_map(|i| {
            let (token, head) = (i / params.heads, i % params.heads);
            let (keys, values) = paged.head(token, head / group);
            let position = paged.positions[token];
            reference::attention(&q[i * width..(i + 1) * width], &keys, &values, position, &params)
        })
        .collect();
    let q = Rows::dense(&q, params.heads * width);
    for cpu in cpus() {
        let context = format!("seed {seed}, {:?}, {params:?}, {:?}", cpu.isa(), paged.layout);
        let mut out = vec![f32::NAN; want.len()];
        let query = PagedQuery { q, positions: &paged.positions, spans: &paged.spans, tables: &paged.tables };
        cpu.paged_attention(&paged.layer, &params, query, &mut out);
        assert_close(&out, &want, tolerance, &context);

        let mut layer =
            ContiguousLayer::<T>::try_new(paged.contexts.len(), 400, paged.layout.kv_heads, width)
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

/// Unwritten positions and blocks of other sequences hold NaN, so that reading one shows.
#[test]
fn attention_matches_through_scattered_blocks_and_reads_nothing_else() {
    for seed in seeds(24) {
        attention_matches::<f32>(seed, 2e-5);
        attention_matches::<bf16>(seed, 2e-5);
    }
}

#[test]
fn a_copied_block_answers_like_its_source() {
    let mut random = random(3);
    let mut paged = Paged::<f32>::random(&mut random);
    let blocks = paged.layer.blocks() as u32;
    let (from, to) = (paged.tables[0], blocks - 1);
    let tokens = paged.layout.block_size.min(paged.positions[0] as usize + 1) as u32;
    let params = AttentionParams { heads: paged.layout.kv_heads, scale: 1.0, soft_cap: None, window: None };
    let q = random.numbers(params.heads * paged.layout.head_dim);
    let cpu = Cpu::new(1).expect("no threads are needed");
    let run = |paged: &Paged<f32>, table: &[u32]| {
        let mut out = vec![0.0; q.len()];
        let query = PagedQuery {
            q: Rows::dense(&q, q.len()),
            positions: &[tokens - 1],
            spans: &[(0, 1)],
            tables: table,
        };
        cpu.paged_attention(&paged.layer, &params, query, &mut out);
        out
    };
    let before = run(&paged, &[from]);
    paged.layer.copy_block(from, to, tokens);
    assert_eq!(run(&paged, &[to]), before);
}
