//! Settings for experiments, from the environment: what `cuda/README.md` suggests where a figure is low, to be tried
//! without building the program again.

use std::ffi::OsString;
use std::path::PathBuf;

use super::attention::PrefillForm;
use super::error::CudaError;
use super::few::FEW;
use super::product;

const EARLY_VARIABLE: &str = "INFER_CUDA_EARLY";
const FUSED_VARIABLE: &str = "INFER_CUDA_FUSED";
const SPREAD_VARIABLE: &str = "INFER_CUDA_SPREAD";
const WALK_VARIABLE: &str = "INFER_CUDA_WALK";
const CARVEOUT_VARIABLE: &str = "INFER_CUDA_CARVEOUT";
const FEW_ROWS_VARIABLE: &str = "INFER_CUDA_FEW_ROWS";
const PREFILL_ROWS_VARIABLE: &str = "INFER_CUDA_PREFILL_ROWS";
const WGMMA_VARIABLE: &str = "INFER_CUDA_WGMMA";
const DECODE_BLOCKS_VARIABLE: &str = "INFER_CUDA_DECODE_BLOCKS";
pub(super) const IMAGE_VARIABLE: &str = "INFER_CUDA_IMAGE";
/// Rows of the largest form of prefill attention.
const MOST_PREFILL_ROWS: u32 = 192;
/// The value of `INFER_CUDA_CARVEOUT` for no preference.
const DRIVER: &str = "driver";

/// Settings for experiments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Whether kernels may start early if the device can (`INFER_CUDA_EARLY`; `off`, `no`, `false` and `0` turn it off).
    pub early: bool,
    /// Whether norms, residual sums, gates, rope and KV writes may be part of products of few rows (`INFER_CUDA_FUSED`; turned
    /// off likewise).
    pub fused: bool,
    /// Whether few blocks of a product that starts early are spread evenly (`INFER_CUDA_SPREAD`; turned off likewise).
    pub spread: bool,
    /// Whether blocks of a product of few rows take several groups of outputs (`INFER_CUDA_WALK`; turned off likewise).
    pub walk: bool,
    /// Shared memory that each kernel prefers a multiprocessor to have, in percent of the maximum (`INFER_CUDA_CARVEOUT`): a
    /// hint to the driver. If kernels differ in it, a multiprocessor may have to run empty between two of them. `None`
    /// (`driver`): the driver decides by what a kernel needs.
    pub carveout: Option<u32>,
    /// Maximum rows of `product_few` if the vendor's library is available (`INFER_CUDA_FEW_ROWS`).
    pub few_rows: u32,
    /// The most rows of a block of prefill attention (`INFER_CUDA_PREFILL_ROWS`).
    pub prefill_rows: u32,
    /// Whether prefill attention uses products of warpgroups if the device has them (`INFER_CUDA_WGMMA`; `on`, `yes`, `true`
    /// and `1` turn it on).
    pub wgmma: bool,
    /// Blocks of decode attention for each multiprocessor, at most as many as it has room for (`INFER_CUDA_DECODE_BLOCKS`).
    /// `None`: as many as keep enough memory in flight.
    pub decode_blocks: Option<u32>,
    /// An image of kernels to use instead of the program's own (`INFER_CUDA_IMAGE`).
    pub image: Option<PathBuf>,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            early: true,
            fused: true,
            spread: true,
            walk: true,
            carveout: Some(100),
            few_rows: product::FEW_BESIDE_VENDOR,
            prefill_rows: MOST_PREFILL_ROWS,
            wgmma: false,
            decode_blocks: None,
            image: None,
        }
    }
}

impl Switches {
    /// Reads the environment.
    ///
    /// # Errors
    /// Names a variable whose value is out of range.
    pub(super) fn from_environment() -> Result<Self, CudaError> {
        fn variable(name: &str) -> Option<OsString> {
            std::env::var_os(name)
        }
        Self::read(&variable)
    }

