//! Memory layout of a step: the words that the host writes, and the activations passed between kernels. Offsets depend only
//! on the options, so addresses never change.

use infer_kernels::cuda::{
    AttentionShape, FEW, Partition, PrefillForm, Properties, SampleRow, Type, decode_blocks, partial_numbers,
    shares, tickets,
};

use super::{DeviceOptions, adapters, experts, shape};
use crate::config::ModelConfig;

/// Maximum words of histories and lists of a step's samples; rows beyond it are sampled on the host.
const MAX_LIST_WORDS: usize = 4 << 20;
/// Tokens of a part of the context if parts must not depend on the batch.
const FIXED_PART: u32 = 512;

/// Words of `SampleRow`.
pub(super) const ROW_WORDS: usize = size_of::<SampleRow>() / 4;

/// Offsets of the host's arrays, in 32-bit words. The first ones are copied together, those from `copies` on only as far as
/// they are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLayout {
    pub tokens: usize,
    pub positions: usize,
    pub slots: usize,
    pub tables: usize,
    pub items: usize,
    pub tiles: usize,
    pub select: usize,
    pub rows: usize,
    pub copies: usize,
    pub follows: usize,
    /// Rows with adapters, by adapter, and their tiles.
    pub places: usize,
    pub place_tiles: usize,
    pub blocks: usize,
    pub lists: usize,
    pub end: usize,
    pub max_copies: usize,
    pub max_tokens: u32,
}

impl StepLayout {
    /// `tile`: the fewest tokens of a tile of prefill, if prompts attend in tiles. `adapters`: how many there may be.
    pub(super) fn new(tile: Option<u32>, options: &DeviceOptions, adapters: u32) -> Self {
        let (tokens, rows) = (options.max_tokens as usize, options.max_rows as usize);
        let max_tiles = tile.map_or(0, |tile| tokens / tile as usize + rows);
        let table = options.max_seq_len.div_ceil(options.block_size) as usize;
        let lists = (rows * 2 * options.max_seq_len as usize).min(MAX_LIST_WORDS);
        let [places, place_tiles] = adapters::words(adapters, options.max_tokens);
        let mut end = 0;
        let mut take = |words: usize| {
            let start = end;
            end += words.next_multiple_of(64);
            start
        };
        Self {
            tokens: take(tokens),
            positions: take(tokens),
            slots: take(tokens),
            tables: take(tokens),
            items: take(tokens),
            tiles: take(2 * max_tiles),
            select: take(rows),
            rows: take(rows * ROW_WORDS),
            copies: take(2 * rows),
            follows: take(2 * rows),
            places: take(places),
            place_tiles: take(place_tiles),
            blocks: take(rows * table),
            lists: take(lists),
            end,
            max_copies: rows,
            max_tokens: options.max_tokens,
        }
    }

    /// Words of lists.
    pub(super) fn list_words(&self) -> usize {
        self.end - self.lists
    }
}

/// The form of most rows in which prompts attend; `None`: a token at a time.
pub(super) fn prefill_form(
    shape: &AttentionShape,
    properties: &Properties,
    options: &DeviceOptions,
) -> Option<PrefillForm> {
    let switches = &properties.switches;
    // Where single tokens go through prefill too, so that they get the same bits, a block of fewer rows wastes less.
    let rows = if options.deterministic { 64 } else { switches.prefill_rows };
    PrefillForm::of(shape, rows, switches.wgmma && properties.warpgroups)
}

/// The fewest tokens of a tile of prefill.
pub(super) fn tile_tokens(
    shape: &AttentionShape,
    properties: &Properties,
    options: &DeviceOptions,
) -> Option<u32> {
    let most = prefill_form(shape, properties, options)?;
    Some(most.least(shape).tokens(shape))
}

/// How a decode of `items` tokens cuts contexts.
pub(super) fn partition(
    shape: &AttentionShape,
    properties: &Properties,
    options: &DeviceOptions,
    items: u32,
) -> Partition {
    let longest = options.max_seq_len;
    match options.deterministic {
        true => Partition::Fixed { tokens: FIXED_PART.min(longest.next_multiple_of(16)), longest },
        false => Partition::Balanced { blocks: decode_blocks(shape, properties, items, longest) },
    }
}

