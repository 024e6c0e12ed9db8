//! Weights in the order in which the matrix kernel reads them: panels of 64 output columns, and in a panel
//! all columns' first inputs, then all columns' second ones, and so on. A product then needs no horizontal
//! sums, and the decode path reads each panel front to back. Packing happens once, at load.

use half::bf16;

use crate::element::Element;
use crate::simd::LANES;

/// Output columns of a full panel: four vectors.
pub(crate) const PANEL: usize = 4 * LANES;

/// A matrix of `outputs` rows of `inputs` numbers, packed.
#[derive(Clone, Debug)]
pub struct Packed<T> {
    outputs: usize,
    inputs: usize,
    data: Vec<T>,
}

impl<T: Element> Packed<T> {
    /// Packs matrices of `inputs` columns, stacked one below the other; each slice is row-major.
    ///
    /// # Panics
    /// Where a slice is not whole rows.
    pub fn stack(inputs: usize, parts: &[&[T]]) -> Self {
        assert!(inputs > 0, "a matrix needs columns");
        assert!(parts.iter().all(|part| part.len().is_multiple_of(inputs)), "parts must be whole rows");
        let outputs = parts.iter().map(|part| part.len() / inputs).sum();
        let mut packed = Self::empty(outputs, inputs);
        let rows = parts.iter().flat_map(|part| part.chunks_exact(inputs));
        for (row, values) in rows.enumerate() {
            let (start, width) = packed.locate(row);
            for (i, value) in values.iter().enumerate() {
                packed.data[start + i * width] = *value;
            }
        }
        packed
    }

    fn empty(outputs: usize, inputs: usize) -> Self {
        let data = vec![T::ZERO; outputs.next_multiple_of(LANES) * inputs];
        Self { outputs, inputs, data }
    }

    /// Rows of the matrix: outputs of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix: inputs of the product.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Writes row `row`, times `scale`, to `out`: the embedding lookup of a tied matrix.
    pub fn unpack_row(&self, row: usize, scale: f32, out: &mut [f32]) {
        assert!(row < self.outputs, "row {row} of {}", self.outputs);
        assert_eq!(out.len(), self.inputs, "output must be one row");
        let (start, width) = self.locate(row);
        for (to, from) in out.iter_mut().zip(self.data[start..].iter().step_by(width)) {
            *to = from.to_f32() * scale;
        }
    }

    /// Panels in all; the last may be narrower.
    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// A panel's numbers and its width, a multiple of the lanes.
    pub(crate) fn panel(&self, panel: usize) -> (&[T], usize) {
        let start = panel * PANEL * self.inputs;
        let width = self.width(panel);
        (&self.data[start..start + width * self.inputs], width)
    }

    fn width(&self, panel: usize) -> usize {
        (self.outputs.next_multiple_of(LANES) - panel * PANEL).min(PANEL)
    }

    /// Where a row's first number is, and the distance to its next.
    fn locate(&self, row: usize) -> (usize, usize) {
        let panel = row / PANEL;
        (panel * PANEL * self.inputs + row % PANEL, self.width(panel))
    }
}

/// A packed matrix of either storage type.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// 32-bit floats.
    F32(Packed<f32>),
    /// bfloat16.
    Bf16(Packed<bf16>),
}

impl Matrix {
    /// Rows of the matrix: outputs of the product.
    pub fn outputs(&self) -> usize {
        match self {
            Self::F32(packed) => packed.outputs(),
            Self::Bf16(packed) => packed.outputs(),
        }
    }

    /// Columns of the matrix: inputs of the product.
    pub fn inputs(&self) -> usize {
        match self {
            Self::F32(packed) => packed.inputs(),
            Self::Bf16(packed) => packed.inputs(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(packed) => packed.bytes(),
            Self::Bf16(packed) => packed.bytes(),
        }
    }

    /// See [`Packed::unpack_row`].
    pub fn unpack_row(&self, row: usize, scale: f32, out: &mut [f32]) {
        match self {
            Self::F32(packed) => packed.unpack_row(row, scale, out),
            Self::Bf16(packed) => packed.unpack_row(row, scale, out),
        }
    }
}
