//! The device that computes: the CPU or a GPU. Outside the kernels, only this module knows whether the build
//! supports GPUs.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "none.rs"]
mod gpu;

use infer_model::shapes::Shape;
use infer_model::{KvCacheKind, WeightType};

pub use gpu::{Gpu, Placed, gpu_check, measure_engine, measure_kernels};

use crate::config::{Config, ConfigError};
use crate::serve::StartError;

/// The value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if available, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this index.
    Cuda(u32),
}

impl DeviceChoice {
    /// Parses `auto`, `cpu`, `cuda` or `cuda:N`.
    ///
    /// # Errors
    /// For any other text; the message lists the accepted values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        let index = |index: &str| index.parse().ok().map(Self::Cuda);
        let choice = match text.as_str() {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            other => other.strip_prefix("cuda:").and_then(index),
        };
        choice.ok_or_else(|| format!("`{text}` is not one of `auto`, `cpu`, `cuda`, `cuda:N`"))
    }
}

/// What a benchmark of a GPU measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Which GPU.
    pub index: u32,
    /// Model shapes; empty for the usual ones.
    pub shapes: Vec<Shape>,
    /// Storage types of weights, of whole steps; empty for bf16.
    pub weights: Vec<WeightType>,
    /// Fewer batches and lengths.
    pub quick: bool,
    /// A JSON object per line instead of tables.
    pub json: bool,
}

/// Why a GPU can't be used.
pub struct Refusal {
    /// What is missing or wrong.
    pub reason: String,
    /// What would have to change.
    pub cause: Cause,
}

/// What would have to change for a GPU to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A setting of GPUs, which is wrong. Then `auto` doesn't choose the CPU either.
    Setting,
    /// The build or another setting, which excludes GPUs on any machine.
    Excluded,
    /// The machine, which may have the GPU at another moment: drivers are loaded late, processes on the GPU end.
    Machine,
}

/// Opens the GPU of the configuration; `None` for the CPU. If `auto` finds no GPU, the log says why.
///
/// # Errors
/// If a GPU was requested explicitly and can't be used, or if a setting of GPUs is wrong.
pub fn choose(config: &Config) -> Result<Option<Gpu>, StartError> {
    let index = match config.device {
        DeviceChoice::Cpu => return Ok(None),
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(index) => index,
    };
    let opened = match excluded(config) {
        Some(reason) => Err(Refusal { reason, cause: Cause::Excluded }),
        None => Gpu::open(index),
    };
    match opened {
        Ok(gpu) => Ok(Some(gpu)),
        Err(refusal) => do_without(refusal, config).map(|()| None),
    }
}

/// Why the settings exclude GPUs, whatever the model; `None` if they don't.
pub fn excluded(config: &Config) -> Option<String> {
    match config.kv_cache {
        KvCacheKind::Contiguous => {
            Some("--kv-cache contiguous, the reference backend, works only on the CPU".to_owned())
        }
        KvCacheKind::Paged => None,
    }
}

/// Accepts that no GPU is used, unless one was requested or a setting is wrong.
fn do_without(refusal: Refusal, config: &Config) -> Result<(), StartError> {
    let Refusal { reason, cause } = refusal;
    let requested = format!("--device: {reason}; use `cpu` or `auto`");
    match (cause, config.device) {
        (Cause::Setting, _) => Err(ConfigError(reason).into()),
        (Cause::Excluded | Cause::Machine, DeviceChoice::Auto) => {
            tracing::info!(threads = config.threads, "not using a GPU ({reason}); computing on the CPU");
            Ok(())
        }
        (Cause::Excluded, DeviceChoice::Cpu | DeviceChoice::Cuda(_)) => Err(ConfigError(requested).into()),
        (Cause::Machine, DeviceChoice::Cpu | DeviceChoice::Cuda(_)) => Err(StartError::Machine(requested)),
    }
}

#[cfg(test)]
mod tests {
    use infer_model::Quantize;

    use super::*;

    #[test]
    fn devices_are_parsed_by_kind_and_index() {
        assert_eq!(DeviceChoice::parse("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(DeviceChoice::parse(" CPU "), Ok(DeviceChoice::Cpu));
        assert_eq!(DeviceChoice::parse("cuda"), Ok(DeviceChoice::Cuda(0)));
        assert_eq!(DeviceChoice::parse("cuda:3"), Ok(DeviceChoice::Cuda(3)));
        for wrong in ["gpu", "cuda:", "cuda:x", ""] {
            assert!(DeviceChoice::parse(wrong).unwrap_err().contains("`cuda:N`"), "{wrong}");
        }
    }

    #[test]
    fn missing_gpu_is_an_error_only_if_requested() {
        let auto = Config::default();
        let there = choose(&auto).expect("the CPU serves").is_some();
        let named = Config { device: DeviceChoice::Cuda(99), ..auto };
        let error = choose(&named).err().expect("no machine has a hundred GPUs").to_string();
        assert!(
            error.starts_with("--device: ") && error.ends_with("use `cpu` or `auto`"),
            "{error} ({there})"
        );
    }

    #[test]
    fn settings_for_the_cpu_alone_are_an_error_only_if_a_gpu_was_requested() {
        let auto = Config::default();
        assert_eq!(excluded(&auto), None);
        for quantize in [Quantize::Off, Quantize::Q8, Quantize::Q4] {
            assert_eq!(excluded(&Config { quantize, ..auto.clone() }), None);
        }
        let config = Config { kv_cache: KvCacheKind::Contiguous, ..auto };
        assert!(choose(&config).is_ok_and(|gpu| gpu.is_none()), "the CPU serves");
        let named = Config { device: DeviceChoice::Cuda(0), ..config };
        let error = choose(&named).err().expect("a GPU was requested");
        assert!(error.is_usage());
        let said = error.to_string();
        assert!(said.starts_with("--device: --kv-cache contiguous"), "{said}");
        assert!(said.ends_with("use `cpu` or `auto`"), "{said}");
    }

    #[test]
    fn wrong_setting_is_an_error_even_if_the_cpu_would_do() {
        let auto = Config::default();
        let named = Config { device: DeviceChoice::Cuda(0), ..auto.clone() };
        let outcome = |config, cause| {
            let reason = "INFER_CUDA_FEW_ROWS=99: too many".to_owned();
            do_without(Refusal { reason, cause }, config)
                .map_err(|error| (error.is_usage(), error.to_string()))
        };
        for config in [&auto, &named] {
            let expected = (true, "INFER_CUDA_FEW_ROWS=99: too many".to_owned());
            assert_eq!(outcome(config, Cause::Setting), Err(expected));
        }
        for (cause, stays) in [(Cause::Excluded, true), (Cause::Machine, false)] {
            assert_eq!(outcome(&auto, cause), Ok(()));
            let (is_usage, said) = outcome(&named, cause).unwrap_err();
            assert!(said.starts_with("--device: INFER_CUDA_FEW_ROWS=99"), "{said}");
            assert_eq!(is_usage, stays, "a GPU that is missing now may come; one that is excluded doesn't");
        }
    }
}
