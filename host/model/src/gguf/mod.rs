//! GGUF files: weights, configuration, tokenizer and chat template in one file, or in parts written by llama-gguf-split. They
//! are converted to what the rest of this crate reads from a directory: a `ModelConfig`, `tokenizer.json`,
//! `tokenizer_config.json`, and tensors by their Hugging Face names. Architectures other than llama, qwen2, qwen3, qwen3moe,
//! gemma3, smollm3, phi3, granite, olmo2, olmoe and gpt-oss are refused by name.

mod config;
mod header;
mod names;
mod parts;
mod pretokenizer;
mod tokenizer;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use header::{Tensor, Value};

use crate::bytes::Bytes;
use crate::config::ModelConfig;
use crate::error::{ModelError, ModelErrorKind};
use crate::weights::{ExpertMatrix, RowOrder, Stored, StoredType, Within};

/// The values of `general.architecture` that are supported.
const ARCHITECTURES: &[&str] = &[
    "llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "smollm3", "phi3", "granite", "olmo2", "olmoe",
    "gpt-oss",
];

/// An open file with a valid header, and the other parts of the model.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    /// The file itself, then its other parts.
    parts: Vec<Bytes<'static>>,
    /// Metadata, all from the first part.
    values: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
    architecture: String,
}

impl Gguf {
    /// Maps a file and, if it is the first of several parts, the others next to it, and checks the headers.
    ///
    /// # Errors
    /// Names the file, and the key or tensor at fault.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let mut file = Self::part(path)?;
        file.join_parts()?;
        let architecture = file.text("general.architecture")?.unwrap_or_default().into_owned();
        if !ARCHITECTURES.contains(&architecture.as_str()) {
            let (last, others) = ARCHITECTURES.split_last().expect("there are some");
            return Err(file.fault(
                ModelErrorKind::Unsupported,
                format!(
                    "general.architecture is {architecture:?}; supported are {} and {last}",
                    others.join(", ")
                ),
            ));
        }
        Ok(Self { architecture, ..file })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `general.name`, if present.
    pub fn title(&self) -> Option<String> {
        self.text("general.name").ok().flatten().map(Cow::into_owned).filter(|name| !name.is_empty())
    }

    /// The equivalent of file `name` of Hugging Face's layout.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, ModelError> {
        let json = match name {
            "tokenizer.json" => tokenizer::tokenizer(self)?,
            "tokenizer_config.json" => tokenizer::tokenizer_config(self)?,
            _ => return Ok(None),
        };
        Ok(Some(json.to_string().into_bytes()))
    }

    /// Whether there is a tokenizer, as far as that needs no vocabulary.
    pub(crate) fn check_tokenizer(&self) -> Result<(), ModelError> {
        tokenizer::check(self)
    }

    /// The model's configuration.
    pub(crate) fn config(&self) -> Result<ModelConfig, ModelError> {
        config::config(self)
    }

    /// Bytes of all tensors.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    fn gguf_name(&self, name: &str) -> Option<String> {
        names::gguf_name(name, matches!(self.architecture.as_str(), "gemma3" | "olmo2" | "gpt-oss"))
    }

    /// Storage type of a tensor, by its Hugging Face name.
    pub(crate) fn stored_type(&self, name: &str) -> Option<StoredType> {
        let tensor = self.tensors.get(&self.gguf_name(name)?)?;
        Some(tensor.kind)
    }

    /// A tensor of exactly this shape, by its Hugging Face name. `head_dim` determines the order of rows as llama has them.
    /// Matrices of single experts are parts of tensors of all `experts`.
    pub(crate) fn tensor(
        &self,
        name: &str,
        shape: &[usize],
        head_dim: usize,
        experts: usize,
    ) -> Result<Stored<'_>, ModelError> {
        let missing = || self.fault(ModelErrorKind::Weights, format!("there is no tensor for {name}"));
        let gguf_name = self.gguf_name(name).ok_or_else(missing)?;
        let tensor = self
            .tensors
            .get(&gguf_name)
            .ok_or_else(|| self.fault(ModelErrorKind::Weights, format!("tensor {gguf_name} is missing")))?;
        let within = match ExpertMatrix::parse(name).or_else(|| ExpertMatrix::parse_bias(name)) {
            Some(expert) => expert.within(gguf_name, experts, shape),
            None => Within::all(gguf_name, shape),
        };
        let (gguf_name, whole) = (&within.tensor, &within.shape);
        if tensor.shape != *whole {
            return Err(self.fault(
                ModelErrorKind::Weights,
                format!("tensor {gguf_name} has shape {:?}, the metadata requires {whole:?}", tensor.shape),
            ));
        }
        let order = match names::interleaves(&self.architecture) && names::is_rotated(gguf_name) {
            true => RowOrder::Interleaved { head_dim },
            false => RowOrder::Plain,
        };
        Ok(Stored {
            kind: tensor.kind,
            shape: shape.to_vec(),
            order,
            bytes: within.of(self.bytes_of(tensor)),
            scales: &[],
            codes: None,
            name: within.name(),
        })
    }

    fn bytes_of(&self, tensor: &Tensor) -> &[u8] {
        &self.parts[tensor.part][tensor.bytes.clone()]
    }

    /// The file itself, then its other parts.
    pub(crate) fn parts(&self) -> &[Bytes<'static>] {
        &self.parts
    }

    fn fault(&self, kind: ModelErrorKind, message: impl std::fmt::Display) -> ModelError {
        ModelError::new(kind, format!("{}: {message}", self.path.display()))
    }

    fn wrong(&self, key: &str, expected: &str) -> ModelError {
        self.fault(ModelErrorKind::Config, format!("{key} must be {expected}"))
    }

    fn optional<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<Cow<'_, str>>, ModelError> {
        self.optional(key, "a text in UTF-8", |value| match value {
            Value::Text(place) => std::str::from_utf8(&self.parts[0][place.clone()]).ok().map(Cow::Borrowed),
            _ => None,
        })
    }

    fn integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.optional(key, "a whole number", |value| match value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.optional(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An array of numbers; flags count as 0 and 1.
    fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ModelError> {
        self.optional(key, "an array of numbers", |value| match value {
            Value::Numbers(kind, place) => {
                let elements = self.parts[0][place.clone()].chunks_exact(kind.bytes());
                elements.map(|element| number(&kind.read(element))).collect()
            }
            _ => None,
        })
    }

    /// An array of texts; invalid UTF-8 gives `None`.
    fn texts(&self, key: &str) -> Result<Option<Vec<Option<&str>>>, ModelError> {
        self.optional(key, "an array of texts", |value| match value {
            Value::Texts(count, place) => Some(
                header::texts(&self.parts[0][place.clone()], *count)
                    .map(|text| std::str::from_utf8(text).ok())
                    .collect(),
            ),
            _ => None,
        })
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::Flag(flag) => Some(f64::from(u8::from(*flag))),
        _ => None,
    }
}
