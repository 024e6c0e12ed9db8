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
    /// Integers of 4 bits with a scale and a zero per 32 inputs.
    Gptq4,
    /// The same, but a scale's inputs are not neighbours.
    Gptq4Ordered,
    /// Integers of 8 bits, half of them negative, with a scale per output.
    Gptq8,
    /// Integers of 4 bits with a scale and a zero per 32 inputs, in another order.
    Awq,
    /// The same by compressed-tensors.
    Packed4,
    /// Signed integers of 8 bits by compressed-tensors, with a scale per output.
    Bytes,
}

pub const ALL: [Form; 8] = [
    Form::Fp8Blocks,
    Form::Fp8Outputs,
    Form::Gptq4,
    Form::Gptq4Ordered,
    Form::Gptq8,
    Form::Awq,
    Form::Packed4,
    Form::Bytes,
];

impl Form {
    /// The `quantization_config` of such a checkpoint.
    pub fn declared(self) -> Value {
        match self {
            Self::Fp8Blocks => json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32],
                "modules_to_not_convert": ["lm_head"]
            }),
            Self::Fp8Outputs => json!({"quant_method": "fp8", "activation_scheme": "static"}),
            Self::Gptq4 | Self::Gptq4Ordered => json!({
                "bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": self == Self::Gptq4Ordered,
                "quant_method": "gptq", "static_groups": false, "sym": false, "true_sequential": true
            }),
            Self::Packed4 => compressed(
                "pack-quantized",
                json!({
                    "num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 32
                }),
            ),
            Self::Bytes => compressed(
                "int-quantized",
                json!({
                    "num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "group_size": null
                }),
            ),
            Self::Awq => json!({
                "bits": 4, "group_size": 32, "modules_to_not_convert": null, "quant_method": "awq", "version": "gemm",
                "zero_point": true
            }),
            Self::Gptq8 => json!({
                "bits": 8, "checkpoint_format": "gptq", "group_size": -1, "desc_act": false, "sym": true,
                "quant_method": "gptq"
            }),
        }
    }

    /// What most of such weights become in memory.
    pub fn held(self) -> WeightType {
        match self {
            Self::Fp8Blocks | Self::Fp8Outputs | Self::Gptq4Ordered | Self::Gptq8 => WeightType::Q8,
            Self::Bytes => WeightType::Q8,
            Self::Gptq4 | Self::Awq | Self::Packed4 => WeightType::Q4,
        }
    }

    /// The tensors of a module with this matrix, and the numbers that they stand for.
    pub fn encode(
        self,
        module: &str,
        [outputs, inputs]: [usize; 2],
        numbers: &[f32],
    ) -> (Vec<Tensor>, Vec<f32>) {
        let shape = [outputs, inputs];
        match self {
            Self::Gptq4 => Integers::of(shape, numbers, 4, 32, false).gptq(module, |input| input / 32),
            Self::Gptq4Ordered => {
                let group = |input: usize| input * 7 % inputs / 32;
                let count = inputs.div_ceil(32);
                Integers::grouped(shape, numbers, 4, count, group, false).gptq(module, group)
            }
            Self::Packed4 => Integers::of(shape, numbers, 4, 32, false).packed(module),
            Self::Bytes => Integers::of(shape, numbers, 8, inputs, true).bytes(module),
            Self::Awq => Integers::of(shape, numbers, 4, 32, false).awq(module),
            Self::Gptq8 => Integers::of(shape, numbers, 8, inputs, true).gptq(module, |_| 0),
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

fn compressed(format: &str, weights: Value) -> Value {
    let group = json!({"targets": ["Linear"], "weights": weights, "input_activations": null, "output_activations": null});
    json!({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group}
    })
}

/// A matrix of integers with a scale in f16 and a zero per group of inputs.
struct Integers {
    shape: [usize; 2],
    bits: usize,
    /// Of a row.
    count: usize,
    /// By output and input.
    codes: Vec<u8>,
    /// By output and group.
    scales: Vec<f16>,
    zeros: Vec<u8>,
    numbers: Vec<f32>,
}

impl Integers {
    fn of(shape: [usize; 2], numbers: &[f32], bits: usize, group: usize, symmetric: bool) -> Self {
        let count = shape[1].div_ceil(group);
        Self::grouped(shape, numbers, bits, count, |input| input / group, symmetric)
    }

    /// Rounds numbers whose group follows from the input.
    fn grouped(
        shape: [usize; 2],
        numbers: &[f32],
        bits: usize,
        count: usize,
        group: impl Fn(usize) -> usize,
        symmetric: bool,
    ) -> Self {
        let [outputs, inputs] = shape;
        let levels = (1 << bits) - 1;
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        for row in numbers.chunks(inputs) {
            for this in 0..count {
                let own = row.iter().enumerate().filter(|(input, _)| group(*input) == this).map(|(_, x)| *x);
                let (low, high) = own.fold((0.0_f32, 0.0_f32), |(low, high), x| (low.min(x), high.max(x)));
                let reach = high.max(-low);
                let (low, high) = if symmetric { (-reach, reach) } else { (low, high) };
                let scale = f16::from_f32(((high - low) / levels as f32).max(1e-5));
                scales.push(scale);
                let zero = (-low / scale.to_f32()).round().clamp(1.0, levels as f32);
                zeros.push(if symmetric { 1 << (bits - 1) } else { zero as u8 });
            }
        }
        let unit = |at: usize| {
            let at = at / inputs * count + group(at % inputs);
            (scales[at].to_f32(), f32::from(zeros[at]))
        };
        let code = |(at, x): (usize, &f32)| {
            let (scale, zero) = unit(at);
            (x / scale + zero).round().clamp(0.0, levels as f32) as u8
        };
        let codes: Vec<u8> = numbers.iter().enumerate().map(code).collect();
        let number = |(at, code): (usize, &u8)| (f32::from(*code) - unit(at).1) * unit(at).0;
        let numbers = codes.iter().enumerate().map(number).collect();
        assert_eq!(codes.len(), outputs * inputs);
        Self { shape, bits, count, codes, scales, zeros, numbers }
    }

    /// As GPTQ's tools write it: words of the inputs of an output.
    fn gptq(self, module: &str, group: impl Fn(usize) -> usize) -> (Vec<Tensor>, Vec<f32>) {
        let ([outputs, inputs], bits, count) = (self.shape, self.bits, self.count);
        let per_word = 32 / bits;
        let words = inputs.div_ceil(per_word);
        let mut codes = vec![0_u32; words * outputs];
        for (at, code) in self.codes.iter().enumerate() {
            let (output, input) = (at / inputs, at % inputs);
            codes[input / per_word * outputs + output] |= u32::from(*code) << (bits * (input % per_word));
        }
        let of_group = outputs.div_ceil(per_word);
        let mut zeros = vec![0_u32; count * of_group];
        let mut scales = vec![f16::ZERO; count * outputs];
        for (at, (scale, zero)) in self.scales.iter().zip(&self.zeros).enumerate() {
            let (output, group) = (at / count, at % count);
            scales[group * outputs + output] = *scale;
            let word = &mut zeros[group * of_group + output / per_word];
            *word |= u32::from(zero - 1) << (bits * (output % per_word));
        }
        let indices = (0..inputs).flat_map(|input| (group(input) as u32).to_le_bytes()).collect();
        let tensors = vec![
            (format!("{module}.qweight"), Dtype::I32, vec![words, outputs], words_of(&codes)),
            (format!("{module}.qzeros"), Dtype::I32, vec![count, of_group], words_of(&zeros)),
            (
                format!("{module}.scales"),
                Dtype::F16,
                vec![count, outputs],
                scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
            ),
            (format!("{module}.g_idx"), Dtype::I32, vec![inputs], indices),
        ];
        (tensors, self.numbers)
    }
}

impl Integers {
    /// As AWQ's tools write it: words of the outputs of an input, the even ones first.
    fn awq(self, module: &str) -> (Vec<Tensor>, Vec<f32>) {
        let ([outputs, inputs], count) = (self.shape, self.count);
        let place = |output: usize| 4 * (output % 8 / 2 + output % 2 * 4);
        let mut codes = vec![0_u32; inputs * outputs / 8];
        for (at, code) in self.codes.iter().enumerate() {
            let (output, input) = (at / inputs, at % inputs);
            codes[input * outputs / 8 + output / 8] |= u32::from(*code) << place(output);
        }
        let mut zeros = vec![0_u32; count * outputs / 8];
        let mut scales = vec![f16::ZERO; count * outputs];
        for (at, (scale, zero)) in self.scales.iter().zip(&self.zeros).enumerate() {
            let (output, group) = (at / count, at % count);
            scales[group * outputs + output] = *scale;
            zeros[group * outputs / 8 + output / 8] |= u32::from(*zero) << place(output);
        }
        let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let tensors = vec![
            (format!("{module}.qweight"), Dtype::I32, vec![inputs, outputs / 8], words_of(&codes)),
            (format!("{module}.qzeros"), Dtype::I32, vec![count, outputs / 8], words_of(&zeros)),
            (format!("{module}.scales"), Dtype::F16, vec![count, outputs], scales),
        ];
        (tensors, self.numbers)
    }
}

impl Integers {
    /// As compressed-tensors packs them: words of the inputs of an output, and zeros in words of the outputs of a group.
    fn packed(self, module: &str) -> (Vec<Tensor>, Vec<f32>) {
        let ([outputs, inputs], bits, count) = (self.shape, self.bits, self.count);
        let per_word = 32 / bits;
        let (words, zero_words) = (inputs.div_ceil(per_word), outputs.div_ceil(per_word));
        let mut codes = vec![0_u32; outputs * words];
        for (at, code) in self.codes.iter().enumerate() {
            let (output, input) = (at / inputs, at % inputs);
            codes[output * words + input / per_word] |= u32::from(*code) << (bits * (input % per_word));
        }
        let mut zeros = vec![0_u32; zero_words * count];
        for (at, zero) in self.zeros.iter().enumerate() {
            let (output, group) = (at / count, at % count);
            zeros[output / per_word * count + group] |= u32::from(*zero) << (bits * (output % per_word));
        }
        let sides = [outputs as i64, inputs as i64].iter().flat_map(|side| side.to_le_bytes()).collect();
        let scales = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let tensors = vec![
            (format!("{module}.weight_packed"), Dtype::I32, vec![outputs, words], words_of(&codes)),
            (format!("{module}.weight_zero_point"), Dtype::I32, vec![zero_words, count], words_of(&zeros)),
            (format!("{module}.weight_scale"), Dtype::F16, vec![outputs, count], scales),
            (format!("{module}.weight_shape"), Dtype::I64, vec![2], sides),
        ];
        (tensors, self.numbers)
    }

    /// As compressed-tensors stores symmetric integers of 8 bits.
    fn bytes(self, module: &str) -> (Vec<Tensor>, Vec<f32>) {
        let codes = self.codes.iter().map(|code| code.wrapping_sub(128)).collect();
        let scales = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let tensors = vec![
            (format!("{module}.weight"), Dtype::I8, self.shape.to_vec(), codes),
            (format!("{module}.weight_scale"), Dtype::F16, vec![self.shape[0], self.count], scales),
        ];
        (tensors, self.numbers)
    }
}

fn words_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
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
        self.with(form, |module| module.contains("layers.") && !module.ends_with(".gate"))
    }

    /// The same with the matrices of these modules.
    pub fn with(&self, form: Form, is_coded: impl Fn(&str) -> bool) -> (Self, Self) {
        let (mut coded, mut widened) = (Vec::new(), Vec::new());
        for (name, dtype, shape, bytes) in &self.tensors {
            let module = name.strip_suffix(".weight").filter(|module| shape.len() == 2 && is_coded(module));
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
