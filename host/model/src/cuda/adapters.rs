//! Adapters on a device: copies of their matrices, and what they add to the products of a step (`infer_kernels::cuda`'s
//! `add_adapters`). The host knows which rows have which adapter, so it lists them; what is launched depends on the number of
//! rows and on where any of the executor's adapters adds something, so that decodes are recorded as others are. A step whose
//! rows have no adapter launches nothing of this.
//!
//! An adapter may come or go between two steps. What is allocated for it is allocated then, and recordings of steps with
//! adapters are dropped, since they have its addresses and the shapes of those that were there.
//!
//! Matrices are rounded to the device's type, as the model's own, and what they add is rounded with the product's outputs.
#![allow(unsafe_code, reason = "kernel launches; see the SAFETY lines")]

use std::sync::Arc;

use infer_core::{AdapterId, Batch};
use infer_kernels::cuda::{
    AdapterDelta, AdapterLists, AdapterPart, AdapterRows, AdapterShape, AdaptersParams, Buffer, CudaError,
    Device, Properties, Type, add_adapters, padded_rank,
};

use super::decoder::DeviceDecoder;
use super::fused::Fusion;
use super::layout::StepLayout;
use super::{DeviceModel, DeviceOptions};
use crate::config::ModelConfig;
use crate::lora::apply::Places;
use crate::lora::{AdaptedLayer, Adapter, Delta};

/// Where each matrix begins: at multiples of so many bytes.
const ALIGNMENT: usize = 256;
/// The products of a layer that adapters add to.
const PRODUCTS: [fn(&AdaptedLayer) -> &Option<Delta>; 4] =
    [|layer| &layer.qkv, |layer| &layer.output, |layer| &layer.gate_up, |layer| &layer.down];

/// Projections that each of them is made of.
const PARTS: [usize; 4] = [3, 1, 2, 1];

/// An adapter as kernels read it: all its matrices, and what it adds to each product, `[layer][product]`, with offsets in
/// place of addresses.
pub(super) struct PackedAdapter {
    matrices: Vec<u8>,
    deltas: Vec<AdapterDelta>,
}

impl PackedAdapter {
    pub(super) fn new(adapter: &Adapter, ty: Type) -> Self {
        let (matrices, deltas) = pack(adapter, ty);
        Self { matrices, deltas }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.matrices.len() as u64
    }
}

/// The same on a device, with addresses.
pub(super) struct PlacedAdapter {
    matrices: Buffer,
    deltas: Vec<AdapterDelta>,
}

impl PlacedAdapter {
    pub(super) fn new(device: &Arc<dyn Device>, packed: &PackedAdapter) -> Result<Self, CudaError> {
        let matrices = Buffer::from_bytes(device, &packed.matrices)?;
        let mut deltas = packed.deltas.clone();
        deltas.iter_mut().for_each(|delta| place(delta, matrices.at()));
        Ok(Self { matrices, deltas })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.matrices.bytes() as u64
    }
}

/// The adapters of an executor.
pub(super) struct DeviceAdapters {
    /// Their numbers, in ascending order.
    ids: Vec<AdapterId>,
    placed: Vec<Arc<PlacedAdapter>>,
    /// Where each is in the list, for as long as it is there: nothing has to be written when one goes, and what has to be when
    /// one comes leaves the others' as it is.
    slots: Vec<u32>,
    /// `AdapterDelta`s, `[layer][product][slot]`. A slot that no adapter has may have those of one that is gone.
    list: Buffer,
    /// How many slots there are.
    most: usize,
    /// What they add to products.
    layers: Vec<LayerDeltas>,
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
    /// Those that a model has, numbered from 1 on, and room for `most`.
    pub(super) fn new(model: &DeviceModel) -> Result<Self, CudaError> {
        let DeviceModel { config, ty, device, adapters, .. } = model;
        let (layers, most) = (config.layers.len(), model.most_adapters() as usize);
        let mut all = Self {
            ids: (1..).map(AdapterId).take(adapters.len()).collect(),
            placed: adapters.clone(),
            slots: (0..adapters.len() as u32).collect(),
            list: Buffer::new(device, list_bytes(layers, most))?,
            most,
            layers: Vec::new(),
        };
        all.write(None, config)?;
        all.arrange(*ty, config);
        Ok(all)
    }