/// Bytes of attention's partial sums and of its tickets: the most of any step.
fn decode_bytes(shape: &AttentionShape, properties: &Properties, options: &DeviceOptions) -> [usize; 2] {
    let most = match prefill_form(shape, properties, options) {
        Some(_) if options.deterministic => return [0, 0],
        Some(_) => options.max_rows.max(1),
        None => options.max_tokens,
    };
    let partition = partition(shape, properties, options, most);
    [4 * partial_numbers(shape, most, partition), 4 * tickets(shape, most)]
}

/// Bytes of each activation buffer: residual, normed, qkv, attended, projected, gate and up, gated, logits, partial sums,
/// tickets, shares of squares.
pub(super) fn activation_bytes(
    config: &ModelConfig,
    ty: Type,
    properties: &Properties,
    options: &DeviceOptions,
) -> [usize; 11] {
    let (tokens, rows) = (options.max_tokens as usize, options.max_rows as usize);
    let (number, q, kv) = (ty.bytes(), config.q_width(), config.kv_width());
    let [partial, tickets] = decode_bytes(&shape(config, ty), properties, options);
    let is_dense = config.layers.iter().any(|layer| layer.experts.is_none());
    let intermediate = if is_dense { config.intermediate } else { 0 };
    [
        tokens * config.hidden * 4,
        tokens.max(rows) * config.hidden * number,
        tokens * (q + 2 * kv) * number,
        tokens * q * number,
        tokens * config.hidden * number,
        tokens * 2 * intermediate * number,
        tokens * intermediate * number,
        rows * config.vocab * 4,
        partial,
        tickets,
        tokens.min(FEW as usize) * shares(config.hidden as u32) as usize * 4,
    ]
}

/// See `DeviceModel::working_bytes`, which adds what depends on the weights and what adapters need.
pub(super) fn working_bytes(
    config: &ModelConfig,
    ty: Type,
    properties: &Properties,
    options: &DeviceOptions,
) -> u64 {
    let shape = shape(config, ty);
    let step = StepLayout::new(tile_tokens(&shape, properties, options), options, 0).end * 4;
    let activations: usize = activation_bytes(config, ty, properties, options).iter().sum();
    let experts: usize = experts::bytes(config, ty, options.max_tokens as usize).iter().sum();
    let rope = config.ropes.len() * options.max_seq_len as usize * config.head_dim * 4;
    let kept = options.prompt_cache_entries as usize * config.vocab * 4;
    let seen = options.max_rows as usize * config.vocab.div_ceil(32) * 4;
    (step + activations + experts + rope + kept + seen) as u64
}

#[cfg(test)]
pub(super) mod tests {
    use infer_kernels::cuda::Switches;

    use super::*;

    pub(in crate::cuda) const OPTIONS: DeviceOptions = DeviceOptions {
        block_size: 16,
        total_blocks: 64,
        max_rows: 8,
        max_tokens: 200,
        max_seq_len: 512,
        prompt_cache_entries: 0,
        deterministic: false,
        graphs: true,
    };

    #[test]
    fn prompts_attend_in_the_form_that_device_and_switches_allow_and_in_64_rows_if_deterministic() {
        use PrefillForm::{Rows64, Rows128, Wgmma64, Wgmma128};
        let shape = AttentionShape { ty: Type::Bf16, heads: 32, kv_heads: 8, head_dim: 128 };
        let usual = Switches::default();
        let of_64 = Switches { prefill_rows: 64, ..usual.clone() };
        let wgmma = Switches { wgmma: true, ..usual.clone() };
        for (switches, warpgroups, deterministic, form) in [
            (&usual, true, false, Rows128),
            (&of_64, true, false, Rows64),
            (&usual, true, true, Rows64),
            (&wgmma, true, false, Wgmma128),
            (&wgmma, true, true, Wgmma64),
            (&wgmma, false, false, Rows128),
        ] {
            let properties = Properties {
                name: String::new(),
                capability: (9, 0),
                multiprocessors: 132,
                shared_bytes: 228 << 10,
                early: true,
                warpgroups,
                vendor_products: None,
                switches: switches.clone(),
            };
            let options = DeviceOptions { deterministic, ..OPTIONS };
            assert_eq!(prefill_form(&shape, &properties, &options), Some(form), "{properties:?}");
        }
    }
}
