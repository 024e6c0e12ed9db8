//! What the policies of this thread published last: as in a host, but by name alone.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Gauges of an instance.
const MOST: usize = 16;
const MAX_NAME_BYTES: usize = 48;

thread_local! {
    static GAUGES: RefCell<BTreeMap<String, f64>> = const { RefCell::new(BTreeMap::new()) };
}

/// The latest value of a gauge that a policy has set in this thread.
pub fn gauge(name: &str) -> Option<f64> {
    GAUGES.with_borrow(|gauges| gauges.get(name).copied())
}

/// Panics at what a host would drop.
pub(crate) fn set_gauge(name: &str, value: f64) {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    assert!(
        name.len() <= MAX_NAME_BYTES
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(plain),
        "the host would drop the gauge {name:?}: a name has up to {MAX_NAME_BYTES} characters, a letter from a to z, then such letters, digits and `_`"
    );
    GAUGES.with_borrow_mut(|gauges| {
        if value.is_finite() {
            gauges.insert(name.to_owned(), value);
        } else {
            gauges.remove(name);
        }
        assert!(gauges.len() <= MOST, "the host would drop the gauge {name:?}: a policy has at most {MOST}");
    });
}

#[cfg(test)]
mod tests {
    use super::gauge;

    #[test]
    fn gauges_stay_until_they_are_set_again_or_removed() {
        crate::gauge("blocks", 3.0);
        crate::gauge("blocks", 4.0);
        assert_eq!(gauge("blocks"), Some(4.0));
        crate::gauge("blocks", f64::NAN);
        assert_eq!(gauge("blocks"), None);
    }

    #[test]
    #[should_panic(expected = "the host would drop the gauge \"Blocks\"")]
    fn what_a_host_drops_fails_a_test() {
        crate::gauge("Blocks", 1.0);
    }
}
