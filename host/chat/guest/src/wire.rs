//! What the host writes for the renderer: JSON's values with their lengths in front, so that numbers arrive as
//! they were and text is copied and not searched for escapes.
//!
//! A value is a letter and what it says: `n`, `t` and `f` nothing, `i`, `u` and `d` a 64-bit integer, an unsigned
//! one and a double, `s` a text's length and its bytes, `[` a length and so many values, `{` a length and so many
//! pairs of a text (without a letter) and a value. Numbers are little-endian, lengths have 32 bits. The writer is
//! `infer-chat`'s `wire`.

use indexmap::IndexMap;
use minijinja::value::Value;

use crate::renderer::Context;

/// Values are never nested deeper; the host refuses to write them.
const DEEPEST: u32 = 256;

/// Reads what the host wrote.
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// It isn't what the host writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Reader<'a> {
    /// Reads `bytes` from their begin.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// A length and so many bytes of text.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = self.length()?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        std::str::from_utf8(text).map_err(|_| Malformed)
    }

    /// A length and so many pairs of a name and a value. The last of equal names counts.
    pub fn context(&mut self) -> Result<Context, Malformed> {
        let pairs = self.pairs(0, str::to_owned)?;
        Ok(pairs.into_iter().collect())
    }

    fn value(&mut self, depth: u32) -> Result<Value, Malformed> {
        if depth > DEEPEST {
            return Err(Malformed);
        }
        Ok(match self.array()? {
            [b'n'] => Value::from(()),
            [b't'] => Value::from(true),
            [b'f'] => Value::from(false),
            [b'i'] => Value::from(i64::from_le_bytes(self.array()?)),
            [b'u'] => Value::from(u64::from_le_bytes(self.array()?)),
            [b'd'] => Value::from(f64::from_le_bytes(self.array()?)),
            [b's'] => Value::from(self.text()?),
            [b'['] => {
                let length = self.length()?;
                // Every value takes a byte, so the length is no promise of more than there is.
                let mut values = Vec::with_capacity(length.min(self.rest.len()));
                for _ in 0..length {
                    values.push(self.value(depth + 1)?);
                }
                Value::from(values)
            }
            [b'{'] => object(self.pairs(depth + 1, |name| Value::from(name))?),
            _ => return Err(Malformed),
        })
    }

    fn pairs<N>(&mut self, depth: u32, name: fn(&str) -> N) -> Result<Vec<(N, Value)>, Malformed> {
        let length = self.length()?;
        let mut pairs = Vec::with_capacity(length.min(self.rest.len()));
        for _ in 0..length {
            pairs.push((name(self.text()?), self.value(depth)?));
        }
        Ok(pairs)
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| Malformed)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*array)
    }
}

/// An object whose names keep their order: models were taught with the order that people write.
pub fn object(pairs: impl IntoIterator<Item = (Value, Value)>) -> Value {
    Value::from(pairs.into_iter().collect::<IndexMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pair of the name `a` and this value.
    fn read(value: &[u8]) -> Result<String, Malformed> {
        let bytes = [b"\x01\0\0\0\x01\0\0\0a", value].concat();
        Reader::new(&bytes).context().map(|context| context["a"].to_string())
    }

    #[test]
    fn what_is_written_is_read() {
        for (value, shown) in [
            (b"n".as_slice(), "None"),
            (b"t", "True"),
            (b"i\xff\xff\xff\xff\xff\xff\xff\xff", "-1"),
            (b"u\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"),
            (b"d\0\0\0\0\0\0\xf8\x3f", "1.5"),
            (b"s\x02\0\0\0hi", "hi"),
            (b"[\x02\0\0\0nf", "[None, False]"),
            (b"{\x02\0\0\0\x01\0\0\0bt\x01\0\0\0an", "{'b': True, 'a': None}"),
        ] {
            assert_eq!(read(value).as_deref(), Ok(shown), "{value:?}");
        }
    }

    #[test]
    fn what_nobody_writes_is_refused() {
        let deep = b"[\x01\0\0\0".repeat(300);
        for value in [
            b"".as_slice(),
            b"x",
            b"i\0\0\0",
            b"s\x02\0\0\0h",
            b"s\x01\0\0\0\xff",
            b"[\xff\xff\xff\xffn",
            b"{\x01\0\0\0\x01\0\0\0b",
            &deep,
        ] {
            assert_eq!(read(value), Err(Malformed), "{value:?}");
        }
    }
}
