//! A queue in another order than that of arrival, sorted only as far as it is read.
//!
//! A step starts a handful of sequences while thousands may wait: sorting all of them would cost more than
//! the rest of a plan. A heap is built in linear time and yields one after another.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scheduler::{Sequence, Sequences};

/// Sequences by key, smallest first, equal ones in row order.
#[derive(Clone, Debug)]
pub struct Order<'a, K: Ord> {
    heap: BinaryHeap<Reverse<(K, u32)>>,
    sequences: &'a Sequences,
}

impl<'a, K: Ord> Order<'a, K> {
    /// Computes each key once.
    pub fn new(sequences: &'a Sequences, mut key: impl FnMut(Sequence<'a>) -> K) -> Self {
        let keyed: Vec<_> =
            sequences.iter().zip(0..).map(|(sequence, row)| Reverse((key(sequence), row))).collect();
        Self { heap: BinaryHeap::from(keyed), sequences }
    }
}

impl<'a, K: Ord> Iterator for Order<'a, K> {
    type Item = Sequence<'a>;

    fn next(&mut self) -> Option<Sequence<'a>> {
        let Reverse((_, row)) = self.heap.pop()?;
        Some(self.sequences.get(row as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;
    use crate::testing::for_seeds;

    #[test]
    fn it_matches_a_stable_sort() {
        for_seeds(0..200, |rng| {
            let count = u64::from(rng.between(0, 60));
            let rows: Sequences =
                (0..count).map(|id| Row { id, prompt_tokens: rng.between(0, 9), ..Row::default() }).collect();
            let mut sorted: Vec<_> = rows.iter().collect();
            sorted.sort_by_key(|sequence| sequence.prompt_tokens());
            let ids = |all: Vec<Sequence<'_>>| all.iter().map(|sequence| sequence.id()).collect::<Vec<_>>();
            assert_eq!(ids(Order::new(&rows, Sequence::prompt_tokens).collect()), ids(sorted));
        });
    }
}