    /// Whether a row may have this adapter, or none.
    pub(super) fn has(&self, id: AdapterId) -> bool {
        id == AdapterId::NONE || self.ids.binary_search(&id).is_ok()
    }

    /// What they add to a layer's products.
    pub(super) fn layer(&self, index: usize) -> &LayerDeltas {
        &self.layers[index]
    }

    /// Whether another one fits.
    pub(super) fn has_room(&self) -> bool {
        self.ids.len() < self.most
    }

    /// Those that there are, and another one.
    pub(super) fn with(&self, adapter: &Arc<PlacedAdapter>) -> Vec<Arc<PlacedAdapter>> {
        self.placed.iter().chain([adapter]).cloned().collect()
    }

    /// Adds an adapter, for which there must be room, under a number that none has. After an error the others are as they
    /// were.
    pub(super) fn insert(
        &mut self,
        (id, adapter): (AdapterId, Arc<PlacedAdapter>),
        ty: Type,
        config: &ModelConfig,
    ) -> Result<(), CudaError> {
        let free = (0..self.most as u32).find(|slot| !self.slots.contains(slot));
        let slot = free.expect("there is room for another adapter");
        self.write(Some((slot, &adapter)), config)?;
        let place = self.ids.partition_point(|other| *other < id);
        self.ids.insert(place, id);
        self.placed.insert(place, adapter);
        self.slots.insert(place, slot);
        self.arrange(ty, config);
        Ok(())
    }

    /// Removes an adapter. Returns whether it was there.
    pub(super) fn remove(&mut self, id: AdapterId, ty: Type, config: &ModelConfig) -> bool {
        let Ok(place) = self.ids.binary_search(&id) else { return false };
        self.ids.remove(place);
        self.slots.remove(place);
        self.placed.remove(place);
        self.arrange(ty, config);
        true
    }

    /// Lists what each adapter adds to each product, on the device, and what one that comes adds.
    fn write(
        &self,
        comes: Option<(u32, &Arc<PlacedAdapter>)>,
        config: &ModelConfig,
    ) -> Result<(), CudaError> {
        let products = PRODUCTS.len() * config.layers.len();
        let mut list = vec![AdapterDelta::default(); products * self.most];
        for (slot, adapter) in self.slots.iter().copied().zip(&self.placed).chain(comes) {
            for (product, delta) in adapter.deltas.iter().enumerate() {
                list[product * self.most + slot as usize] = *delta;
            }
        }
        if list.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = list.iter().flat_map(AdapterDelta::as_bytes).copied().collect();
        self.list.write(0, &bytes)
    }

    /// Finds out where any adapter adds something.
    fn arrange(&mut self, ty: Type, config: &ModelConfig) {
        let delta = |at: usize, shape: Option<AdapterShape>| {
            let deltas = self.list.at() + (at * self.most * size_of::<AdapterDelta>()) as u64;
            shape.map(|shape| DeviceDelta { shape, deltas })
        };
        let layer = |(index, shapes): (usize, [Option<AdapterShape>; 4])| {
            let at = index * PRODUCTS.len();
            let [qkv, output, gate_up, down] = shapes;
            LayerDeltas {
                qkv: delta(at, qkv),
                output: delta(at + 1, output),
                gate_up: delta(at + 2, gate_up),
                down: delta(at + 3, down),
            }
        };
        self.layers = shapes(ty, config, &self.placed).into_iter().enumerate().map(layer).collect();
    }
}

/// The shapes of what adapters add to the products of each layer.
fn shapes(ty: Type, config: &ModelConfig, placed: &[Arc<PlacedAdapter>]) -> Vec<[Option<AdapterShape>; 4]> {
    let widths = widths(config);
    let of_layer = |layer: usize| {
        [0, 1, 2, 3].map(|product| {
            let at = layer * PRODUCTS.len() + product;
            shape(ty, widths[product], placed.iter().map(|adapter| &adapter.deltas[at]))
        })
    };
    (0..config.layers.len()).map(of_layer).collect()
}

fn list_bytes(layers: usize, adapters: usize) -> usize {
    layers * PRODUCTS.len() * adapters * size_of::<AdapterDelta>()
}

