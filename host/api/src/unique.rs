//! JSON without duplicate keys. Of two values under one key a map keeps one, and who wrote both would not learn which.
//!
//! [`parse`] reads configurations of policies; [`parse_within`] and [`Unique`], which reads values within another text,
//! bound the number of values.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// How the error about a [`Limit`] begins, and no other error of this module.
pub const MORE_THAN: &str = "more than ";

/// Parses a text.
///
/// # Errors
/// It is not JSON, or an object in it has a key twice, which the error names.
pub fn parse(json: &[u8]) -> serde_json::Result<Value> {
    parse_within(json, &Limit::new(usize::MAX))
}

/// Parses one of the texts that share a limit.
///
/// # Errors
/// As [`parse`]; or it has more values than are left, and the error begins with [`MORE_THAN`].
pub fn parse_within(json: &[u8], limit: &Limit) -> serde_json::Result<Value> {
    let mut text = serde_json::Deserializer::from_slice(json);
    let value = Unique(limit).deserialize(&mut text)?;
    text.end()?;
    Ok(value)
}

/// The error about a key that occurs twice.
pub fn duplicate<E: de::Error>(key: &str) -> E {
    let shown: String = key.chars().take(64).collect();
    E::custom(format!("the key `{shown}` occurs twice"))
}

/// How many JSON values are read, nested ones included.
#[derive(Debug)]
pub struct Limit {
    most: usize,
    left: Cell<usize>,
}

impl Limit {
    /// At most so many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, left: Cell::new(most) }
    }

    fn count<E: de::Error>(&self) -> Result<(), E> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or_else(|| E::custom(format!("{MORE_THAN}{} values", self.most)))?);
        Ok(())
    }
}

/// Reads a JSON value without duplicate keys, and counts its values against a limit.
#[derive(Clone, Copy, Debug)]
pub struct Unique<'a>(pub &'a Limit);

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.0.count::<D::Error>()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(Value::from(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(Value::from(n))
    }

    fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
        Ok(Number::from_f64(x).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, s: &str) -> Result<Value, E> {
        Ok(Value::from(s))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(duplicate(&key));
            }
            all.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_as_by_serde_json() {
        for json in [
            "null",
            "true",
            "-3",
            "18446744073709551615",
            "1.5e3",
            r#""a\n""#,
            "[[1], {}]",
            r#" {"a": {"a": [{"b": 0}, {"b": 1}]}, "c": null} "#,
        ] {
            let expected: Value = serde_json::from_str(json).unwrap();
            assert_eq!(parse(json.as_bytes()).unwrap(), expected, "{json}");
        }
    }

    #[test]
    fn key_that_occurs_twice_is_named_at_any_depth() {
        for (json, says) in [
            (r#"{"a": 1, "a": 1}"#, "the key `a` occurs twice at line 1 column "),
            (r#"{"a": {"b": 1, "c": 2, "b": 3}}"#, "the key `b` occurs twice"),
            (r#"[{"a": [0, {"b": null, "b": null}]}]"#, "the key `b` occurs twice"),
            (r#"{"a": 1, "\u0061": 2}"#, "the key `a` occurs twice"),
            ("{} {}", "trailing characters"),
            ("{", "EOF"),
            ("", "EOF"),
        ] {
            let error = parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(says), "{json}: {error}");
        }
    }
}
