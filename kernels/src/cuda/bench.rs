//! Speed of kernels relative to the device's own copy and product rates, a line per shape. Decode attention and products of
//! few rows are measured in bytes, prefill in operations. Both rates are measured on a device at work, and that of copies again
//! at the end, since all figures are relative to them. Repeated runs read data that fits the L2 cache (50 MB on large
//! devices) from there, so short contexts of few rows look better than they are; products cycle through more weights than
//! that. With early launches, repeats of our own products also overlap, which repeats of cuBLASLt's can't.

use std::sync::Arc;

use super::{
    AttentionParams, AttentionShape, Buffer, CudaError, Device, Partition, ProductKind, ProductParams,
    SampleParams, SampleRow, Type, decode, decode_parts, fill_random, partial_numbers, prefill, prefill_rows,
    product, sample,
};
use crate::Random;

/// Shapes of attention in known models: name, query heads, key heads, width.
const SHAPES: [(&str, u32, u32, u32); 4] = [
    ("Llama 3.2 1B", 32, 8, 64),
    ("Qwen3 1.7B", 16, 8, 128),
    ("Gemma 3 1B", 4, 1, 256),
    ("Llama 3.1 8B", 32, 8, 128),
];
/// Products of Llama 3.1 8B: outputs, inputs.
const PRODUCTS: [(u32, u32); 4] = [(6_144, 4_096), (4_096, 4_096), (28_672, 4_096), (4_096, 14_336)];
/// Largest pool of keys, and of values, each.
const MOST_POOL_BYTES: usize = 8 << 30;
/// Bytes of weights that products cycle through: several times the L2 cache of any device.
const WEIGHT_BYTES: usize = 512 << 20;
const BLOCK_SIZE: u32 = 16;
/// Device time after which an idle device's clocks have risen.
const WARM_UP_US: f64 = 400_000.0;

