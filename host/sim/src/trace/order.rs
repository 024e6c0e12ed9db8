//! Sorts the requests of a nearly sorted file by time, and makes times relative to the first.

use std::collections::BTreeMap;

use super::{Reader, Recorded, TraceError};

/// Number of requests buffered for sorting.
const WINDOW: usize = 4_096;

/// The requests of `reader` sorted by time, with times since the first. A request too late for the buffer is moved to
/// the time of the one before it.
pub fn in_order<'a>(reader: impl Iterator<Item = Result<Recorded, TraceError>> + Send + 'a) -> Reader<'a> {
    Box::new(Ordered { reader: Some(reader), held: BTreeMap::new(), serial: 0, times_us: None, failed: None })
}

struct Ordered<I> {
    reader: Option<I>,
    held: BTreeMap<(u64, u64), Recorded>,
    serial: u64,
    /// Times of the first and the last returned request, by the file's clock.
    times_us: Option<(u64, u64)>,
    failed: Option<TraceError>,
}

impl<I: Iterator<Item = Result<Recorded, TraceError>>> Iterator for Ordered<I> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.held.len() < WINDOW
            && let Some(reader) = &mut self.reader
        {
            match reader.next() {
                Some(Ok(recorded)) => {
                    self.serial += 1;
                    self.held.insert((recorded.at_us, self.serial), recorded);
                }
                ended => {
                    self.failed = ended.and_then(Result::err);
                    self.reader = None;
                }
            }
        }
        match self.held.pop_first() {
            Some((_, mut recorded)) => {
                let (first_us, last_us) = self.times_us.unwrap_or((recorded.at_us, recorded.at_us));
                let at_us = recorded.at_us.max(last_us);
                self.times_us = Some((first_us, at_us));
                recorded.at_us = at_us - first_us;
                Some(Ok(recorded))
            }
            None => self.failed.take().map(Err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_us: u64) -> Result<Recorded, TraceError> {
        Ok(Recorded { at_us, ..Recorded::default() })
    }

    #[test]
    fn nearly_sorted_requests_are_sorted_and_an_error_comes_last() {
        let fault = || Err(TraceError::At { line: 4, column: 1, message: String::new() });
        let all: Vec<_> = in_order([at(5), at(9), at(7), fault(), at(1)].into_iter()).collect();
        let times: Vec<u64> = all.iter().flatten().map(|recorded| recorded.at_us).collect();
        assert_eq!((times, all.len()), (vec![0, 2, 4], 4));
        assert!(all[3].is_err());
    }

    #[test]
    fn times_never_decrease_however_late_a_request_is() {
        let times = (0..2 * WINDOW as u64).map(|n| at(n + 10)).chain([at(3)]);
        let all: Vec<u64> = in_order(times).map(|recorded| recorded.unwrap().at_us).collect();
        assert!(all.is_sorted());
        assert_eq!(all.len(), 2 * WINDOW + 1);
    }
}
