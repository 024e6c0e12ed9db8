//! Seeded random inputs, and a paged pool whose unused slots contain NaN.

use infer_kernels::{
    Arena, Cpu, Element, Format, Inputs, MAX_HEAD_DIM, Matrix, Packer, PagedLayer, PagedLayout, QueryRun,
    Random, Rows,
};

/// All storage formats of weights.
pub const FORMATS: [Format; 5] = [Format::F32, Format::Bf16, Format::Int8, Format::Int4, Format::Mxfp4];

/// A matrix of row-major numbers.
pub fn packed(format: Format, numbers: &[f32], inputs: usize) -> Matrix {
    let row = |i: usize, out: &mut [f32]| out.copy_from_slice(&numbers[i * inputs..(i + 1) * inputs]);
    Packer::new(1).unwrap().matrix(format, numbers.len() / inputs, inputs, row).unwrap()
}

/// The same for a gated layer: the gate's rows, then the other half's.
pub fn packed_gated(format: Format, numbers: &[f32], inputs: usize) -> Matrix {
    let row = |i: usize, out: &mut [f32]| out.copy_from_slice(&numbers[i * inputs..(i + 1) * inputs]);
    Packer::new(1).unwrap().gated(format, numbers.len() / inputs / 2, inputs, row).unwrap()
}

/// Rows in a product's input format. The buffers had another shape before, full of NaN that must not be read.
pub fn loaded(cpu: &Cpu, rows: Rows<'_>, count: usize, format: Format) -> Inputs {
    let mut inputs = Inputs::default();
    let poison = vec![f32::NAN; (count + 1) * (rows.width + 64)];
    cpu.load(Rows::dense(&poison, rows.width + 64), count + 1, format, &mut inputs);
    cpu.load(rows, count, format, &mut inputs);
    inputs
}

/// A matrix's rounded numbers, row-major.
pub fn unpacked(matrix: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; matrix.outputs() * matrix.inputs()];
    for (i, row) in out.chunks_exact_mut(matrix.inputs()).enumerate() {
        matrix.unpack_row(i, 1.0, row);
    }
    out
}

/// Rounded inputs, row-major.
pub fn unpacked_inputs(inputs: &Inputs) -> Vec<f32> {
    let mut out = vec![0.0; inputs.rows() * inputs.width()];
    for (i, row) in out.chunks_exact_mut(inputs.width()).enumerate() {
        inputs.unpack_row(i, row);
    }
    out
}

pub fn random(seed: u64) -> Random {
    Random::new(seed)
}

/// Seeds of a test; every message includes the seed.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    0..count
}

/// A head width.
pub fn head_dim(random: &mut Random) -> usize {
    random.one_of(&[6, 16, 20, 32, 64, 80, 128, MAX_HEAD_DIM])
}

/// A sequence's keys and values, rounded to the storage type: `[position][head][dimension]`.
pub struct Context {
    pub len: usize,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

/// Several sequences in a pool, and those of their tokens that attend.
pub struct Paged<T> {
    pub layout: PagedLayout,
    pub layer: PagedLayer<T>,
    pub contexts: Vec<Context>,
    /// Sequence, position and block table of each token.
    pub sequences: Vec<u32>,
    pub positions: Vec<u32>,
    pub spans: Vec<(u32, u32)>,
    pub tables: Vec<u32>,
}

impl<T: Element> Paged<T> {
    /// Decodes and chunks of random sequences. The last block of the pool is never used.
    pub fn random(random: &mut Random, head_dim: usize) -> Self {
        let layout = PagedLayout {
            block_size: [1, 4, 8, 16, 24, 32][random.size(0, 5)],
            kv_heads: random.size(1, 3),
            head_dim,
        };
        let width = layout.kv_heads * layout.head_dim;
        // Some are longer than a piece of a context (256).
        let longest = [300, 1_100][random.size(0, 1)];
        let lens: Vec<usize> = (0..random.size(1, 4)).map(|_| random.size(1, longest)).collect();
        let needed: usize = lens.iter().map(|len| len.div_ceil(layout.block_size)).sum();
        let blocks = needed + 3;
        let mut layer = PagedLayer::new(layout, blocks, &mut Arena::default()).expect("small");
        layer.fill(f32::NAN);
        let mut free: Vec<u32> = (0..blocks as u32 - 1).collect();
        let mut paged = Self {
            layout,
            layer,
            contexts: Vec::new(),
            sequences: Vec::new(),
            positions: Vec::new(),
            spans: Vec::new(),
            tables: Vec::new(),
        };
        for (sequence, len) in lens.into_iter().enumerate() {
            let table_len = len.div_ceil(layout.block_size);
            let table: Vec<u32> =
                (0..table_len).map(|_| free.swap_remove(random.size(0, free.len() - 1))).collect();
            let slot = |at: usize| {
                table[at / layout.block_size] * layout.block_size as u32 + (at % layout.block_size) as u32
            };
            let slots: Vec<u32> = (0..len).map(slot).collect();
            let (keys, values) = (random.numbers(len * width), random.numbers(len * width));
            paged.layer.write(&slots, Rows::dense(&keys, width), Rows::dense(&values, width));
            let round = |numbers: Vec<f32>| numbers.into_iter().map(|x| T::from_f32(x).to_f32()).collect();
            paged.contexts.push(Context { len, keys: round(keys), values: round(values) });
            // The last tokens of the sequence: one is a decode, more are a chunk.
            let most = [1, 9, 70][random.size(0, 2)];
            for position in len - random.size(1, len.min(most))..len {
                paged.sequences.push(sequence as u32);
                paged.positions.push(position as u32);
                paged.spans.push((paged.tables.len() as u32, table_len as u32));
            }
            paged.tables.extend(table);
        }
        paged
    }

    /// The tokens from `first` on as runs of consecutive tokens.
    pub fn runs(&self, first: usize) -> Vec<QueryRun> {
        let mut runs = Vec::new();
        let mut token = first;
        while token < self.sequences.len() {
            let same = self.sequences[token..].iter().take_while(|s| **s == self.sequences[token]).count();
            let (table_start, table_len) = self.spans[token];
            let run = QueryRun { first: (token - first) as u32, count: same as u32, table_start, table_len };
            run.split(&mut runs);
            token += same;
        }
        runs
    }

    /// Keys and values of one head of a token's sequence, `[position][dimension]`.
    pub fn head(&self, token: usize, head: usize) -> (Vec<f32>, Vec<f32>) {
        let context = &self.contexts[self.sequences[token] as usize];
        let PagedLayout { kv_heads, head_dim, .. } = self.layout;
        let pick = |numbers: &[f32]| {
            let rows = numbers.chunks(kv_heads * head_dim);
            rows.flat_map(|row| row[head * head_dim..(head + 1) * head_dim].to_vec()).collect()
        };
        (pick(&context.keys), pick(&context.values))
    }
}
