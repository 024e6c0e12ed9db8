//! Decodes of few sequences, shared among threads by pieces of their contexts: with three key heads two threads would finish
//! at different times, and most of sixteen would idle. A unit of work stores the softmax state of a piece; then the pieces of
//! each head are merged in order, exactly as a thread that computes a whole context merges them. So splitting never changes
//! a bit.

use super::attention::{Context, PagedQuery, QueryRun};
use super::piece::{Head, Seen, merge, piece_of, whole};
use super::{Cpu, Shared};
use crate::attention_params::AttentionParams;
use crate::element::Element;
use crate::simd::{Isa, LANES, Simd, on_isa};

/// Units of work per thread beyond which splitting them gains nothing.
const ENOUGH: usize = 4;

/// How runs are cut into pieces. A run of several tokens stays whole.
#[derive(Clone, Copy)]
pub(super) struct Pieces<'a> {
    params: &'a AttentionParams<'a>,
    query: &'a PagedQuery<'a>,
    kv_heads: usize,
}

/// A unit of work.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub run: QueryRun,
    pub head: usize,
    /// Positions of the piece, if the run is cut.
    pub piece: Option<(u32, u32)>,
}

impl<'a> Pieces<'a> {
    /// Decides how a query is cut; `None` if that gains nothing.
    pub(super) fn of(
        cpu: &Cpu,
        params: &'a AttentionParams<'a>,
        query: &'a PagedQuery<'a>,
        kv_heads: usize,
    ) -> Option<Self> {
        let pieces = Self { params, query, kv_heads };
        let few = cpu.threads() > 1 && query.runs.len() * kv_heads < ENOUGH * cpu.threads();
        (few && query.runs.iter().any(|run| pieces.count(run) > 1)).then_some(pieces)
    }

    /// Positions that a run's token sees, first and last.
    fn seen(&self, run: &QueryRun) -> (usize, usize) {
        let position = self.query.positions[run.first as usize];
        (self.params.first_position(position) as usize, position as usize)
    }

    fn count(&self, run: &QueryRun) -> usize {
        let (first, last) = self.seen(run);
        if run.count == 1 { piece_of(last) - piece_of(first) + 1 } else { 1 }
    }

    /// Number of units of all runs.
    pub(super) fn units(&self) -> usize {
        self.query.runs.iter().map(|run| self.count(run)).sum::<usize>() * self.kv_heads
    }

    /// The unit with a number below `units`. A linear search, since there are few runs.
    pub(super) fn unit(&self, mut number: usize) -> Unit {
        for run in self.query.runs {
            let count = self.count(run);
            if number >= count * self.kv_heads {
                number -= count * self.kv_heads;
                continue;
            }
            let (head, nth) = (number % self.kv_heads, number / self.kv_heads);
            let (first, last) = self.seen(run);
            let piece = piece_of(first) + nth;
            let from = first.max(piece * super::piece::PIECE);
            let end = (last + 1).min((piece + 1) * super::piece::PIECE);
            return Unit { run: *run, head, piece: (count > 1).then_some((from as u32, end as u32)) };
        }
        unreachable!("a unit of work beyond the last")
    }

    /// Merges the states that the units of cut runs stored in `parts`.
    pub(super) fn merge(&self, cpu: &Cpu, width: usize, parts: &mut [f32], out: Shared<f32>) {
        let group = self.params.heads / self.kv_heads;
        let unit = unit_len(group, width);
        let parts = Shared(parts.as_mut_ptr());
        let (isa, q_width) = (cpu.isa, self.query.q.width);
        let numbers = self.units() * unit;
        cpu.for_each(self.query.runs.len() * self.params.heads, numbers, |item| {
            let (index, head) = (item / self.params.heads, item % self.params.heads);
            let run = &self.query.runs[index];
            let count = self.count(run);
            if count == 1 {
                return;
            }
            let before: usize = self.query.runs[..index].iter().map(|run| self.count(run)).sum();
            let first = (before * self.kv_heads + head / group) * unit + head % group * part_len(width);
            // SAFETY: each unit has `unit` numbers, and one item alone reads those of this head; its result is part of the
            // row of this run's only token.
            let (parts, out) = unsafe {
                let out = out.get().add(run.first as usize * q_width + head * width);
                (parts.get().add(first), std::slice::from_raw_parts_mut(out, width))
            };
            let sink = self.params.sink(head);
            merge_all(isa, Parts { first: parts, stride: self.kv_heads * unit, count, width, sink }, out);
        });
    }
}

