//! What was sent, for subscribers that missed it: bounded, the oldest goes first.
//!
//! Payloads are handed out as references, however many subscribers ask for them.

use std::collections::VecDeque;

use hyper::body::Bytes;

/// Batches that are kept.
const BATCHES: usize = 10_000;
/// Their bytes.
const BYTES: usize = 64 << 20;

/// Batches by number, without gaps.
#[derive(Default)]
pub struct Sent {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The last one that told everything.
    anew: Option<u64>,
}

impl Sent {
    /// Keeps a batch, the next one in order.
    pub fn push(&mut self, number: u64, payload: Bytes, begins_anew: bool) {
        self.bytes += payload.len();
        self.batches.push_back((number, payload));
        if begins_anew {
            self.anew = Some(number);
        }
        while self.batches.len() > BATCHES || (self.bytes > BYTES && self.batches.len() > 1) {
            let oldest = self.batches.pop_front();
            self.bytes -= oldest.map_or(0, |(_, payload)| payload.len());
        }
    }

    /// What is left of everything from a number on.
    pub fn from(&self, number: u64) -> impl Iterator<Item = (u64, Bytes)> {
        self.batches.iter().filter(move |(kept, _)| *kept >= number).cloned()
    }

    /// Whether that is enough for an exact copy: nothing of it is gone, or everything is told in it.
    pub fn reaches(&self, number: u64) -> bool {
        let Some((oldest, _)) = self.batches.front() else { return true };
        number >= *oldest || self.anew.is_some_and(|anew| anew >= *oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_the_buffer_can_not_make_exact_is_known() {
        let mut sent = Sent::default();
        assert!(sent.reaches(0), "there was nothing to miss");
        let small = Bytes::from_static(b"x");
        for number in 0..BATCHES as u64 {
            sent.push(number, small.clone(), number == 0);
        }
        assert!(sent.reaches(0) && sent.from(0).count() == BATCHES);
        sent.push(BATCHES as u64, small.clone(), false);
        assert!(!sent.reaches(0), "the first one is gone");
        assert!(sent.reaches(1) && sent.from(1).count() == BATCHES);
        sent.push(BATCHES as u64 + 1, small, true);
        assert!(sent.reaches(0), "everything was told again");
        sent.push(BATCHES as u64 + 2, Bytes::from(vec![0; BYTES]), false);
        assert!(!sent.reaches(0) && sent.from(0).count() == 1, "bytes are bounded, too");
    }
}
