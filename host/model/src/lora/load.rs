//! Loads an adapter from the two files that PEFT writes. Which projections it changes follows from its tensors; whatever
//! would be computed wrongly is refused by name. The base model that it names is not compared: names change, and only shapes
//! tell.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;

use infer_kernels::{Format, Matrix, Packer};

use super::names::{Half, Name, Target};
use super::{AdaptedLayer, Adapter, AdapterSize, Delta, Part};
use crate::bytes::Bytes;
use crate::config::{LoraConfig, ModelConfig};
use crate::error::ModelError;
use crate::memory;
use crate::source::Source;
use crate::weights::{RowOrder, Shard, Stored, size};

/// The file of the tensors.
const WEIGHTS: &str = "adapter_model.safetensors";
/// The same in a format that runs code when it is read.
const PICKLED: &str = "adapter_model.bin";

/// The two matrices of a projection, as they are stored.
struct Pair<'a> {
    module: &'a str,
    halves: [Option<&'a Stored<'a>>; 2],
}

/// A projection's matrices, with their shapes checked.
struct Found<'a> {
    rank: usize,
    scale: f32,
    a: &'a Stored<'a>,
    b: &'a Stored<'a>,
}

type AllFound<'a> = BTreeMap<(usize, Target), Found<'a>>;

/// Both files of an adapter.
pub(super) struct Files<'a> {
    /// Of the adapter, in messages.
    name: String,
    settings: LoraConfig,
    shard: Shard<'a>,
}

impl Adapter {
    /// Loads an adapter of a model of this shape, in this format.
    pub(crate) fn load(
        source: &Source<'_>,
        config: &ModelConfig,
        format: Format,
    ) -> Result<Self, ModelError> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        Files::map(source)?.load(config, format, threads)
    }

    /// Checks an adapter as loading does.
    pub(crate) fn check(source: &Source<'_>, config: &ModelConfig) -> Result<(), ModelError> {
        let Files { settings, shard, .. } = Files::map(source)?;
        let tensors = shard.tensors()?;
        let found = find(&tensors, &settings, config)?;
        found.values().flat_map(|found| [found.a, found.b]).try_for_each(|stored| numbers(stored).map(|_| ()))
    }
}

impl<'a> Files<'a> {
    /// Opens both files and maps that of the tensors.
    fn map(source: &Source<'a>) -> Result<Self, ModelError> {
        Self::open(source, Bytes::map)
    }

    /// The same, but copies that, of up to so many bytes.
    pub(super) fn copy(source: &Source<'a>, most: u64) -> Result<Self, ModelError> {
        Self::open(source, |path| Bytes::copy(path, most))
    }

    fn open(
        source: &Source<'a>,
        bytes: impl Fn(&Path) -> Result<Bytes<'a>, ModelError>,
    ) -> Result<Self, ModelError> {
        let missing = |file: &str, more: &str| {
            let message = format!("{} has no {file}; is it an adapter of PEFT?{more}", source.name());
            if file == WEIGHTS { ModelError::weights(message) } else { ModelError::adapter(message) }
        };
        if let Source::Gguf(_) = source {
            let message = format!("{}: adapters in GGUF are not supported, PEFT's are", source.name());
            return Err(ModelError::unsupported(message));
        }
        let Some(settings) = source.read(LoraConfig::FILE)? else {
            return Err(missing(LoraConfig::FILE, ""));
        };
        let settings = LoraConfig::parse(&settings)?;
        let shard = match source {
            Source::Directory(directory) if source.has(WEIGHTS) => {
                let path = directory.join(WEIGHTS);
                Shard::open(&path.display().to_string(), bytes(&path)?)?
            }
            Source::Embedded(files) => match files.iter().find(|(name, _)| *name == WEIGHTS) {
                Some((name, bytes)) => Shard::open(name, Bytes::Borrowed(bytes))?,
                None => return Err(missing(WEIGHTS, "")),
            },
            Source::Directory(_) | Source::Gguf(_) if source.has(PICKLED) => {
                let advice =
                    format!(" {PICKLED} is not read, as reading it runs code; save it as safetensors");
                return Err(missing(WEIGHTS, &advice));
            }
            Source::Directory(_) | Source::Gguf(_) => return Err(missing(WEIGHTS, "")),
        };
        Ok(Self { name: source.name(), settings, shard })
    }

    /// What an adapter of a model of this shape will take at least in this format, by the shapes of its tensors.
    pub(super) fn measure(&self, config: &ModelConfig, format: Format) -> Result<AdapterSize, ModelError> {
        let tensors = self.shard.tensors()?;
        Ok(measured(&find(&tensors, &self.settings, config)?, config, format))
    }

    /// Loads the adapter, with so many threads.
    pub(super) fn load(
        &self,
        config: &ModelConfig,
        format: Format,
        threads: usize,
    ) -> Result<Adapter, ModelError> {
        let tensors = self.shard.tensors()?;
        let mut found = find(&tensors, &self.settings, config)?;
        let what = format!("adapter {} doesn't fit: it takes", self.name);
        memory::check(&what, measured(&found, config, format).bytes, "serve fewer adapters")?;
        let packer = Packer::new(threads)
            .map_err(|error| ModelError::machine(format!("can't start {threads} threads: {error}")))?;
        let mut stacker = Stacker { config, format, packer };
        let layers = (0..config.layers.len()).map(|layer| stacker.layer(layer, &mut found));
        Ok(Adapter { layers: layers.collect::<Result<_, _>>()? })
    }
}

