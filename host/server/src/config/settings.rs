//! Raw settings: the table of flags, and where each value was found.
//!
//! One table makes `--help`, the environment's names and the keys of `infer.toml`, so that the three
//! can't drift apart. Values stay text here; `Config` gives them meaning once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::document::{Document, near};

/// One flag of `infer serve`; also `INFER_<KEY>` and a key of `infer.toml`.
pub struct Setting {
    /// Long flag without dashes.
    pub key: &'static str,
    /// Placeholder in the help text.
    pub value: &'static str,
    /// What holds where nothing is given, for the help text.
    pub default: &'static str,
    /// One line.
    pub help: &'static str,
    /// Whether `infer generate` has it too.
    pub generate: bool,
    /// Whether the bare flag means `on`.
    pub switch: bool,
}

const fn setting(
    key: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, default, help, generate: false, switch: false }
}

const fn model_setting(
    key: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, default, help, generate: true, switch: false }
}

const fn switch(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, value: "on|off", default, help, generate: false, switch: true }
}

/// Every setting, in the order of the help text.
pub const SETTINGS: &[Setting] = &[
    model_setting(
        "model",
        "MODEL",
        "demo",
        "`demo`, a checkpoint directory, a .gguf file, or ORG/NAME on the Hugging Face hub (HF_HUB_CACHE, HF_TOKEN and \
         HF_HUB_OFFLINE count)",
    ),
    setting(
        "served-model-name",
        "NAME",
        "the model's own",
        "What requests call the model; several with commas between, the first of which answers show",
    ),
    setting("host", "HOST", "127.0.0.1", "Address of the data plane"),
    setting("port", "PORT", "8000", "Port of the data plane; 0 takes any free one"),
    setting("admin", "HOST:PORT", "127.0.0.1:8001", "Address of the admin plane; port 0 takes any free one"),
    model_setting("device", "DEVICE", "auto", "`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`"),
    model_setting(
        "dtype",
        "DTYPE",
        "auto",
        "Type of weights and KV cache: `auto` (as stored), `f32`, `bf16`, or `f16` (GPUs only)",
    ),
    model_setting(
        "quantize",
        "TYPE",
        "auto",
        "Weights as 8-bit integers: `q8`, `off`, or `auto` (as a quantized .gguf file, unless --dtype is given)",
    ),
    model_setting(
        "generation-config",
        "auto|none",
        "auto",
        "Sampling where a request doesn't say: `auto` as the checkpoint's generation_config.json says, `none` at 1.0",
    ),
    model_setting("max-seq-len", "TOKENS", "the model's, at most 4096", "Longest prompt plus output"),
    model_setting(
        "speculate",
        "N",
        "0",
        "Tokens guessed ahead per sequence and step from what repeats itself; 0 is off. Answers stay the same",
    ),
    switch("plan-ahead", "off", "Make the next step while a GPU computes one. Answers stay the same"),
    setting("max-batch-size", "N", "32", "Sequences that run at once"),
    setting(
        "max-batch-tokens",
        "TOKENS",
        "auto",
        "Tokens that one step computes; `auto` is 2048 on a GPU and 64 on the CPU, where steps are what others wait for",
    ),
    setting("prefill-chunk", "TOKENS", "512", "Prompt tokens of one sequence in one step"),
    setting("max-prefill-requests", "N", "8", "Sequences whose prompts one step computes"),
    setting("max-prefill-memory", "BYTES", "4GiB", "Working memory that one step's prompts may take"),
    setting("max-waiting-requests", "N", "1000", "Requests that may wait; beyond, clients get 503"),
    setting("kv-cache", "KIND", "paged", "`paged`, or `contiguous` (the reference backend)"),
    setting("block-size", "TOKENS", "16", "Tokens in a KV block"),
    setting(
        "kv-memory",
        "BYTES",
        "auto",
        "Memory of the KV pool, `2GiB` say; `auto` takes a share of what is free",
    ),
    setting(
        "gpu-memory-utilization",
        "SHARE",
        "0.9",
        "Part of a GPU's memory that weights, working memory and an `auto` KV pool may take",
    ),
    setting("prompt-cache-entries", "N", "100", "Whole prompts whose last logits are kept; 0 turns it off"),
    setting("prompt-cache-ttl", "SECONDS", "300", "How long after its last use such an entry is kept"),
    switch("prefix-caching", "on", "Share KV blocks of equal prefixes"),
    setting("scheduler", "POLICY", "continuous", "Who runs next: a bundled policy's name or a .wasm file"),
    setting(
        "admission",
        "POLICY",
        "memory-aware",
        "Who is let in: a bundled policy's name or a .wasm file; or several with commas between",
    ),
    setting("prefix-cache", "POLICY", "lru", "Which prefix is kept: a bundled policy's name or a .wasm file"),
    setting(
        "policy-config",
        "FILE",
        "none",
        "JSON file: {\"scheduler\": {..}, \"admission\": {..}, \"prefix-cache\": {..}}",
    ),
    setting(
        "fault-dir",
        "DIR",
        "infer/faults in the user's cache",
        "Where policy faults are written down, for `infer policy replay`",
    ),
    switch("show-text", "off", "Let the admin plane show the text of cached prefixes"),
    model_setting("threads", "N", "all cores", "Threads that compute"),
    setting("seed", "N", "none", "Makes sampling of requests without a seed reproducible"),
    switch(
        "deterministic",
        "off",
        "Results that don't depend on the batch, on GPUs at a cost (the CPU path always is so)",
    ),
    setting(
        "api-keys",
        "FILE",
        "none",
        "TOML file of tenants and the digests of their keys; see `infer keys`",
    ),
    setting("max-body-bytes", "BYTES", "8MiB", "Longest request body"),
    setting(
        "max-body-memory",
        "BYTES",
        "256MiB",
        "Memory that long request bodies may take together; beyond, clients get 503",
    ),
    setting("max-connections", "N", "4096", "Open connections of the data plane; more wait to be accepted"),
    setting("header-timeout", "SECONDS", "30", "For the head of a request, from its first byte to its last"),
    setting("body-timeout", "SECONDS", "30", "For the body of a request"),
    setting("idle-timeout", "SECONDS", "120", "How long a connection may stay open between two requests"),
    setting("write-timeout", "SECONDS", "60", "How long a client may take nothing of its answer"),
    setting(
        "request-timeout",
        "SECONDS",
        "3600",
        "For a whole request; then it ends with an error (504, `request_timeout`)",
    ),
    setting(
        "step-timeout",
        "SECONDS",
        "300",
        "How long one step may compute before health checks take the device for hung (503, `engine_hangs`)",
    ),
    setting("drain-timeout", "SECONDS", "600", "How long streams may take to end when the host is told to"),
    setting("tls-cert", "FILE", "none", "PEM certificate with its chain; needs --tls-key"),
    setting("tls-key", "FILE", "none", "PEM private key; needs --tls-cert"),
    setting(
        "kv-events",
        "ENDPOINT",
        "none",
        "Publishes KV events for routers over ZMQ, tcp://0.0.0.0:5557 say",
    ),
    setting("kv-events-replay", "ENDPOINT", "none", "Sends missed KV events again, tcp://0.0.0.0:5558 say"),
    setting("kv-events-topic", "TEXT", "kv@HOST:PORT@MODEL", "Topic of the KV events"),
    setting(
        "otlp",
        "URL",
        "none",
        "OpenTelemetry collector, http://HOST:4318 say (builds with the feature `otel`)",
    ),
    setting(
        "sse-dialect",
        "DIALECT",
        "auto",
        "`auto`, `named` or `openai`, which also streams only where asked",
    ),
];

