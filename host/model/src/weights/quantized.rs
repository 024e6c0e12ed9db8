//! Quantized matrices in safetensors: which tensors one consists of, and that each is there and has the shape that goes with
//! the others.

use safetensors::tensor::{Dtype, TensorInfo};

use super::codes::{Codes, Float, Scales};
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
        let Quantization::Scaled(schemes) = self.forms;
        weight.expect_shape(&shape)?;
        let schemes: Vec<Scheme> = schemes.iter().copied().filter(|scheme| scheme.code == code).collect();
        let scales = self.scales(module, weight, &schemes, shape)?;
        Ok(weight.stored(shape, Codes { rows: (0, shape[0]), scales }))
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
        let float = Float::of(found.info.dtype).ok_or_else(|| {
            found.wrong(&format!("is stored as {:?}, which is no type of scales", found.info.dtype))
        })?;
        let form = schemes
            .iter()
            .find_map(|scheme| Some(scheme.shared).zip(layout(scheme.shared, shape, &found.info.shape)));
        let Some((_, (block, count))) = form else {
            let shared: Vec<String> = schemes.iter().map(|scheme| shown(scheme.shared)).collect();
            let why = format!(
                "has shape {:?}, which for a matrix of {shape:?} is not that of a scale {}, as config.json has it",
                found.info.shape,
                shared.join(" or ")
            );
            return Err(found.wrong(&why));
        };
        Ok(Scales { float, bytes: found.bytes(), block, count })
    }

    fn find(&self, module: &str, suffix: &str) -> Option<Found<'f, 'a>> {
        let name = format!("{module}.{suffix}");
        let (shard, info) = find(self.shards, &name)?;
        Some(Found { name, shard, info })
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

    fn wrong(&self, why: &str) -> ModelError {
        ModelError::weights(format!("{}: tensor {} {why}", self.shard.name(), self.name))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::bytes::Bytes;
    use crate::config::ModelConfig;

    const SHAPE: [usize; 2] = [24, 96];

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
        for name in ["fp8-block", "fp8-block-exponents", "fp8-matrix"] {
            let (bytes, forms) = golden(name);
            let shards = [Shard::open(name, Bytes::Borrowed(&bytes)).expect("sound")];
            let quantized = Quantized { shards: &shards, forms: &forms };
            quantized.check_names().expect("nothing changes the codes");
            let matrix = quantized.matrix("linear", SHAPE).expect("it is there").expect("sound");
            let (shard, info) = find(&shards, "expected").expect("it is there");
            let expected = shard.stored("expected", info).expect("floats");
            let [mut got, mut want] = [[0.0; SHAPE[1]]; 2];
            for row in 0..SHAPE[0] {
                matrix.row(row, &mut got).expect("finite");
                expected.row(row, &mut want).expect("finite");
                assert_eq!(got, want, "{name}, row {row}");
            }
        }
    }
}