    /// Reads variables; empty ones count as absent.
    fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, CudaError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let word = |name| variable(name).map(|value| value.to_string_lossy().trim().to_ascii_lowercase());
        let number = |name, least: u32, most: u32, or: &str| {
            let Some(word) = word(name) else { return Ok(None) };
            let number = word.parse::<u32>().ok().filter(|number| (least..=most).contains(number));
            number.map(Some).ok_or_else(|| {
                CudaError::switch(format!("{name}={word}: this must be a number from {least} to {most}{or}"))
            })
        };
        let prefill = |name| {
            let Some(word) = word(name) else { return Ok(None) };
            let form = PrefillForm::ALL.into_iter().find(|form| form.rows().to_string() == word);
            form.map(|form| Some(form.rows()))
                .ok_or_else(|| CudaError::switch(format!("{name}={word}: this must be 64, 128 or 192")))
        };
        let usual = Self::default();
        let carveout = match word(CARVEOUT_VARIABLE) {
            Some(word) if word == DRIVER => None,
            _ => number(CARVEOUT_VARIABLE, 0, 100, " or `driver`")?.or(usual.carveout),
        };
        let off = |word: String| ["off", "no", "false", "0"].contains(&word.as_str());
        let on = |word: String| ["on", "yes", "true", "1"].contains(&word.as_str());
        Ok(Self {
            early: !word(EARLY_VARIABLE).is_some_and(off),
            fused: !word(FUSED_VARIABLE).is_some_and(off),
            spread: !word(SPREAD_VARIABLE).is_some_and(off),
            walk: !word(WALK_VARIABLE).is_some_and(off),
            carveout,
            few_rows: number(FEW_ROWS_VARIABLE, 0, FEW, "")?.unwrap_or(usual.few_rows),
            prefill_rows: prefill(PREFILL_ROWS_VARIABLE)?.unwrap_or(usual.prefill_rows),
            wgmma: word(WGMMA_VARIABLE).is_some_and(on),
            decode_blocks: number(DECODE_BLOCKS_VARIABLE, 1, 32, "")?,
            image: variable(IMAGE_VARIABLE).map(PathBuf::from),
        })
    }

    /// The variables that would give the settings that differ from the usual ones.
    pub fn in_use(&self) -> Vec<String> {
        let usual = Self::default();
        let off = |name, on: bool| (!on).then(|| format!("{name}=off"));
        let carveout = (self.carveout != usual.carveout).then(|| {
            let value = self.carveout.map_or_else(|| DRIVER.to_owned(), |percent| percent.to_string());
            format!("{CARVEOUT_VARIABLE}={value}")
        });
        let few_rows =
            (self.few_rows != usual.few_rows).then(|| format!("{FEW_ROWS_VARIABLE}={}", self.few_rows));
        let prefill = (self.prefill_rows != usual.prefill_rows)
            .then(|| format!("{PREFILL_ROWS_VARIABLE}={}", self.prefill_rows));
        let wgmma = self.wgmma.then(|| format!("{WGMMA_VARIABLE}=on"));
        let decode_blocks = self.decode_blocks.map(|blocks| format!("{DECODE_BLOCKS_VARIABLE}={blocks}"));
        let image = self.image.as_ref().map(|path| format!("{IMAGE_VARIABLE}={}", path.display()));
        let turned_off = [
            off(EARLY_VARIABLE, self.early),
            off(FUSED_VARIABLE, self.fused),
            off(SPREAD_VARIABLE, self.spread),
            off(WALK_VARIABLE, self.walk),
        ];
        turned_off
            .into_iter()
            .chain([carveout, few_rows, prefill, wgmma, decode_blocks, image])
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::error::CudaErrorKind;

    fn read(variables: &[(&str, &str)]) -> Result<Switches, CudaError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Switches::read(&|name| find(name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn switches_are_turned_off_by_any_usual_spelling() {
        for (value, on) in [
            ("off", false),
            ("OFF", false),
            ("0", false),
            ("false", false),
            ("No ", false),
            ("", true),
            ("on", true),
            ("1", true),
            ("true", true),
        ] {
            assert_eq!(read(&[(EARLY_VARIABLE, value)]).expect("any text").early, on, "{value:?}");
            assert_eq!(read(&[(FUSED_VARIABLE, value)]).expect("any text").fused, on, "{value:?}");
            assert_eq!(read(&[(SPREAD_VARIABLE, value)]).expect("any text").spread, on, "{value:?}");
            assert_eq!(read(&[(WALK_VARIABLE, value)]).expect("any text").walk, on, "{value:?}");
        }
    }

    #[test]
    fn switches_in_use_are_listed_as_variables() {
        assert_eq!(read(&[]), Ok(Switches::default()));
        assert!(Switches::default().in_use().is_empty());
        let all = [
            (EARLY_VARIABLE, "off"),
            (FUSED_VARIABLE, "off"),
            (SPREAD_VARIABLE, "off"),
            (WALK_VARIABLE, "off"),
            (CARVEOUT_VARIABLE, "50"),
            (FEW_ROWS_VARIABLE, "32"),
            (PREFILL_ROWS_VARIABLE, "64"),
            (WGMMA_VARIABLE, "on"),
            (DECODE_BLOCKS_VARIABLE, "2"),
            (IMAGE_VARIABLE, "variants/Other.fatbin"),
        ];
        let switches = read(&all).expect("in range");
        let image = Some(PathBuf::from("variants/Other.fatbin"));
        let expected = Switches {
            early: false,
            fused: false,
            spread: false,
            walk: false,
            carveout: Some(50),
            few_rows: 32,
            prefill_rows: 64,
            wgmma: true,
            decode_blocks: Some(2),
            image,
        };
        assert_eq!(switches, expected);
        assert_eq!(switches.in_use(), all.map(|(name, value)| format!("{name}={value}")));
        let left = read(&[(CARVEOUT_VARIABLE, "Driver")]).expect("a word");
        assert_eq!((left.carveout, left.in_use()), (None, vec!["INFER_CUDA_CARVEOUT=driver".to_owned()]));
        assert_eq!(read(&[(CARVEOUT_VARIABLE, "100")]), Ok(Switches::default()));
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        for (name, value, range) in [
            (CARVEOUT_VARIABLE, "101", "from 0 to 100 or `driver`"),
            (CARVEOUT_VARIABLE, "max", "from 0 to 100 or `driver`"),
            (FEW_ROWS_VARIABLE, "33", "from 0 to 32"),
            (FEW_ROWS_VARIABLE, "-1", "from 0 to 32"),
            (PREFILL_ROWS_VARIABLE, "96", "64, 128 or 192"),
            (PREFILL_ROWS_VARIABLE, "off", "64, 128 or 192"),
            (DECODE_BLOCKS_VARIABLE, "0", "from 1 to 32"),
        ] {
            let CudaError { kind, message } = read(&[(name, value)]).expect_err(value);
            assert_eq!(kind, CudaErrorKind::Switch);
            assert!(
                message.starts_with(&format!("{name}={value}: ")) && message.ends_with(range),
                "{message}"
            );
        }
    }
}
