//! What adapters add to a product, for the rows of a batch that have one: `cuda/adapters.cu`. The host lists rows by adapter and
//! cuts the list into tiles; these and the sizes of launches depend on the number of listed rows alone, or on how many rows there
//! is room for, so that a batch can be recorded.

use super::device::{Device, Launch, Properties, Type};
use super::error::CudaError;
use super::few::has_fragments;
use super::params::{AdaptersParams, NONE, Params};
use super::product::ProductKind;

/// Ranks are filled up with zeros to a multiple of this.
const RANK_STEP: u32 = 8;
/// Rows of a tile if there are few, and up to how many rows that is.
const FEW_TILE: u32 = 16;
const FEW_ROWS: u32 = 64;
/// Rows of a tile of more.
const MANY_TILE: u32 = 64;
/// Ranks of a block that shrinks a tile of few rows, or without tensor cores, and one of many.
const FEW_RANKS: u32 = 16;
const MANY_RANKS: u32 = 32;
/// Outputs of a block that expands.
const LINES: u32 = 128;
/// Inputs of a slice of few rows, and of any rows whose bits must not depend on others.
const SLICE: u32 = 1_024;
/// Inputs that a block multiplies together, of which a slice has whole numbers.
const TURN: u32 = 256;
/// Blocks that are wanted on each multiprocessor before slices become longer.
const BLOCKS: u32 = 2;
/// Most projections that one product is made of.
pub const ADAPTER_PARTS: usize = 3;

/// A rank as `AdapterDelta` has it: matrices are filled up with zeros to this many.
pub fn padded_rank(rank: usize) -> usize {
    rank.next_multiple_of(RANK_STEP as usize)
}

/// The product that adapters add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterShape {
    /// How its inputs and outputs and the adapters' weights are stored.
    pub ty: Type,
    /// Width of its rows.
    pub inputs: u32,
    /// Width of its results.
    pub outputs: u32,
    /// The most ranks that an adapter has here, those of all parts together.
    pub ranks: u32,
    /// Whether all parts begin at even outputs and have an even number of them.
    pub even: bool,
}

/// The rows of a batch that have adapters, in tiles of one adapter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterRows {
    /// Listed rows, or how many there is room for.
    pub rows: u32,
    /// Tiles, or how many there is room for.
    pub tiles: u32,
}

impl AdapterRows {
    /// Rows of a tile if there are so many rows.
    pub fn tile(rows: u32) -> u32 {
        if rows <= FEW_ROWS { FEW_TILE } else { MANY_TILE }
    }

    /// Room for so many rows of any of so many adapters.
    pub fn room(rows: u32, adapters: u32) -> Self {
        let tile = Self::tile(rows);
        // Each adapter with rows may have one tile that isn't full.
        Self { rows, tiles: (rows + rows.min(adapters) * (tile - 1)) / tile }
    }

    /// The most words of tiles that up to so many rows of any of so many adapters have.
    pub fn tile_words(rows: u32, adapters: u32) -> usize {
        // Smaller tiles are more, but only few rows have them.
        let [few, many] = [rows.min(FEW_ROWS), rows].map(|rows| Self::room(rows, adapters).tiles);
        4 * few.max(many) as usize
    }
}

/// Lists rows by adapter for the kernels. Returns what was listed.
pub struct AdapterLists<'a> {
    /// Rows, by adapter.
    places: &'a mut [u32],
    /// Four words of each tile.
    tiles: &'a mut [u32],
    tile: u32,
    listed: AdapterRows,
}

impl<'a> AdapterLists<'a> {
    /// Empty lists for so many rows, in words of the step.
    pub fn new(places: &'a mut [u32], tiles: &'a mut [u32], rows: u32) -> Self {
        let listed = AdapterRows { rows: 0, tiles: 0 };
        Self { places, tiles, tile: AdapterRows::tile(rows), listed }
    }

    /// Adds an adapter's rows.
    pub fn add(&mut self, adapter: u32, rows: &[u32]) {
        for rows in rows.chunks(self.tile as usize) {
            let AdapterRows { rows: first, tiles } = &mut self.listed;
            let count = rows.len() as u32;
            self.places[*first as usize..][..rows.len()].copy_from_slice(rows);
            self.tiles[4 * *tiles as usize..][..4].copy_from_slice(&[adapter, *first, count, 0]);
            *first += count;
            *tiles += 1;
        }
    }

    /// What was listed.
    pub fn exact(self) -> AdapterRows {
        self.listed
    }

