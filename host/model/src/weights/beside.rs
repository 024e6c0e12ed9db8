//! Tensors of a file by their full names, and what can be wrong with one that belongs to others.

use safetensors::tensor::{Dtype, TensorInfo};

use super::codes::{Codes, Float};
use super::files::{Shard, find};
use super::stored::{RowOrder, Stored, StoredType};
use crate::error::ModelError;

/// A tensor of a module, and the file that has it.
pub(super) struct Found<'f, 'a> {
    pub name: String,
    shard: &'f Shard<'a>,
    pub info: &'f TensorInfo,
}

impl<'f, 'a> Found<'f, 'a> {
    pub(super) fn find(shards: &'f [Shard<'a>], module: &str, suffix: &str) -> Option<Self> {
        let name = format!("{module}.{suffix}");
        let (shard, info) = find(shards, &name)?;
        Some(Self { name, shard, info })
    }

    /// A tensor of the same module, which must be there, too.
    pub(super) fn beside(
        &self,
        shards: &'f [Shard<'a>],
        module: &str,
        suffix: &str,
    ) -> Result<Self, ModelError> {
        Self::find(shards, module, suffix)
            .ok_or_else(|| self.wrong(&format!("has no {module}.{suffix} beside it")))
    }

    pub(super) fn bytes(&self) -> &'f [u8] {
        self.shard.bytes_of(self.info)
    }

    pub(super) fn expect_shape(&self, shape: &[usize]) -> Result<(), ModelError> {
        match self.info.shape == shape {
            true => Ok(()),
            false => {
                Err(self.wrong(&format!("has shape {:?}, config.json requires {shape:?}", self.info.shape)))
            }
        }
    }

    pub(super) fn expect(&self, dtype: Dtype, shape: &[usize]) -> Result<(), ModelError> {
        self.expect_type(dtype)?;
        self.expect_shape(shape)
    }

    pub(super) fn expect_type(&self, dtype: Dtype) -> Result<(), ModelError> {
        match self.info.dtype == dtype {
            true => Ok(()),
            false => Err(self.wrong(&format!("is stored as {:?}, and must be {dtype:?}", self.info.dtype))),
        }
    }

    /// The type of scales.
    pub(super) fn float(&self) -> Result<Float, ModelError> {
        let why = || format!("is stored as {:?}, which is no type of scales", self.info.dtype);
        Float::of(self.info.dtype).ok_or_else(|| self.wrong(&why()))
    }

    /// Whether the groups of inputs are others than those of neighbours. There are `count` of `group` inputs.
    pub(super) fn are_ordered(&self, inputs: usize, group: usize, count: usize) -> Result<bool, ModelError> {
        self.expect(Dtype::I32, &[inputs])?;
        let mut ordered = false;
        for (input, index) in self.bytes().as_chunks().0.iter().enumerate() {
            let index = i32::from_le_bytes(*index);
            if usize::try_from(index).is_ok_and(|index| index < count) {
                ordered |= index as usize != input / group;
                continue;
            }
            return Err(self.wrong(&format!("says that input {input} is in group {index}, of {count}")));
        }
        Ok(ordered)
    }

    /// Whether the groups of inputs are left open: each is -1.
    pub(super) fn are_unset(&self) -> bool {
        self.info.dtype == Dtype::I32 && self.bytes().iter().all(|byte| *byte == u8::MAX)
    }

    /// Checks that its numbers are the shape of a matrix.
    pub(super) fn is_shape(&self, shape: [usize; 2]) -> Result<(), ModelError> {
        self.expect(Dtype::I64, &[2])?;
        let sides = self.bytes().as_chunks().0.iter().map(|side| i64::from_le_bytes(*side));
        match sides.clone().eq(shape.iter().map(|side| *side as i64)) {
            true => Ok(()),
            false => {
                let sides: Vec<i64> = sides.collect();
                Err(self.wrong(&format!("says {sides:?}, config.json requires {shape:?}")))
            }
        }
    }

    pub(super) fn stored(&self, shape: [usize; 2], codes: Codes<'f>) -> Stored<'f> {
        Stored {
            name: self.name.clone(),
            kind: StoredType::Codes,
            shape: shape.to_vec(),
            order: RowOrder::Plain,
            bytes: self.bytes(),
            scales: &[],
            codes: Some(codes),
        }
    }

    pub(super) fn undeclared(&self) -> ModelError {
        self.wrong("is of another form than the quantization_config of config.json says")
    }

    pub(super) fn wrong(&self, why: &str) -> ModelError {
        ModelError::weights(format!("{}: tensor {} {why}", self.shard.name(), self.name))
    }
}
