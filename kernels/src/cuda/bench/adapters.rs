//! What adapters of rank 16 take beside the products they add to, with rows of one adapter and of many. Repeats read the adapters
//! from the L2 cache, and add to the same outputs.

use std::sync::Arc;

use super::products::Product;
use super::{ModelShape, Table, random, time_us};
use crate::cuda::{
    AdapterDelta, AdapterLists, AdapterPart, AdapterRows, AdapterShape, AdaptersParams, Buffer, CudaError,
    Device, ProductKind, Type, add_adapters,
};

pub(super) static ADAPTERS: Table = Table {
    title: "adapters",
    columns: &[
        ("model", "model"),
        ("rows", "rows"),
        ("adapters", "adapters"),
        ("outputs", "outputs"),
        ("inputs", "inputs"),
        ("us", "us"),
        ("share_of_product", "of the product's time"),
    ],
};

const TY: Type = Type::Bf16;
const RANK: u32 = 16;
/// The most adapters of a batch.
const MOST: u32 = 32;

/// Numbers of adapters that are measured with so many rows.
pub(super) fn counts(rows: u32) -> impl Iterator<Item = u32> {
    std::iter::once(1).chain((rows > 1).then_some(rows.min(MOST)))
}

/// Microseconds of what so many adapters add to each product of a layer, with its outputs, its inputs and its own time.
pub(super) fn times(
    device: &Arc<dyn Device>,
    shape: &ModelShape,
    [rows, adapters]: [u32; 2],
) -> Result<Vec<([u32; 2], f64, f64)>, CudaError> {
    let (q, kv, half) = (shape.q_width(), shape.kv_width(), shape.intermediate);
    let parts: [&[u32]; 4] = [&[q, kv, kv], &[shape.hidden], &[half, half], &[shape.hidden]];
    let products = shape.products().into_iter().zip(parts).map(|((outputs, inputs), parts)| {
        let us = added_us(device, [rows, adapters], inputs, parts)?;
        let own = Product::new(device, [rows, inputs, outputs], 0)?.us(ProductKind::Fastest, time_us)?;
        Ok(([outputs, inputs], us, own.expect("our kernels compute every shape")))
    });
    products.collect()
}

fn added_us(
    device: &Arc<dyn Device>,
    [rows, adapters]: [u32; 2],
    inputs: u32,
    parts: &[u32],
) -> Result<f64, CudaError> {
    let outputs: u32 = parts.iter().sum();
    let ranks = RANK * parts.len() as u32;
    let shape = AdapterShape { ty: TY, inputs, outputs, ranks, even: true };
    let narrow = random(device, TY, adapters as usize * ranks as usize * inputs as usize)?;
    let wide = random(device, TY, adapters as usize * RANK as usize * outputs as usize)?;
    let mut deltas = Vec::new();
    for adapter in 0..u64::from(adapters) {
        let at = |buffer: &Buffer, numbers: u64| buffer.at() + numbers * TY.bytes() as u64;
        let own = adapter * u64::from(ranks) * u64::from(inputs);
        let mut delta = AdapterDelta { narrow: at(&narrow, own), ranks, ..AdapterDelta::default() };
        let mut first = 0;
        for (part, outputs_of) in delta.parts.iter_mut().zip(parts) {
            let own = u64::from(RANK) * (adapter * u64::from(outputs) + u64::from(first));
            let wide = at(&wide, own);
            *part = AdapterPart { wide, first, outputs: *outputs_of, rank: RANK, scale: 1e-3 };
            first += outputs_of;
        }
        deltas.extend_from_slice(delta.as_bytes());
    }
    let deltas = Buffer::from_bytes(device, &deltas)?;
    let (mut places, mut tiles) = (vec![0; rows as usize], vec![0; AdapterRows::tile_words(rows, adapters)]);
    let mut lists = AdapterLists::new(&mut places, &mut tiles, rows);
    let order: Vec<u32> = (0..rows).collect();
    for (adapter, rows) in (0..).zip(order.chunks(rows.div_ceil(adapters) as usize)) {
        lists.add(adapter, rows);
    }
    let listed = lists.filled(AdapterRows::room(rows, adapters));
    let (places, tiles) = (Buffer::from_indexes(device, &places)?, Buffer::from_indexes(device, &tiles)?);
    let x = random(device, TY, rows as usize * inputs as usize)?;
    let y = random(device, TY, rows as usize * outputs as usize)?;
    let kind = ProductKind::Fastest;
    let sums = Buffer::new(device, shape.narrow_bytes(kind, rows, device.properties()))?;
    let params = AdaptersParams {
        x: x.at(),
        y: y.at(),
        deltas: deltas.at(),
        narrow: sums.at(),
        places: places.at(),
        tiles: tiles.at(),
        ..AdaptersParams::default()
    };
    let device = device.as_ref();
    // SAFETY: shapes as allocated; the lists are those of these rows.
    time_us(device, &mut || unsafe { add_adapters(device, kind, &shape, listed, &params) })
}
