//! Matrices of integers in words as the tools of GPTQ and of AWQ write them: in both an input's outputs are neighbours.

use safetensors::tensor::Dtype;

use super::beside::Found;
use super::codes::{Codes, Layout, Scales, Zeros};
use super::files::Shard;
use super::stored::Stored;
use crate::error::ModelError;

/// GPTQ's form.
#[derive(Clone, Copy)]
pub(super) struct Gptq {
    pub bits: usize,
    /// Inputs of an output that share a scale.
    pub group: usize,
    /// These may be other ones than neighbours.
    pub ordered: bool,
}

/// AWQ's form, of 4 bits.
#[derive(Clone, Copy)]
pub(super) struct Awq {
    /// Inputs of an output that share a scale.
    pub group: usize,
}

/// A module with such a matrix.
pub(super) struct Words<'m, 'f, 'a> {
    pub shards: &'f [Shard<'a>],
    pub module: &'m str,
    pub codes: Found<'f, 'a>,
    /// Outputs and inputs.
    pub shape: [usize; 2],
}

impl<'f, 'a> Words<'_, 'f, 'a> {
    pub(super) fn gptq(&self, form: Gptq) -> Result<Stored<'f>, ModelError> {
        let ([outputs, inputs], codes, Gptq { bits, group, ordered }) = (self.shape, &self.codes, form);
        let count = inputs.div_ceil(group);
        codes.expect(Dtype::I32, &[(inputs * bits).div_ceil(32), outputs])?;
        let zeros = self.beside("qzeros")?;
        zeros.expect(Dtype::I32, &[count, (outputs * bits).div_ceil(32)])?;
        let scales = self.scales(count, group)?;
        let indices = match Found::find(self.shards, self.module, "g_idx") {
            None if ordered => Some(self.beside("g_idx")?),
            indices => indices,
        };
        let ordered = match &indices {
            None => false,
            Some(indices) => indices.are_ordered(inputs, group, count)?,
        };
        let (layout, zeros) = (Layout::Down { bits }, Zeros::Less { bits, bytes: zeros.bytes() });
        let indices = indices.map_or(&[][..], |indices| indices.bytes());
        Ok(codes.stored(self.shape, Codes { rows: (0, outputs), layout, scales, zeros, indices, ordered }))
    }

    pub(super) fn awq(&self, Awq { group }: Awq) -> Result<Stored<'f>, ModelError> {
        let ([outputs, inputs], codes) = (self.shape, &self.codes);
        if !outputs.is_multiple_of(8) {
            return Err(codes.wrong(&format!("is of {outputs} outputs, and words are of 8")));
        }
        let count = inputs.div_ceil(group);
        codes.expect(Dtype::I32, &[inputs, outputs / 8])?;
        let zeros = self.beside("qzeros")?;
        zeros.expect(Dtype::I32, &[count, outputs / 8])?;
        let scales = self.scales(count, group)?;
        let (layout, zeros) = (Layout::Across, Zeros::Across(zeros.bytes()));
        let rows = (0, outputs);
        Ok(codes.stored(self.shape, Codes { rows, layout, scales, zeros, indices: &[], ordered: false }))
    }

    /// The scales of `count` groups of so many inputs: those of a group are together.
    fn scales(&self, count: usize, group: usize) -> Result<Scales<'f>, ModelError> {
        let (found, outputs) = (self.beside("scales")?, self.shape[0]);
        found.expect_shape(&[count, outputs])?;
        let (float, bytes) = (found.float()?, found.bytes());
        Ok(Scales { float, bytes, block: [1, group], count, steps: [1, outputs] })
    }

    fn beside(&self, suffix: &str) -> Result<Found<'f, 'a>, ModelError> {
        self.codes.beside(self.shards, self.module, suffix)
    }
}
