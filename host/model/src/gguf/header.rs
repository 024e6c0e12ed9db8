//! The header of a GGUF file (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3.
//!
//! The file is untrusted: every count, length and offset is checked against the available bytes before use, and nothing is
//! allocated on the word of a length. Values stay in the file and are read on demand. candle's reader of the same format is
//! not used: it keeps a 32-byte value per array element, so a small file can demand much memory, and it panics on an
//! alignment of 0.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::quantized::GgmlDType;

use crate::error::ModelError;
use crate::weights::{Mxfp4, StoredType};

/// Limit of metadata and tensor descriptions together; vocabularies of 260,000 tokens take a tenth of it.
const MAX_HEADER_BYTES: usize = 256 << 20;
const MAX_KEYS: u64 = 1 << 14;
const MAX_TENSORS: u64 = 1 << 16;
const MAX_ARRAY: u64 = 1 << 22;
const MAX_NAME_BYTES: u64 = 1 << 10;
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A parsed header.
#[derive(Debug)]
pub(crate) struct Header {
    pub values: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
}

/// A metadata value; texts and arrays are ranges of the file.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Integer(i128),
    Number(f64),
    Flag(bool),
    Text(Range<usize>),
    /// Consecutive elements of one numeric type.
    Numbers(NumberType, Range<usize>),
    /// Elements that each start with their length, and their number.
    Texts(usize, Range<usize>),
}

/// A tensor's location and shape: `[rows, inputs]`, or `[numbers]`.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub kind: StoredType,
    pub shape: Vec<usize>,
    /// Index of the file among the model's parts; a header describes only its own file.
    pub part: usize,
    pub bytes: Range<usize>,
}

/// Numeric types of metadata, by their number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

impl Header {
    /// Reads and checks the header of a whole file.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, ModelError> {
        let mut cursor =
            Cursor { bytes: &file[..file.len().min(MAX_HEADER_BYTES)], at: 0, what: "the header" };
        if cursor.take(4)? != b"GGUF" {
            return Err(ModelError::weights("this is not a GGUF file: it does not start with GGUF"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(ModelError::unsupported(format!(
                "GGUF version {version}; supported are 2 and 3, little-endian"
            )));
        }
        let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
        bounded("tensors", tensors, MAX_TENSORS)?;
        bounded("metadata keys", keys, MAX_KEYS)?;
        let mut values = BTreeMap::new();
        for _ in 0..keys {
            let (key, value) = cursor.entry()?;
            if values.insert(key.clone(), value).is_some() {
                return Err(ModelError::weights(format!("metadata key {key} appears twice")));
            }
        }
        let places: Vec<_> = (0..tensors).map(|_| cursor.tensor()).collect::<Result<_, _>>()?;
        let alignment = match values.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Integer(n)) if (8..=1 << 20).contains(n) && n.count_ones() == 1 => *n as u64,
            Some(_) => {
                return Err(ModelError::weights(
                    "general.alignment must be a power of two from 8 to 1048576",
                ));
            }
        };
        let data = (cursor.at as u64).next_multiple_of(alignment);
        let mut all = BTreeMap::new();
        for place in places {
            let (name, tensor) = place.check(data, alignment, file.len() as u64)?;
            if all.insert(name.clone(), tensor).is_some() {
                return Err(ModelError::weights(format!("tensor {name} appears twice")));
            }
        }
        Ok(Self { values, tensors: all })
    }
}

fn bounded(what: &str, count: u64, most: u64) -> Result<(), ModelError> {
    match count <= most {
        true => Ok(()),
        false => Err(ModelError::weights(format!("the file declares {count} {what}; the maximum is {most}"))),
    }
}

