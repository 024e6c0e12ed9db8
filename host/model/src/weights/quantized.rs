//! Quantized matrices in safetensors: which tensors one consists of, and that each is there and has the shape that goes with
//! the others.

use safetensors::tensor::{Dtype, TensorInfo};

use super::codes::{Codes, Float, Layout, Scales, Zeros};
use super::files::{Shard, find};
use super::stored::{RowOrder, Stored, StoredType};
use crate::config::{Code, INSTEAD, Quantization, Scheme, Shared};
use crate::error::ModelError;

/// What scales are called.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

/// What tensors are called that would change what codes stand for, of forms that are not supported.
const CHANGING: [&str; 5] =
    ["weight_global_scale", "weight_scale_2", "pre_quant_scale", "weight_bitmask", "activation_scale_ub"];
/// What tensors are called that say how inputs of products, or keys and values, could be rounded.
const UNUSED: [&str; 11] = [
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "activation_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "kv_scale",
    "q_scale",
    "prob_scale",
];

/// Files of such a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Quantized<'f, 'a> {
    pub shards: &'f [Shard<'a>],
    pub forms: &'f Quantization,
}

/// A tensor and the file that has it.
struct Found<'f, 'a> {
    name: String,
    shard: &'f Shard<'a>,
    info: &'f TensorInfo,
}

impl<'f, 'a> Quantized<'f, 'a> {
    /// Refuses files with tensors that would make other numbers of the codes, and says in the log what else isn't used.
    pub(super) fn check_names(&self) -> Result<(), ModelError> {
        let mut unused = None;
        for shard in self.shards {
            for name in shard.names() {
                let suffix = name.rsplit('.').next().unwrap_or(&name);
                if CHANGING.contains(&suffix) {
                    let why = format!("{}: tensor {name} is not supported; {INSTEAD}", shard.name());
                    return Err(ModelError::unsupported(why));
                }
                if unused.is_none() && UNUSED.contains(&suffix) {
                    unused = Some(name);
                }
            }
        }
        if let Some(name) = unused {
            tracing::info!(
                "scales of inputs and of the KV cache in the checkpoint, such as {name}, are not used: inputs are rounded \
                 by their own sizes or not at all, and the KV cache is one of floats"
            );
        }
        Ok(())
    }

    /// The matrix of a module, `[outputs, inputs]`; `None` if it is one of floats, or missing.
    pub(super) fn matrix(&self, module: &str, shape: [usize; 2]) -> Option<Result<Stored<'f>, ModelError>> {
        if let Some(codes) = self.find(module, "qweight") {
            return Some(match self.forms {
                Quantization::Gptq { bits, group, ordered } => {
                    let form = Gptq { bits: *bits, group: group.unwrap_or(shape[1]), ordered: *ordered };
                    form.matrix(self, module, &codes, shape)
                }
                Quantization::Awq { group } => self.awq(module, &codes, group.unwrap_or(shape[1]), shape),
                Quantization::Scaled(_) => Err(codes.undeclared()),
            });
        }
        let weight = self.find(module, "weight")?;
        let code = match weight.info.dtype {
            Dtype::F8_E4M3 => Code::Float8,
            _ => {
                let scale = SCALES.iter().find_map(|scale| self.find(module, scale))?;
                let why = format!("is for codes, and {} is stored as {:?}", weight.name, weight.info.dtype);
                return Some(Err(scale.wrong(&why)));
            }
        };
        Some(self.scaled(module, &weight, code, shape))
    }

    /// A matrix of codes, one after the other.
    fn scaled(
        &self,
        module: &str,
        weight: &Found<'f, 'a>,
        code: Code,
        shape: [usize; 2],
    ) -> Result<Stored<'f>, ModelError> {
        let Quantization::Scaled(schemes) = self.forms else { return Err(weight.undeclared()) };
        weight.expect_shape(&shape)?;
        let schemes: Vec<Scheme> = schemes.iter().copied().filter(|scheme| scheme.code == code).collect();
        let scales = self.scales(module, weight, &schemes, shape)?;
        let codes = Codes {
            rows: (0, shape[0]),
            layout: Layout::Floats,
            scales,
            zeros: Zeros::All(0.0),
            indices: &[],
            ordered: false,
        };
        Ok(weight.stored(shape, codes))
    }

    /// A matrix in AWQ's form, with as many inputs of an output in a group.
    fn awq(
        &self,
        module: &str,
        codes: &Found<'f, 'a>,
        group: usize,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Stored<'f>, ModelError> {
        if !outputs.is_multiple_of(8) {
            return Err(codes.wrong(&format!("is of {outputs} outputs, and words are of 8")));
        }
        let count = inputs.div_ceil(group);
        codes.expect(Dtype::I32, &[inputs, outputs / 8])?;
        let zeros = self.beside(codes, module, "qzeros")?;
        zeros.expect(Dtype::I32, &[count, outputs / 8])?;
        let scales = self.beside(codes, module, "scales")?.by_group([outputs, count], group)?;
        let (layout, zeros) = (Layout::Across, Zeros::Across(zeros.bytes()));
        let codes_of = Codes { rows: (0, outputs), layout, scales, zeros, indices: &[], ordered: false };
        Ok(codes.stored([outputs, inputs], codes_of))
    }

    /// The scales of a matrix whose codes are `weight`, in the first of the forms that has their shape.
    fn scales(
        &self,
        module: &str,
        weight: &Found<'f, 'a>,
        schemes: &[Scheme],
        shape: [usize; 2],
    ) -> Result<Scales<'f>, ModelError> {
        let found = SCALES.iter().find_map(|scale| self.find(module, scale));
        let found = found.ok_or_else(|| weight.wrong(&format!("has no {module}.weight_scale beside it")))?;
        let float = found.float()?;
        let form = schemes.iter().find_map(|scheme| layout(scheme.shared, shape, &found.info.shape));
        let Some((block, count)) = form else {
            let shared: Vec<String> = schemes.iter().map(|scheme| shown(scheme.shared)).collect();
            let why = format!(
                "has shape {:?}, which for a matrix of {shape:?} is not that of a scale {}, as config.json has it",
                found.info.shape,
                shared.join(" or ")
            );
            return Err(found.wrong(&why));
        };
        Ok(Scales { float, bytes: found.bytes(), block, count, steps: [count, 1] })
    }

    /// A tensor that must be beside the codes.
    fn beside(&self, codes: &Found<'f, 'a>, module: &str, suffix: &str) -> Result<Found<'f, 'a>, ModelError> {
        self.find(module, suffix).ok_or_else(|| codes.wrong(&format!("has no {module}.{suffix} beside it")))
    }

    fn find(&self, module: &str, suffix: &str) -> Option<Found<'f, 'a>> {
        let name = format!("{module}.{suffix}");
        let (shard, info) = find(self.shards, &name)?;
        Some(Found { name, shard, info })
    }
}