/// Where a value was found; every error about it says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--key`.
    Flag(&'static str),
    /// `INFER_KEY`.
    Environment(String),
    /// A key of a file, at a line.
    File(PathBuf, usize, String),
    /// Nowhere.
    Default(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(key) | Self::Default(key) => write!(f, "--{key}"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path, line, key) => write!(f, "{}:{line}: {key}", path.display()),
        }
    }
}

/// Variables of the host that are no settings.
const OTHER_VARIABLES: &[&str] = &["admin-token", "config", "cuda-lib", "log", "log-format"];

/// The variables that begin with `INFER_`. One that is empty counts as absent.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// This process's.
    pub fn of_process() -> Result<Self, ConfigError> {
        Self::new(std::env::vars_os())
    }

    /// Those among all `variables`. What can't be read is an error, and so is what looks like a setting's name but is
    /// none; other programs' may begin like ours.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        let mut known = known_keys();
        known.extend(OTHER_VARIABLES);
        let mut all = BTreeMap::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with("INFER_")) else { continue };
            let key = name["INFER_".len()..].to_ascii_lowercase().replace('_', "-");
            let is_known = known.iter().any(|known| environment_name(known) == name);
            if let (false, Some(meant)) = (is_known, near(&key, &known)) {
                let meant = environment_name(meant);
                return Err(ConfigError(format!("{name}: unknown variable; did you mean `{meant}`?")));
            }
            match value.into_string() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => drop(all.insert(name.to_owned(), text)),
                Err(_) if is_known => return Err(ConfigError(format!("{name}: its value is not UTF-8"))),
                Err(_) => {}
            }
        }
        Ok(Self(all))
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Settings as text with their origins: flags win over the environment, which wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, (Origin, String)>,
}

impl Settings {
    /// Merges the three sources. `file` is the explicit `--config`; without one, `infer.toml` is read
    /// where it exists.
    pub fn gather(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        let named =
            file.map(Path::to_path_buf).or_else(|| environment.get("INFER_CONFIG").map(PathBuf::from));
        match named {
            Some(path) => all.read_file(&path)?,
            None if Path::new("infer.toml").is_file() => all.read_file(Path::new("infer.toml"))?,
            None => {}
        }
        for setting in SETTINGS {
            let name = environment_name(setting.key);
            if let Some(value) = environment.get(&name) {
                all.values.insert(setting.key, (Origin::Environment(name.clone()), value.to_owned()));
            }
            if let Some(value) = flags.get(setting.key) {
                all.values.insert(setting.key, (Origin::Flag(setting.key), value.clone()));
            }
        }
        Ok(all)
    }

