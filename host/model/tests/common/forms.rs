//! Golden checkpoints with their matrices in the forms of quantized checkpoints, as their formats are defined, and the same
//! checkpoint with the numbers that these stand for.

use std::path::Path;

use half::{bf16, f16};
use infer_model::WeightType;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// A tensor in a file: name, type, shape and bytes.
pub type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Floats of 8 bits with a scale per block of 16 outputs and 32 inputs.
    Fp8Blocks,
    /// The same with a scale per output, in bf16, and one for inputs, which nothing uses.
    Fp8Outputs,
}

pub const ALL: [Form; 2] = [Form::Fp8Blocks, Form::Fp8Outputs];

impl Form {
    /// The `quantization_config` of such a checkpoint.
    pub fn declared(self) -> Value {
        match self {
            Self::Fp8Blocks => json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32],
                "modules_to_not_convert": ["lm_head"]
            }),
            Self::Fp8Outputs => json!({"quant_method": "fp8", "activation_scheme": "static"}),
        }
    }

    /// What most of such weights become in memory.
    pub fn held(self) -> WeightType {
        match self {
            Self::Fp8Blocks | Self::Fp8Outputs => WeightType::Q8,
        }
    }

    /// The tensors of a module with this matrix, and the numbers that they stand for.
    pub fn encode(
        self,
        module: &str,
        [outputs, inputs]: [usize; 2],
        numbers: &[f32],
    ) -> (Vec<Tensor>, Vec<f32>) {
        match self {
            Self::Fp8Blocks | Self::Fp8Outputs => {
                let block = if self == Self::Fp8Blocks { [16, 32] } else { [1, inputs] };
                let (columns, rows) = (inputs.div_ceil(block[1]), outputs.div_ceil(block[0]));
                let place = |at: usize| at / inputs / block[0] * columns + at % inputs / block[1];
                let mut scales = vec![0.0_f32; rows * columns];
                for (at, number) in numbers.iter().enumerate() {
                    scales[place(at)] = scales[place(at)].max(number.abs() / 448.0);
                }
                if self == Self::Fp8Outputs {
                    scales.iter_mut().for_each(|scale| *scale = bf16::from_f32(*scale).to_f32());
                }
                let floats = floats();
                let codes: Vec<u8> = numbers
                    .iter()
                    .enumerate()
                    .map(|(at, x)| nearest(&floats, x / scales[place(at)]))
                    .collect();
                let stand_for = |(at, code): (usize, &u8)| floats[usize::from(*code)] * scales[place(at)];
                let numbers = codes.iter().enumerate().map(stand_for).collect();
                let weight = (format!("{module}.weight"), Dtype::F8_E4M3, vec![outputs, inputs], codes);
                let scales = match self {
                    Self::Fp8Blocks => vec![(
                        format!("{module}.weight_scale_inv"),
                        Dtype::F32,
                        vec![rows, columns],
                        scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
                    )],
                    _ => vec![
                        (
                            format!("{module}.weight_scale"),
                            Dtype::BF16,
                            vec![rows, 1],
                            scales.iter().flat_map(|scale| bf16::from_f32(*scale).to_le_bytes()).collect(),
                        ),
                        (
                            format!("{module}.input_scale"),
                            Dtype::F32,
                            vec![],
                            0.01_f32.to_le_bytes().to_vec(),
                        ),
                    ],
                };
                ([vec![weight], scales].concat(), numbers)
            }
        }
    }
}

/// The number of each code of 8 bits, which are in order but for the sign.
fn floats() -> Vec<f32> {
    let float = |code: u32| match (code >> 3 & 15, code & 7) {
        (15, 7) => f32::NAN,
        (0, fraction) => fraction as f32 * 2.0_f32.powi(-9),
        (exponent, fraction) => (8 + fraction) as f32 * 2.0_f32.powi(exponent as i32 - 10),
    };
    (0..256).map(|code| if code < 128 { float(code) } else { -float(code & 127) }).collect()
}

fn nearest(floats: &[f32], number: f32) -> u8 {
    let above = floats[..126].partition_point(|float| *float < number.abs());
    let below = above.saturating_sub(1);
    let code = if number.abs() - floats[below] < floats[above] - number.abs() { below } else { above };
    code as u8 | if number < 0.0 { 128 } else { 0 }
}

/// A checkpoint's configuration and weights.
pub struct Checkpoint {
    pub config: String,
    pub tensors: Vec<Tensor>,
}

impl Checkpoint {
    /// A golden checkpoint.
    pub fn read(directory: &Path) -> Self {
        let read = |file: &str| std::fs::read(directory.join(file)).expect("golden files are there");
        let weights = read("model.safetensors");
        let tensors = safetensors::SafeTensors::deserialize(&weights).expect("sound").tensors();
        let tensors = tensors.into_iter();
        Self {
            config: String::from_utf8(read("config.json")).expect("text"),
            tensors: tensors
                .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
                .collect(),
        }
    }

    /// The checkpoint with the matrices of its layers but for routers in a form, and with the numbers that these stand for.
    pub fn in_form(&self, form: Form) -> (Self, Self) {
        let (mut coded, mut widened) = (Vec::new(), Vec::new());
        for (name, dtype, shape, bytes) in &self.tensors {
            let module = name.strip_suffix(".weight").filter(|module| {
                module.contains("layers.") && !module.ends_with(".gate") && shape.len() == 2
            });
            let numbers = widen(*dtype, bytes);
            let Some(module) = module else {
                coded.push((name.clone(), *dtype, shape.clone(), bytes.clone()));
                widened.push((name.clone(), Dtype::F32, shape.clone(), f32s(&numbers)));
                continue;
            };
            let (tensors, numbers) = form.encode(module, [shape[0], shape[1]], &numbers);
            coded.extend(tensors);
            widened.push((name.clone(), Dtype::F32, shape.clone(), f32s(&numbers)));
        }
        let mut config: Value = serde_json::from_str(&self.config).expect("JSON");
        config["quantization_config"] = form.declared();
        (
            Self { config: config.to_string(), tensors: coded },
            Self { config: self.config.clone(), tensors: widened },
        )
    }

    /// The bytes of `model.safetensors`.
    pub fn weights(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("sizes agree"))
        });
        safetensors::serialize(views.collect::<Vec<_>>(), None).expect("names are unique")
    }
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let half = |bytes: &[u8; 2]| match dtype {
        Dtype::BF16 => bf16::from_le_bytes(*bytes).to_f32(),
        _ => f16::from_le_bytes(*bytes).to_f32(),
    };
    match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        _ => bytes.as_chunks::<2>().0.iter().map(half).collect(),
    }
}

fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}
