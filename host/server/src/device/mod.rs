//! Where the model computes: the processor, or a GPU that the machine has. The one place outside the kernels that knows
//! whether this build can use GPUs at all.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "none.rs"]
mod gpu;

pub use gpu::{Gpu, Placed, gpu_check, measure_engine, measure_kernels};

use crate::config::{Config, ConfigError};

/// What `--device` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where there is one.
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of this index.
    Cuda(u32),
}

impl DeviceChoice {
    /// Reads `auto`, `cpu`, `cuda` or `cuda:N`.
    ///
    /// # Errors
    /// Says what would be right.
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

/// The GPU that the configuration asks for; says in one line what is used instead where there is none.
///
/// # Errors
/// Where one was asked for by name and can't be used.
pub fn choose(config: &Config) -> Result<Option<Gpu>, ConfigError> {
    let index = match config.device {
        DeviceChoice::Cpu => return Ok(None),
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(index) => index,
    };
    let wanted = config.device != DeviceChoice::Auto;
    let contiguous = config.kv_cache == infer_model::KvCacheKind::Contiguous;
    let opened = match contiguous {
        true => Err("--kv-cache contiguous is the CPU's reference backend".to_owned()),
        false => Gpu::open(index),
    };
    match opened {
        Ok(gpu) => Ok(Some(gpu)),
        Err(reason) if wanted => Err(ConfigError(format!("--device: {reason}; use `cpu` or `auto`"))),
        Err(reason) => {
            if Gpu::BUILT_IN {
                tracing::info!(
                    "no GPU is used ({reason}); computing on the CPU with {} threads",
                    config.threads
                );
            }
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_kind_and_index() {
        assert_eq!(DeviceChoice::parse("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(DeviceChoice::parse(" CPU "), Ok(DeviceChoice::Cpu));
        assert_eq!(DeviceChoice::parse("cuda"), Ok(DeviceChoice::Cuda(0)));
        assert_eq!(DeviceChoice::parse("cuda:3"), Ok(DeviceChoice::Cuda(3)));
        for wrong in ["gpu", "cuda:", "cuda:x", ""] {
            assert!(DeviceChoice::parse(wrong).unwrap_err().contains("`cuda:N`"), "{wrong}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_only_where_it_was_asked_for() {
        let auto = Config::default();
        let there = choose(&auto).expect("the CPU serves").is_some();
        let named = Config { device: DeviceChoice::Cuda(99), ..auto };
        let error = choose(&named).err().expect("nobody has a hundred").to_string();
        assert!(
            error.starts_with("--device: ") && error.ends_with("use `cpu` or `auto`"),
            "{error} ({there})"
        );
    }
}
