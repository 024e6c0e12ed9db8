//! The cost of a fixed order of sums: the kernels as they are, next to the same arithmetic split in ways that would make a
//! row's bits depend on the number of threads.
//!
//! A product of one row could be split over its inputs: all outputs for each part of the inputs, then the sum of the parts.
//! That equals a product of more outputs and fewer inputs with the same number of weights, which is what is timed; adding the
//! parts would come on top. The context of a token is cut at every 256th position for any number of threads. Next to it are
//! the time of one thread for the larger share of whole heads, which is the time without cutting contexts, and its time for a
//! fair share, which no way of cutting can beat.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use half::bf16;
use infer_kernels::{
    Arena, AttentionParams, Cpu, Format, Inputs, Matrix, Packer, PagedLayer, PagedLayout, PagedQuery,
    QueryRun, Rows, Then,
};

/// Outputs and inputs of the products with the fewest outputs: of SmolLM-135M, then of Llama 3.2 1B.
const PRODUCTS: [(usize, usize); 5] = [(576, 576), (576, 1_536), (960, 576), (2_048, 2_048), (2_048, 8_192)];

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7_919 % 1_009) as f32 / 1_009.0 - 0.5).collect()
}

fn products(criterion: &mut Criterion) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let cpu = Cpu::new(threads).expect("threads can be started");
    let mut packer = Packer::new(threads).expect("threads can be started");
    let row = |i: usize, out: &mut [f32]| {
        out.iter_mut().enumerate().for_each(|(k, out)| *out = ((i * 31 + k * 7) % 97) as f32 / 97.0 - 0.5);
    };
    for (outputs, inputs) in PRODUCTS {
        let mut group =
            criterion.benchmark_group(format!("one row, {outputs} x {inputs}, {threads} threads"));
        for parts in [1, 2, 4] {
            // Together the copies exceed every cache, like the layers of a model.
            let copies = (96_usize << 20).div_ceil(2 * outputs * inputs);
            let mut matrix = || {
                packer.matrix(Format::Bf16, outputs * parts, inputs / parts, row).expect("there is memory")
            };
            let matrices: Vec<Matrix> = (0..copies).map(|_| matrix()).collect();
            let (mut x, x_row) = (Inputs::default(), numbers(inputs / parts));
            cpu.load(Rows::dense(&x_row, x_row.len()), 1, Format::Bf16, &mut x);
            let mut out = vec![0.0; outputs * parts];
            let mut next = 0;
            let name = if parts == 1 { "as it is" } else { "cut over its inputs" };
            group.bench_function(BenchmarkId::new(name, parts), |b| {
                b.iter(|| {
                    next = (next + 1) % copies;
                    cpu.matmul(black_box(&x), &matrices[next], None, Then::Store, &mut out);
                    let (sums, others) = out.split_at_mut(outputs);
                    for part in others.chunks(outputs) {
                        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                    }
                });
            });
        }
        group.finish();
    }
}

fn attention(criterion: &mut Criterion) {
    for (kv_heads, heads) in [(3, 9), (8, 32)] {
        for context in [512, 2_048, 8_192] {
            let mut group =
                criterion.benchmark_group(format!("decode, {heads} of {kv_heads} heads, context {context}"));
            let two = Decode::new(kv_heads, heads / kv_heads, context);
            two.bench(&mut group, "two threads, in pieces", 2);
            Decode::new(kv_heads.div_ceil(2), heads / kv_heads, context).bench(
                &mut group,
                "the larger share of heads",
                1,
            );
            Decode::new(kv_heads, heads / kv_heads, context / 2).bench(&mut group, "half the context", 1);
            group.finish();
        }
    }
}

/// One token of one sequence.
struct Decode {
    layer: PagedLayer<bf16>,
    params: AttentionParams<'static>,
    q: Vec<f32>,
    table: Vec<u32>,
    context: usize,
}

impl Decode {
    fn new(kv_heads: usize, shared: usize, context: usize) -> Self {
        let layout = PagedLayout { block_size: 16, kv_heads, head_dim: 64 };
        let blocks = context.div_ceil(layout.block_size);
        let mut layer = PagedLayer::new(layout, blocks, &mut Arena::default()).expect("small");
        let slots: Vec<u32> = (0..context as u32).collect();
        let width = kv_heads * layout.head_dim;
        let kv = numbers(context * width);
        layer.write(&slots, Rows::dense(&kv, width), Rows::dense(&kv, width));
        let heads = kv_heads * shared;
        let params = AttentionParams { heads, scale: 0.125, soft_cap: None, window: None, sinks: None };
        // Every other block first, so that the table is not the identity.
        let table = (0..blocks as u32).step_by(2).chain((1..blocks as u32).step_by(2)).collect();
        Self { layer, params, q: numbers(heads * layout.head_dim), table, context }
    }

    fn bench(
        &self,
        group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
        name: &str,
        threads: usize,
    ) {
        let cpu = Cpu::new(threads).expect("threads can be started");
        let run = QueryRun { first: 0, count: 1, table_start: 0, table_len: self.table.len() as u32 };
        let (mut scratch, mut out) = (Vec::new(), vec![0.0; self.q.len()]);
        group.bench_function(name, |b| {
            b.iter(|| {
                let query = PagedQuery {
                    q: Rows::dense(black_box(&self.q), self.q.len()),
                    positions: &[self.context as u32 - 1],
                    runs: &[run],
                    tables: &self.table,
                };
                cpu.paged_attention(&self.layer, &self.params, query, &mut scratch, &mut out);
            });
        });
    }
}

criterion_group!(benches, products, attention);
criterion_main!(benches);
