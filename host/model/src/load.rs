//! Options and progress of loading a checkpoint.

use std::fmt;

use crate::DType;

/// How weights are stored in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Type of weights and KV cache; `None` keeps the checkpoint's.
    pub dtype: Option<DType>,
    /// Whether a GPU will compute. GPUs compute in f16; otherwise f16 checkpoints become f32, since bf16 would drop three bits.
    /// But they multiply experts as floats: quantized ones are widened, MXFP4 only on the way to the GPU.
    pub for_gpu: bool,
    /// Whether weight matrices become integers.
    pub quantize: Quantize,
}

/// Whether weight matrices become integers, with a scale per 32 inputs of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantize {
    /// If the file stores them in 8 bits or fewer and no type is requested: MXFP4 as it is (beside it floats stay floats if the
    /// file isn't GGUF), Q4_0, Q4_1, Q4_K and 4-bit integers of safetensors as 4-bit integers, all others as 8-bit integers,
    /// FP8 among them. Projections of the same input (query, key and value; gate and up) have one type, 8 bits unless all are
    /// stored in 4.
    #[default]
    Auto,
    /// Never.
    Off,
    /// All as 8-bit integers. Q8_0 blocks keep their bits.
    Q8,
    /// As 4-bit integers; tensors that are stored so, and those of MXFP4, keep theirs. Embedding and head as 8-bit integers,
    /// unless they are stored in 4 bits.
    Q4,
}

/// Storage type of weight matrices in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 16-bit floats on a GPU; f32 until they are copied there.
    F16,
    /// 8-bit integers in groups of 32.
    Q8,
    /// 4-bit integers in groups of 32, at least some of them; the others are 8-bit integers.
    Q4,
    /// 4-bit floats in blocks of 32, MXFP4, those that the file stores so: the experts of gpt-oss. On a CPU only.
    Mxfp4,
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Mxfp4 => "mxfp4",
        })
    }
}

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the files packed so far.
    pub done_bytes: u64,
    /// Bytes of all weights in the files.
    pub total_bytes: u64,
}
