//! Requests as the renderer reads them; the format is told in `host/chat/guest/src/wire.rs`.

use serde_json::Value as Json;

/// Longer requests are refused: the longest prompt has a quarter of it.
const LARGEST_REQUEST_BYTES: usize = 64 << 20;
/// Values that are nested deeper are refused. What a client sends stays below 150.
const DEEPEST: u32 = 256;

/// A request in the making.
#[derive(Default)]
pub(crate) struct Request(Vec<u8>);

/// Why something can't be sent to the renderer.
pub(crate) type Unsendable = String;

impl Request {
    /// What was written.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// So many bytes of text.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Unsendable> {
        self.length(text.len())?;
        self.add(text.as_bytes())
    }

    /// The number of pairs that follow: each a text, then a value.
    pub(crate) fn pairs(&mut self, count: usize) -> Result<(), Unsendable> {
        self.length(count)
    }

    /// A text as a value.
    pub(crate) fn text_value(&mut self, text: &str) -> Result<(), Unsendable> {
        self.add(b"s")?;
        self.text(text)
    }

    /// A value.
    pub(crate) fn value(&mut self, value: &Json) -> Result<(), Unsendable> {
        self.nested(value, 0)
    }

    fn nested(&mut self, value: &Json, depth: u32) -> Result<(), Unsendable> {
        if depth > DEEPEST {
            return Err("they are nested too deeply".to_owned());
        }
        match value {
            Json::Null => self.add(b"n"),
            Json::Bool(true) => self.add(b"t"),
            Json::Bool(false) => self.add(b"f"),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => self.number(b'i', number.to_le_bytes()),
                (None, Some(number)) => self.number(b'u', number.to_le_bytes()),
                (None, None) => self.number(b'd', number.as_f64().unwrap_or(f64::NAN).to_le_bytes()),
            },
            Json::String(text) => self.text_value(text),
            Json::Array(items) => {
                self.add(b"[")?;
                self.length(items.len())?;
                items.iter().try_for_each(|item| self.nested(item, depth + 1))
            }
            Json::Object(entries) => {
                self.add(b"{")?;
                self.length(entries.len())?;
                entries.iter().try_for_each(|(name, value)| {
                    self.text(name)?;
                    self.nested(value, depth + 1)
                })
            }
        }
    }

    fn number(&mut self, kind: u8, bytes: [u8; 8]) -> Result<(), Unsendable> {
        self.add(&[kind])?;
        self.add(&bytes)
    }

    fn length(&mut self, length: usize) -> Result<(), Unsendable> {
        // A length that doesn't fit is that of something that doesn't either.
        self.add(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), Unsendable> {
        if self.0.len() + bytes.len() > LARGEST_REQUEST_BYTES {
            return Err(format!("they have more than {} MiB", LARGEST_REQUEST_BYTES >> 20));
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}