    /// The text of a setting and where it stands, if it was given anywhere.
    pub fn get(&self, key: &'static str) -> Option<(&Origin, &str)> {
        debug_assert!(SETTINGS.iter().any(|s| s.key == key), "unknown setting {key}");
        self.values.get(key).map(|(origin, value)| (origin, value.as_str()))
    }

    /// Where a setting stands; its flag where it was not given.
    pub fn origin(&self, key: &'static str) -> Origin {
        self.values.get(key).map_or(Origin::Default(key), |(origin, _)| origin.clone())
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| {
            ConfigError(format!("--config: can't read {shown}: {e}; give the path of a readable TOML file"))
        })?;
        self.take_text(path, &text)
    }

    /// Those of a file's text alone; `path` names it in errors.
    pub fn of_text(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        all.take_text(path, text)?;
        Ok(all)
    }

    fn take_text(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        let document = Document::parse(&shown, text).map_err(ConfigError)?;
        for entry in document.entries() {
            let Some(setting) = SETTINGS.iter().find(|s| s.key == entry.key.replace('_', "-")) else {
                let meant = near(&entry.key, &known_keys()).map_or_else(
                    || "; `infer config print` lists the keys".to_owned(),
                    |meant| format!("; did you mean `{meant}`?"),
                );
                return Err(ConfigError(document.wrong(&entry, format!("unknown key{meant}"))));
            };
            let Some(text) = entry.text() else {
                let message = format!("expected a string, a number or a boolean, found {}", entry.kind());
                return Err(ConfigError(document.wrong(&entry, message)));
            };
            let origin = Origin::File(path.to_path_buf(), document.line(&entry), entry.key.clone());
            self.values.insert(setting.key, (origin, text));
        }
        Ok(())
    }
}

/// `max-seq-len` -> `INFER_MAX_SEQ_LEN`.
pub fn environment_name(key: &str) -> String {
    format!("INFER_{}", key.replace('-', "_").to_uppercase())
}

fn known_keys() -> Vec<&'static str> {
    SETTINGS.iter().map(|setting| setting.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(pairs: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
        pairs.iter().map(|&(k, v)| (k, v.to_owned())).collect()
    }

    fn environment(pairs: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        Environment::new(pairs.iter().map(|&(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn variables_that_look_like_settings_are_settings() {
        for (name, meant) in [
            ("INFER_MAX_BATCH_SISE", "INFER_MAX_BATCH_SIZE"),
            ("INFER_API_KEY", "INFER_API_KEYS"),
            ("INFER_LOG_FROMAT", "INFER_LOG_FORMAT"),
            ("INFER_max_batch_size", "INFER_MAX_BATCH_SIZE"),
        ] {
            let error = environment(&[(name, "3")]).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(meant), "{error}");
        }
        for name in [
            "INFER_ADMIN_TOKEN",
            "INFER_LOG",
            "INFER_SERVICE_HOST",
            "INFER_PORT_8000_TCP_ADDR",
            "INFER_ZIG",
            "MODEL",
        ] {
            assert!(environment(&[(name, "3")]).is_ok(), "{name}");
        }
        use std::os::unix::ffi::OsStringExt as _;
        let odd = |name: &str| Environment::new([(name.into(), OsString::from_vec(vec![b'm', 0xff]))]);
        assert!(odd("INFER_MODEL").unwrap_err().to_string().contains("INFER_MODEL"));
        assert!(odd("INFER_ZIG").is_ok() && odd("PATH").is_ok());
    }

    #[test]
    fn flags_win_over_the_environment_which_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("infer.toml");
        std::fs::write(&path, "port = 1\nmax_batch_size = 2\nprefix-caching = false\n").unwrap();
        let environment =
            environment(&[("INFER_PORT", "5"), ("INFER_SEED", "5"), ("INFER_HOST", "")]).unwrap();
        let all = Settings::gather(&flags(&[("port", "9")]), &environment, Some(&path)).unwrap();
        assert_eq!(all.get("host"), None, "what is empty counts as absent");
        assert_eq!(all.get("port").unwrap(), (&Origin::Flag("port"), "9"));
        assert_eq!(all.get("seed").unwrap().1, "5");
        assert_eq!(all.get("max-batch-size").unwrap().1, "2");
        assert_eq!(all.get("prefix-caching").unwrap().1, "off");
        assert_eq!(all.origin("seed").to_string(), "INFER_SEED");
        assert!(all.origin("max-batch-size").to_string().ends_with("infer.toml:2: max_batch_size"));
    }

    #[test]
    fn an_unknown_key_of_the_file_is_named_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        std::fs::write(&path, "\nmax-batch-sise = 2\n").unwrap();
        let error =
            Settings::gather(&flags(&[]), &Environment::default(), Some(&path)).unwrap_err().to_string();
        assert!(
            error.contains("x.toml:2: max-batch-sise: unknown key; did you mean `max-batch-size`?"),
            "{error}"
        );
    }
}
