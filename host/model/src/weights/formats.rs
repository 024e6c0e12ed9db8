//! Which format each matrix gets in memory.

use infer_kernels::Format;

use super::files::Files;
use super::order::stacks;
use super::size;
use super::stacked::Stacked;
use super::stored::{Mxfp4, StoredType};
use crate::config::ModelConfig;
use crate::{DType, LoadOptions, Quantize, WeightType};

/// The formats of matrices.
#[derive(Clone, Copy)]
pub(super) struct Formats {
    rule: Rule,
    /// That of experts if it isn't the rule's, unless they are MXFP4. GPUs multiply them as floats, so they are not rounded to
    /// integers on the way there. MXFP4 becomes the same floats when it is copied to the device; until then it takes a quarter of
    /// the memory.
    experts: Option<Format>,
}

/// What a matrix's format follows from.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    All(Format),
    /// [`Quantize::Auto`] of quantized files. Blocks of other than 4 bits lose almost nothing as groups of 8-bit integers, and
    /// Q8_0 loses nothing.
    AsStored,
    /// [`Quantize::Auto`] of files of floats with some tensors in MXFP4: these stay as they are.
    Blocks {
        others: Format,
    },
    /// [`Quantize::Q4`].
    Four,
}

impl Formats {
    /// The formats that options ask for if most weights are stored in this type, and what they are called. `dtype` is that of
    /// matrices of floats.
    pub(super) fn chosen(
        options: &LoadOptions,
        dtype: DType,
        stored: Option<StoredType>,
    ) -> (WeightType, Self) {
        let for_gpu = options.for_gpu;
        let (of_floats, floats) = match dtype {
            DType::F32 => (WeightType::F32, Format::F32),
            DType::Bf16 => (WeightType::Bf16, Format::Bf16),
            // CPUs have no f16 products; the device rounds the f32 weights that it receives.
            DType::F16 => (WeightType::F16, Format::F32),
        };
        let in_mxfp4 = matches!(stored, Some(StoredType::Mxfp4(_)));
        let in_integers = matches!(stored, Some(StoredType::Blocks(_) | StoredType::Codes));
        let stay = options.dtype.is_none() && (in_mxfp4 || in_integers);
        let experts = for_gpu.then_some(floats);
        let blocks = Self { rule: Rule::Blocks { others: floats }, experts: None };
        match options.quantize {
            Quantize::Auto if stay && stored == Some(StoredType::Mxfp4(Mxfp4::Apart)) => {
                (if for_gpu { of_floats } else { WeightType::Mxfp4 }, blocks)
            }
            Quantize::Auto if stay => (WeightType::Q8, Self { rule: Rule::AsStored, experts }),
            Quantize::Auto | Quantize::Off if for_gpu && in_mxfp4 => (of_floats, blocks),
            Quantize::Auto | Quantize::Off => (of_floats, Rule::All(floats).into()),
            Quantize::Q8 => (WeightType::Q8, Self { rule: Rule::All(Format::Int8), experts }),
            Quantize::Q4 => (WeightType::Q4, Self { rule: Rule::Four, experts }),
        }
    }

    /// The format of a stack, which is that of all its tensors.
    pub(super) fn of(self, stack: &Stacked<'_>) -> Format {
        match self.experts {
            Some(_) if stack.is_expert() && stack.is_mxfp4() => Format::Mxfp4,
            Some(format) if stack.is_expert() => format,
            _ => self.rule.of(stack),
        }
    }

    /// Bytes of all matrices in these formats, up to the first stack with a tensor that is missing or has another shape:
    /// loading reports it.
    pub(super) fn bytes(self, files: &Files<'_>, config: &ModelConfig) -> u64 {
        let sizes = stacks(config).map_while(|stack| {
            let format = self.of(&Stacked::open(files, &stack).ok()?);
            Some(size([stack.outputs(), stack.inputs], format))
        });
        sizes.fold(0, u64::saturating_add)
    }
}

impl From<Rule> for Formats {
    fn from(rule: Rule) -> Self {
        Self { rule, experts: None }
    }
}

impl Rule {
    fn of(self, stack: &Stacked<'_>) -> Format {
        match self {
            _ if stack.is_exact() => Format::F32,
            Self::All(format) => format,
            Self::AsStored | Self::Blocks { .. } | Self::Four if stack.is_mxfp4() => Format::Mxfp4,
            Self::Blocks { others } => others,
            Self::AsStored if stack.is_four_bits() => Format::Int4,
            Self::Four if stack.is_four_bits() || stack.in_layer() => Format::Int4,
            Self::AsStored | Self::Four => Format::Int8,
        }
    }
}
