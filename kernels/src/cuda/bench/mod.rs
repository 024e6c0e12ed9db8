//! Speed of kernels relative to the device's own copy and product rates, a line per shape. Decode attention, products of few
//! rows and small kernels are measured in bytes, prefill in operations. Both rates are measured on a device at work, and that
//! of copies again at the end, since all figures are relative to them. Decodes and products cycle through more keys, values
//! and weights than the L2 cache holds (50 MB on large devices). Repeats of small kernels read what fits it from there, so few
//! rows look better than they are. With early launches, repeats of our own kernels also overlap, which repeats of cuBLASLt's
//! can't.

mod adapters;
mod attention;
mod experts;
mod fused;
mod line;
mod plan;
mod small;

use std::sync::Arc;

use super::{
    Buffer, CudaError, Device, ExpertShape, FEW, Factors, PrefillForm, ProductKind, ProductParams, Quantized,
    SampleParams, SampleRow, Type, fill_integers, fill_random, product, sample,
};
use crate::GROUP;
use attention::{Contexts, decode_us, prefill_us};
pub use line::{Cell, Line, Table};
pub use plan::{Extent, ModelShape, Plan};

/// Largest pool of keys, and of values, each.
const MOST_POOL_BYTES: usize = 8 << 30;
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

/// Bytes per second of a copy within the device, counting bytes read and bytes written. It copies fewer bytes than these if
/// they are more than a quarter of the free memory.
///
/// # Errors
/// If the device fails.
pub fn copy_rate(device: &Arc<dyn Device>, bytes: usize) -> Result<f64, CudaError> {
    let bytes = bytes.min(device.memory()?.free as usize / 4).next_multiple_of(4);
    let (from, to) = (random(device, Type::F32, bytes.div_ceil(4))?, Buffer::new(device, bytes)?);
    // SAFETY: both buffers have this size.
    let us = warm_time_us(device.as_ref(), &mut || unsafe { device.copy(to.at(), from.at(), bytes) })?;
    Ok(2.0 * bytes as f64 / us * 1e6)
}

/// How fast products are.
#[derive(Clone, Copy, Debug)]
pub struct ProductRate {
    /// Operations per second.
    pub operations_per_s: f64,
    /// Whether the vendor's library computed them, and not our own kernel.
    pub by_vendor: bool,
}

/// The rate of a bf16 product of square matrices: the vendor's library's, or our own kernel's if it is missing or refuses.
///
/// # Errors
/// If the device fails.
pub fn product_rate(device: &Arc<dyn Device>, width: u32) -> Result<ProductRate, CudaError> {
    let measured = |kind| product_us(device, kind, [width; 3], 0, warm_time_us);
    let by_vendor = measured(ProductKind::Vendor)?;
    let us = match by_vendor {
        Some(us) => us,
        None => measured(ProductKind::Own)?.expect("our kernels compute every shape"),
    };
    let operations_per_s = 2.0 * f64::from(width).powi(3) / us * 1e6;
    Ok(ProductRate { operations_per_s, by_vendor: by_vendor.is_some() })
}

static DECODE: Table = Table {
    title: "decode attention",
    columns: &[
        ("model", "model"),
        ("batch", "batch"),
        ("context", "context"),
        ("shortest", "of 7 in 8"),
        ("us", "us"),
        ("gb_per_s", "GB/s"),
        ("share_of_copies", "of the copy rate"),
    ],
};
static PREFILL: Table = Table {
    title: "prefill attention",
    columns: &[
        ("model", "model"),
        ("tokens", "tokens"),
        ("block_rows", "rows of a block"),
        ("products_by", "products by"),
        ("us", "us"),
        ("tflop_per_s", "TFLOP/s"),
        ("share_of_products", "of the product rate"),
    ],
};
static PRODUCTS: Table = Table {
    title: "products",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("outputs", "outputs"),
        ("inputs", "inputs"),
        ("by", "by"),
        ("us", "us"),
        ("gb_per_s", "GB/s of weights"),
        ("share_of_copies", "of the copy rate"),
        ("tflop_per_s", "TFLOP/s"),
    ],
};
static INTEGERS: Table = Table {
    title: "products of integers",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("outputs", "outputs"),
        ("inputs", "inputs"),
        ("weights", "weights"),
        ("us", "us"),
        ("gb_per_s", "GB/s of weights"),
        ("share_of_copies", "of the copy rate"),
        ("tflop_per_s", "TFLOP/s"),
    ],
};
static SAMPLING: Table = Table {
    title: "sampling",
    columns: &[("rows", "rows"), ("vocabulary", "vocabulary"), ("how", "how"), ("us", "us")],
};

