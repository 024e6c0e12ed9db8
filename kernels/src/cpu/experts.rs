//! Feed-forward layers of experts (Shazeer and others 2017): which experts compute a row, and the rows of one expert, which
//! are gathered for its products and added to the residual stream after them. The products are those of `matmul`.
//!
//! The choice depends on a row's logits alone. It compares logits and not probabilities, which are rounded. An expert's rows
//! are in the order of the batch, and the caller adds experts in ascending order, so that each row's sum is one chain whatever
//! rows are beside it.

use super::math::exp;
use super::{Cpu, Shared};
use crate::inputs::Inputs;
use crate::matrix::Format;
use crate::simd::{Isa, LANES, Simd, on_isa};

/// How logits become a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    /// Experts to choose from: logits of a row.
    pub experts: usize,
    /// Experts that compute a row.
    pub per_row: usize,
    /// Whether the weights of a row's experts are divided by their sum.
    pub normalized: bool,
}

/// An expert that computes a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// Which expert.
    pub expert: u32,
    /// Factor of its output.
    pub weight: f32,
}

/// A row that an expert computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Which row.
    pub row: u32,
    /// Factor of the expert's output.
    pub weight: f32,
}

/// Which experts compute which rows. Buffers are reused.
#[derive(Debug, Default)]
pub struct Routes {
    per_row: usize,
    /// By row, in ascending order of experts.
    choices: Vec<Choice>,
    /// By expert, in ascending order of rows.
    shares: Vec<Share>,
    /// Where each expert's shares end.
    ends: Vec<u32>,
}

impl Routes {
    /// The experts of a row, in ascending order.
    pub fn of_row(&self, row: usize) -> &[Choice] {
        &self.choices[row * self.per_row..][..self.per_row]
    }

    /// Experts that compute any rows, in ascending order, and these rows, in ascending order.
    pub fn experts(&self) -> impl Iterator<Item = (usize, &[Share])> {
        let shares = &self.shares;
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let places = starts.zip(self.ends.iter().copied()).enumerate();
        places
            .filter(|(_, (start, end))| start < end)
            .map(move |(expert, (start, end))| (expert, &shares[start as usize..end as usize]))
    }

    /// Sorts the choices by expert.
    fn group(&mut self, experts: usize) {
        self.ends.clear();
        self.ends.resize(experts, 0);
        for choice in &self.choices {
            self.ends[choice.expert as usize] += 1;
        }
        // Numbers of shares become starts, and each share then moves its expert's start towards the end.
        let mut before = 0;
        for place in &mut self.ends {
            let count = std::mem::replace(place, before);
            before += count;
        }
        self.shares.resize(self.choices.len(), Share::default());
        for (row, choices) in self.choices.chunks_exact(self.per_row).enumerate() {
            for choice in choices {
                let place = &mut self.ends[choice.expert as usize];
                self.shares[*place as usize] = Share { row: row as u32, weight: choice.weight };
                *place += 1;
            }
        }
    }
}

impl Cpu {
    /// Chooses the experts of each row of `logits`: those with the largest, of equal ones the lower index. Their weights are
    /// the softmax over all experts. NaN among a row's logits makes all its weights NaN.
    ///
    /// # Panics
    /// If rows aren't whole, or there are fewer experts than a row needs.
    pub fn route(&self, logits: &[f32], router: Router, routes: &mut Routes) {
        let Router { experts, per_row, normalized } = router;
        assert!((1..=experts).contains(&per_row), "a row needs {per_row} of {experts} experts");
        assert!(logits.len().is_multiple_of(experts), "logits must be whole rows");
        let rows = logits.len() / experts;
        routes.per_row = per_row;
        routes.choices.resize(rows * per_row, Choice::default());
        let (isa, choices) = (self.isa, Shared(routes.choices.as_mut_ptr()));
        self.for_each(rows, 16 * logits.len(), |row| {
            let logits = &logits[row * experts..][..experts];
            // SAFETY: each row is one item, and its choices lie in the buffer.
            let choices =
                unsafe { std::slice::from_raw_parts_mut(choices.get().add(row * per_row), per_row) };
            choose(logits, choices);
            weigh(isa, logits, choices, normalized);
            choices.sort_unstable_by_key(|choice| choice.expert);
        });
        routes.group(experts);
    }

