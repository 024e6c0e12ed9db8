//! The numbers that a policy publishes about itself. Whatever it says here is no fault, because it decides nothing: what
//! breaks the rules is dropped.

use std::collections::BTreeMap;

use crate::text::clip;

/// Gauges of an instance.
const MOST: usize = 16;
const MAX_NAME_BYTES: usize = 48;

#[derive(Default)]
pub(crate) struct Gauges {
    values: BTreeMap<String, f64>,
    /// Whether something was dropped.
    dropped: bool,
}

impl Gauges {
    /// Sets one, or removes it if the value isn't finite. Returns why it is dropped, the first time that one is.
    pub(crate) fn set(&mut self, name: String, value: f64) -> Option<String> {
        let why = if !is_name(&name) {
            format!(
                "a name has up to {MAX_NAME_BYTES} characters: a letter from a to z, then such letters, digits and `_`"
            )
        } else if !value.is_finite() {
            self.values.remove(&name);
            return None;
        } else if let Some(known) = self.values.get_mut(&name) {
            *known = value;
            return None;
        } else if self.values.len() < MOST {
            self.values.insert(name, value);
            return None;
        } else {
            format!("a policy has at most {MOST}")
        };
        let first = !std::mem::replace(&mut self.dropped, true);
        first.then(|| format!("the gauge `{}` is dropped: {why}", clip(&name, 2 * MAX_NAME_BYTES)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, &value)| (name.as_str(), value))
    }
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(gauges: &mut Gauges, name: &str, value: f64) -> Option<String> {
        gauges.set(name.to_owned(), value)
    }

    #[test]
    fn latest_finite_value_of_a_name_counts() {
        let mut gauges = Gauges::default();
        for (name, value) in
            [("ttft_ms", 1.5), ("a", -0.0), ("ttft_ms", 2.5), ("a", f64::NAN), ("b", f64::INFINITY)]
        {
            assert_eq!(set(&mut gauges, name, value), None);
        }
        assert_eq!(gauges.iter().collect::<Vec<_>>(), [("ttft_ms", 2.5)]);
    }

    #[test]
    fn what_breaks_the_rules_is_dropped_and_told_once() {
        let longest = "a".repeat(MAX_NAME_BYTES);
        for name in ["", "A", "1st", "_a", "a-b", "a b", "\u{e4}", "a\"} 1\n", &format!("{longest}a")] {
            let mut gauges = Gauges::default();
            let why = set(&mut gauges, name, 1.0).expect("it is told");
            assert!(why.contains("a name has up to 48"), "{why}");
            assert_eq!(set(&mut gauges, name, 1.0), None, "once");
            assert_eq!(gauges.iter().count(), 0, "{name:?}");
        }
        let mut gauges = Gauges::default();
        assert_eq!(set(&mut gauges, &longest, 1.0), None);
        for at in 1..MOST {
            assert_eq!(set(&mut gauges, &format!("g{at}"), 1.0), None);
        }
        let why = set(&mut gauges, "one_more", 1.0).expect("it is told");
        assert!(why.contains("`one_more`") && why.contains("at most 16"), "{why}");
        assert_eq!(set(&mut gauges, "g1", 7.0), None);
        assert_eq!(set(&mut gauges, "g2", f64::NAN), None, "which makes room");
        assert_eq!(set(&mut gauges, "one_more", 1.0), None);
        assert_eq!(gauges.iter().count(), MOST);
        assert!(gauges.iter().any(|gauge| gauge == ("g1", 7.0)));
    }
}
