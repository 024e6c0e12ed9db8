//! Experts as gpt-oss stores them: one tensor for all of a layer, in which the outputs of gate and up take turns. As floats it
//! is `[expert][input][output]`; as MXFP4 it is two, the codes `[expert][output][block][byte]` and the exponents
//! `[expert][output][block]`. Biases are `[expert][output]`.

use infer_kernels::GROUP;
use safetensors::tensor::Dtype;

use super::expert::ExpertMatrix;
use super::files::{Shard, find, full_name};
use super::stored::{Mxfp4, RowOrder, Stored, StoredType};
use crate::error::ModelError;

/// Bytes of a block's codes.
const CODES: usize = GROUP / 2;

/// Files of such a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Interleaved<'f, 'a> {
    pub shards: &'f [Shard<'a>],
    pub prefix: &'f str,
    /// Experts of a layer.
    pub experts: usize,
}

impl<'f> Interleaved<'f, '_> {
    /// The matrix, `[outputs, inputs]`, or the bias, `[outputs]`, of this name, or `None` if it isn't an expert's.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Option<Result<Stored<'f>, ModelError>> {
        if let Some(bias) = ExpertMatrix::parse_bias(name) {
            return Some(self.bias(bias, shape));
        }
        let matrix = ExpertMatrix::parse(name)?;
        Some(match self.has_blocks(matrix) {
            true => self.blocks(matrix, shape),
            false => self.floats(matrix, shape),
        })
    }

    /// How a matrix is stored, if it is an expert's and there.
    pub(super) fn stored_type(&self, name: &str) -> Option<StoredType> {
        let matrix = ExpertMatrix::parse(name)?;
        if self.has_blocks(matrix) {
            return Some(StoredType::Mxfp4(Mxfp4::Apart));
        }
        let (shard, info) = find(self.shards, &self.name(matrix, ""))?;
        shard.stored("", info).ok().map(|stored| stored.kind)
    }

    fn has_blocks(&self, matrix: ExpertMatrix<'_>) -> bool {
        find(self.shards, &self.name(matrix, "_blocks")).is_some()
    }

    fn name(&self, matrix: ExpertMatrix<'_>, suffix: &str) -> String {
        let part = if half(matrix).is_some() { "gate_up_proj" } else { matrix.part };
        full_name(self.shards, self.prefix, &format!("{}.{part}{suffix}", matrix.all))
    }

    fn bias(&self, matrix: ExpertMatrix<'_>, shape: &[usize]) -> Result<Stored<'f>, ModelError> {
        let name = self.name(matrix, "_bias");
        let (half, outputs) = (half(matrix), outputs(matrix, shape));
        let whole = self.whole(&name, &[self.experts, outputs])?;
        let order = half.map_or(RowOrder::Plain, |half| RowOrder::Alternating { half });
        Ok(Stored { shape: shape.to_vec(), order, bytes: self.part(matrix, whole.bytes), ..whole })
    }

    fn floats(&self, matrix: ExpertMatrix<'_>, shape: &[usize]) -> Result<Stored<'f>, ModelError> {
        let name = self.name(matrix, "");
        let outputs = outputs(matrix, shape);
        let whole = self.whole(&name, &[self.experts, shape[1], outputs])?;
        let order = match half(matrix) {
            None => RowOrder::Transposed { first: 0, step: 1 },
            Some(half) => RowOrder::Transposed { first: half, step: 2 },
        };
        Ok(Stored { shape: shape.to_vec(), order, bytes: self.part(matrix, whole.bytes), ..whole })
    }

    fn blocks(&self, matrix: ExpertMatrix<'_>, shape: &[usize]) -> Result<Stored<'f>, ModelError> {
        let (outputs, inputs) = (outputs(matrix, shape), shape[1]);
        let name = self.name(matrix, "_blocks");
        if !inputs.is_multiple_of(GROUP) {
            let message = format!("tensor {name}: rows of {inputs} numbers are no whole blocks of {GROUP}");
            return Err(ModelError::weights(message));
        }
        let blocks = [self.experts, outputs, inputs / GROUP];
        let codes = self.bytes(&name, &[&blocks[..], &[CODES]].concat())?;
        let scales = self.bytes(&self.name(matrix, "_scales"), &blocks)?;
        Ok(Stored {
            name: format!("{name}[{}]", matrix.expert),
            kind: StoredType::Mxfp4(Mxfp4::Apart),
            shape: shape.to_vec(),
            order: half(matrix).map_or(RowOrder::Plain, |half| RowOrder::Alternating { half }),
            bytes: self.part(matrix, codes),
            scales: self.part(matrix, scales),
            codes: None,
        })
    }

    /// A tensor of floats.
    fn whole(&self, name: &str, shape: &[usize]) -> Result<Stored<'f>, ModelError> {
        let (shard, info) = find(self.shards, name).ok_or_else(|| missing(name))?;
        same_shape(name, &info.shape, shape)?;
        shard.stored(name, info)
    }

    /// The bytes of a tensor of bytes.
    fn bytes(&self, name: &str, shape: &[usize]) -> Result<&'f [u8], ModelError> {
        let (shard, info) = find(self.shards, name).ok_or_else(|| missing(name))?;
        same_shape(name, &info.shape, shape)?;
        if info.dtype != Dtype::U8 {
            let message = format!("tensor {name} is stored as {:?}; MXFP4 is stored as U8", info.dtype);
            return Err(ModelError::unsupported(message));
        }
        Ok(shard.bytes_of(info))
    }

    /// The expert's part.
    fn part<'b>(&self, matrix: ExpertMatrix<'_>, bytes: &'b [u8]) -> &'b [u8] {
        let len = bytes.len() / self.experts;
        &bytes[matrix.expert * len..][..len]
    }
}

