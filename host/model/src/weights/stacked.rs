//! The tensors of a stack, packed as one matrix. A matrix has one format, but its rows are rounded one by one, so in one of
//! 4 bits the rows that are stored in 4 bits stay as they are, whatever they are stacked with.

use std::sync::OnceLock;

use infer_kernels::{Format, GROUP, Group4, Matrix, Mx4, Packer};

use super::does_not_fit;
use super::files::Files;
use super::order::Stack;
use super::stored::Stored;
use crate::error::ModelError;

/// How the names of matrices between embedding and head begin.
const LAYERS: &str = "layers.";
/// What names of experts' matrices contain.
const EXPERTS: &str = ".mlp.experts.";

/// A stack's tensors, from the top.
pub(super) struct Stacked<'a> {
    stack: &'a Stack,
    tensors: Vec<Stored<'a>>,
}

impl<'a> Stacked<'a> {
    pub(super) fn open(files: &'a Files<'_>, stack: &'a Stack) -> Result<Self, ModelError> {
        let tensors = stack.tensors().map(|(name, shape)| files.tensor(&name, &shape));
        Ok(Self { stack, tensors: tensors.collect::<Result<_, _>>()? })
    }

    pub(super) fn tensors(&self) -> &[Stored<'a>] {
        &self.tensors
    }

    /// Whether all tensors are stored in 4 bits.
    pub(super) fn is_four_bits(&self) -> bool {
        self.tensors.iter().all(Stored::is_four_bits)
    }

    /// Whether all tensors are stored as 4-bit floats.
    pub(super) fn is_mxfp4(&self) -> bool {
        self.tensors.iter().all(|tensor| tensor.kind.is_mxfp4())
    }

    /// Whether the stack belongs to a layer: it is neither embedding nor head.
    pub(super) fn in_layer(&self) -> bool {
        self.stack.parts.iter().all(|(name, _)| name.starts_with(LAYERS))
    }

    /// Whether the stack belongs to one of several experts.
    pub(super) fn is_expert(&self) -> bool {
        self.stack.parts.iter().all(|(name, _)| name.starts_with(LAYERS) && name.contains(EXPERTS))
    }

    /// Whether the matrix is held in f32, whatever others become.
    pub(super) fn is_exact(&self) -> bool {
        self.stack.exact
    }

    /// Packs the tensors; if `gated`, they are the two halves of a gated layer.
    pub(super) fn pack(
        &self,
        packer: &mut Packer,
        format: Format,
        gated: bool,
    ) -> Result<Matrix, ModelError> {
        let (outputs, inputs) = (self.stack.outputs(), self.stack.inputs);
        let unreadable = OnceLock::new();
        let note = |read: Result<(), ModelError>| {
            if let Err(error) = read {
                unreadable.get_or_init(|| error);
            }
        };
        // The packer rounds numbers faster, so it rounds where no row is kept.
        let kept = format == Format::Int4 && self.tensors.iter().any(Stored::is_four_bits);
        let numbers = |row: usize, out: &mut [f32]| note(self.row(row, out));
        let groups = |row: usize, out: &mut [Group4]| note(self.groups(row, out));
        let blocks = |row: usize, out: &mut [Mx4]| {
            let (tensor, row) = self.at(row);
            note(tensor.blocks(row, out));
        };
        let packed = match (kept, gated) {
            _ if format == Format::Mxfp4 && self.is_mxfp4() => match gated {
                false => packer.matrix_of(outputs, inputs, blocks),
                true => packer.gated_of(outputs / 2, inputs, blocks),
            },
            (false, false) => packer.matrix(format, outputs, inputs, numbers),
            (false, true) => packer.gated(format, outputs / 2, inputs, numbers),
            (true, false) => packer.matrix_of(outputs, inputs, groups),
            (true, true) => packer.gated_of(outputs / 2, inputs, groups),
        };
        match unreadable.into_inner() {
            Some(error) => Err(error),
            None => packed.map_err(|error| does_not_fit(&error)),
        }
    }

    /// The tensor of a row of the stack, and its row there.
    fn at(&self, mut row: usize) -> (&Stored<'a>, usize) {
        let found = self.tensors.iter().find(|tensor| {
            let here = row < tensor.rows();
            row -= if here { 0 } else { tensor.rows() };
            here
        });
        (found.expect("the stack has the row"), row)
    }

    fn row(&self, row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let (tensor, row) = self.at(row);
        tensor.row(row, out)
    }

