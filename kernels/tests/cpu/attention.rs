//! Attention through block tables and over contiguous caches.

use half::bf16;
use infer_kernels::{
    AttentionParams, ContiguousLayer, ContiguousQuery, Cpu, Element, MAX_HEAD_DIM, PagedQuery, QueryRun,
    Rows, reference,
};

use crate::common::{Paged, head_dim, random, seeds};
use crate::{assert_close, cpus};

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