/// A benchmark that is running.
struct Bench<'a> {
    device: &'a Arc<dyn Device>,
    extent: &'a Extent,
    /// The device's own rates, which figures are relative to.
    bytes_per_s: f64,
    operations_per_s: f64,
    say: &'a mut dyn FnMut(Line),
}

/// Measures everything; each line goes to `say`.
///
/// # Errors
/// If the device fails.
pub fn run(device: &Arc<dyn Device>, plan: &Plan<'_>, say: &mut dyn FnMut(Line)) -> Result<(), CudaError> {
    let Plan { attention, others, extent } = *plan;
    let bytes_per_s = copy_rate(device, extent.copy_bytes)?;
    let products = product_rate(device, extent.width)?;
    say(Line::Note(rates_say(device.as_ref(), bytes_per_s, products)));
    let mut bench = Bench { device, extent, bytes_per_s, operations_per_s: products.operations_per_s, say };
    bench.table(&DECODE, attention, Bench::decodes)?;
    bench.table(&PREFILL, attention, Bench::prefills)?;
    bench.table(&PRODUCTS, others, Bench::products)?;
    if device.properties().early {
        let overlap =
            "(repeats of our own products overlap by early launches, 1 to 2 us each; Vendor's can't)";
        (bench.say)(Line::Note(overlap.to_owned()));
    }
    bench.table(&INTEGERS, others, Bench::integers)?;
    bench.table(&fused::FUSED, others, Bench::fused)?;
    bench.table(&small::SMALL, others, Bench::small_kernels)?;
    bench.table(&adapters::ADAPTERS, others, Bench::adapters)?;
    (bench.say)(Line::Head(&experts::EXPERTS));
    extent.experts.iter().try_for_each(|(name, shape)| bench.experts(name, *shape))?;
    bench.table(&SAMPLING, others, Bench::samples)?;
    let at_end = copies_say(device, extent.copy_bytes, bytes_per_s)?;
    (bench.say)(Line::Note(at_end));
    Ok(())
}

