//! A bounded buffer of sent batches, for subscribers that missed some; the oldest are dropped first.
//!
//! Payloads are reference-counted, however many subscribers ask for them.

use std::collections::VecDeque;

use hyper::body::Bytes;

/// Maximum number of batches.
const BATCHES: usize = 10_000;
/// Maximum bytes of their payloads.
const BYTES: usize = 64 << 20;

/// Sent batches, numbered without gaps.
#[derive(Default)]
pub struct Sent {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Number of the last snapshot.
    snapshot: Option<u64>,
}

impl Sent {
    /// Keeps a batch, whose number follows that of the last one.
    pub fn push(&mut self, number: u64, payload: Bytes, is_snapshot: bool) {
        debug_assert!(self.batches.back().is_none_or(|(last, _)| number == last + 1));
        self.bytes += payload.len();
        self.batches.push_back((number, payload));
        if is_snapshot {
            self.snapshot = Some(number);
        }
        while self.batches.len() > BATCHES || (self.bytes > BYTES && self.batches.len() > 1) {
            let oldest = self.batches.pop_front();
            self.bytes -= oldest.map_or(0, |(_, payload)| payload.len());
        }
    }

    /// The kept batches from a number on.
    pub fn from(&self, number: u64) -> impl Iterator<Item = (u64, Bytes)> {
        let skipped = self.batches.front().map_or(0, |&(oldest, _)| number.saturating_sub(oldest));
        self.batches.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)).cloned()
    }

    /// Whether those are enough for an exact index: no batch is missing, or a snapshot is among them. They never are for
    /// a number above the next one, which is of an earlier process if the clock was set back since.
    pub fn reaches(&self, number: u64) -> bool {
        let (Some((oldest, _)), Some((last, _))) = (self.batches.front(), self.batches.back()) else {
            return true;
        };
        let has_snapshot = self.snapshot.is_some_and(|snapshot| snapshot >= *oldest);
        number <= last + 1 && (number >= *oldest || has_snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_short_a_buffer_is_noticed() {
        let mut sent = Sent::default();
        assert!(sent.reaches(0), "nothing was sent yet");
        let small = Bytes::from_static(b"x");
        for number in 0..BATCHES as u64 {
            sent.push(number, small.clone(), number == 0);
        }
        assert!(sent.reaches(0) && sent.from(0).count() == BATCHES);
        sent.push(BATCHES as u64, small.clone(), false);
        assert!(!sent.reaches(0), "the first batch is dropped");
        assert!(sent.reaches(1) && sent.from(1).count() == BATCHES);
        let rest: Vec<u64> = sent.from(BATCHES as u64 - 1).map(|(number, _)| number).collect();
        assert_eq!(rest, [BATCHES as u64 - 1, BATCHES as u64]);
        assert_eq!(sent.from(BATCHES as u64 + 1).count(), 0);
        assert!(sent.reaches(BATCHES as u64 + 1), "nothing has happened since");
        for ahead in [BATCHES as u64 + 2, u64::MAX] {
            assert!(!sent.reaches(ahead), "{ahead} was never sent");
            assert_eq!(sent.from(ahead).count(), 0);
        }
        sent.push(BATCHES as u64 + 1, small, true);
        assert!(sent.reaches(0), "a snapshot follows");
        sent.push(BATCHES as u64 + 2, Bytes::from(vec![0; BYTES]), false);
        assert!(!sent.reaches(0) && sent.from(0).count() == 1, "bytes are bounded as well");
    }
}
