//! Quantized matrices in safetensors: which tensors one consists of, and that each is there and has the shape that goes with
//! the others. Those of GPTQ and AWQ are in `gptq`.

use safetensors::tensor::Dtype;

use super::beside::Found;
use super::codes::{Codes, Layout, Scales, Zeros};
use super::files::Shard;
use super::gptq::{Awq, Gptq, Words};
use super::stored::Stored;
use crate::config::{Code, INSTEAD, Quantization, Scheme, Shared};
use crate::error::ModelError;

/// What scales are called.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

/// What tensors are called that would change what codes stand for, of forms that are not supported.
const CHANGING: [&str; 4] = ["weight_global_scale", "weight_scale_2", "pre_quant_scale", "weight_bitmask"];
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

/// A module whose scales have names of their own.
struct Scaled<'m, 'f, 'a> {
    shards: &'f [Shard<'a>],
    module: &'m str,
    codes: Found<'f, 'a>,
    /// Outputs and inputs.
    shape: [usize; 2],
}

/// A form of which all tensors have the shapes that they need.
struct Fitting<'f> {
    scheme: Scheme,
    scales: Scales<'f>,
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
        let shards = self.shards;
        let find = |suffix: &str| Found::find(shards, module, suffix);
        if let Some(codes) = find("qweight") {
            let words = Words { shards, module, codes, shape };
            return Some(match *self.forms {
                Quantization::Gptq { bits, group, ordered } => {
                    words.gptq(Gptq { bits, group: group.unwrap_or(shape[1]), ordered })
                }
                Quantization::Awq { group } => words.awq(Awq { group: group.unwrap_or(shape[1]) }),
                Quantization::Scaled(_) => Err(words.codes.undeclared()),
            });
        }
        let (codes, is_code): (_, fn(Code) -> bool) = match (find("weight_packed"), find("weight")) {
            (Some(packed), _) => (packed, |code| matches!(code, Code::Packed { .. })),
            (None, Some(weight)) => match weight.info.dtype {
                Dtype::F8_E4M3 => (weight, |code| code == Code::Float8),
                Dtype::I8 => (weight, |code| code == Code::Byte),
                dtype => {
                    let scale = SCALES.iter().find_map(|scale| find(scale))?;
                    let why = format!("is for codes, and {} is stored as {dtype:?}", weight.name);
                    return Some(Err(scale.wrong(&why)));
                }
            },
            (None, None) => return None,
        };
        let schemes: Vec<Scheme> = match self.forms {
            Quantization::Scaled(schemes) => {
                schemes.iter().copied().filter(|scheme| is_code(scheme.code)).collect()
            }
            _ => Vec::new(),
        };
        Some(match schemes.is_empty() {
            true => Err(codes.undeclared()),
            false => Scaled { shards, module, codes, shape }.stored(&schemes),
        })
    }
}