impl Bench<'_> {
    /// The heading of a table, and `rows` for each shape.
    fn table(
        &mut self,
        table: &'static Table,
        shapes: &[ModelShape],
        rows: fn(&mut Self, &ModelShape) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        (self.say)(Line::Head(table));
        shapes.iter().try_for_each(|shape| rows(self, shape))
    }

    fn decodes(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        let longest = self.extent.contexts.last().copied().unwrap_or(1);
        for &batch in self.extent.batches {
            let even = self.extent.contexts.iter().map(|context| (*context, *context));
            // A few long contexts beside many short ones, as in a server of chats and documents.
            let uneven = (batch >= 8 && longest >= 16).then_some((longest, longest / 16));
            for (context, shortest) in even.chain(uneven) {
                let (attention, cycle_bytes) = (shape.attention(Type::Bf16), self.extent.cycle_bytes);
                let contexts = Contexts { context, shortest, longest };
                let decode = decode_us(self.device, attention, batch, contexts, cycle_bytes)?;
                let Some((us, bytes)) = decode else { continue };
                let rate = bytes / us * 1e6;
                (self.say)(DECODE.row([
                    shape.name.into(),
                    batch.into(),
                    context.into(),
                    shortest.into(),
                    Cell::Number(us, 1),
                    Cell::Number(rate / 1e9, 0),
                    Cell::Share(rate / self.bytes_per_s),
                ]));
            }
        }
        Ok(())
    }

    fn prefills(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        let attention = shape.attention(Type::Bf16);
        for &tokens in self.extent.prompts {
            for form in PrefillForm::all_on(attention, self.device.properties()) {
                let us = prefill_us(self.device, attention, form, tokens)?;
                let t = f64::from(tokens);
                let rate = 4.0 * f64::from(shape.q_width()) * t * (t + 1.0) / 2.0 / us * 1e6;
                (self.say)(PREFILL.row([
                    shape.name.into(),
                    tokens.into(),
                    form.rows().into(),
                    if form.of_warpgroups() { "wgmma" } else { "mma.sync" }.into(),
                    Cell::Number(us, 1),
                    Cell::Number(rate / 1e12, 0),
                    Cell::Share(rate / self.operations_per_s),
                ]));
            }
        }
        Ok(())
    }

    fn products(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        let with_vendor = self.device.properties().vendor_products.is_some();
        for (outputs, inputs) in shape.products() {
            for &rows in self.extent.rows {
                let kinds = [ProductKind::Own, ProductKind::RowByRow, ProductKind::Vendor];
                for kind in kinds.into_iter().filter(|kind| with_vendor || *kind != ProductKind::Vendor) {
                    let (sides, cycle_bytes) = ([rows, inputs, outputs], self.extent.cycle_bytes);
                    let measured = product_us(self.device, kind, sides, cycle_bytes, time_us)?;
                    let refused = if measured.is_none() { ", refused" } else { "" };
                    let rate = measured.map(|us| 2.0 * f64::from(outputs) * f64::from(inputs) / us * 1e6);
                    let cell = |figure: Option<f64>, decimals| {
                        figure.map_or(Cell::Absent, |figure| Cell::Number(figure, decimals))
                    };
                    (self.say)(PRODUCTS.row([
                        shape.name.into(),
                        rows.into(),
                        outputs.into(),
                        inputs.into(),
                        Cell::Text(format!("{kind:?}{refused}")),
                        cell(measured, 1),
                        cell(rate.map(|rate| rate / 1e9), 0),
                        rate.map_or(Cell::Absent, |rate| Cell::Share(rate / self.bytes_per_s)),
                        // A multiplication and an addition for each weight of two bytes.
                        cell(rate.map(|rate| f64::from(rows) * rate / 1e12), 1),
                    ]));
                }
            }
        }
        Ok(())
    }

    /// Beside the same products above: what is saved where weights are read as integers, and what widening costs.
    fn integers(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        let of_groups = |(_, inputs): &(u32, u32)| inputs.is_multiple_of(GROUP as u32);
        for (outputs, inputs) in shape.products().into_iter().filter(of_groups) {
            for (&rows, weights) in
                self.extent.rows.iter().flat_map(|rows| [(rows, Quantized::Int8), (rows, Quantized::Int4)])
            {
                let us = integers_us(self.device, weights, [rows, inputs, outputs], self.extent.cycle_bytes)?;
                let sides = [outputs as usize, inputs as usize];
                let rate = weights.bytes(sides) as f64 / us * 1e6;
                let operations = 2.0 * f64::from(rows) * f64::from(outputs) * f64::from(inputs) / us * 1e6;
                (self.say)(INTEGERS.row([
                    shape.name.into(),
                    rows.into(),
                    outputs.into(),
                    inputs.into(),
                    Cell::Text(format!("{weights:?}")),
                    Cell::Number(us, 1),
                    Cell::Number(rate / 1e9, 0),
                    Cell::Share(rate / self.bytes_per_s),
                    Cell::Number(operations / 1e12, 1),
                ]));
            }
        }
        Ok(())
    }

    fn fused(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        for &rows in self.extent.rows.iter().filter(|rows| **rows <= FEW) {
            for pair in fused::pairs(self.device, shape, rows, self.extent.cycle_bytes)? {
                (self.say)(fused::FUSED.row([
                    shape.name.into(),
                    rows.into(),
                    pair.with.into(),
                    pair.outputs.into(),
                    pair.inputs.into(),
                    Cell::Number(pair.apart_us, 1),
                    Cell::Number(pair.fused_us, 1),
                ]));
            }
        }
        Ok(())
    }

    fn small_kernels(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        let context = self.extent.contexts.first().copied().unwrap_or(1);
        for (kernel, measure) in small::KERNELS {
            for &rows in self.extent.small {
                let Some((us, bytes)) = measure(self.device, shape, [rows, context])? else { continue };
                let rate = bytes / us * 1e6;
                (self.say)(small::SMALL.row([
                    shape.name.into(),
                    kernel.into(),
                    rows.into(),
                    Cell::Number(us, 1),
                    Cell::Number(rate / 1e9, 0),
                    Cell::Share(rate / self.bytes_per_s),
                ]));
            }
        }
        Ok(())
    }

    fn adapters(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        for &rows in self.extent.rows {
            for count in adapters::counts(rows) {
                for ([outputs, inputs], us, own_us) in adapters::times(self.device, shape, [rows, count])? {
                    (self.say)(adapters::ADAPTERS.row([
                        shape.name.into(),
                        rows.into(),
                        count.into(),
                        outputs.into(),
                        inputs.into(),
                        Cell::Number(us, 1),
                        Cell::Share(us / own_us),
                    ]));
                }
            }
        }
        Ok(())
    }

    fn experts(&mut self, name: &str, shape: ExpertShape) -> Result<(), CudaError> {
        let layer = experts::Layer::new(self.device, shape)?;
        for &rows in self.extent.rows {
            for times in layer.times(rows)? {
                let [bytes, operations] = times.rates(&shape, rows);
                (self.say)(experts::EXPERTS.row([
                    name.into(),
                    rows.into(),
                    times.form.tile_rows().into(),
                    times.experts.into(),
                    Cell::Number(times.choice_us, 1),
                    Cell::Number(times.gated_us, 1),
                    Cell::Number(times.down_us, 1),
                    Cell::Number(times.sum_us, 1),
                    Cell::Number(bytes / 1e9, 0),
                    Cell::Share(bytes / self.bytes_per_s),
                    Cell::Number(operations / 1e12, 1),
                ]));
            }
        }
        Ok(())
    }

    fn samples(&mut self, shape: &ModelShape) -> Result<(), CudaError> {
        for &rows in self.extent.draws {
            for (how, temperature, top_p) in
                [("greedy", 0.0, 1.0), ("temperature", 1.0, 1.0), ("top-p 0.9", 1.0, 0.9)]
            {
                let us = sample_us(self.device, rows, shape.vocab, temperature, top_p)?;
                (self.say)(SAMPLING.row([rows.into(), shape.vocab.into(), how.into(), Cell::Number(us, 1)]));
            }
        }
        Ok(())
    }
}

