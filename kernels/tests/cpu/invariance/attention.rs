//! Attention of a token among others, in blocks of other sizes, shared by threads.

use half::bf16;
use infer_kernels::{
    Arena, AttentionParams, Cpu, Element, Isa, MAX_HEAD_DIM, PagedLayer, PagedLayout, PagedQuery, QueryRun,
    Rows,
};

use super::{bits, cpu, fused};
use crate::common::{Context, Paged, head_dim, random, seeds};

fn params(layout: &PagedLayout, group: usize) -> AttentionParams<'_> {
    AttentionParams { heads: layout.kv_heads * group, scale: 0.25, soft_cap: None, window: None, sinks: None }
}

/// Computes attention of the tokens from `first` on.
fn attend<T: Element>(
    cpu: &Cpu,
    paged: &Paged<T>,
    params: &AttentionParams<'_>,
    q: &[f32],
    first: usize,
) -> Vec<f32> {
    let width = params.heads * paged.layout.head_dim;
    let mut out = vec![0.0; q.len() - first * width];
    let query = PagedQuery {
        q: Rows::dense(&q[first * width..], width),
        positions: &paged.positions[first..],
        runs: &paged.runs(first),
        tables: &paged.tables,
    };
    cpu.paged_attention(&paged.layer, params, query, &mut Vec::new(), &mut out);
    out
}

fn attention_is_invariant<T: Element>(seed: u64, head_dim: usize, group: usize) {
    let mut random = random(seed);
    let paged = Paged::<T>::random(&mut random, head_dim);
    let mut params = params(&paged.layout, group);
    params.window = (seed % 2 == 1).then_some(random.size(1, 500) as u32);
    let sinks = random.numbers(params.heads);
    params.sinks = (seed % 4 >= 2).then_some(&sinks);
    let width = params.heads * paged.layout.head_dim;
    let q = random.numbers(paged.positions.len() * width);
    for isa in Isa::available() {
        let whole = bits(&attend(&cpu(isa, 1), &paged, &params, &q, 0));
        for threads in [2, 9] {
            let shared = bits(&attend(&cpu(isa, threads), &paged, &params, &q, 0));
            assert_eq!(whole, shared, "seed {seed}, {isa:?}, {threads} threads");
        }
        for token in 0..paged.positions.len() {
            let tail = bits(&attend(&cpu(isa, 1), &paged, &params, &q, token));
            assert_eq!(whole[token * width..], tail, "seed {seed}, {isa:?}, from token {token}");
        }
        for block_size in [1, 5, 16, 64] {
            let moved = reblocked(&paged, block_size);
            let other = bits(&attend(&cpu(isa, 1), &moved, &params, &q, 0));
            assert_eq!(whole, other, "seed {seed}, {isa:?}, blocks of {block_size}");
        }
    }
}

#[test]
fn attention_of_a_token_has_the_same_bits_in_any_batch_chunk_and_block_size() {
    for seed in seeds(10) {
        let mut random = random(!seed);
        let (head_dim, group) = (head_dim(&mut random), random.size(1, 5));
        attention_is_invariant::<f32>(seed, head_dim, group);
        attention_is_invariant::<bf16>(seed, head_dim, group);
    }
    for (seed, head_dim, group) in [(20, MAX_HEAD_DIM, 5), (21, 16, 17), (22, 6, 65)] {
        attention_is_invariant::<bf16>(seed, head_dim, group);
    }
}

/// Threads share a lone decode by pieces of its context; in a chunk the same token is one of many.
#[test]
fn decode_shared_by_threads_has_the_same_bits_as_in_a_chunk() {
    for isa in Isa::available() {
        let cpus = [1, 2, 3, 9].map(|threads| cpu(isa, threads));
        let mut scratch = Vec::new();
        for seed in seeds(10) {
            let mut random = random(seed);
            let head_dim = head_dim(&mut random);
            let paged = Paged::<bf16>::random(&mut random, head_dim);
            let mut params = params(&paged.layout, random.size(1, 9));
            params.window = (seed % 3 == 1).then_some(random.size(1, 700) as u32);
            let sinks = random.numbers(params.heads);
            params.sinks = (seed % 4 >= 2).then_some(&sinks);
            let width = params.heads * paged.layout.head_dim;
            let q = random.numbers(paged.positions.len() * width);
            let whole = bits(&attend(&cpus[0], &paged, &params, &q, 0));
            for token in (0..paged.positions.len()).step_by(7) {
                let (table_start, table_len) = paged.spans[token];
                for cpu in &cpus {
                    let mut out = vec![f32::NAN; width];
                    let query = PagedQuery {
                        q: Rows::dense(&q[token * width..][..width], width),
                        positions: &paged.positions[token..=token],
                        runs: &[QueryRun { first: 0, count: 1, table_start, table_len }],
                        tables: &paged.tables,
                    };
                    cpu.paged_attention(&paged.layer, &params, query, &mut scratch, &mut out);
                    let how = format!("seed {seed}, {isa:?}, token {token}, {} threads", cpu.threads());
                    assert_eq!(bits(&out), whole[token * width..][..width], "{how}");
                }
            }
        }
    }
}

/// The same sequences in blocks of another size.
fn reblocked<T: Element>(paged: &Paged<T>, block_size: usize) -> Paged<T> {
    let layout = PagedLayout { block_size, ..paged.layout };
    let width = layout.kv_heads * layout.head_dim;
    let blocks: usize = paged.contexts.iter().map(|context| context.len.div_ceil(block_size)).sum();
    let mut layer = PagedLayer::new(layout, blocks, &mut Arena::default()).expect("small");
    layer.fill(f32::NAN);
    let (mut tables, mut of_sequence) = (Vec::new(), Vec::new());
    let mut contexts = Vec::new();
    for context in &paged.contexts {
        let start = tables.len();
        tables.extend((0..context.len.div_ceil(block_size)).map(|i| (blocks - 1 - start - i) as u32));
        of_sequence.push((start as u32, (tables.len() - start) as u32));
        let slot = |at: usize| tables[start + at / block_size] * block_size as u32 + (at % block_size) as u32;
        let slots: Vec<u32> = (0..context.len).map(slot).collect();
        layer.write(&slots, Rows::dense(&context.keys, width), Rows::dense(&context.values, width));
        let (keys, values) = (context.keys.clone(), context.values.clone());
        contexts.push(Context { len: context.len, keys, values });
    }
    Paged {
        layout,
        layer,
        contexts,
        sequences: paged.sequences.clone(),
        positions: paged.positions.clone(),
        spans: paged.sequences.iter().map(|sequence| of_sequence[*sequence as usize]).collect(),
        tables,
    }
}

#[test]
fn wide_instruction_sets_agree_on_attention_bit_for_bit() {
    let isas = fused();
    for seed in seeds(6) {
        let mut random = random(seed);
        let head_dim = head_dim(&mut random);
        let paged = Paged::<bf16>::random(&mut random, head_dim);
        let mut params = params(&paged.layout, 3);
        let sinks = random.numbers(params.heads);
        params.sinks = (seed % 2 == 1).then_some(&sinks);
        let q = random.numbers(paged.positions.len() * params.heads * paged.layout.head_dim);
        let all: Vec<_> =
            isas.iter().map(|isa| bits(&attend(&cpu(*isa, 1), &paged, &params, &q, 0))).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
    }
}