/// A way of measuring work in microseconds.
type Timer = fn(&dyn Device, &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError>;

/// Microseconds of one run of `work`: the median of several rounds after a warm-up.
///
/// # Errors
/// If the work fails.
pub fn time_us(
    device: &dyn Device,
    work: &mut dyn FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    work()?;
    let once = device.time_us(work)?;
    let repeats = (2_000.0 / once.max(1.0)).clamp(1.0, 200.0) as usize;
    let mut times = Vec::new();
    for _ in 0..9 {
        let mut many = || (0..repeats).try_for_each(|_| work());
        times.push(device.time_us(&mut many)? / repeats as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The same on a device that has been at work for a while.
fn warm_time_us(
    device: &dyn Device,
    work: &mut dyn FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut us = 0.0;
    while us < WARM_UP_US {
        us += device.time_us(work)?.max(1.0);
    }
    time_us(device, work)
}

/// Bytes per second of a copy within the device, counting bytes read and bytes written.
///
/// # Errors
/// If the device fails.
pub fn copy_rate(device: &Arc<dyn Device>, bytes: usize) -> Result<f64, CudaError> {
    let (from, to) = (Buffer::new(device, bytes)?, Buffer::new(device, bytes)?);
    from.fill(1)?;
    // SAFETY: both buffers have this size.
    let us = warm_time_us(device.as_ref(), &mut || unsafe { device.copy(to.at(), from.at(), bytes) })?;
    Ok(2.0 * bytes as f64 / us * 1e6)
}

/// Operations per second of a bf16 product of square matrices.
///
/// # Errors
/// If the device fails.
pub fn product_rate(device: &Arc<dyn Device>, width: u32) -> Result<f64, CudaError> {
    let us = product_us(device, ProductKind::Vendor, [width; 3], 0, warm_time_us)?;
    Ok(2.0 * f64::from(width).powi(3) / us * 1e6)
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    copy_bytes: usize,
    weight_bytes: usize,
    /// Side of the square product.
    width: u32,
    batches: &'static [u32],
    /// The last one is also the longest allowed context, which decides how contexts are cut.
    contexts: &'static [u32],
    prompts: &'static [u32],
    rows: &'static [u32],
    /// Divisor of the products' sides.
    smaller: u32,
    vocab: u32,
    draws: &'static [u32],
}

impl Extent {
    /// Everything.
    pub const ALL: Self = Self {
        copy_bytes: 2 << 30,
        weight_bytes: WEIGHT_BYTES,
        width: 8_192,
        batches: &[1, 8, 32, 128, 256],
        contexts: &[256, 1_024, 4_096, 16_384],
        prompts: &[512, 2_048, 8_192, 16_384],
        rows: &[1, 4, 8, 16, 32, 64, 128, 512, 2_048],
        smaller: 1,
        vocab: 128_256,
        draws: &[1, 32, 256],
    };
    /// A few shapes of each.
    pub const FEW: Self = Self {
        batches: &[1, 32],
        contexts: &[256, 16_384],
        prompts: &[2_048],
        rows: &[1, 16, 2_048],
        draws: &[1, 256],
        ..Self::ALL
    };
    /// Small enough for the emulated device; the figures mean nothing.
    pub const SMALLEST: Self = Self {
        copy_bytes: 1 << 20,
        weight_bytes: 1 << 14,
        width: 256,
        batches: &[2],
        contexts: &[40],
        prompts: &[70],
        rows: &[1, 40],
        smaller: 64,
        vocab: 500,
        draws: &[2],
    };
}

/// Text for the product rate. Without cuBLASLt it is only the rate of our own kernel, and the text says so.
pub fn products_say(device: &dyn Device, operations_per_s: f64) -> String {
    let ours = match device.properties().vendor_products {
        Some(_) => "",
        None => " (by our own kernel: cuBLASLt was not found)",
    };
    format!("bf16 products {:.0} TFLOP/s{ours}", operations_per_s / 1e12)
}

/// Measures everything; each line goes to `say`.
///
/// # Errors
/// If the device fails.
pub fn run(device: &Arc<dyn Device>, extent: &Extent, say: &mut dyn FnMut(String)) -> Result<(), CudaError> {
    let bytes_per_s = copy_rate(device, extent.copy_bytes)?;
    let operations_per_s = product_rate(device, extent.width)?;
    say(format!(
        "copies {:.0} GB/s (read and written), {}",
        bytes_per_s / 1e9,
        products_say(device.as_ref(), operations_per_s)
    ));
    say("decode attention: model, batch, context, us, GB/s, of the copy rate".to_owned());
    let longest = extent.contexts.last().copied().unwrap_or(1);
    for (name, heads, kv_heads, head_dim) in SHAPES {
        let shape = AttentionShape { ty: Type::Bf16, heads, kv_heads, head_dim };
        for &batch in extent.batches {
            for &context in extent.contexts {
                let Some((us, bytes)) = decode_us(device, shape, batch, context, longest)? else { continue };
                let rate = bytes / us * 1e6;
                let part = 100.0 * rate / bytes_per_s;
                say(format!("{name}\t{batch}\t{context}\t{us:.1}\t{:.0}\t{part:.0} %", rate / 1e9));
            }
        }
    }
    say("prefill attention: model, tokens, us, TFLOP/s, of the product rate".to_owned());
    for (name, heads, kv_heads, head_dim) in SHAPES {
        let shape = AttentionShape { ty: Type::Bf16, heads, kv_heads, head_dim };
        for &tokens in extent.prompts {
            let us = prefill_us(device, shape, tokens)?;
            let t = f64::from(tokens);
            let rate = 4.0 * f64::from(heads * head_dim) * t * (t + 1.0) / 2.0 / us * 1e6;
            let part = 100.0 * rate / operations_per_s;
            say(format!("{name}\t{tokens}\t{us:.1}\t{:.0}\t{part:.0} %", rate / 1e12));
        }
    }
    say("products: rows x outputs x inputs, by, us, GB/s of weights, of the copy rate, TFLOP/s".to_owned());
    for (outputs, inputs) in PRODUCTS {
        let (outputs, inputs) = (outputs / extent.smaller, inputs / extent.smaller);
        for &rows in extent.rows {
            let kinds = [ProductKind::Own, ProductKind::RowByRow, ProductKind::Vendor];
            let there = |kind: &ProductKind| {
                *kind != ProductKind::Vendor || device.properties().vendor_products.is_some()
            };
            for kind in kinds.into_iter().filter(there) {
                let us = product_us(device, kind, [rows, inputs, outputs], extent.weight_bytes, time_us)?;
                let bytes = 2.0 * f64::from(outputs) * f64::from(inputs) / us * 1e6;
                let operations = f64::from(rows) * bytes;
                say(format!(
                    "{rows} x {outputs} x {inputs}\t{kind:?}\t{us:.1}\t{:.0}\t{:.0} %\t{:.1}",
                    bytes / 1e9,
                    100.0 * bytes / bytes_per_s,
                    operations / 1e12
                ));
            }
        }
    }
    if device.properties().early {
        say("(repeats of our own products overlap by early launches, 1 to 2 us each; Vendor's can't)"
            .to_owned());
    }
    say("sampling: rows, vocabulary, how, us".to_owned());
    let vocab = extent.vocab;
    for &rows in extent.draws {
        for (how, temperature, top_p) in
            [("greedy", 0.0, 1.0), ("temperature", 1.0, 1.0), ("top-p 0.9", 1.0, 0.9)]
        {
            let us = sample_us(device, rows, vocab, temperature, top_p)?;
            say(format!("{rows}\t{vocab}\t{how}\t{us:.1}"));
        }
    }
    say(copies_say(device, extent.copy_bytes, bytes_per_s)?);
    Ok(())
}

/// Measures the copy rate again: text with it and the rate at the start.
///
/// # Errors
/// If the device fails.
pub fn copies_say(device: &Arc<dyn Device>, bytes: usize, at_start: f64) -> Result<String, CudaError> {
    let at_end = copy_rate(device, bytes)? / 1e9;
    Ok(format!("copies at the end {at_end:.0} GB/s, at the start {:.0}", at_start / 1e9))
}

fn random(device: &Arc<dyn Device>, ty: Type, numbers: usize) -> Result<Buffer, CudaError> {
    let buffer = Buffer::new(device, numbers * ty.bytes())?;
    // SAFETY: allocated with this size.
    unsafe { fill_random(device.as_ref(), ty, buffer.at(), numbers, numbers as u64, 1.0) }?;
    // Products may read weights before the fill is done.
    device.wait()?;
    Ok(buffer)
}

/// Buffers for attention over a pool whose blocks are in random order.
struct Scene {
    buffers: [Buffer; 8],
    q_stride: u32,
}

impl Scene {
    /// `rows` sequences of `context` tokens, of which the last `tail` attend.
    fn new(
        device: &Arc<dyn Device>,
        shape: AttentionShape,
        rows: u32,
        context: u32,
        tail: u32,
        items: &[u32],
    ) -> Result<Self, CudaError> {
        let table = context.div_ceil(BLOCK_SIZE);
        let mut blocks: Vec<u32> = (0..rows * table).collect();
        let mut chance = Random::new(1);
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, chance.size(0, i));
        }
        let pool = (rows * table * BLOCK_SIZE) as usize * (shape.kv_heads * shape.head_dim) as usize;
        let q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
        let tokens = (rows * tail) as usize;
        let positions: Vec<u32> = (0..rows).flat_map(|_| context - tail..context).collect();
        let tables: Vec<u32> =
            (0..rows).flat_map(|row| std::iter::repeat_n(row * table, tail as usize)).collect();
        let out = tokens * (shape.heads * shape.head_dim) as usize * 2;
        let buffers = [
            random(device, shape.ty, tokens * q_stride as usize)?,
            random(device, shape.ty, pool)?,
            random(device, shape.ty, pool)?,
            Buffer::new(device, out)?,
            Buffer::from_indexes(device, &positions)?,
            Buffer::from_indexes(device, &tables)?,
            Buffer::from_indexes(device, &blocks)?,
            Buffer::from_indexes(device, items)?,
        ];
        Ok(Self { buffers, q_stride })
    }

    fn params(&self, shape: AttentionShape, partial: u64) -> AttentionParams {
        let [q, keys, values, out, positions, tables, blocks, items] =
            self.buffers.each_ref().map(Buffer::at);
        AttentionParams {
            q,
            keys,
            values,
            out,
            partial,
            positions,
            tables,
            blocks,
            items,
            q_stride: self.q_stride,
            block_size: BLOCK_SIZE,
            scale: (shape.head_dim as f32).powf(-0.5),
            ..AttentionParams::default()
        }
    }
}

/// Time and bytes of a decode, cut as in an engine that allows `longest` tokens; `None` if the pool would be too large.
fn decode_us(
    device: &Arc<dyn Device>,
    shape: AttentionShape,
    batch: u32,
    context: u32,
    longest: u32,
) -> Result<Option<(f64, f64)>, CudaError> {
    let bytes = (batch * context) as usize * (shape.kv_heads * shape.head_dim) as usize * 2;
    if bytes > MOST_POOL_BYTES {
        return Ok(None);
    }
    let items: Vec<u32> = (0..batch).collect();
    let scene = Scene::new(device, shape, batch, context, 1, &items)?;
    let partition =
        Partition::Even(decode_parts(&shape, device.properties().multiprocessors, batch, longest));
    let partial = Buffer::new(device, 4 * partial_numbers(&shape, batch, partition))?;
    let params = scene.params(shape, partial.at());
    // SAFETY: shapes as allocated.
    let us = time_us(device.as_ref(), &mut || unsafe {
        decode(device.as_ref(), &shape, partition, params, batch)
    })?;
    Ok(Some((us, 2.0 * bytes as f64)))
}

fn prefill_us(device: &Arc<dyn Device>, shape: AttentionShape, tokens: u32) -> Result<f64, CudaError> {
    let rows = prefill_rows(&shape).expect("a shape with a kernel");
    // Longest tiles first, so that no long one runs alone at the end.
    let starts = (0..tokens).step_by(rows as usize).rev();
    let items: Vec<u32> = starts.flat_map(|start| [start, rows.min(tokens - start)]).collect();
    let scene = Scene::new(device, shape, 1, tokens, tokens, &items)?;
    let (params, tiles) = (scene.params(shape, 0), items.len() as u32 / 2);
    // SAFETY: shapes as allocated.
    time_us(device.as_ref(), &mut || unsafe { prefill(device.as_ref(), &shape, params, tiles) })
}

/// Time of a product. Weights cycle through matrices of `weight_bytes` in total, so that they come from memory.
fn product_us(
    device: &Arc<dyn Device>,
    kind: ProductKind,
    [rows, inputs, outputs]: [u32; 3],
    weight_bytes: usize,
    timer: Timer,
) -> Result<f64, CudaError> {
    let ty = Type::Bf16;
    let numbers = outputs as usize * inputs as usize;
    let matrices = weight_bytes.div_ceil(numbers * ty.bytes()).max(1);
    let (x, w) = (random(device, ty, (rows * inputs) as usize)?, random(device, ty, matrices * numbers)?);
    let y = Buffer::new(device, rows as usize * outputs as usize * 2)?;
    let mut turn = 0;
    timer(device.as_ref(), &mut || {
        turn = (turn + 1) % matrices;
        let w = w.at() + (turn * numbers * ty.bytes()) as u64;
        let params = ProductParams { x: x.at(), w, y: y.at(), rows, inputs, outputs, out_f32: 0 };
        // SAFETY: shapes as allocated.
        unsafe { product(device.as_ref(), ty, kind, &params) }
    })
}

fn sample_us(
    device: &Arc<dyn Device>,
    rows: u32,
    vocab: u32,
    temperature: f32,
    top_p: f32,
) -> Result<f64, CudaError> {
    let logits = random(device, Type::F32, (rows * vocab) as usize)?;
    let draws: Vec<u8> = (0..rows)
        .flat_map(|row| {
            let draw = SampleRow { row, temperature, top_p, uniform: 0.5, ..SampleRow::NOTHING };
            draw.as_bytes().to_vec()
        })
        .collect();
    let draws = Buffer::from_bytes(device, &draws)?;
    let (lists, seen) = (
        Buffer::from_indexes(device, &[0])?,
        Buffer::new(device, rows as usize * vocab.div_ceil(32) as usize * 4)?,
    );
    seen.fill(0)?;
    let out = Buffer::new(device, rows as usize * 4)?;
    let params = SampleParams {
        logits: logits.at(),
        rows: draws.at(),
        tokens: lists.at(),
        seen: seen.at(),
        out: out.at(),
        vocab,
        soft_cap: 0.0,
    };
    // SAFETY: shapes as allocated.
    time_us(device.as_ref(), &mut || unsafe { sample(device.as_ref(), &params, rows) })
}