impl<'f, 'a> Scaled<'_, 'f, 'a> {
    /// The matrix, in the first of these forms that its tensors have.
    fn stored(&self, schemes: &[Scheme]) -> Result<Stored<'f>, ModelError> {
        let [outputs, inputs] = self.shape;
        let declared = self.find("weight_shape").map(|shape| shape.is_shape(self.shape)).transpose()?;
        let Fitting { scheme, scales } = self.fitting(schemes)?;
        let layout = match scheme.code {
            Code::Float8 => Layout::Floats,
            Code::Byte => Layout::Signed,
            Code::Packed { bits } if declared.is_some() => Layout::Rows { bits },
            Code::Packed { .. } => return Err(self.codes.wrong(&self.lacks("weight_shape"))),
        };
        let zeros = self.zeros(scheme, scales.count)?;
        let indices = self.find("weight_g_idx").filter(|indices| !indices.are_unset());
        let ordered = match (&indices, scheme.shared) {
            (None, _) if scheme.ordered && self.find("weight_g_idx").is_none() => {
                return Err(self.codes.wrong(&self.lacks("weight_g_idx")));
            }
            (None, _) => false,
            (Some(indices), Shared::Group(group)) => indices.are_ordered(inputs, group, scales.count)?,
            (Some(indices), _) => {
                return Err(indices.wrong("is for groups of inputs, of which there are none"));
            }
        };
        let indices = indices.map_or(&[][..], |indices| indices.bytes());
        Ok(self
            .codes
            .stored(self.shape, Codes { rows: (0, outputs), layout, scales, zeros, indices, ordered }))
    }

    /// The first form that codes and scales have the shape of; of several, the one that says rightly whether there are zeros.
    fn fitting(&self, schemes: &[Scheme]) -> Result<Fitting<'f>, ModelError> {
        let ([outputs, inputs], codes) = (self.shape, &self.codes);
        let coded = |scheme: &&Scheme| match scheme.code {
            Code::Float8 | Code::Byte => codes.info.shape == self.shape,
            Code::Packed { bits } => codes.info.shape == [outputs, (inputs * bits).div_ceil(32)],
        };
        let schemes: Vec<Scheme> = schemes.iter().filter(coded).copied().collect();
        if schemes.iter().any(|scheme| matches!(scheme.code, Code::Packed { .. })) {
            codes.expect_type(Dtype::I32)?;
        }
        if schemes.is_empty() {
            let why = "is not that of codes that config.json has for a matrix of";
            return Err(
                codes.wrong(&format!("has shape {:?}, which {why} {:?}", codes.info.shape, self.shape))
            );
        }
        let scales = SCALES.iter().find_map(|scale| self.find(scale));
        let scales = scales.ok_or_else(|| codes.wrong(&self.lacks("weight_scale")))?;
        let float = scales.float()?;
        let fits = |scheme: &Scheme| Some((*scheme, layout(scheme.shared, self.shape, &scales.info.shape)?));
        let mut fitting: Vec<_> = schemes.iter().filter_map(fits).collect();
        let has_zeros = self.find("weight_zero_point").is_some();
        fitting.sort_by_key(|(scheme, _)| scheme.symmetric == has_zeros);
        let Some((scheme, (block, count))) = fitting.first().copied() else {
            let shared: Vec<String> = schemes.iter().map(|scheme| shown(scheme.shared)).collect();
            let why = format!(
                "has shape {:?}, which for a matrix of {:?} is not that of a scale {}, as config.json has it",
                scales.info.shape,
                self.shape,
                shared.join(" or ")
            );
            return Err(scales.wrong(&why));
        };
        let scales = Scales { float, bytes: scales.bytes(), block, count, steps: [count, 1] };
        Ok(Fitting { scheme, scales })
    }

    /// What is subtracted from codes. Those in words are all above 0, by as much as zeros in words are.
    fn zeros(&self, scheme: Scheme, count: usize) -> Result<Zeros<'f>, ModelError> {
        let middle = match scheme.code {
            Code::Float8 | Code::Byte => 0,
            Code::Packed { bits } => 1 << (bits - 1),
        };
        let rows = match scheme.shared {
            Shared::Matrix => 1,
            Shared::Output | Shared::Group(_) => self.shape[0],
            Shared::Block([outputs, _]) => self.shape[0].div_ceil(outputs),
        };
        let Some(zeros) = self.find("weight_zero_point") else {
            return match scheme.symmetric {
                true => Ok(Zeros::All(f32::from(middle))),
                false => Err(self.codes.wrong(&self.lacks("weight_zero_point"))),
            };
        };
        if scheme.symmetric {
            let none = match (scheme.code, zeros.info.dtype) {
                (Code::Packed { bits: 4 }, Dtype::I32) => 0x88,
                (Code::Packed { .. }, Dtype::I32) => 0x80,
                _ => 0,
            };
            return match zeros.bytes().iter().all(|byte| *byte == none) {
                true => Ok(Zeros::All(f32::from(middle))),
                false => {
                    Err(zeros.wrong("has zeros other than 0, which config.json says are none (symmetric)"))
                }
            };
        }
        match (scheme.code, zeros.info.dtype) {
            (Code::Packed { bits }, Dtype::I32) => {
                zeros.expect_shape(&[(rows * bits).div_ceil(32), count])?;
                Ok(Zeros::Rows { bits, bytes: zeros.bytes() })
            }
            (Code::Packed { .. } | Code::Byte, Dtype::I8) => {
                let shape = &zeros.info.shape;
                if *shape != [rows, count] && (count, &shape[..]) != (1, &[rows]) {
                    zeros.expect_shape(&[rows, count])?;
                }
                Ok(Zeros::Bytes { middle, bytes: zeros.bytes() })
            }
            (_, dtype) => {
                Err(zeros.wrong(&format!("is stored as {dtype:?}, which is no type of such zeros")))
            }
        }
    }

    fn find(&self, suffix: &str) -> Option<Found<'f, 'a>> {
        Found::find(self.shards, self.module, suffix)
    }

    fn lacks(&self, suffix: &str) -> String {
        format!("has no {}.{suffix} beside it", self.module)
    }
}

/// Rows and inputs that share a scale, and scales of a row, if scales of this shape are shared so.
fn layout(shared: Shared, [outputs, inputs]: [usize; 2], scales: &[usize]) -> Option<([usize; 2], usize)> {
    let (block, has_shape) = match shared {
        Shared::Matrix => ([outputs, inputs], matches!(scales, [] | [1] | [1, 1])),
        Shared::Output => ([1, inputs], scales == [outputs] || scales == [outputs, 1]),
        Shared::Group(group) => ([1, group], scales == [outputs, inputs.div_ceil(group)]),
        Shared::Block(block) => (block, scales == [outputs.div_ceil(block[0]), inputs.div_ceil(block[1])]),
    };
    has_shape.then(|| (block, inputs.div_ceil(block[1])))
}

fn shown(shared: Shared) -> String {
    match shared {
        Shared::Matrix => "per matrix".to_owned(),
        Shared::Output => "per output".to_owned(),
        Shared::Group(inputs) => format!("per output and {inputs} inputs"),
        Shared::Block([outputs, inputs]) => format!("per {outputs} outputs and {inputs} inputs"),
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
            ("packed-4", true),
            ("packed-4-zeros", true),
            ("packed-4-ordered", false),
            ("packed-8-outputs", false),
            ("float8-outputs", false),
            ("float8-blocks", false),
            ("int8-outputs", false),
            ("int8-zeros", false),
        ] {
            let (bytes, forms) = golden(name);
            let shards = [Shard::open(name, Bytes::Borrowed(&bytes)).expect("sound")];
            let quantized = Quantized { shards: &shards, forms: &forms };
            quantized.check_names().expect("nothing changes the codes");
            let (shard, info) = super::super::files::find(&shards, "expected").expect("it is there");
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
