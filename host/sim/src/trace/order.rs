//! Sorts the requests of a nearly sorted file by time, and makes times relative to the first.

use std::collections::BTreeMap;

use super::{Reader, Recorded, TraceError};
use crate::metrics::count;

/// Number of requests buffered for sorting.
const WINDOW: usize = 4_096;

/// The requests of `reader` sorted by time, with times since the first. One too late for the buffer is an error: at any
/// other time than its own it would be a request of another trace.
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
                if recorded.at_us < last_us {
                    (self.reader, self.failed) = (None, None);
                    self.held.clear();
                    let early_s = count(last_us - recorded.at_us) / 1e6;
                    return Some(Err(TraceError::Unsorted { request: recorded.id, early_s, window: WINDOW }));
                }
                self.times_us = Some((first_us, recorded.at_us));
                recorded.at_us -= first_us;
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
    fn request_that_is_later_than_the_buffer_is_long_is_an_error() {
        let request = |id: u64, at_us| Ok(Recorded { id, at_us, ..Recorded::default() });
        let among = |before: u64| {
            let times = (1..=before).map(move |n| request(n, n * 1_000_000));
            let after = (before + 2..before + 9).map(move |n| request(n, n * 1_000_000));
            in_order(times.chain([request(before + 1, 500_000)]).chain(after))
        };
        let near: Vec<_> = among(WINDOW as u64 - 1).map(Result::unwrap).collect();
        assert_eq!((near[0].id, near.len()), (WINDOW as u64, WINDOW + 7), "it comes first");
        assert!(near.is_sorted_by_key(|recorded| recorded.at_us));
        let far: Vec<_> = among(2 * WINDOW as u64).collect();
        let Some((Err(error), before)) = far.split_last() else { panic!("the last is an error") };
        assert!(before.iter().all(Result::is_ok) && before.len() == WINDOW + 1, "{}", before.len());
        let says = "request 8193 came 4096.500 s before one that stands 4096 or more requests ahead";
        assert!(error.to_string().contains(says), "{error}");
    }
}