/// Text with both rates, the first one in bytes per second. If that of products is only our own kernel's, it says so.
pub fn rates_say(device: &dyn Device, bytes_per_s: f64, products: ProductRate) -> String {
    let ours = match device.properties().vendor_products {
        _ if products.by_vendor => "",
        Some(_) => " (by our own kernel: cuBLASLt refused)",
        None => " (by our own kernel: cuBLASLt was not found)",
    };
    format!(
        "copies {:.0} GB/s (read and written), bf16 products {:.0} TFLOP/s{ours}",
        bytes_per_s / 1e9,
        products.operations_per_s / 1e12
    )
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

/// Matrices of random weights that take turns, so that they come from memory.
struct Weights {
    data: Buffer,
    matrix_bytes: usize,
    matrices: usize,
    turn: std::cell::Cell<usize>,
}

impl Weights {
    /// As many matrices as have `cycle_bytes` in total, at least one.
    fn new(
        device: &Arc<dyn Device>,
        ty: Type,
        [outputs, inputs]: [u32; 2],
        cycle_bytes: usize,
    ) -> Result<Self, CudaError> {
        let numbers = outputs as usize * inputs as usize;
        let matrices = cycle_bytes.div_ceil(numbers * ty.bytes()).max(1);
        let data = random(device, ty, matrices * numbers)?;
        Ok(Self { data, matrix_bytes: numbers * ty.bytes(), matrices, turn: std::cell::Cell::new(0) })
    }

    /// The address of the next matrix.
    fn next(&self) -> u64 {
        self.turn.set((self.turn.get() + 1) % self.matrices);
        self.data.at() + (self.turn.get() * self.matrix_bytes) as u64
    }
}

/// Time of a product; `None` if the vendor's library is to compute it and refuses. See [`Weights`] for `cycle_bytes`.
fn product_us(
    device: &Arc<dyn Device>,
    kind: ProductKind,
    [rows, inputs, outputs]: [u32; 3],
    cycle_bytes: usize,
    timer: Timer,
) -> Result<Option<f64>, CudaError> {
    let ty = Type::Bf16;
    let weights = Weights::new(device, ty, [outputs, inputs], cycle_bytes)?;
    let x = random(device, ty, (rows * inputs) as usize)?;
    let y = Buffer::new(device, rows as usize * outputs as usize * 2)?;
    let run = || {
        let w = weights.next();
        let params = ProductParams { x: x.at(), w, y: y.at(), rows, inputs, outputs, out_f32: 0 };
        match kind {
            // Not by `product`, which would take our own kernel instead.
            // SAFETY: shapes as allocated.
            ProductKind::Vendor => unsafe { device.vendor_product(ty, &params) },
            // SAFETY: shapes as allocated.
            _ => unsafe { product(device.as_ref(), ty, kind, &params) }.map(|()| true),
        }
    };
    if !run()? {
        return Ok(None);
    }
    let mut refused = false;
    let us = timer(device.as_ref(), &mut || {
        refused |= !run()?;
        Ok(())
    })?;
    Ok((!refused).then_some(us))
}

/// Time of a product of integers. See [`Weights`] for `cycle_bytes`.
fn integers_us(
    device: &Arc<dyn Device>,
    weights: Quantized,
    [rows, inputs, outputs]: [u32; 3],
    cycle_bytes: usize,
) -> Result<f64, CudaError> {
    let (ty, sides) = (Type::Bf16, [outputs as usize, inputs as usize]);
    let matrix_bytes = weights.bytes(sides);
    let matrices = cycle_bytes.div_ceil(matrix_bytes).max(1);
    let data = Buffer::new(device, matrices * matrix_bytes)?;
    for matrix in 0..matrices {
        let at = data.at() + (matrix * matrix_bytes) as u64;
        // SAFETY: allocated for these matrices.
        unsafe { fill_integers(device.as_ref(), weights, at, sides, (matrix as u64, 1.0)) }?;
    }
    let x = random(device, ty, (rows * inputs) as usize)?;
    let y = Buffer::new(device, rows as usize * outputs as usize * 2)?;
    let scratch = Buffer::new(device, sides[0] * sides[1] * ty.bytes())?;
    let factors = Factors { ty, weights: Some(weights), scratch: scratch.at() };
    let turn = std::cell::Cell::new(0);
    time_us(device.as_ref(), &mut || {
        turn.set((turn.get() + 1) % matrices);
        let w = data.at() + (turn.get() * matrix_bytes) as u64;
        let params = ProductParams { x: x.at(), w, y: y.at(), rows, inputs, outputs, out_f32: 0 };
        // SAFETY: shapes as allocated.
        unsafe { product(device.as_ref(), factors, ProductKind::Fastest, &params) }
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
