//! Adds to products what adapters add. For each adapter of a batch, its tokens' inputs are gathered as f32 and rounded by
//! themselves, in the adapter's own format: what the model's product reads may have fewer bits.

use std::ops::Range;
use std::sync::Arc;

use infer_core::{AdapterId, Batch};
use infer_kernels::{Aside, Cpu, Format, Inputs, Norm, Rows, Targets, Then};

use super::{AdaptedLayer, Adapter, Delta, Loaded, Part};
use crate::decoder::sized;

/// Rows that an adapter computes at once: what it adds to them stays in the caches until it is added.
const ROWS: usize = 64;

/// Tokens that are computed with adapters.
#[derive(Default)]
pub(crate) struct Places {
    /// Their indexes, by adapter and then in ascending order.
    pub tokens: Vec<u32>,
    /// Places of adapters among those that are loaded, in ascending order, and where their tokens end.
    groups: Vec<(usize, usize)>,
}

impl Places {
    /// Finds those of a batch. `loaded` are the adapters that there are, in ascending order.
    pub(crate) fn find(&mut self, batch: &Batch, loaded: &[AdapterId]) {
        self.clear();
        let mut last = AdapterId::NONE;
        let adapters = || batch.rows.iter().filter(|row| row.token_len > 0).map(|row| row.adapter);
        while let Some(next) = adapters().filter(|adapter| *adapter > last).min() {
            for row in batch.rows.iter().filter(|row| row.adapter == next) {
                self.tokens.extend(row.token_start..row.token_start + row.token_len);
            }
            let place = loaded.binary_search(&next).expect("rows have adapters that are loaded");
            self.groups.push((place, self.tokens.len()));
            last = next;
        }
    }

    /// Those of `all` within a range, counted from its start.
    pub(crate) fn part_of(&mut self, all: &Self, range: Range<usize>) {
        self.clear();
        for (adapter, places) in all.groups() {
            let before = self.tokens.len();
            let inside = all.tokens[places].iter().filter(|token| range.contains(&(**token as usize)));
            self.tokens.extend(inside.map(|token| token - range.start as u32));
            if self.tokens.len() > before {
                self.groups.push((adapter, self.tokens.len()));
            }
        }
    }

    /// Places of adapters among those that are loaded, and those of their tokens.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let starts = std::iter::once(0).chain(self.groups.iter().map(|(_, end)| *end));
        starts.zip(&self.groups).map(|(start, (adapter, end))| (*adapter, start..*end))
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.groups.clear();
    }
}

/// Buffers, reused.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Tokens of the batch.
    pub all: Places,
    /// Those of the rows that the feed-forward layer computes at once.
    pub some: Places,
    pub scratch: Scratch,
    pub gate: GateBuffers,
    /// Bytes of the adapters that the batch uses.
    pub read_bytes: usize,
}

impl Buffers {
    /// Prepares for a batch.
    pub(crate) fn begin(&mut self, batch: &Batch, loaded: &Loaded) {
        self.all.find(batch, loaded.ids());
        self.read_bytes = self.all.groups().map(|(adapter, _)| loaded.all()[adapter].bytes()).sum();
    }
}

/// What one adapter computes.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Its tokens' rows.
    rows: Vec<f32>,
    inputs: Inputs,
    narrow: Vec<f32>,
    between: Inputs,
    wide: Vec<f32>,
}

/// What a gated layer needs to know of rows with adapters, and tells of them.
#[derive(Default)]
pub(crate) struct GateBuffers {
    rows: Vec<Option<u32>>,
    sums: Vec<f32>,
    /// The numbers of its rows.
    counting: Vec<u32>,
    /// Outputs as they were before they were rounded.
    pub outputs: Vec<f32>,
}

/// Rows that a product reads, one for each token, before they are rounded.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub data: &'a [f32],
    pub width: usize,
    /// The norm between them and the product.
    pub norm: Option<Norm<'a>>,
}

impl Origin<'_> {
    fn count(&self) -> usize {
        self.data.len() / self.width
    }

    /// The rows of some tokens, as a product reads them.
    fn gather(&self, cpu: &Cpu, tokens: &[u32], format: Format, rows: &mut Vec<f32>, inputs: &mut Inputs) {
        rows.clear();
        for token in tokens {
            rows.extend_from_slice(&self.data[*token as usize * self.width..][..self.width]);
        }
        let rows = Rows::dense(rows, self.width);
        match self.norm {
            Some(norm) => cpu.rms_norm_inputs(rows, tokens.len(), norm, format, inputs),
            None => cpu.load(rows, tokens.len(), format, inputs),
        }
    }
}

/// The adapters of a model, at a layer.
#[derive(Clone, Copy)]
pub(crate) struct Adapting<'a> {
    pub cpu: &'a Cpu,
    pub adapters: &'a [Arc<Adapter>],
    pub layer: usize,
}

