//! The tensors of a checkpoint by name, from any layout of files: one safetensors file, shards, or GGUF. Names are Hugging
//! Face's without the prefix that differs between checkpoints (mostly `model.`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::expert::{ExpertMatrix, Within, mixtral_name};
use super::fused::Fused;
use super::interleaved::{Interleaved, missing, same_shape};
use super::quantized::Quantized;
use super::stored::{RowOrder, Stored, StoredType};
use crate::bytes::Bytes;
use crate::config::{ExpertLayout, ModelConfig, Quantization};
use crate::error::ModelError;
use crate::gguf::Gguf;
use crate::source::{Source, plain_name, refuse_pointer};

/// Possible prefixes of a decoder's tensors: bare decoders, and those inside larger models.
pub(crate) const PREFIXES: &[&str] = &["model.", "", "language_model.model.", "model.language_model."];
const HEADS: &[&str] = &["lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"];

/// What a module's matrix is called, of floats or of codes.
const CODES: [&str; 3] = ["weight", "qweight", "weight_packed"];

/// Open files.
pub(crate) struct Files<'a> {
    kind: Kind<'a>,
    /// Experts of a layer; 0 if none has experts.
    experts: usize,
    /// Projections that are stored as one tensor.
    fused: Option<Fused>,
    /// The rows of queries and keys, unless the file's kind has an order of its own.
    order: RowOrder,
    /// Names of experts, unless the file's kind has its own, and whether [`Interleaved`] reads them.
    layout: ExpertLayout,
    /// The forms of matrices that [`Quantized`] reads.
    forms: Option<Quantization>,
}

enum Kind<'a> {
    Safetensors { shards: Vec<Shard<'a>>, prefix: &'static str },
    Gguf { file: Arc<Gguf>, head_dim: usize },
}

/// One safetensors file.
pub(crate) struct Shard<'a> {
    name: String,
    bytes: Bytes<'a>,
    metadata: Metadata,
    data: usize,
}