fn measured(found: &AllFound<'_>, config: &ModelConfig, format: Format) -> AdapterSize {
    let bytes = found.iter().map(|((_, target), found)| {
        let [outputs, inputs] = target.shape(config);
        size([found.rank, outputs + inputs], format)
    });
    let rank = found.values().map(|found| found.rank).max().unwrap_or(0);
    AdapterSize { rank: rank as u32, bytes: bytes.sum() }
}

/// All matrices of an adapter. Their numbers are not read yet.
fn find<'a>(
    tensors: &'a [Stored<'a>],
    settings: &LoraConfig,
    config: &ModelConfig,
) -> Result<AllFound<'a>, ModelError> {
    let mut pairs: BTreeMap<(usize, Target), Pair<'_>> = BTreeMap::new();
    for tensor in tensors {
        let Name { layer, target, half, module } = Name::parse(&tensor.name, config)?;
        let pair = pairs.entry((layer, target)).or_insert(Pair { module, halves: [None, None] });
        if let Some(other) = pair.halves[half as usize].replace(tensor) {
            let (one, other) = (&tensor.name, &other.name);
            return Err(ModelError::weights(format!("tensors {other} and {one} are the same matrix")));
        }
    }
    if pairs.is_empty() {
        return Err(ModelError::weights(format!("{WEIGHTS} has no tensors")));
    }
    let found = pairs.into_iter().map(|((layer, target), pair)| {
        let found = pair.check(settings, target.shape(config))?;
        Ok::<_, ModelError>(((layer, target), found))
    });
    found.collect()
}

impl<'a> Pair<'a> {
    /// Checks that both matrices are there, in the right shapes.
    fn check(&self, settings: &LoraConfig, [outputs, inputs]: [usize; 2]) -> Result<Found<'a>, ModelError> {
        let module = self.module;
        let [Some(a), Some(b)] = self.halves else {
            let missing = if self.halves[Half::A as usize].is_none() { "lora_A" } else { "lora_B" };
            return Err(ModelError::weights(format!("{module} has no {missing}.weight")));
        };
        let (rank, scale) = settings.of(module)?;
        for (stored, shape) in [(a, [rank, inputs]), (b, [outputs, rank])] {
            if stored.shape != shape {
                return Err(ModelError::weights(format!(
                    "tensor {} has shape {:?}, the model and {} require {shape:?}",
                    stored.name,
                    stored.shape,
                    LoraConfig::FILE
                )));
            }
        }
        Ok(Found { rank, scale, a, b })
    }
}

/// Reads a matrix.
fn numbers(stored: &Stored<'_>) -> Result<Vec<f32>, ModelError> {
    let numbers = stored.numbers()?;
    if numbers.iter().all(|number| number.is_finite()) {
        return Ok(numbers);
    }
    let name = &stored.name;
    Err(ModelError::weights(format!("tensor {name} has numbers that are infinite or not a number")))
}

/// Packs matrices as the model's products read them.
struct Stacker<'a> {
    config: &'a ModelConfig,
    format: Format,
    packer: Packer,
}

impl Stacker<'_> {
    fn layer(&mut self, layer: usize, found: &mut AllFound<'_>) -> Result<AdaptedLayer, ModelError> {
        let (qkv, gate_up) = match self.config.fused {
            true => (&[Target::QueryKeyValue][..], &[Target::GateUp][..]),
            false => (&[Target::Query, Target::Key, Target::Value][..], &[Target::Gate, Target::Up][..]),
        };
        let mut delta = |stack: &[Target]| self.delta(layer, stack, found);
        Ok(AdaptedLayer {
            qkv: delta(qkv)?,
            output: delta(&[Target::Output])?,
            gate_up: delta(gate_up)?,
            down: delta(&[Target::Down])?,
        })
    }

    fn delta(
        &mut self,
        layer: usize,
        stack: &[Target],
        found: &mut AllFound<'_>,
    ) -> Result<Option<Delta>, ModelError> {
        let (mut first, mut narrow, mut ranks, mut parts) = (0, Vec::new(), 0, Vec::new());
        for target in stack {
            let [outputs, _] = target.shape(self.config);
            if let Some(Found { rank, scale, a, b }) = found.remove(&(layer, *target)) {
                narrow.append(&mut numbers(a)?);
                ranks += rank;
                let wide = self.in_order(*target, numbers(b)?, rank);
                parts.push(Part { wide: self.pack(&wide, [outputs, rank])?, scale, first });
            }
            first += outputs;
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let narrow = self.pack(&narrow, [ranks, narrow.len() / ranks])?;
        Ok(Some(Delta { narrow, parts }))
    }

    /// The rows of `B` in the order of the model's, which for queries and keys may not be the checkpoint's.
    fn in_order(&self, target: Target, rows: Vec<f32>, rank: usize) -> Vec<f32> {
        let (order, rotated) = (RowOrder::of(self.config), target.rotated(self.config));
        if order == RowOrder::Plain || rotated == 0 {
            return rows;
        }
        let place = |row: usize| if row < rotated { order.stored(row) } else { row };
        (0..rows.len() / rank).flat_map(|row| rows[place(row) * rank..][..rank].iter().copied()).collect()
    }

    fn pack(&mut self, numbers: &[f32], [outputs, inputs]: [usize; 2]) -> Result<Matrix, ModelError> {
        let row = |index: usize, out: &mut [f32]| out.copy_from_slice(&numbers[index * inputs..][..inputs]);
        let packed = self.packer.matrix(self.format, outputs, inputs, row);
        packed.map_err(|error| ModelError::machine(format!("the adapter doesn't fit: {error}")))
    }
}