/// Numbers that a unit of `group` query heads stores.
pub(super) fn unit_len(group: usize, width: usize) -> usize {
    group * part_len(width)
}

/// Numbers that one query head stores: a vector with largest score and total, then the sums.
pub(super) fn part_len(width: usize) -> usize {
    LANES + width.next_multiple_of(LANES)
}

/// Stores the states of `Q` heads after a piece.
#[inline(always)]
pub(super) fn leave<const Q: usize>(seen: &Seen<Q>, width: usize, parts: &mut [f32]) {
    for (i, part) in parts.chunks_exact_mut(part_len(width)).take(Q).enumerate() {
        (part[0], part[1]) = (seen.largest[i], seen.total[i]);
        let sums = width.next_multiple_of(LANES);
        part[LANES..].copy_from_slice(&seen.sums[i][..sums]);
    }
}

/// One query head's parts, `stride` numbers from one to the next.
struct Parts {
    first: *mut f32,
    stride: usize,
    count: usize,
    width: usize,
    sink: Option<f32>,
}

fn merge_all(isa: Isa, parts: Parts, out: &mut [f32]) {
    on_isa!(isa, merge_lanes(parts: Parts, out: &mut [f32]));
}

#[inline(always)]
fn merge_lanes<S: Simd>(simd: S, parts: Parts, out: &mut [f32]) {
    let mut all = Seen::<1>::nothing();
    for nth in 0..parts.count {
        // SAFETY: `Pieces::merge` passes this head's parts, all written by finished units.
        let part = unsafe {
            std::slice::from_raw_parts_mut(parts.first.add(nth * parts.stride), part_len(parts.width))
        };
        let (numbers, sums) = part.split_at_mut(LANES);
        let [largest, total, ..] = numbers else { unreachable!("a vector has sixteen numbers") };
        merge(simd, all.head(0, parts.width), Head { largest, total, sums });
    }
    let total = whole(simd, all.largest[0], all.total[0], parts.sink);
    for (out, sum) in out.iter_mut().zip(&all.sums[0]) {
        *out = sum / total;
    }
}

/// Where a single token's results go.
pub(super) enum Target<'a> {
    /// Rows of results over the whole context.
    Rows(&'a mut [f32]),
    /// The states of one piece, `part_len` numbers per head.
    Piece { from: usize, end: usize, parts: &'a mut [f32] },
}

impl Target<'_> {
    /// The target of the heads after the first `heads`.
    #[inline(always)]
    pub(super) fn after(&mut self, heads: usize, width: usize) -> Target<'_> {
        match self {
            Target::Rows(out) => Target::Rows(&mut out[heads * width..]),
            Target::Piece { from, end, parts } => {
                Target::Piece { from: *from, end: *end, parts: &mut parts[heads * part_len(width)..] }
            }
        }
    }
}

/// Computes one token's unit: the queries of a group over a piece of their context.
pub(crate) fn attend_piece<T: Element>(
    isa: Isa,
    context: Context<'_, T>,
    q: &[f32],
    piece: (u32, u32),
    parts: &mut [f32],
) {
    on_isa!(isa, piece_lanes[T: Element](
        context: Context<'_, T>, q: &[f32], piece: (u32, u32), parts: &mut [f32]
    ));
}

#[inline(always)]
fn piece_lanes<S: Simd, T: Element>(
    simd: S,
    context: Context<'_, T>,
    q: &[f32],
    (from, end): (u32, u32),
    parts: &mut [f32],
) {
    let target = Target::Piece { from: from as usize, end: end as usize, parts };
    super::attention::one_token(simd, &context, q, target);
}