impl<'a> Files<'a> {
    pub(crate) fn open(source: &Source<'a>, config: &ModelConfig) -> Result<Self, ModelError> {
        let of_layer = config.layers.iter().find_map(|layer| layer.experts);
        let experts = of_layer.map_or(0, |experts| experts.count);
        let layout = of_layer.map_or(ExpertLayout::Plain, |experts| experts.layout);
        let (fused, order) = (Fused::of(config), RowOrder::of(config));
        let shards = match source {
            Source::Gguf(file) => {
                let kind = Kind::Gguf { file: Arc::clone(file), head_dim: config.head_dim };
                return Ok(Self { kind, experts, fused, order, layout: ExpertLayout::Plain, forms: None });
            }
            Source::Directory(directory) => shard_names(source)?
                .iter()
                .map(|name| {
                    Shard::open(
                        &directory.join(name).display().to_string(),
                        Bytes::map(&directory.join(name))?,
                    )
                })
                .collect::<Result<Vec<_>, _>>()?,
            Source::Embedded(files) => shard_names(source)?
                .iter()
                .map(|name| {
                    let found = files.iter().find(|(file, _)| file == name);
                    let (_, bytes) = found
                        .ok_or_else(|| ModelError::weights(format!("{} has no {name}", source.name())))?;
                    Shard::open(name, Bytes::Borrowed(bytes))
                })
                .collect::<Result<Vec<_>, _>>()?,
        };
        let has = |name: &str| shards.iter().any(|shard: &Shard<'_>| shard.metadata.info(name).is_some());
        let embeds = |prefix: &&&str| CODES.iter().any(|codes| has(&format!("{prefix}embed_tokens.{codes}")));
        let prefix = PREFIXES.iter().find(embeds);
        let prefix = prefix.copied().unwrap_or(PREFIXES[0]);
        // What transformers has in memory has plain names, whatever the family, and some tools save it so.
        let in_memory = || has(&format!("{prefix}layers.0.mlp.gate.weight"));
        let layout = match layout {
            ExpertLayout::Mixtral if in_memory() => ExpertLayout::Plain,
            layout => layout,
        };
        let forms = config.quantization.clone();
        if let Some(forms) = &forms {
            Quantized { shards: &shards, forms }.check_names()?;
        }
        Ok(Self { kind: Kind::Safetensors { shards, prefix }, experts, fused, order, layout, forms })
    }

    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Safetensors { shards, .. } => {
                shards.iter().map(|shard| (shard.bytes.len() - shard.data) as u64).sum()
            }
            Kind::Gguf { file, .. } => file.weight_bytes(),
        }
    }

    /// A tensor of exactly this shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>, ModelError> {
        let stored = match self.fused.as_ref().and_then(|fused| fused.part(name)) {
            Some(part) => part.of(self.whole(&part.tensor, &part.whole(shape))?, shape)?,
            None => self.whole(name, shape)?,
        };
        let is_rotated = name.contains("self_attn.q_proj.") || name.contains("self_attn.k_proj.");
        let order = if is_rotated && stored.order == RowOrder::Plain { self.order } else { stored.order };
        Ok(Stored { order, ..stored })
    }

    /// The same of a tensor that is stored by itself.
    fn whole(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>, ModelError> {
        let (shards, prefix) = match &self.kind {
            Kind::Gguf { file, head_dim } => return file.tensor(name, shape, *head_dim, self.experts),
            Kind::Safetensors { shards, prefix } => (shards, prefix),
        };
        if let Some(tensor) = self.interleaved().and_then(|experts| experts.tensor(name, shape)) {
            return tensor;
        }
        let name = &self.renamed(name);
        if let (Some(forms), [outputs, inputs]) = (&self.forms, shape)
            && let Some(module) = full_name(shards, prefix, name).strip_suffix(".weight")
            && let Some(matrix) = (Quantized { shards, forms }).matrix(module, [*outputs, *inputs])
        {
            return matrix;
        }
        let within = within(shards, prefix, name, self.experts, shape);
        let in_file = &within.tensor;
        let (shard, info) = find(shards, in_file)
            .ok_or_else(|| self.undeclared(in_file).unwrap_or_else(|| missing(in_file)))?;
        same_shape(in_file, &info.shape, &within.shape)?;
        let whole = shard.stored(in_file, info)?;
        Ok(Stored { shape: shape.to_vec(), bytes: within.of(whole.bytes), ..whole })
    }

    /// The error about a matrix in whose place there are codes, if config.json says nothing about them.
    fn undeclared(&self, name: &str) -> Option<ModelError> {
        let Kind::Safetensors { shards, .. } = &self.kind else { return None };
        let module = name.strip_suffix(".weight").filter(|_| self.forms.is_none())?;
        let codes = CODES.iter().map(|codes| format!("{module}.{codes}"));
        let codes = codes.skip(1).find(|codes| find(shards, codes).is_some())?;
        Some(ModelError::unsupported(format!(
            "tensor {name} is missing, but there is {codes}; add the checkpoint's quantization_config to its config.json"
        )))
    }

    /// Storage type of a tensor, for checkpoints that don't declare one.
    pub(crate) fn stored_type(&self, name: &str) -> Option<StoredType> {
        match &self.kind {
            Kind::Gguf { file, .. } => file.stored_type(name),
            Kind::Safetensors { .. } if self.layout == ExpertLayout::Interleaved => {
                self.interleaved()?.stored_type(name)
            }
            Kind::Safetensors { .. } if self.forms.is_some() => Some(StoredType::Codes),
            Kind::Safetensors { shards, prefix } => {
                let name = &self.renamed(name);
                let (_, info) = find(shards, &within(shards, prefix, name, self.experts, &[]).tensor)?;
                stored_type(info.dtype)
            }
        }
    }

    fn interleaved(&self) -> Option<Interleaved<'_, 'a>> {
        match &self.kind {
            Kind::Safetensors { shards, prefix } if self.layout == ExpertLayout::Interleaved => {
                Some(Interleaved { shards, prefix, experts: self.experts })
            }
            _ => None,
        }
    }

    /// The name of a tensor in files in which routers, or also experts, have other names.
    fn renamed<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.layout {
            ExpertLayout::Plain => Cow::Borrowed(name),
            ExpertLayout::Mixtral => Cow::Owned(mixtral_name(name)),
            ExpertLayout::Interleaved => Cow::Owned(name.replace(".mlp.gate.", ".mlp.router.")),
        }
    }

    /// Asks the system to read a tensor that is needed soon.
    pub(crate) fn expect(&self, tensor: &Stored<'_>) {
        self.places(tensor).for_each(|(bytes, place)| bytes.expect(place));
    }

    /// Maps the pages of a tensor that is about to be read.
    pub(crate) fn prefetch(&self, tensor: &Stored<'_>) {
        self.places(tensor).for_each(|(bytes, place)| bytes.prefetch(place));
    }

    /// Releases the pages of a tensor that was read.
    pub(crate) fn release(&self, tensor: &Stored<'_>) {
        self.places(tensor).for_each(|(bytes, place)| bytes.release(place));
    }

    /// The files of a tensor's bytes, and where they are.
    fn places(&self, tensor: &Stored<'_>) -> impl Iterator<Item = (&Bytes<'a>, Range<usize>)> {
        let place = |bytes: &[u8]| match &self.kind {
            Kind::Gguf { file, .. } => place(file.parts().iter(), bytes),
            Kind::Safetensors { shards, .. } => place(shards.iter().map(|shard| &shard.bytes), bytes),
        };
        tensor.parts().into_iter().filter(|part| !part.is_empty()).filter_map(place)
    }
}

