//! Adapters on a device: copies of their matrices, and what they add to the products of a step (`infer_kernels::cuda`'s
//! `add_adapters`). The host knows which rows have which adapter, so it lists them; what is launched depends on the number of
//! rows and on where any adapter of the model adds something, so that decodes are recorded as others are. A step whose rows
//! have no adapter launches nothing of this.
//!
//! Matrices are rounded to the device's type, as the model's own, and what they add is rounded with the product's outputs.
#![allow(unsafe_code, reason = "kernel launches; see the SAFETY lines")]

use std::sync::Arc;

use infer_core::{AdapterId, Batch};
use infer_kernels::cuda::{
    AdapterDelta, AdapterLists, AdapterPart, AdapterRows, AdapterShape, AdaptersParams, Buffer, CudaError,
    Device, Properties, Type, add_adapters, padded_rank,
};

use super::DeviceOptions;
use super::decoder::DeviceDecoder;
use super::fused::Fusion;
use super::layout::StepLayout;
use super::weights::DeviceWeights;
use crate::config::ModelConfig;
use crate::lora::apply::Places;
use crate::lora::{AdaptedLayer, Adapter, Delta};

/// Where each matrix begins: at multiples of so many bytes.
const ALIGNMENT: usize = 256;
/// The products of a layer that adapters add to.
const PRODUCTS: [fn(&AdaptedLayer) -> &Option<Delta>; 4] =
    [|layer| &layer.qkv, |layer| &layer.output, |layer| &layer.gate_up, |layer| &layer.down];

/// Memory of all adapters.
#[derive(Default)]
pub(super) struct DeviceAdapters {
    pub count: u32,
    /// The matrices of each, and `AdapterDelta`s: `[layer][product][adapter]`
    memory: Vec<Buffer>,
    /// The products that any of them adds to.
    shapes: Vec<AdapterShape>,
}

/// What adapters add to the products of a layer.
#[derive(Default)]
pub(super) struct LayerDeltas {
    pub qkv: Option<DeviceDelta>,
    pub output: Option<DeviceDelta>,
    pub gate_up: Option<DeviceDelta>,
    pub down: Option<DeviceDelta>,
}

/// What adapters add to a product.
pub(super) struct DeviceDelta {
    shape: AdapterShape,
    /// The address of each adapter's.
    deltas: u64,
}

impl DeviceAdapters {
    /// Bytes of the matrices and of the list of them.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.iter().map(|memory| memory.bytes() as u64).sum()
    }

    /// Bytes of what is passed between kernels.
    pub(super) fn narrow_bytes(&self, properties: &Properties, options: &DeviceOptions) -> usize {
        let kind = options.kind();
        let bytes = |shape: &AdapterShape| shape.narrow_bytes(kind, options.max_tokens, properties);
        self.shapes.iter().map(bytes).max().unwrap_or(0)
    }

    /// Bytes that an executor needs for them.
    pub(super) fn working_bytes(&self, properties: &Properties, options: &DeviceOptions) -> u64 {
        let words: usize = words(self.count, options.max_tokens).iter().sum();
        (self.narrow_bytes(properties, options) + 4 * words) as u64
    }
}

/// Words of the lists of up to so many tokens with any of these adapters: places, and tiles.
pub(super) fn words(adapters: u32, tokens: u32) -> [usize; 2] {
    match adapters {
        0 => [0, 0],
        _ => [tokens as usize, AdapterRows::tile_words(tokens, adapters)],
    }
}

/// Writes the lists of a batch's tokens with adapters, of those that are loaded. `padded` is the number of tokens of a decode that
/// may be recorded. `None` if no token has one.
pub(super) fn list(
    words: &mut [u32],
    layout: &StepLayout,
    (places, loaded): (&mut Places, &[AdapterId]),
    batch: &Batch,
    padded: Option<u32>,
) -> Option<AdapterRows> {
    if loaded.is_empty() {
        return None;
    }
    places.find(batch, loaded);
    if places.tokens.is_empty() {
        return None;
    }
    let room = AdapterRows::room(padded.unwrap_or(places.tokens.len() as u32), loaded.len() as u32);
    let (before, tiles) = words.split_at_mut(layout.place_tiles);
    let mut lists = AdapterLists::new(&mut before[layout.places..], tiles, room.rows);
    for (adapter, own) in places.groups() {
        lists.add(adapter as u32, &places.tokens[own]);
    }
    Some(if padded.is_some() { lists.filled(room) } else { lists.exact() })
}