/// A tensor as the header describes it, unchecked.
struct Claim {
    name: String,
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Claim {
    fn check(self, data: u64, alignment: u64, file_len: u64) -> Result<(String, Tensor), ModelError> {
        let Self { name, dimensions, kind, offset } = self;
        let wrong = |why: String| ModelError::weights(format!("tensor {name} {why}"));
        let kind = ggml_type(kind).ok_or_else(|| {
            ModelError::unsupported(format!(
                "tensor {name} is stored as ggml type {kind}; supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, \
                 Q8_0, Q2_K to Q6_K and MXFP4"
            ))
        })?;
        let shape: Option<Vec<usize>> = dimensions.iter().rev().map(|n| usize::try_from(*n).ok()).collect();
        let shape = shape.filter(|shape| !shape.is_empty() && !shape.contains(&0));
        let count = dimensions.iter().try_fold(1_u64, |product, n| product.checked_mul(*n));
        let (Some(shape), Some(count)) = (shape, count) else {
            return Err(wrong(format!("has the impossible shape {dimensions:?}")));
        };
        let (block, block_bytes) = kind.block();
        let block = block as u64;
        if dimensions[0] % block != 0 {
            let name = match kind {
                StoredType::Blocks(kind) => format!("{kind:?}"),
                _ => "MXFP4".to_owned(),
            };
            return Err(wrong(format!("has rows of {} numbers, which {name} can't hold", dimensions[0])));
        }
        let len = (count / block).checked_mul(block_bytes as u64);
        let start = data.checked_add(offset);
        let end = start.zip(len).and_then(|(start, len)| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len && offset.is_multiple_of(alignment) => {
                Ok((name, Tensor { kind, shape, part: 0, bytes: start as usize..end as usize }))
            }
            (_, Some(end)) if end <= file_len => {
                Err(wrong(format!("begins at {offset}, which is not a multiple of {alignment}")))
            }
            _ => Err(wrong(format!(
                "of shape {dimensions:?} extends beyond the end of the file; is it truncated?"
            ))),
        }
    }
}

fn ggml_type(kind: u32) -> Option<StoredType> {
    Some(StoredType::of_ggml(match kind {
        39 => return Some(StoredType::Mxfp4(Mxfp4::Inside)),
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        30 => GgmlDType::BF16,
        _ => return None,
    }))
}

impl NumberType {
    fn of(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Reads one number from exactly its bytes.
    pub(crate) fn read(self, bytes: &[u8]) -> Value {
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("as many bytes as the type has")
        }
        match self {
            Self::U8 => Value::Integer(bytes[0].into()),
            Self::I8 => Value::Integer((bytes[0] as i8).into()),
            Self::Bool => Value::Flag(bytes[0] != 0),
            Self::U16 => Value::Integer(u16::from_le_bytes(array(bytes)).into()),
            Self::I16 => Value::Integer(i16::from_le_bytes(array(bytes)).into()),
            Self::U32 => Value::Integer(u32::from_le_bytes(array(bytes)).into()),
            Self::I32 => Value::Integer(i32::from_le_bytes(array(bytes)).into()),
            Self::U64 => Value::Integer(u64::from_le_bytes(array(bytes)).into()),
            Self::I64 => Value::Integer(i64::from_le_bytes(array(bytes)).into()),
            Self::F32 => Value::Number(f32::from_le_bytes(array(bytes)).into()),
            Self::F64 => Value::Number(f64::from_le_bytes(array(bytes))),
        }
    }
}

/// Bounds-checked reading of bytes in order.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], ModelError> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.filter(|end| *end <= self.bytes.len()) {
            Some(end) => {
                let taken = &self.bytes[self.at..end];
                self.at = end;
                Ok(taken)
            }
            None => Err(ModelError::weights(format!(
                "{} has {len} bytes at {}, beyond the end of the file; is it truncated?",
                self.what, self.at
            ))),
        }
    }

    fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn name(&mut self, what: &str) -> Result<String, ModelError> {
        let len = self.u64()?;
        bounded(&format!("bytes in a name of {what}"), len, MAX_NAME_BYTES)?;
        let name = std::str::from_utf8(self.take(len)?);
        name.map(str::to_owned)
            .map_err(|_| ModelError::weights(format!("a name of {what} is not valid UTF-8")))
    }

    fn entry(&mut self) -> Result<(String, Value), ModelError> {
        let key = self.name("a metadata key")?;
        let value = self.value();
        match value {
            Ok(value) => Ok((key, value)),
            Err(error) => Err(ModelError::new(error.kind, format!("metadata key {key}: {}", error.message))),
        }
    }

    fn value(&mut self) -> Result<Value, ModelError> {
        let unknown = |kind| ModelError::weights(format!("value type {kind} is unknown"));
        match self.u32()? {
            TEXT => Ok(Value::Text(self.text()?)),
            ARRAY => {
                let (kind, count) = (self.u32()?, self.u64()?);
                bounded("elements", count, MAX_ARRAY)?;
                let start = self.at;
                if kind == TEXT {
                    for _ in 0..count {
                        self.text()?;
                    }
                    return Ok(Value::Texts(count as usize, start..self.at));
                }
                let number = NumberType::of(kind).ok_or_else(|| unknown(kind))?;
                self.take(count * number.bytes() as u64)?;
                Ok(Value::Numbers(number, start..self.at))
            }
            kind => {
                let number = NumberType::of(kind).ok_or_else(|| unknown(kind))?;
                Ok(number.read(self.take(number.bytes() as u64)?))
            }
        }
    }

    fn text(&mut self) -> Result<Range<usize>, ModelError> {
        let len = self.u64()?;
        let start = self.at;
        self.take(len)?;
        Ok(start..self.at)
    }

    fn tensor(&mut self) -> Result<Claim, ModelError> {
        let name = self.name("a tensor")?;
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(ModelError::weights(format!(
                "tensor {name} has {dimensions} dimensions; the maximum is {MAX_DIMENSIONS}"
            )));
        }
        let dimensions = (0..dimensions).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(Claim { name, dimensions, kind: self.u32()?, offset: self.u64()? })
    }
}

/// The texts of an array that the header's parser has validated.
pub(crate) fn texts(bytes: &[u8], count: usize) -> impl Iterator<Item = &[u8]> {
    let mut cursor = Cursor { bytes, at: 0, what: "an array of texts" };
    (0..count).map_while(move |_| {
        let len = cursor.u64().ok()?;
        cursor.take(len).ok()
    })
}
