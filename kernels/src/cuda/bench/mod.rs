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
mod products;
mod rates;
mod sampling;
mod small;

use std::sync::Arc;

use super::{
    Buffer, CudaError, Device, ExpertShape, FEW, PrefillForm, ProductKind, Quantized, SampleRow, Type,
    fill_random,
};
use crate::GROUP;
use attention::{DECODE, Decode, PREFILL, decode_us, prefill_us};
pub use line::{Cell, Line, Table};
pub use plan::{Extent, ModelShape, Plan};
use products::{INTEGERS, PRODUCTS, Product, integers_us};
pub use rates::{ProductRate, copies_say, copy_rate, product_rate, rates_say};
use sampling::{SAMPLING, sample_us};

/// Largest pool of keys, and of values, each.
const MOST_POOL_BYTES: usize = 8 << 30;
const BLOCK_SIZE: u32 = 16;

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
                let decode = Decode { batch, context, shortest, longest };
                let measured = decode_us(self.device, attention, decode, cycle_bytes)?;
                let Some((us, bytes)) = measured else { continue };
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
                let product = Product::new(self.device, [rows, inputs, outputs], self.extent.cycle_bytes)?;
                let kinds = [ProductKind::Own, ProductKind::RowByRow, ProductKind::Vendor];
                for kind in kinds.into_iter().filter(|kind| with_vendor || *kind != ProductKind::Vendor) {
                    let measured = product.us(kind, time_us)?;
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
                let draw = SampleRow { temperature, top_p, uniform: 0.5, ..SampleRow::NOTHING };
                let us = sample_us(self.device, [rows, shape.vocab], draw)?;
                (self.say)(SAMPLING.row([rows.into(), shape.vocab.into(), how.into(), Cell::Number(us, 1)]));
            }
        }
        Ok(())
    }
}

fn random(device: &Arc<dyn Device>, ty: Type, numbers: usize) -> Result<Buffer, CudaError> {
    let buffer = Buffer::new(device, numbers * ty.bytes())?;
    // SAFETY: allocated with this size.
    unsafe { fill_random(device.as_ref(), ty, buffer.at(), numbers, numbers as u64, 1.0) }?;
    // Products may read weights before the fill is done.
    device.wait()?;
    Ok(buffer)
}