impl DeviceWeights {
    /// Copies adapters to the device.
    pub(super) fn adapt(
        &mut self,
        device: &Arc<dyn Device>,
        ty: Type,
        config: &ModelConfig,
        adapters: &[Arc<Adapter>],
    ) -> Result<(), CudaError> {
        if adapters.is_empty() {
            return Ok(());
        }
        let mut copied = Vec::with_capacity(adapters.len());
        for adapter in adapters {
            let (bytes, mut deltas) = pack(adapter, ty);
            let matrices = Buffer::from_bytes(device, &bytes)?;
            deltas.iter_mut().for_each(|delta| place(delta, matrices.at()));
            self.adapters.memory.push(matrices);
            copied.push(deltas);
        }
        let count = PRODUCTS.len() * self.layers.len();
        let of_product = |index: usize| copied.iter().map(move |deltas: &Vec<AdapterDelta>| &deltas[index]);
        let bytes = (0..count).flat_map(of_product).flat_map(AdapterDelta::as_bytes).copied();
        let all = Buffer::from_bytes(device, &bytes.collect::<Vec<u8>>())?;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let widths = widths(config);
            let delta = |product: usize| {
                let at = index * PRODUCTS.len() + product;
                let shape = shape(ty, widths[product], of_product(at))?;
                let deltas = all.at() + (at * adapters.len() * size_of::<AdapterDelta>()) as u64;
                Some(DeviceDelta { shape, deltas })
            };
            let [qkv, output, gate_up, down] = [delta(0), delta(1), delta(2), delta(3)];
            layer.deltas = LayerDeltas { qkv, output, gate_up, down };
            let LayerDeltas { qkv, output, gate_up, down } = &layer.deltas;
            let some = [qkv, output, gate_up, down].into_iter().flatten();
            self.adapters.shapes.extend(some.map(|delta| delta.shape));
        }
        self.adapters.count = adapters.len() as u32;
        self.adapters.memory.push(all);
        Ok(())
    }
}

/// Inputs and outputs of each product.
fn widths(config: &ModelConfig) -> [[usize; 2]; 4] {
    let (hidden, q, intermediate) = (config.hidden, config.q_width(), config.intermediate);
    [[hidden, q + 2 * config.kv_width()], [q, hidden], [hidden, 2 * intermediate], [intermediate, hidden]]
}

/// The shape of what adapters add to a product, if any of them does.
fn shape<'a>(
    ty: Type,
    [inputs, outputs]: [usize; 2],
    deltas: impl Iterator<Item = &'a AdapterDelta> + Clone,
) -> Option<AdapterShape> {
    let ranks = deltas.clone().map(|delta| delta.ranks).max().filter(|ranks| *ranks > 0)?;
    let even = |part: &AdapterPart| part.first.is_multiple_of(2) && part.outputs.is_multiple_of(2);
    let even = deltas.flat_map(|delta| &delta.parts).all(even);
    Some(AdapterShape { ty, inputs: inputs as u32, outputs: outputs as u32, ranks, even })
}

/// All matrices of an adapter as kernels read them, and what it adds to each product of each layer, with offsets in place of
/// addresses.
fn pack(adapter: &Adapter, ty: Type) -> (Vec<u8>, Vec<AdapterDelta>) {
    let mut bytes = Vec::new();
    let products = adapter.layers.iter().flat_map(|layer| PRODUCTS.map(|product| product(layer)));
    let deltas = products.map(|delta| match delta {
        None => AdapterDelta::default(),
        Some(delta) => pack_delta(delta, ty, &mut bytes),
    });
    let deltas = deltas.collect();
    (bytes, deltas)
}

fn pack_delta(Delta { narrow, parts }: &Delta, ty: Type, bytes: &mut Vec<u8>) -> AdapterDelta {
    let mut packed = AdapterDelta { narrow: align(bytes), ..AdapterDelta::default() };
    let inputs = narrow.inputs();
    let (mut row, mut next) = (vec![0.0; inputs], 0);
    for part in parts {
        let rank = part.wide.inputs();
        for line in 0..padded_rank(rank) {
            if line < rank {
                narrow.unpack_row(next + line, 1.0, &mut row);
            } else {
                row.fill(0.0);
            }
            row.iter().for_each(|number| ty.write(*number, bytes));
        }
        next += rank;
    }
    for (part, to) in parts.iter().zip(&mut packed.parts) {
        let (outputs, rank) = (part.wide.outputs(), part.wide.inputs());
        let padded = padded_rank(rank);
        packed.ranks += padded as u32;
        *to = AdapterPart {
            wide: align(bytes),
            first: part.first as u32,
            outputs: outputs as u32,
            rank: padded as u32,
            scale: part.scale,
        };
        row.clear();
        row.resize(padded, 0.0);
        for line in 0..outputs {
            part.wide.unpack_row(line, 1.0, &mut row[..rank]);
            row.iter().for_each(|number| ty.write(*number, bytes));
        }
    }
    packed
}

/// Where the next matrix begins.
fn align(bytes: &mut Vec<u8>) -> u64 {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes.len() as u64
}

/// Turns offsets into addresses.
fn place(delta: &mut AdapterDelta, at: u64) {
    delta.narrow += at;
    delta.parts.iter_mut().for_each(|part| part.wide += at);
}

impl DeviceDecoder {
    /// Adds what adapters add to a product: `y` of inputs `x`.
    pub(super) fn adapt(
        &self,
        delta: &Option<DeviceDelta>,
        [x, y]: [u64; 2],
        fusion: Fusion,
    ) -> Result<(), CudaError> {
        let (Some(DeviceDelta { shape, deltas }), Some(rows)) = (delta, fusion.adapted) else {
            return Ok(());
        };
        let params = AdaptersParams {
            x,
            y,
            deltas: *deltas,
            narrow: self.buffers.narrow.at(),
            places: self.word(self.buffers.layout.places),
            tiles: self.word(self.buffers.layout.place_tiles),
            ..AdaptersParams::default()
        };
        // SAFETY: `x` and `y` are activation buffers of these widths with room for the listed tokens, and `narrow` for their sums;
        // no kernel writes the step's words or adapters.
        unsafe { add_adapters(self.device.as_ref(), self.kind(), shape, rows, &params) }
    }
}