    /// Makes room for the inputs of `rows` rows, so that those of an expert, which are as many or fewer, allocate nothing.
    /// What was held is lost.
    pub fn reserve(&self, format: Format, rows: usize, width: usize, inputs: &mut Inputs) {
        inputs.reserve(self.isa, format, rows, width);
    }

    /// Copies an expert's rows of `x`, as they are rounded: the inputs of its product.
    ///
    /// # Panics
    /// If there is no such row, or the rows are laid out for another instruction set.
    pub fn gather(&self, x: &Inputs, shares: &[Share], out: &mut Inputs) {
        assert!(x.suit(self.isa), "inputs must be laid out for the same instruction set");
        assert!(shares.iter().all(|share| (share.row as usize) < x.rows()), "rows must be there");
        let writer = out.reshape(self.isa, x.format(), shares.len(), x.width());
        self.for_each(shares.len(), shares.len() * x.width(), |to| {
            // SAFETY: the row was checked; each place is one item, for which `reshape` made room.
            unsafe { writer.copy(to, x, shares[to].row as usize) };
        });
    }

    /// `out[shares[i].row] += shares[i].weight * x[i]`; `x` and `out` are dense and equally wide.
    ///
    /// # Panics
    /// If `x` has another number of rows, or the rows don't ascend within `out`.
    pub fn add_shares(&self, x: &[f32], shares: &[Share], out: &mut [f32]) {
        let width = x.len() / shares.len().max(1);
        assert_eq!(x.len(), shares.len() * width, "a share per row");
        assert!(shares.is_sorted_by(|a, b| a.row < b.row), "rows must ascend");
        let rows = shares.last().map_or(0, |last| last.row as usize + 1);
        assert!(rows * width <= out.len(), "rows must be there");
        let target = Shared(out.as_mut_ptr());
        self.for_each(shares.len(), x.len(), |i| {
            let Share { row, weight } = shares[i];
            // SAFETY: rows ascend, so each is one item; the last lies in `out`.
            let out =
                unsafe { std::slice::from_raw_parts_mut(target.get().add(row as usize * width), width) };
            for (out, x) in out.iter_mut().zip(&x[i * width..][..width]) {
                *out += weight * x;
            }
        });
    }
}

/// Fills `choices` with the largest logits in place of weights, in descending order. NaN is never larger than a number.
fn choose(logits: &[f32], choices: &mut [Choice]) {
    let mut found = 0;
    for (expert, logit) in logits.iter().enumerate() {
        let smaller = choices[..found].iter().position(|choice| *logit > choice.weight);
        let place = smaller.unwrap_or(found);
        if place < choices.len() {
            found = choices.len().min(found + 1);
            choices[place..found].rotate_right(1);
            choices[place] = Choice { expert: expert as u32, weight: *logit };
        }
    }
}

fn weigh(isa: Isa, logits: &[f32], choices: &mut [Choice], normalized: bool) {
    on_isa!(isa, weigh_lanes(logits: &[f32], choices: &mut [Choice], normalized: bool));
}

/// Replaces logits, of which the largest comes first, by weights.
#[inline(always)]
fn weigh_lanes<S: Simd>(simd: S, logits: &[f32], choices: &mut [Choice], normalized: bool) {
    let largest = choices[0].weight;
    let mut total = 0.0;
    for logits in logits.chunks(LANES) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        lanes[..logits.len()].copy_from_slice(logits);
        total += simd.sum(powers(simd, &lanes, largest));
    }
    for choices in choices.chunks_mut(LANES) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for (lane, choice) in lanes.iter_mut().zip(choices.iter()) {
            *lane = choice.weight;
        }
        let powers = powers(simd, &lanes, largest);
        // SAFETY: sixteen places.
        unsafe { simd.store(lanes.as_mut_ptr(), powers) };
        for (choice, power) in choices.iter_mut().zip(lanes) {
            choice.weight = power / total;
        }
    }
    if normalized {
        let mut sum = 0.0;
        for choice in choices.iter() {
            sum += choice.weight;
        }
        for choice in choices {
            choice.weight /= sum;
        }
    }
}

/// `e^(x - largest)`; 0 for negative infinity.
#[inline(always)]
fn powers<S: Simd>(simd: S, lanes: &[f32; LANES], largest: f32) -> S::V {
    // SAFETY: sixteen numbers.
    let lanes = unsafe { simd.load(lanes.as_ptr()) };
    exp(simd, simd.sub(lanes, simd.splat(largest)))
}
