//! The environment variables that begin with `INFER_`: their values, and which of them are probably misspelt.
//!
//! Deliberately absent: those of others, such as `HF_TOKEN`, which the code that honours them reads.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::ConfigError;
use super::document::{misspelt, near};
use super::table::known_keys;

/// The variables that begin with `INFER_`. An empty one counts as absent.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        Self::new(std::env::vars_os())
    }

    /// Those of `variables` that concern this program.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let named = variables.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self(named.filter(|(name, value)| name.starts_with("INFER_") && !value.is_empty()).collect())
    }

    /// A variable's value.
    ///
    /// # Errors
    /// If the value is not UTF-8.
    pub fn get(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        value.to_str().map(Some).ok_or_else(|| ConfigError(format!("{name}: its value is not UTF-8")))
    }

    /// Unknown variables that resemble a known one, with that one. Other programs may use names that begin
    /// like ours, so this is reason for a warning at most.
    pub fn doubtful(&self) -> Vec<(&str, String)> {
        self.unknown(|name, known| near(name, known).or_else(|| shorter(name, known)))
    }

    /// Refuses an unknown variable that is all but certainly a misspelt one.
    pub(super) fn refuse_misspelt(&self) -> Result<(), ConfigError> {
        match self.unknown(misspelt).first() {
            Some((name, meant)) => {
                Err(ConfigError(format!("{name}: unknown variable; did you mean `{meant}`?")))
            }
            None => Ok(()),
        }
    }

    fn unknown(&self, meant: fn(&str, &[&'static str]) -> Option<&'static str>) -> Vec<(&str, String)> {
        let known: Vec<_> = known_keys().into_iter().chain(OTHER_VARIABLES.iter().copied()).collect();
        let is_known = |name: &str| known.iter().any(|known| environment_name(known) == name);
        let names = self.0.keys().map(String::as_str).filter(|name| !is_known(name));
        let meant = |name: &str| {
            let key = name["INFER_".len()..].to_ascii_lowercase().replace('_', "-");
            meant(&key, &known).map(environment_name)
        };
        names.filter_map(|name| Some((name, meant(name)?))).collect()
    }
}

/// Variables of the host and its commands that are not settings.
const OTHER_VARIABLES: &[&str] = &[
    "admin-token",
    "api-key",
    "config",
    "cuda-carveout",
    "cuda-decode-blocks",
    "cuda-early",
    "cuda-few-rows",
    "cuda-fused",
    "cuda-image",
    "cuda-lib",
    "cuda-prefill-rows",
    "cuda-spread",
    "cuda-walk",
    "cuda-wgmma",
    "hosts",
    "log",
    "log-format",
];

/// The variable of a setting: `max-seq-len` gives `INFER_MAX_SEQ_LEN`.
pub fn environment_name(key: &str) -> String {
    format!("INFER_{}", key.replace('-', "_").to_uppercase())
}

/// The known name that has one word less at its end: `log-level` is probably meant to be `log`. Kubernetes makes
/// names with several words more, such as `port-8000-tcp`.
fn shorter(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let (start, _) = name.rsplit_once('-')?;
    known.iter().copied().find(|known| *known == start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::new(pairs.iter().map(|&(name, value)| (name.into(), value.into())))
    }

    fn gather(environment: &Environment) -> Result<Settings, ConfigError> {
        let empty = tempfile::NamedTempFile::new().unwrap();
        Settings::gather(&BTreeMap::new(), environment, Some(empty.path()))
    }

    #[test]
    fn misspelt_variables_are_refused_and_those_of_other_programs_are_not() {
        for (name, meant) in [
            ("INFER_MAX_BATCH_SISE", "INFER_MAX_BATCH_SIZE"),
            ("INFER_MAX_BTACH_SISE", "INFER_MAX_BATCH_SIZE"),
            ("INFER_PROT", "INFER_PORT"),
            ("INFER_LOGS", "INFER_LOG"),
            ("INFER_LOG_FROMAT", "INFER_LOG_FORMAT"),
            ("INFER_CUDA_CARVOUT", "INFER_CUDA_CARVEOUT"),
            ("INFER_CUDA_DECODE_BLOKS", "INFER_CUDA_DECODE_BLOCKS"),
            ("INFER_CUDA_EARLI", "INFER_CUDA_EARLY"),
            ("INFER_CUDA_FEWROWS", "INFER_CUDA_FEW_ROWS"),
            ("INFER_CUDA_FUSD", "INFER_CUDA_FUSED"),
            ("INFER_CUDA_IMGAE", "INFER_CUDA_IMAGE"),
            ("INFER_CUDA_PREFIL_ROWS", "INFER_CUDA_PREFILL_ROWS"),
            ("INFER_CUDA_SPRAED", "INFER_CUDA_SPREAD"),
            ("INFER_CUDA_WALKS", "INFER_CUDA_WALK"),
            ("INFER_CUDA_WGMA", "INFER_CUDA_WGMMA"),
            ("INFER_max_batch_size", "INFER_MAX_BATCH_SIZE"),
        ] {
            let error = gather(&environment(&[(name, "3")])).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(meant), "{error}");
        }
        for name in [
            "INFER_ADMIN_TOKEN",
            "INFER_API_KEY",
            "INFER_CUDA_CARVEOUT",
            "INFER_CUDA_DECODE_BLOCKS",
            "INFER_CUDA_EARLY",
            "INFER_CUDA_FEW_ROWS",
            "INFER_CUDA_FUSED",
            "INFER_CUDA_IMAGE",
            "INFER_CUDA_LIB",
            "INFER_CUDA_PREFILL_ROWS",
            "INFER_CUDA_SPREAD",
            "INFER_CUDA_WALK",
            "INFER_CUDA_WGMMA",
            "INFER_HOSTS",
            "INFER_LOG",
            "INFER_SERVICE_HOST",
            "INFER_PORT_8000_TCP_ADDR",
            "INFER_ZIG",
            "INFER_HOME",
            "INFER_ROOT",
            "INFER_TEST",
            "INFER_CONF",
            "INFER_BATCH_SIZE",
            "MODEL",
        ] {
            assert!(gather(&environment(&[(name, "3")])).is_ok(), "{name}");
        }
    }

    #[test]
    fn other_names_that_resemble_a_setting_are_doubtful() {
        let names = ["HOME", "HOST", "LOG_LEVEL", "PORT_8000_TCP", "ZIG"].map(|name| format!("INFER_{name}"));
        let all = environment(&names.each_ref().map(|name| (name.as_str(), "x")));
        let doubtful = [("INFER_HOME", "INFER_HOST"), ("INFER_LOG_LEVEL", "INFER_LOG")];
        assert_eq!(all.doubtful(), doubtful.map(|(name, meant)| (name, meant.to_owned())));
    }

    #[test]
    fn value_that_is_not_utf_8_fails_only_where_it_is_read() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = |name: &str| Environment::new([(name.into(), OsString::from_vec(vec![b'm', 0xff]))]);
        assert!(gather(&odd("INFER_MODEL")).unwrap_err().to_string().contains("INFER_MODEL"));
        assert!(gather(&odd("INFER_ZIG")).is_ok() && gather(&odd("PATH")).is_ok());
        assert_eq!(odd("INFER_MODEL").get("INFER_ADMIN_TOKEN").unwrap(), None);
    }
}