    /// Fills the lists up, so that launches need to know no more than how many rows and adapters there can be.
    pub fn filled(self, room: AdapterRows) -> AdapterRows {
        let AdapterRows { rows, tiles } = self.listed;
        assert!(rows <= room.rows && tiles <= room.tiles, "{:?} listed, room for {room:?}", self.listed);
        self.places[rows as usize..room.rows as usize].fill(0);
        self.tiles[4 * tiles as usize..4 * room.tiles as usize].fill(NONE);
        room
    }
}

impl AdapterShape {
    fn has_fragments(&self) -> bool {
        has_fragments(self.ty, self.inputs) && self.even && self.outputs.is_multiple_of(2)
    }

    /// Ranks of a block that shrinks tiles of so many rows.
    fn group(&self, tile: u32) -> u32 {
        if tile == MANY_TILE && self.has_fragments() { MANY_RANKS } else { FEW_RANKS }
    }

    /// Inputs of a slice, and slices.
    fn slices(&self, kind: ProductKind, rows: u32, multiprocessors: u32) -> [u32; 2] {
        let most = self.inputs.div_ceil(SLICE);
        let tile = AdapterRows::tile(rows);
        let wanted = match kind {
            ProductKind::RowByRow => most,
            _ if tile == FEW_TILE => most,
            _ => {
                let blocks = rows.div_ceil(tile) * self.ranks.div_ceil(self.group(tile));
                (BLOCKS * multiprocessors).div_ceil(blocks.max(1)).min(most)
            }
        };
        let slice = if wanted == most { SLICE } else { self.inputs.div_ceil(wanted).next_multiple_of(TURN) };
        [slice, self.inputs.div_ceil(slice)]
    }

    /// Bytes of the sums between both kernels for up to so many rows: [`AdaptersParams`]'s `narrow`.
    pub fn narrow_bytes(&self, kind: ProductKind, rows: u32, properties: &Properties) -> usize {
        let numbers = |rows: u32| {
            let [_, slices] = self.slices(kind, rows, properties.multiprocessors);
            rows as usize * slices as usize * self.ranks as usize
        };
        // Slices change with whole tiles only.
        let steps = (MANY_TILE..rows).step_by(MANY_TILE as usize).chain([rows]);
        4 * steps.map(numbers).max().unwrap_or(0)
    }
}

/// `y[row] += scale * B (A x[row])` for the listed rows, by their adapters. Sizes are set here; see `AdaptersParams` for the
/// others.
///
/// # Errors
/// If the device refuses.
///
/// # Safety
/// The parameters describe memory on the device, whose rows start at multiples of 16 bytes if widths are multiples of 8; the
/// lists are those of these rows, `narrow` is as large as [`AdapterShape::narrow_bytes`], and the adapters' deltas are of this
/// shape. No kernel in flight writes the lists, the deltas or their weights, which may be read before it ends.
pub unsafe fn add_adapters(
    device: &dyn Device,
    kind: ProductKind,
    shape: &AdapterShape,
    rows: AdapterRows,
    params: &AdaptersParams,
) -> Result<(), CudaError> {
    let AdapterShape { ty, inputs, outputs, ranks, .. } = *shape;
    assert!(inputs > 0 && ranks > 0 && ranks.is_multiple_of(RANK_STEP), "{shape:?}");
    let AdapterRows { rows: room, tiles } = rows;
    if room == 0 {
        return Ok(());
    }
    let tile = AdapterRows::tile(room);
    let [slice, slices] = shape.slices(kind, room, device.properties().multiprocessors);
    let params = AdaptersParams { inputs, outputs, stride: ranks, room, slice, slices, ..*params };
    let fragments = tile / 16;
    let [shrink, expand] = kernels(ty, shape.has_fragments().then_some(fragments));
    let (shrink_bytes, expand_bytes) = match shape.has_fragments() {
        // Sums of all warps, and what is multiplied by B, each padded.
        true => (8 * tile * 24 * 4, tile * 96 * 2),
        false => (0, 16 * 64 * 4),
    };
    let launch = |kernel, blocks, shared_bytes| {
        let grid = [blocks, tiles, 1];
        let launch = Launch { kernel, grid, threads: 256, shared_bytes, params: params.bytes() };
        // SAFETY: the caller's promise.
        unsafe { device.launch(launch) }
    };
    launch(shrink, ranks.div_ceil(shape.group(tile)) * slices, shrink_bytes)?;
    // Each part may have one block that isn't full.
    launch(expand, outputs.div_ceil(LINES) + ADAPTER_PARTS as u32 - 1, expand_bytes)
}