impl Adapting<'_> {
    /// Adds to a product of all rows of `from`.
    pub(crate) fn add(
        &self,
        of: fn(&AdaptedLayer) -> Option<&Delta>,
        from: Origin<'_>,
        places: &Places,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let stride = out.len() / from.count().max(1);
        self.each(of, from, places, scratch, |some, part, wide| {
            let to = Targets { rows: &places.tokens[some], stride, first: part.first };
            self.cpu.add_scaled(wide, part.scale, to, out);
        });
    }

    /// What a gated layer of this width has to do for rows of `from`: what is added before the activation, and for whom the
    /// outputs are needed as they are. `None` if all rows are computed as always.
    pub(crate) fn gate<'b>(
        &self,
        from: Origin<'_>,
        places: &Places,
        scratch: &mut Scratch,
        buffers: &'b mut GateBuffers,
        width: usize,
    ) -> Option<Aside<'b>> {
        if places.groups.is_empty() {
            return None;
        }
        let GateBuffers { rows, sums, counting, outputs } = buffers;
        rows.clear();
        rows.resize(from.count(), None);
        let mut concerned = false;
        for (adapter, places_of) in places.groups() {
            let layer = &self.adapters[adapter].layers[self.layer];
            // Whether a row is among them must not depend on other adapters of the batch: adding nothing changes -0.
            if layer.gate_up.is_some() || layer.down.is_some() {
                concerned = true;
                for place in places_of {
                    rows[places.tokens[place] as usize] = Some(place as u32);
                }
            }
        }
        if !concerned {
            return None;
        }
        sums.clear();
        sums.resize(places.tokens.len() * 2 * width, 0.0);
        counting.clear();
        counting.extend(0..places.tokens.len() as u32);
        self.each(
            |layer| layer.gate_up.as_ref(),
            from,
            places,
            scratch,
            |some, part, wide| {
                let to = Targets { rows: &counting[some], stride: 2 * width, first: part.first };
                self.cpu.add_scaled(wide, part.scale, to, sums);
            },
        );
        Some(Aside { rows, sums, outputs: sized(outputs, from.count() * width) })
    }

    /// Computes what adapters add to a product: passes the outputs of some places of each part, not scaled yet, to `add`.
    fn each(
        &self,
        of: fn(&AdaptedLayer) -> Option<&Delta>,
        from: Origin<'_>,
        places: &Places,
        scratch: &mut Scratch,
        mut add: impl FnMut(Range<usize>, &Part, &[f32]),
    ) {
        let Scratch { rows, inputs, narrow, between, wide } = scratch;
        for (adapter, group) in places.groups() {
            let Some(delta) = of(&self.adapters[adapter].layers[self.layer]) else { continue };
            for start in group.clone().step_by(ROWS) {
                let some = start..group.end.min(start + ROWS);
                let (count, ranks) = (some.len(), delta.narrow.outputs());
                let tokens = &places.tokens[some.clone()];
                from.gather(self.cpu, tokens, delta.narrow.format(), rows, inputs);
                let narrow = sized(narrow, count * ranks);
                self.cpu.matmul(inputs, &delta.narrow, None, Then::Store, narrow);
                let mut offset = 0;
                for part in &delta.parts {
                    let (rank, outputs) = (part.wide.inputs(), part.wide.outputs());
                    let part_rows = Rows { data: narrow, offset, stride: ranks, width: rank };
                    self.cpu.load(part_rows, count, part.wide.format(), between);
                    let wide = sized(wide, count * outputs);
                    self.cpu.matmul(between, &part.wide, None, Then::Store, wide);
                    add(some.clone(), part, wide);
                    offset += rank;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use infer_core::Row;

    use super::*;

    fn batch(rows: &[(u32, u32)]) -> Batch {
        let mut batch = Batch::default();
        let mut start = 0;
        for (adapter, tokens) in rows {
            batch.rows.push(Row {
                adapter: AdapterId(*adapter),
                token_start: start,
                token_len: *tokens,
                ..Row::default()
            });
            start += tokens;
        }
        batch
    }

    #[test]
    fn tokens_are_grouped_by_adapter_in_batches_and_in_parts_of_them() {
        let mut all = Places::default();
        // Between them others were loaded once.
        let loaded = [3, 7, 9].map(AdapterId);
        all.find(&batch(&[(0, 3), (7, 2), (3, 1), (7, 3), (0, 1), (9, 0)]), &loaded);
        assert_eq!(all.tokens, [5, 3, 4, 6, 7, 8]);
        assert_eq!(all.groups().collect::<Vec<_>>(), [(0, 0..1), (1, 1..6)]);
        let mut part = Places::default();
        for (range, tokens, groups) in [
            (0..10, vec![5, 3, 4, 6, 7, 8], vec![(0, 0..1), (1, 1..6)]),
            (4..7, vec![1, 0, 2], vec![(0, 0..1), (1, 1..3)]),
            (6..9, vec![0, 1, 2], vec![(1, 0..3)]),
            (9..10, vec![], vec![]),
        ] {
            part.part_of(&all, range.clone());
            assert_eq!(part.tokens, tokens, "{range:?}");
            assert_eq!(part.groups().collect::<Vec<_>>(), groups, "{range:?}");
        }
        all.find(&batch(&[(0, 3)]), &loaded);
        assert_eq!(all.groups().count(), 0);
    }
}
