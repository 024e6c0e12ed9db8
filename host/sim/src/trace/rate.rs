//! The rate of a trace, which says how fast to replay it for another one.

use super::{Reader, TraceError};
use crate::metrics::count;

/// Requests per second of the first `requests` requests of a trace by their recorded times, also of those that wait for
/// others: the inverse of the mean gap.
///
/// # Errors
/// If the trace can't be read, or if all of them came at one time.
pub fn recorded_rate(reader: Reader<'_>, requests: u64) -> Result<f64, TraceError> {
    let (mut number, mut times_us) = (0, None);
    for recorded in reader.take(usize::try_from(requests).unwrap_or(usize::MAX)) {
        let at_us = recorded?.at_us;
        let (first, last) = times_us.unwrap_or((at_us, at_us));
        times_us = Some((at_us.min(first), at_us.max(last)));
        number += 1;
    }
    match times_us {
        Some((first, last)) if last > first => Ok(1e6 * count(number - 1) / count(last - first)),
        _ => Err(TraceError::AtOnce { requests: number }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Recorded, in_order};
    use super::*;

    fn rate(times_ms: &[u64], requests: u64, error: bool) -> Result<f64, String> {
        let rows = times_ms.iter().map(|ms| Ok(Recorded { at_us: 1_000 * ms, ..Recorded::default() }));
        let end = TraceError::At { line: 9, column: 1, message: "cut off".to_owned() };
        let all: Vec<_> = rows.chain(error.then_some(Err(end))).collect();
        recorded_rate(in_order(all.into_iter()), requests).map_err(|error| error.to_string())
    }

    #[test]
    fn rate_is_that_of_the_gaps_however_uneven() {
        for (times_ms, requests, expected) in [
            (&[500, 1_000, 1_500][..], u64::MAX, 2.0),
            (&[0, 0, 0, 2_000], u64::MAX, 1.5),
            (&[90_000, 90_100, 90_300, 99_000], 3, 2.0 / 0.3),
            (&[400, 100, 200], u64::MAX, 2.0 / 0.3),
        ] {
            let rate = rate(times_ms, requests, false).expect("it has one");
            assert!((rate - expected).abs() < 1e-9, "{times_ms:?}: {rate}");
        }
    }

    #[test]
    fn what_has_no_rate_or_cannot_be_read_says_so() {
        for times_ms in [&[7][..], &[7, 7, 7], &[]] {
            let why = rate(times_ms, u64::MAX, false).expect_err("no time passes");
            let expected = format!("its {} requests came at one time, ", times_ms.len());
            assert!(why.starts_with(&expected), "{why}");
        }
        let why = rate(&[1, 2], u64::MAX, true).expect_err("it is cut off");
        assert_eq!(why, "line 9, column 1: cut off");
        assert!(rate(&[1, 2], 2, true).is_ok(), "the rest is not read");
    }
}