fn place<'f, 'a: 'f>(
    mut files: impl Iterator<Item = &'f Bytes<'a>>,
    bytes: &[u8],
) -> Option<(&'f Bytes<'a>, Range<usize>)> {
    files.find_map(|file| Some((file, file.range_of(bytes)?)))
}

pub(super) fn find<'s, 'a>(
    shards: &'s [Shard<'a>],
    in_file: &str,
) -> Option<(&'s Shard<'a>, &'s TensorInfo)> {
    shards.iter().find_map(|shard| Some((shard, shard.metadata.info(in_file)?)))
}

/// Where a tensor of this shape is. A matrix of an expert that isn't there by itself is part of another tensor, if that is
/// there.
fn within(shards: &[Shard<'_>], prefix: &str, name: &str, experts: usize, shape: &[usize]) -> Within {
    let whole = Within::all(full_name(shards, prefix, name), shape);
    let expert = ExpertMatrix::parse(name).filter(|_| find(shards, &whole.tensor).is_none());
    let fused = expert.map(|expert| {
        let fused = expert.within_fused(experts, shape);
        Within { tensor: full_name(shards, prefix, &fused.tensor), ..fused }
    });
    fused.filter(|fused| find(shards, &fused.tensor).is_some()).unwrap_or(whole)
}

pub(super) fn full_name(shards: &[Shard<'_>], prefix: &str, name: &str) -> String {
    if name == "lm_head.weight" {
        let has = |head: &&&str| {
            let module = head.trim_end_matches(".weight");
            CODES.iter().any(|codes| find(shards, &format!("{module}.{codes}")).is_some())
        };
        return (*HEADS.iter().find(has).unwrap_or(&HEADS[0])).to_owned();
    }
    format!("{prefix}{name}")
}

fn stored_type(dtype: Dtype) -> Option<StoredType> {
    match dtype {
        Dtype::F32 => Some(StoredType::F32),
        Dtype::F16 => Some(StoredType::F16),
        Dtype::BF16 => Some(StoredType::Bf16),
        _ => None,
    }
}

impl<'a> Shard<'a> {
    /// Opens a file. The library checks that the tensors fill it exactly.
    pub(crate) fn open(name: &str, bytes: Bytes<'a>) -> Result<Self, ModelError> {
        const LENGTH: usize = 8;
        refuse_pointer(name, &bytes)?;
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| {
            ModelError::weights(format!("{name} is not safetensors, or truncated: {error}"))
        })?;
        Ok(Self { name: name.to_owned(), bytes, metadata, data: LENGTH + header })
    }

    /// The file's name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The names of all tensors.
    pub(super) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// All tensors, by name.
    pub(crate) fn tensors(&self) -> Result<Vec<Stored<'_>>, ModelError> {
        let mut all: Vec<_> = self.metadata.tensors().into_iter().collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all.into_iter().map(|(name, info)| self.stored(&name, info)).collect()
    }

    pub(super) fn stored(&self, name: &str, info: &TensorInfo) -> Result<Stored<'_>, ModelError> {
        let kind = stored_type(info.dtype).ok_or_else(|| {
            ModelError::unsupported(format!(
                "tensor {name} is stored as {:?}; supported are F32, F16 and BF16",
                info.dtype
            ))
        })?;
        let (shape, order) = (info.shape.clone(), RowOrder::Plain);
        Ok(Stored {
            name: name.to_owned(),
            kind,
            shape,
            order,
            bytes: self.bytes_of(info),
            scales: &[],
            codes: None,
        })
    }

    pub(super) fn bytes_of(&self, info: &TensorInfo) -> &[u8] {
        let (start, end) = info.data_offsets;
        &self.bytes[self.data + start..self.data + end]
    }
}

/// `model.safetensors`, or the shards that the index names. If both exist, the single file wins, as in transformers.
fn shard_names(source: &Source<'_>) -> Result<Vec<String>, ModelError> {
    const WHOLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    if source.has(WHOLE) {
        return Ok(vec![WHOLE.to_owned()]);
    }
    let Some(bytes) = source.read(INDEX)? else {
        return Err(ModelError::weights(format!(
            "{} has no file {WHOLE} and no {INDEX}, which names its parts; weights with other names or in other formats \
             (pytorch_model.bin, consolidated.safetensors) are not read",
            source.name()
        )));
    };
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::weights(format!("{INDEX} can't be read: {error}")))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    if names.is_empty() {
        return Err(ModelError::weights(format!("{INDEX} lists no files")));
    }
    for name in &names {
        plain_name(name)?;
    }
    Ok(names.into_iter().collect())
}