/// GPTQ's form, with as many inputs of an output in a group.
struct Gptq {
    bits: usize,
    group: usize,
    ordered: bool,
}

impl Gptq {
    fn matrix<'f>(
        &self,
        files: &Quantized<'f, '_>,
        module: &str,
        codes: &Found<'f, '_>,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Stored<'f>, ModelError> {
        let Self { bits, group, ordered } = *self;
        let count = inputs.div_ceil(group);
        codes.expect(Dtype::I32, &[(inputs * bits).div_ceil(32), outputs])?;
        let zeros = files.beside(codes, module, "qzeros")?;
        zeros.expect(Dtype::I32, &[count, (outputs * bits).div_ceil(32)])?;
        let scales = files.beside(codes, module, "scales")?.by_group([outputs, count], group)?;
        let indices = match files.find(module, "g_idx") {
            None if ordered => return Err(codes.wrong(&format!("has no {module}.g_idx beside it"))),
            indices => indices,
        };
        let ordered = match &indices {
            None => false,
            Some(indices) => indices.are_ordered(inputs, group, count)?,
        };
        let zeros = Zeros::Less { bits, bytes: zeros.bytes() };
        let indices = indices.map_or(&[][..], |indices| indices.bytes());
        let layout = Layout::Down { bits };
        Ok(codes
            .stored([outputs, inputs], Codes { rows: (0, outputs), layout, scales, zeros, indices, ordered }))
    }
}

/// Rows and inputs that share a scale, and scales of a row, if scales of this shape are shared so.
fn layout(shared: Shared, [outputs, inputs]: [usize; 2], scales: &[usize]) -> Option<([usize; 2], usize)> {
    let (block, has_shape) = match shared {
        Shared::Matrix => ([outputs, inputs], matches!(scales, [] | [1] | [1, 1])),
        Shared::Output => ([1, inputs], scales == [outputs] || scales == [outputs, 1]),
        Shared::Block(block) => (block, scales == [outputs.div_ceil(block[0]), inputs.div_ceil(block[1])]),
    };
    has_shape.then(|| (block, inputs.div_ceil(block[1])))
}

fn shown(shared: Shared) -> String {
    match shared {
        Shared::Matrix => "per matrix".to_owned(),
        Shared::Output => "per output".to_owned(),
        Shared::Block([outputs, inputs]) => format!("per {outputs} outputs and {inputs} inputs"),
    }
}

