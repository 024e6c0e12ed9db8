//! How many requests a minute a tenant may send: a token bucket (RFC 2697 describes its meter) that holds requests.
//!
//! It is here and not in a policy, because policies are shown rates of tokens only, and because what a flood of requests
//! costs comes before admission: parsing, rendering, tokenizing. A full bucket holds a minute's worth, as that of
//! `token-bucket` does without a burst.

use std::sync::{Arc, Mutex, PoisonError};

use infer_core::request::RefusalReason;
use infer_core::{Micros, Refusal};

/// Parts of a request. At n requests a minute n parts come back each microsecond, so nothing is ever rounded.
const REQUEST: u64 = 60_000_000;
/// After this time any bucket is full.
const MINUTE: Micros = Micros(60_000_000);

/// A tenant's requests: its rate, and what is left of it.
#[derive(Clone, Debug)]
pub struct Requests {
    /// 0 for no limit.
    per_minute: u32,
    bucket: Arc<Bucket>,
}

/// What is left of a tenant's rate. It outlives the file that sets the rate, which would otherwise fill it at each reload.
#[derive(Debug, Default)]
pub struct Bucket {
    /// `None` for a full one, before the first request.
    level: Mutex<Option<Level>>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    parts: u64,
    at: Micros,
}

impl Requests {
    /// A rate of so many a minute, 0 for no limit, over what is left in a bucket.
    pub fn new(per_minute: u32, bucket: Arc<Bucket>) -> Self {
        Self { per_minute, bucket }
    }

    /// Takes a request out of the bucket.
    ///
    /// # Errors
    /// The bucket has none; the refusal says when it will.
    pub fn take(&self, now: Micros) -> Result<(), Refusal> {
        if self.per_minute == 0 {
            return Ok(());
        }
        let missing = self.bucket.take(u64::from(self.per_minute), now);
        if missing == 0 {
            return Ok(());
        }
        let after_ms = missing.div_ceil(u64::from(self.per_minute)).div_ceil(1_000);
        Err(Refusal {
            reason: RefusalReason::Rate,
            message: format!(
                "the limit is {} requests a minute; retry in {} s",
                self.per_minute,
                after_ms.div_ceil(1_000)
            ),
            retry_after_ms: after_ms as u32,
        })
    }
}

impl Bucket {
    /// Takes a request, or else returns how many parts are missing for one.
    fn take(&self, per_minute: u64, now: Micros) -> u64 {
        let full = per_minute * REQUEST;
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let Level { parts, at } = level.map_or(Level { parts: full, at: now }, |Level { parts, at }| {
            let since = now.since(at).min(MINUTE);
            // Of two threads the one with the later time may come first.
            Level { parts: (parts + since.0 * per_minute).min(full), at: at.max(now) }
        });
        let missing = REQUEST.saturating_sub(parts);
        let parts = if missing == 0 { parts - REQUEST } else { parts };
        *level = Some(Level { parts, at });
        missing
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests(per_minute: u32) -> Requests {
        Requests::new(per_minute, Arc::default())
    }

    fn ms(ms: u64) -> Micros {
        Micros(ms * 1_000)
    }

    #[test]
    fn a_full_bucket_holds_a_minutes_worth_and_refills_at_the_rate() {
        let three = requests(3);
        for _ in 0..3 {
            three.take(ms(5_000)).unwrap();
        }
        let refusal = three.take(ms(5_000)).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry_after_ms), (RefusalReason::Rate, 20_000));
        assert_eq!(refusal.message, "the limit is 3 requests a minute; retry in 20 s");
        assert_eq!(three.take(ms(24_999)).unwrap_err().retry_after_ms, 1);
        three.take(ms(25_000)).unwrap();
        assert_eq!(three.take(ms(4_000)).unwrap_err().retry_after_ms, 20_000, "an earlier time adds nothing");
        for _ in 0..3 {
            three.take(ms(10_000_000)).unwrap();
        }
        assert!(three.take(ms(10_000_000)).is_err(), "a long pause fills it and no more");
    }

    #[test]
    fn without_a_limit_every_request_passes() {
        let all = requests(0);
        assert!((0..10_000).all(|_| all.take(Micros(0)).is_ok()));
    }

    #[test]
    fn a_new_rate_keeps_what_is_left_as_far_as_it_fits() {
        let bucket = Arc::<Bucket>::default();
        let at = |per_minute| Requests::new(per_minute, Arc::clone(&bucket));
        for _ in 0..60 {
            at(100).take(Micros(0)).unwrap();
        }
        assert!((0..10).all(|_| at(10).take(Micros(0)).is_ok()), "of the 40 that were left");
        assert!(at(10).take(Micros(0)).is_err());
        assert!(at(100).take(Micros(0)).is_err(), "a higher rate fills nothing at once");
        at(100).take(ms(600)).unwrap();
        assert!(at(0).take(ms(600)).is_ok() && at(100).take(ms(600)).is_err());
    }

    #[test]
    fn the_largest_rate_overflows_nothing() {
        let most = requests(u32::MAX);
        most.take(Micros(0)).unwrap();
        most.take(Micros(u64::MAX)).unwrap();
        most.take(Micros(0)).unwrap();
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_a_full_bucket_and_what_its_time_refills(
            per_minute in 1_u32..200,
            gaps_us in prop::collection::vec(
                prop_oneof![Just(0_u64), 0..50_000_u64, 0..2_000_000_u64, 0..90_000_000_u64],
                1..300,
            ),
        ) {
            let requests = requests(per_minute);
            let mut now = Micros(0);
            let mut taken = Vec::new();
            for gap in gaps_us {
                now = now.plus(Micros(gap));
                match requests.take(now) {
                    Ok(()) => taken.push(now),
                    Err(refusal) => {
                        prop_assert!((1..=60_000).contains(&refusal.retry_after_ms), "{refusal:?}");
                        // Whoever comes that much later, with nobody in between, is served.
                        let later = now.plus(ms(refusal.retry_after_ms.into()));
                        let parts = requests.bucket.level.lock().unwrap().expect("it was used").parts;
                        let then = parts + later.since(now).0 * u64::from(per_minute);
                        prop_assert!(then >= REQUEST, "{then} parts");
                    }
                }
            }
            for (first, &from) in taken.iter().enumerate() {
                for (last, &to) in taken.iter().enumerate().skip(first) {
                    let refilled = to.since(from).0 * u64::from(per_minute) / REQUEST;
                    let count = (last - first + 1) as u64;
                    prop_assert!(count <= u64::from(per_minute) + refilled, "{count} in {:?}", to.since(from));
                }
            }
        }
    }
}