fn kernels(ty: Type, fragments: Option<u32>) -> [&'static str; 2] {
    match fragments {
        None => [
            ty.pick("adapters_shrink_plain_float", "adapters_shrink_plain_bf16", "adapters_shrink_plain_f16"),
            ty.pick("adapters_expand_plain_float", "adapters_expand_plain_bf16", "adapters_expand_plain_f16"),
        ],
        Some(1) => [
            ty.pick("", "adapters_shrink_bf16_1", "adapters_shrink_f16_1"),
            ty.pick("", "adapters_expand_bf16_1", "adapters_expand_f16_1"),
        ],
        Some(_) => [
            ty.pick("", "adapters_shrink_bf16_4", "adapters_shrink_f16_4"),
            ty.pick("", "adapters_expand_bf16_4", "adapters_expand_f16_4"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Switches;

    const SHAPE: AdapterShape =
        AdapterShape { ty: Type::Bf16, inputs: 4_096, outputs: 6_144, ranks: 48, even: true };

    #[test]
    fn rows_are_listed_by_adapter_in_tiles_and_filled_up() {
        let (mut places, mut tiles) = ([7; 80], [7; 4 * 32]);
        let mut lists = AdapterLists::new(&mut places, &mut tiles, 40);
        lists.add(2, &(10..27).collect::<Vec<u32>>());
        lists.add(0, &[3]);
        let room = AdapterRows::room(40, 3);
        assert_eq!(lists.filled(room), room);
        assert_eq!(places[..19], [&(10..27).collect::<Vec<u32>>()[..], &[3, 0]].concat());
        assert_eq!((places[39], places[40]), (0, 7));
        assert_eq!(tiles[..13], [2, 0, 16, 0, 2, 16, 1, 0, 0, 17, 1, 0, NONE]);
        let end = 4 * room.tiles as usize;
        assert_eq!((tiles[end - 1], tiles[end]), (NONE, 7));
        let mut lists = AdapterLists::new(&mut places, &mut tiles, 65);
        lists.add(1, &(0..65).collect::<Vec<u32>>());
        assert_eq!(lists.exact(), AdapterRows { rows: 65, tiles: 2 });
        assert_eq!(tiles[..8], [1, 0, 64, 0, 1, 64, 1, 0]);
    }

    /// All adapters but one have one row more than whole tiles.
    #[test]
    fn there_is_room_for_the_tiles_of_any_adapters() {
        for (rows, adapters) in [(1, 1), (16, 1), (17, 1), (17, 2), (64, 100), (65, 3), (300, 5), (300, 999)]
        {
            let tile = AdapterRows::tile(rows);
            let (mut left, mut most) = (rows, 0);
            for adapter in 0..adapters.min(rows) {
                let others = adapters.min(rows) - adapter - 1;
                let own = if others == 0 { left } else { 1 };
                most += own.div_ceil(tile);
                left -= own;
            }
            let room = AdapterRows::room(rows, adapters);
            assert!((most..=rows).contains(&room.tiles), "{rows} rows, {adapters} adapters: {room:?}");
            assert!((1..=rows).all(|fewer| {
                4 * AdapterRows::room(fewer, adapters).tiles as usize
                    <= AdapterRows::tile_words(rows, adapters)
            }));
        }
    }

    #[test]
    fn slices_are_few_where_rows_are_many_and_the_same_if_bits_must_not_depend_on_the_batch() {
        for (kind, rows, slices) in [
            (ProductKind::Fastest, 1, [1_024, 4]),
            (ProductKind::Fastest, 64, [1_024, 4]),
            (ProductKind::Fastest, 65, [1_024, 4]),
            (ProductKind::Fastest, 64 * 70, [2_048, 2]),
            (ProductKind::Fastest, 64 * 140, [4_096, 1]),
            (ProductKind::RowByRow, 1, [1_024, 4]),
            (ProductKind::RowByRow, 64 * 140, [1_024, 4]),
        ] {
            assert_eq!(SHAPE.slices(kind, rows, 132), slices, "{kind:?}, {rows} rows");
        }
        let properties = Properties::hopper(132, 228, Switches::default());
        for kind in [ProductKind::Fastest, ProductKind::RowByRow] {
            let room = SHAPE.narrow_bytes(kind, 10_000, &properties);
            for rows in 1..=10_000 {
                let [_, slices] = SHAPE.slices(kind, rows, 132);
                assert!(4 * (rows * slices * SHAPE.ranks) as usize <= room, "{kind:?}, {rows} rows");
            }
        }
    }

    #[test]
    fn sums_of_few_rows_fit_beside_those_of_more() {
        let properties = Properties::hopper(132, 228, Switches::default());
        assert_eq!(SHAPE.narrow_bytes(ProductKind::Fastest, 1, &properties), 4 * 4 * 48);
    }
}
