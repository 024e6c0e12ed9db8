//! Products, packing and paged attention at the shapes of small language models, one thread, with the `gemm` crate
//! and a plain copy as baselines in the same run. Numbers and their machine are in kernels/README.md.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use infer_kernels::{
    Arena, AttentionParams, Cpu, Format, Inputs, Isa, Packer, PagedLayer, PagedLayout, PagedQuery, QueryRun,
    Rows, Then,
};

const FORMATS: [(&str, Format); 5] = [
    ("f32", Format::F32),
    ("bf16", Format::Bf16),
    ("int8", Format::Int8),
    ("int4", Format::Int4),
    ("mxfp4", Format::Mxfp4),
];

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect()
}

fn products(criterion: &mut Criterion) {
    let cpu = Cpu::new(1).expect("no threads are needed");
    let mut group = criterion.benchmark_group("matmul");
    for (m, n, k) in [
        (1, 576, 1536),
        (1, 8192, 2048),
        (16, 8192, 2048),
        (512, 2048, 2048),
        (512, 16384, 2048),
        (512, 2048, 8192),
        (512, 1536, 576),
        (1, 768, 256),
    ] {
        let (x, w) = (numbers(m * k), numbers(n * k));
        let shape = format!("{m}x{n}x{k}");
        let mut out = vec![0.0; m * n];
        // Two operations per multiply-add: the rate printed as elements is in floating-point operations.
        group.throughput(Throughput::Elements(2 * (m * n * k) as u64));
        for (name, format) in FORMATS {
            let row = |i: usize, out: &mut [f32]| out.copy_from_slice(&w[i * k..(i + 1) * k]);
            let mut packer = Packer::new(1).expect("no threads are needed");
            let matrix = packer.matrix(format, n, k, row).expect("small");
            let mut inputs = Inputs::default();
            group.bench_function(BenchmarkId::new(name, &shape), |b| {
                b.iter(|| {
                    cpu.load(Rows::dense(black_box(&x), k), m, format, &mut inputs);
                    cpu.matmul(&inputs, &matrix, None, Then::Store, &mut out);
                });
            });
        }
        group.bench_function(BenchmarkId::new("gemm-crate-f32", &shape), |b| {
            b.iter(|| product_of_gemm(&mut out, black_box(&x), &w, [m, n, k]));
        });
    }
    group.finish();
}

/// `x * w^T` by the crate that candle uses.
fn product_of_gemm(out: &mut [f32], x: &[f32], w: &[f32], [m, n, k]: [usize; 3]) {
    assert!(out.len() == m * n && x.len() == m * k && w.len() == n * k);
    let (n_stride, k_stride) = (n as isize, k as isize);
    // SAFETY: the lengths were checked; strides are those of row-major matrices, `w` read transposed.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n_stride,
            false,
            x.as_ptr(),
            1,
            k_stride,
            w.as_ptr(),
            k_stride,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// With the fastest instruction set, and with that of CPUs without AVX-512.
fn attention(criterion: &mut Criterion) {
    let narrower = Isa::available().into_iter().filter(|isa| *isa == Isa::Avx2 && *isa != Isa::detect());
    for isa in narrower.chain([Isa::detect()]) {
        attention_with(criterion, isa);
    }
}

fn attention_with(criterion: &mut Criterion, isa: Isa) {
    let cpu = Cpu::with_isa(isa, 1).expect("no threads are needed");
    let mut group = criterion.benchmark_group(format!("paged-attention/{isa:?}"));
    let layout = PagedLayout { block_size: 16, kv_heads: 3, head_dim: 64 };
    let params = AttentionParams { heads: 9, scale: 0.125, soft_cap: None, window: None, sinks: None };
    let width = layout.kv_heads * layout.head_dim;
    for (name, context, tokens) in
        [("decode", 512_usize, 1_usize), ("decode", 4_096, 1), ("prefill", 512, 128)]
    {
        let blocks = context.div_ceil(layout.block_size);
        let mut layer = PagedLayer::<bf16>::new(layout, blocks, &mut Arena::default()).expect("small");
        let slots: Vec<u32> = (0..context as u32).collect();
        let kv = numbers(context * width);
        layer.write(&slots, Rows::dense(&kv, width), Rows::dense(&kv, width));
        // Every other block first, so that the table is not the identity.
        let tables: Vec<u32> = (0..blocks as u32).step_by(2).chain((1..blocks as u32).step_by(2)).collect();
        let positions: Vec<u32> = (context - tokens..context).map(|p| p as u32).collect();
        let mut runs = Vec::new();
        QueryRun { first: 0, count: tokens as u32, table_start: 0, table_len: blocks as u32 }
            .split(&mut runs);
        let q = numbers(tokens * params.heads * layout.head_dim);
        let (mut scratch, mut out) = (Vec::new(), vec![0.0; q.len()]);
        let seen: usize = positions.iter().map(|p| *p as usize + 1).sum();
        group.throughput(Throughput::Elements((4 * seen * params.heads * layout.head_dim) as u64));
        group.bench_function(BenchmarkId::new(name, format!("{tokens} of {context}")), |b| {
            b.iter(|| {
                let query = PagedQuery {
                    q: Rows::dense(black_box(&q), params.heads * layout.head_dim),
                    positions: &positions,
                    runs: &runs,
                    tables: &tables,
                };
                cpu.paged_attention(&layer, &params, query, &mut scratch, &mut out);
            });
        });
    }
    group.finish();
}

/// Packing of bf16 rows into new memory, next to a plain copy of as many bytes into new memory.
fn packing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packing");
    for (n, k) in [(8192, 2048), (2048, 8192)] {
        let w: Vec<bf16> = numbers(n * k).into_iter().map(bf16::from_f32).collect();
        let bytes = 2 * n * k;
        group.throughput(Throughput::Bytes(bytes as u64));
        for (name, format) in FORMATS {
            let row = |i: usize, out: &mut [f32]| {
                out.iter_mut()
                    .zip(&w[i * k..])
                    .for_each(|(out, w)| *out = f32::from_bits(u32::from(w.to_bits()) << 16));
            };
            group.bench_function(BenchmarkId::new(name, format!("{n}x{k}")), |b| {
                b.iter(|| {
                    let mut packer = Packer::new(1).expect("no threads are needed");
                    packer.matrix(format, n, k, row).expect("small")
                });
            });
        }
        group.bench_function(BenchmarkId::new("copy", format!("{n}x{k}")), |b| {
            b.iter(|| {
                let mut copy = Arena::default().numbers::<bf16>(n * k).expect("small");
                copy.copy_from_slice(black_box(&w));
                copy
            });
        });
    }
    group.finish();
}

criterion_group!(benches, products, packing, attention);
criterion_main!(benches);