    fn groups(&self, row: usize, out: &mut [Group4]) -> Result<(), ModelError> {
        let (tensor, row) = self.at(row);
        if tensor.is_four_bits() {
            return tensor.groups(row, out);
        }
        let mut numbers = vec![0.0; out.len() * GROUP];
        tensor.row(row, &mut numbers[..self.stack.inputs])?;
        out.iter_mut()
            .zip(numbers.as_chunks().0)
            .for_each(|(group, numbers)| *group = Group4::nearest(numbers));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::path::Path;

    use candle_core::quantized::gguf_file::{Value, write};
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::config::ModelConfig;
    use crate::source::Source;
    use crate::weights::Weights;
    use crate::weights::formats::{Formats, Rule};
    use crate::weights::order::{GatedStacks, MlpStacks, Stacks};
    use crate::{LoadOptions, Quantize};

    const CONFIG: &str = r#"{"model_type":"qwen2","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,
        "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":48,"rms_norm_eps":1e-5,"rope_theta":10000.0,
        "max_position_embeddings":64,"tie_word_embeddings":true}"#;

    /// A model of one layer, in which tensors of 4 bits are stacked with others, as Q4_K_M stacks q and k with v.
    fn mixed(path: &Path) -> (Source<'static>, ModelConfig) {
        let [four, eight, float] = [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::F32];
        let mut tensors = Vec::new();
        for (name, shape, kind) in [
            ("token_embd.weight", vec![48, 64], four),
            ("output_norm.weight", vec![64], float),
            ("blk.0.attn_norm.weight", vec![64], float),
            ("blk.0.ffn_norm.weight", vec![64], float),
            ("blk.0.attn_q.weight", vec![64, 64], four),
            ("blk.0.attn_k.weight", vec![32, 64], GgmlDType::Q4_1),
            ("blk.0.attn_v.weight", vec![32, 64], eight),
            ("blk.0.attn_q.bias", vec![64], float),
            ("blk.0.attn_k.bias", vec![32], float),
            ("blk.0.attn_v.bias", vec![32], float),
            ("blk.0.attn_output.weight", vec![64, 64], four),
            ("blk.0.ffn_gate.weight", vec![96, 64], float),
            ("blk.0.ffn_up.weight", vec![96, 64], four),
            ("blk.0.ffn_down.weight", vec![64, 96], eight),
        ] {
            let mut random = infer_kernels::Random::new(tensors.len() as u64 + 1);
            let numbers = random.numbers(shape.iter().product());
            let tensor = Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap();
            tensors.push((name, QTensor::quantize(&tensor, kind).unwrap()));
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let architecture = Value::String("qwen2".to_owned());
        let mut file = std::fs::File::create(path).unwrap();
        write(&mut file, &[("general.architecture", &architecture)], &tensors).unwrap();
        (Source::gguf(path).unwrap(), ModelConfig::parse(CONFIG.as_bytes(), None).unwrap())
    }

    #[test]
    fn rows_of_4_bits_stay_as_they_are_beside_others() {
        let directory = tempfile::tempdir().unwrap();
        let (source, config) = mixed(&directory.path().join("mixed.gguf"));
        let files = Files::open(&source, &config).unwrap();
        let mut packer = Packer::new(1).unwrap();
        let Stacks { qkv, mlp, .. } = Stacks::of(&config, 0);
        let MlpStacks::Dense(GatedStacks { gate_up, .. }) = mlp else { panic!("there are no experts") };
        for (stack, gated) in [(qkv, false), (gate_up, true)] {
            let stacked = Stacked::open(&files, &stack).unwrap();
            let format = Formats::from(Rule::Four).of(&stacked);
            assert_eq!(format, Format::Int4);
            let matrix = stacked.pack(&mut packer, format, gated).unwrap();
            let all = |row: usize, out: &mut [f32]| stacked.row(row, out).unwrap();
            let rounded = packer.matrix(Format::Int4, stack.outputs(), stack.inputs, all).unwrap();
            let [mut got, mut stored, mut again] = std::array::from_fn(|_| vec![0.0; stack.inputs]);
            let mut differ = 0;
            for row in 0..stack.outputs() {
                matrix.unpack_row(row, 1.0, &mut got);
                stacked.row(row, &mut stored).unwrap();
                rounded.unpack_row(row, 1.0, &mut again);
                let kept = stacked.at(row).0.is_four_bits();
                assert_eq!(got, if kept { &stored } else { &again }[..], "row {row}");
                differ += usize::from(kept && stored != again);
            }
            assert!(differ > 0, "rounding these once more changes nothing");
        }
    }

    #[test]
    fn memory_is_reckoned_by_the_stack() {
        let directory = tempfile::tempdir().unwrap();
        let (source, config) = mixed(&directory.path().join("mixed.gguf"));
        let files = Files::open(&source, &config).unwrap();
        for (quantize, rule) in [
            (Quantize::Auto, Rule::AsStored),
            (Quantize::Q4, Rule::Four),
            (Quantize::Q8, Rule::All(Format::Int8)),
            (Quantize::Off, Rule::All(Format::F32)),
        ] {
            let options = LoadOptions { quantize, ..LoadOptions::default() };
            let loaded =
                Weights::load(&source, &config, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(
                Formats::from(rule).bytes(&files, &config),
                loaded.weights.bytes() as u64,
                "{quantize:?}"
            );
        }
    }
}