impl<'f> Found<'f, '_> {
    fn bytes(&self) -> &'f [u8] {
        self.shard.bytes_of(self.info)
    }

    fn expect_shape(&self, shape: &[usize]) -> Result<(), ModelError> {
        match self.info.shape == shape {
            true => Ok(()),
            false => {
                Err(self.wrong(&format!("has shape {:?}, config.json requires {shape:?}", self.info.shape)))
            }
        }
    }

    fn expect(&self, dtype: Dtype, shape: &[usize]) -> Result<(), ModelError> {
        if self.info.dtype != dtype {
            return Err(self.wrong(&format!("is stored as {:?}, and must be {dtype:?}", self.info.dtype)));
        }
        self.expect_shape(shape)
    }

    /// The type of scales.
    fn float(&self) -> Result<Float, ModelError> {
        let why = || format!("is stored as {:?}, which is no type of scales", self.info.dtype);
        Float::of(self.info.dtype).ok_or_else(|| self.wrong(&why()))
    }

    /// Scales of `count` groups of so many inputs, of which each has those of all outputs together.
    fn by_group(&self, [outputs, count]: [usize; 2], inputs: usize) -> Result<Scales<'f>, ModelError> {
        self.expect_shape(&[count, outputs])?;
        let (float, bytes) = (self.float()?, self.bytes());
        Ok(Scales { float, bytes, block: [1, inputs], count, steps: [1, outputs] })
    }

    /// Whether the groups of inputs are others than those of neighbours. There are `count` of `group` inputs.
    fn are_ordered(&self, inputs: usize, group: usize, count: usize) -> Result<bool, ModelError> {
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

    fn stored(&self, shape: [usize; 2], codes: Codes<'f>) -> Stored<'f> {
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

    fn undeclared(&self) -> ModelError {
        self.wrong("is of another form than the quantization_config of config.json says")
    }

    fn wrong(&self, why: &str) -> ModelError {
        ModelError::weights(format!("{}: tensor {} {why}", self.shard.name(), self.name))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use infer_kernels::{GROUP, Group4};
    use serde_json::{Value, json};

    use super::*;
    use crate::bytes::Bytes;
    use crate::config::ModelConfig;

    /// A file of `tests/golden/codes`, and the forms that its checkpoint's configuration declares.
    fn golden(name: &str) -> (Vec<u8>, Quantization) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/codes");
        let bytes = std::fs::read(folder.join(name).with_extension("safetensors")).expect("it is there");
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("sound");
        let metadata = metadata.metadata().as_ref().expect("it has some");
        let declared: Value = serde_json::from_str(&metadata["quantization_config"]).expect("JSON");
        let config = json!({
            "model_type": "llama", "hidden_size": 96, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
            "quantization_config": declared
        });
        let config = ModelConfig::parse(config.to_string().as_bytes(), None).expect("supported");
        (bytes, config.quantization.expect("it is quantized"))
    }

    #[test]
    fn numbers_are_those_that_the_library_of_each_form_makes_of_the_codes() {
        for (name, in_four_bits) in [
            ("fp8-block", false),
            ("fp8-block-exponents", false),
            ("fp8-matrix", false),
            ("gptq-4", true),
            // Half as many inputs as ours share a scale.
            ("gptq-4-zeros", false),
            ("gptq-4-ordered", false),
            ("gptq-8-outputs", false),
            ("awq", true),
        ] {
            let (bytes, forms) = golden(name);
            let shards = [Shard::open(name, Bytes::Borrowed(&bytes)).expect("sound")];
            let quantized = Quantized { shards: &shards, forms: &forms };
            quantized.check_names().expect("nothing changes the codes");
            let (shard, info) = find(&shards, "expected").expect("it is there");
            let expected = shard.stored("expected", info).expect("floats");
            let [outputs, inputs] = expected.shape[..] else { panic!("a matrix") };
            let matrix = quantized.matrix("linear", [outputs, inputs]).expect("it is there").expect("sound");
            assert_eq!(matrix.is_four_bits(), in_four_bits, "{name}");
            let [mut got, mut want] = [vec![0.0; inputs], vec![0.0; inputs]];
            for row in 0..outputs {
                matrix.row(row, &mut got).expect("finite");
                expected.row(row, &mut want).expect("finite");
                assert_eq!(got, want, "{name}, row {row}");
                if in_four_bits {
                    let mut groups = vec![Group4::default(); inputs / GROUP];
                    matrix.groups(row, &mut groups).expect("finite");
                    compare(&groups, &want);
                }
            }
        }
    }

    /// The number of integer 0 is rounded, which is at most 15 of the scale away.
    fn compare(groups: &[Group4], want: &[f32]) {
        for (at, want) in want.iter().enumerate() {
            let Group4 { scale, base, integers } = groups[at / GROUP];
            let got = f32::from(integers[at % GROUP]) * scale.to_f32() + base.to_f32();
            assert!((got - want).abs() <= scale.to_f32() * 16.0 / 2048.0, "{at}: {got}, not {want}");
        }
    }
}