/// Bytes of what these adapters pass between their kernels.
pub(super) fn narrow_bytes(
    ty: Type,
    config: &ModelConfig,
    placed: &[Arc<PlacedAdapter>],
    properties: &Properties,
    options: &DeviceOptions,
) -> usize {
    let shapes = shapes(ty, config, placed).into_iter().flatten().flatten();
    shapes.map(|shape| bytes_between(&shape, properties, options)).max().unwrap_or(0)
}

fn bytes_between(shape: &AdapterShape, properties: &Properties, options: &DeviceOptions) -> usize {
    shape.narrow_bytes(options.kind(), options.max_tokens, properties)
}

/// Bytes of what adapters pass between their kernels: those of the model, and one of all projections that takes all the memory
/// that others may have. One that changes few projections may have a higher rank, and memory is allocated for it when it comes.
pub(super) fn reserved_bytes(model: &DeviceModel, options: &DeviceOptions) -> usize {
    let DeviceModel { config, ty, device, adapters, room_bytes, .. } = model;
    let properties = device.properties();
    let later = largest(*ty, config, *room_bytes).map(|shape| bytes_between(&shape, properties, options));
    narrow_bytes(*ty, config, adapters, properties, options).max(later.max().unwrap_or(0))
}

/// The shapes of an adapter of all projections that takes so many bytes.
fn largest(ty: Type, config: &ModelConfig, bytes: u64) -> impl Iterator<Item = AdapterShape> {
    let widths = widths(config);
    let numbers = |product: usize| PARTS[product] * widths[product][0] + widths[product][1];
    let dense = config.layers.iter().filter(|layer| layer.experts.is_none()).count();
    let of_rank = config.layers.len() * (numbers(0) + numbers(1)) + dense * (numbers(2) + numbers(3));
    // One side of each projection is as wide as the residual stream, so higher ranks are of no use.
    let rank = (bytes as usize / (of_rank * ty.bytes())).min(config.hidden);
    // What is filled up takes memory, too.
    let step = padded_rank(1);
    let rank = rank / step * step;
    let products = if dense > 0 { 0..PRODUCTS.len() } else { 0..2 };
    let shape = move |product: usize| {
        let [inputs, outputs] = widths[product].map(|width| width as u32);
        AdapterShape { ty, inputs, outputs, ranks: (PARTS[product] * rank) as u32, even: true }
    };
    products.map(shape).filter(|shape| shape.ranks > 0)
}

/// Bytes that an executor needs for the adapters of a model.
pub(super) fn working_bytes(model: &DeviceModel, options: &DeviceOptions) -> u64 {
    let most = model.most_adapters();
    let words: usize = words(most, options.max_tokens).iter().sum();
    let list = list_bytes(model.config.layers.len(), most as usize);
    (reserved_bytes(model, options) + 4 * words + list) as u64
}

/// Words of the lists of up to so many tokens with any of these adapters: places, and tiles.
pub(super) fn words(adapters: u32, tokens: u32) -> [usize; 2] {
    match adapters {
        0 => [0, 0],
        _ => [tokens as usize, AdapterRows::tile_words(tokens, adapters)],
    }
}

/// Writes the lists of a batch's tokens with adapters. `padded` is the number of tokens of a decode that may be recorded. `None`
/// if no token has one.
pub(super) fn list(
    words: &mut [u32],
    layout: &StepLayout,
    (places, adapters): (&mut Places, &DeviceAdapters),
    batch: &Batch,
    padded: Option<u32>,
) -> Option<AdapterRows> {
    if adapters.ids.is_empty() {
        return None;
    }
    places.find(batch, &adapters.ids);
    if places.tokens.is_empty() {
        return None;
    }
    let rows = padded.unwrap_or(places.tokens.len() as u32);
    let room = AdapterRows::room(rows, adapters.ids.len() as u32);
    let (before, tiles) = words.split_at_mut(layout.place_tiles);
    let mut lists = AdapterLists::new(&mut before[layout.places..], tiles, room.rows);
    for (adapter, own) in places.groups() {
        lists.add(adapters.slots[adapter], &places.tokens[own]);
    }
    Some(if padded.is_some() { lists.filled(room) } else { lists.exact() })
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

/// See `PackedAdapter`.
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
