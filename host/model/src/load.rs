//! How a checkpoint is loaded, and how far loading is.

use std::fmt;

use crate::DType;

/// How weights are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Type of weights and KV cache; as stored where there is none.
    pub dtype: Option<DType>,
    /// Whether what computes knows f16, as GPUs do. Otherwise what is stored in it is held as f32, since bf16 would drop
    /// three of its bits.
    pub knows_f16: bool,
    /// Whether weight matrices become 8-bit integers.
    pub quantize: Quantize,
}

/// Whether weight matrices are held as 8-bit integers, with a scale for each 32 inputs of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantize {
    /// Those of a file that has them in 8 bits or less, unless a type is asked for.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always. Q8_0 blocks keep their bits.
    Q8,
}

/// What weight matrices are held as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 16-bit floats, on a GPU; in f32 until they are there.
    F16,
    /// 8-bit integers in groups of 32.
    Q8,
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        })
    }
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the files that are packed.
    pub done_bytes: u64,
    /// Bytes of all weights in the files.
    pub total_bytes: u64,
}