/// Which of the outputs that take turns are the matrix's.
fn half(matrix: ExpertMatrix<'_>) -> Option<usize> {
    ["gate_proj", "up_proj"].iter().position(|part| *part == matrix.part)
}

/// Outputs of an expert in the tensor of a matrix of this shape.
fn outputs(matrix: ExpertMatrix<'_>, shape: &[usize]) -> usize {
    if half(matrix).is_some() { 2 * shape[0] } else { shape[0] }
}

pub(super) fn missing(name: &str) -> ModelError {
    ModelError::weights(format!("tensor {name} is missing"))
}

pub(super) fn same_shape(name: &str, shape: &[usize], required: &[usize]) -> Result<(), ModelError> {
    if shape == required {
        return Ok(());
    }
    let message = format!("tensor {name} has shape {shape:?}, config.json requires {required:?}");
    Err(ModelError::weights(message))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use infer_kernels::{Format, Packer};

    use crate::config::ModelConfig;
    use crate::source::Source;
    use crate::weights::files::Files;
    use crate::weights::order::{GatedStacks, MlpStacks, Stacks};
    use crate::weights::stacked::Stacked;

    /// That the numbers are the right ones, the golden tests show.
    #[test]
    fn matrices_of_blocks_have_the_numbers_that_the_blocks_stand_for() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gptoss-mxfp4");
        let source = Source::Directory(golden);
        let config = ModelConfig::load(&source).unwrap();
        let files = Files::open(&source, &config).unwrap();
        let mut packer = Packer::new(1).unwrap();
        let MlpStacks::Experts { experts, .. } = Stacks::of(&config, 3).mlp else {
            panic!("all are experts")
        };
        for GatedStacks { gate_up, down } in &experts {
            for (stack, gated) in [(gate_up, true), (down, false)] {
                let stacked = Stacked::open(&files, stack).unwrap();
                let packed = stacked.pack(&mut packer, Format::Mxfp4, gated).unwrap();
                let widened = stacked.pack(&mut packer, Format::F32, gated).unwrap();
                let [mut got, mut want] = std::array::from_fn(|_| vec![f32::NAN; stack.inputs]);
                for row in 0..stack.outputs() {
                    packed.unpack_row(row, 1.0, &mut got);
                    widened.unpack_row(row, 1.0, &mut want);
                    assert_eq!(got, want, "{:?}, row {row}", stack.parts);
                }
            }
        }
    }
}
