//! Times of the wall clock: as a number, and as text, in UTC as in the log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

/// Returns the microseconds since 1970; 0 before that.
pub fn unix_us() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
}

/// Formats a time since 1970 as RFC 3339 to the second; empty beyond the year 9999.
pub fn utc(since_1970: Duration) -> String {
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}

/// Formats a time since 1970 as HTTP's `date` (RFC 9110, section 5.6.7); empty beyond the year 9999.
pub fn http_date(since_1970: Duration) -> String {
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok();
    // They differ in the name of the zone.
    time.and_then(|time| time.format(&Rfc2822).ok()).unwrap_or_default().replace("+0000", "GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http_are_in_gmt() {
        assert_eq!(http_date(Duration::from_secs(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(Duration::MAX), "");
    }

    #[test]
    fn times_are_rfc_3339_to_the_second() {
        for (seconds, text) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_399.9, "2000-02-28T23:59:59Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
        ] {
            assert_eq!(utc(Duration::from_secs_f64(seconds)), text);
        }
        assert_eq!(utc(Duration::MAX), "");
    }
}
