//! Raw settings: the table of flags, and where each value came from.
//!
//! `--help`, the names of the environment variables and the keys of `infer.toml` come from one table. Values
//! stay text here; `Config` parses them once. The defaults in the table are help text; a test holds them to
//! those of `Config`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::document::{Document, Entry, misspelt, near};

/// A flag of `infer serve`, which is also the variable `INFER_<KEY>` and a key of `infer.toml`.
pub struct Setting {
    /// The long flag, without leading dashes.
    pub key: &'static str,
    /// Placeholder in the help text.
    pub value: &'static str,
    /// The default, as the help text shows it.
    pub default: &'static str,
    /// Help text, one line.
    pub help: &'static str,
    /// Whether `infer generate` has this flag, too.
    pub generate: bool,
    /// Whether the flag without a value means `on`.
    pub switch: bool,
    /// Whether the default is described in words, because it isn't a value.
    pub worded: bool,
}

impl Setting {
    const fn worded(self) -> Self {
        Self { worded: true, ..self }
    }
}

const fn setting(
    key: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, default, help, generate: false, switch: false, worded: false }
}

const fn model_setting(
    key: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, default, help, generate: true, switch: false, worded: false }
}

const fn switch(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, value: "on|off", default, help, generate: false, switch: true, worded: false }
}

/// Every setting, in the order of the help text.
pub const SETTINGS: &[Setting] = &[
    model_setting(
        "model",
        "MODEL",
        "demo",
        "`demo`, a checkpoint directory, a .gguf file, or ORG/NAME on the Hugging Face hub (honours HF_HUB_CACHE, HF_TOKEN \
         and HF_HUB_OFFLINE)",
    ),
    setting(
        "served-model-name",
        "NAME",
        "the model's own",
        "Names of the model in requests, separated by commas; responses show the first",
    ).worded(),
    setting("host", "HOST", "127.0.0.1", "Address the data plane listens on"),
    setting("port", "PORT", "8000", "Port of the data plane; 0 picks a free one"),
    setting(
        "admin",
        "HOST:PORT",
        "127.0.0.1:8001",
        "Address the admin plane listens on; port 0 picks a free one",
    ),
    model_setting("device", "DEVICE", "auto", "`auto` (a GPU if available), `cpu`, `cuda` or `cuda:N`"),
    model_setting(
        "dtype",
        "DTYPE",
        "auto",
        "Type of the weights and the KV cache: `auto` (as stored), `f32`, `bf16`, or `f16` (GPUs only)",
    ),
    model_setting(
        "quantize",
        "TYPE",
        "auto",
        "8-bit weights: `q8`, `off`, or `auto` (only for a quantized .gguf file, and only without --dtype)",
    ),
    model_setting(
        "generation-config",
        "auto|none",
        "auto",
        "Sampling defaults: `auto` takes them from the checkpoint's generation_config.json, `none` ignores that file",
    ),
    setting(
        "chat-template",
        "FILE",
        "the model's own",
        "Chat template (Jinja) in place of the checkpoint's own, for example for a checkpoint without one",
    ).worded(),
    model_setting(
        "max-seq-len",
        "TOKENS",
        "the model's, at most 4096",
        "Maximum length of a sequence, prompt plus output",
    ).worded(),
    model_setting(
        "speculate",
        "N",
        "0",
        "Draft tokens per sequence and step (prompt-lookup speculative decoding), on the CPU; 0 disables it. Output is \
         unchanged",
    ),
    switch(
        "plan-ahead",
        "off",
        "Plan the next step while a GPU computes the current one. Output is unchanged",
    ),
    setting("max-batch-size", "N", "32", "Maximum number of sequences running at once"),
    setting(
        "max-batch-tokens",
        "TOKENS",
        "auto",
        "Maximum tokens computed per step; `auto` is 2048 on a GPU and 64 on a CPU, or twice --max-batch-size if that is \
         larger",
    ),
    setting("prefill-chunk", "TOKENS", "512", "Maximum prompt tokens of one sequence per step"),
    setting("max-prefill-requests", "N", "8", "Maximum number of sequences in prefill per step"),
    setting("max-prefill-memory", "BYTES", "4GiB", "Maximum working memory for the prompt tokens of a step"),
    setting("max-waiting-requests", "N", "1000", "Capacity of the queue; requests beyond it get a 503"),
    setting("kv-cache", "KIND", "paged", "`paged`, or `contiguous` (the reference backend)"),
    setting("block-size", "TOKENS", "16", "Tokens per KV block"),
    setting(
        "kv-memory",
        "BYTES",
        "auto",
        "Memory of the KV pool, for example `2GiB`; `auto` takes a share of the free memory",
    ),
    setting(
        "gpu-memory-utilization",
        "SHARE",
        "0.9",
        "Share of a GPU's memory for weights, working memory and an `auto` KV pool",
    ),
    setting(
        "prompt-cache-entries",
        "N",
        "100",
        "Whole prompts whose last logits are kept, so that repeating one computes nothing; 0 disables this",
    ),
    setting(
        "prompt-cache-ttl",
        "SECONDS",
        "300",
        "How long an entry of the prompt cache is kept after its last use",
    ),
    switch("prefix-caching", "on", "Share KV blocks between requests with the same prefix"),
    setting(
        "scheduler",
        "POLICY",
        "continuous",
        "Policy that plans each step: the name of a bundled one, or a .wasm file",
    ),
    setting(
        "admission",
        "POLICY",
        "memory-aware",
        "Policy that admits requests: the name of a bundled one, or a .wasm file; or several, separated by commas",
    ),
    setting(
        "prefix-cache",
        "POLICY",
        "lru",
        "Policy that evicts cached prefixes: the name of a bundled one, or a .wasm file",
    ),
    setting(
        "policy-config",
        "FILE",
        "none",
        "JSON file with the policies' configurations: {\"scheduler\": {..}, \"admission\": {..}, \"prefix-cache\": {..}}",
    ).worded(),
    setting(
        "fault-dir",
        "DIR",
        "infer/faults in the user's cache",
        "Directory for recorded policy faults, which `infer policy replay` reads",
    ).worded(),
    switch("show-text", "off", "Show the text of cached prefixes on the admin plane"),
    model_setting("threads", "N", "all cores", "Compute threads").worded(),
    setting("seed", "N", "none", "Seed for requests without one, which makes their sampling reproducible").worded(),
    switch(
        "deterministic",
        "off",
        "Make results on a GPU independent of the batch, at a cost (on the CPU they always are)",
    ),
    setting(
        "api-keys",
        "FILE",
        "none",
        "TOML file of tenants and the digests of their API keys; see `infer keys`",
    ).worded(),
    setting(
        "allowed-origins",
        "ORIGINS",
        "none",
        "Web pages that may use the data plane (CORS): origins separated by commas, such as https://example.org, or `*` \
         for any",
    ).worded(),
    setting(
        "metrics",
        "public|admin",
        "public",
        "Where /metrics is served: `public` (on both planes; the data plane asks for no key), or `admin` (only on the \
         admin plane)",
    ),
    setting("max-body-bytes", "BYTES", "8MiB", "Maximum size of a request body"),
    setting(
        "max-body-memory",
        "BYTES",
        "256MiB",
        "Maximum memory for all long request bodies together; requests beyond it get a 503",
    ),
    setting(
        "max-connections",
        "N",
        "4096",
        "Maximum open connections of the data plane; further ones wait to be accepted",
    ),
    setting(
        "header-timeout",
        "SECONDS",
        "30",
        "Time limit for the head of a request, from its first byte to its last, and for the first byte on a new connection",
    ),
    setting("body-timeout", "SECONDS", "30", "Time limit for the body of a request"),
    setting("idle-timeout", "SECONDS", "120", "How long a connection may stay open between two requests"),
    setting("write-timeout", "SECONDS", "60", "How long a client may read nothing of its response"),
    setting(
        "request-timeout",
        "SECONDS",
        "3600",
        "Time limit for a whole request; after it, the request fails (504, `request_timeout`)",
    ),
    setting(
        "step-timeout",
        "SECONDS",
        "300",
        "Time limit for a step, after which health checks report a hung device (503, `engine_hangs`)",
    ),
    setting("drain-timeout", "SECONDS", "600", "Time limit for running streams to finish at shutdown"),
    setting("tls-cert", "FILE", "none", "PEM certificate with its chain; needs --tls-key").worded(),
    setting("tls-key", "FILE", "none", "PEM private key; needs --tls-cert").worded(),
    setting(
        "kv-events",
        "ENDPOINT",
        "none",
        "Publish KV events for routers over ZMQ, for example at tcp://0.0.0.0:5557",
    ).worded(),
    setting(
        "kv-events-replay",
        "ENDPOINT",
        "none",
        "Resend missed KV events on request, for example at tcp://0.0.0.0:5558",
    ).worded(),
    setting("kv-events-topic", "TEXT", "kv@HOST:PORT@MODEL", "Topic of the KV events").worded(),
    setting(
        "otlp",
        "URL",
        "none",
        "OpenTelemetry collector, for example http://HOST:4318 (needs a build with the feature `otel`)",
    ).worded(),
    setting(
        "sse-dialect",
        "DIALECT",
        "auto",
        "Format of streams: `auto`, `named`, or `openai`, which also streams only if the request asks for it",
    ),
];

/// Where a value came from; every error about the value names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--key`.
    Flag(&'static str),
    /// `INFER_KEY`.
    Environment(String),
    /// A key of a file, at a line.
    File(PathBuf, usize, String),
    /// Not given.
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

/// Variables of the host and its commands that are not settings.
const OTHER_VARIABLES: &[&str] = &[
    "admin-token",
    "api-key",
    "config",
    "cuda-carveout",
    "cuda-early",
    "cuda-few-rows",
    "cuda-image",
    "cuda-lib",
    "log",
    "log-format",
];

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
    fn refuse_misspelt(&self) -> Result<(), ConfigError> {
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

/// Settings as text with their origins. Flags win over the environment, which wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, (Origin, String)>,
}

/// What a file may contain.
#[derive(Clone, Copy)]
enum Entries {
    /// Only settings.
    AllKnown,
    /// Anything; what is no setting is skipped.
    Any,
}

impl Settings {
    /// Merges the three sources. `file` is the one of `--config`; without it, `infer.toml` is read if it
    /// exists.
    pub fn gather(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        environment.refuse_misspelt()?;
        Self::merge(flags, environment, file, Entries::AllKnown)
    }

    /// Merges the sources of a host that is running already. Its file may have been edited since, so entries
    /// that would fail its next start are skipped.
    pub fn of_running(environment: &Environment, file: Option<&Path>) -> Result<Self, ConfigError> {
        Self::merge(&BTreeMap::new(), environment, file, Entries::Any)
    }

    fn merge(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        file: Option<&Path>,
        entries: Entries,
    ) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        let named = match file {
            Some(file) => Some(file.to_path_buf()),
            None => environment.get("INFER_CONFIG")?.map(PathBuf::from),
        };
        match named {
            Some(path) => all.read_file(&path, entries)?,
            None if Path::new("infer.toml").is_file() => all.read_file(Path::new("infer.toml"), entries)?,
            None => {}
        }
        for setting in SETTINGS {
            let name = environment_name(setting.key);
            if let Some(value) = environment.get(&name)? {
                all.values.insert(setting.key, (Origin::Environment(name.clone()), value.to_owned()));
            }
            if let Some(value) = flags.get(setting.key) {
                all.values.insert(setting.key, (Origin::Flag(setting.key), value.clone()));
            }
        }
        Ok(all)
    }

    /// The text of a setting and where it came from, if it was given.
    pub fn get(&self, key: &'static str) -> Option<(&Origin, &str)> {
        debug_assert!(SETTINGS.iter().any(|s| s.key == key), "unknown setting {key}");
        self.values.get(key).map(|(origin, value)| (origin, value.as_str()))
    }

    /// Where a setting came from; its flag if it was not given.
    pub fn origin(&self, key: &'static str) -> Origin {
        self.values.get(key).map_or(Origin::Default(key), |(origin, _)| origin.clone())
    }

    fn read_file(&mut self, path: &Path, entries: Entries) -> Result<(), ConfigError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| {
            ConfigError(format!("--config: can't read {shown}: {e}; give the path of a readable TOML file"))
        })?;
        self.take_text(path, &text, entries)
    }

    /// The settings in the text of a file; `path` names the file in errors.
    pub fn of_text(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        all.take_text(path, text, Entries::AllKnown)?;
        Ok(all)
    }

    fn take_text(&mut self, path: &Path, text: &str, entries: Entries) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        let document = Document::parse(&shown, text).map_err(ConfigError)?;
        for entry in document.entries() {
            match (read_entry(&document, &entry), entries) {
                (Ok((key, text)), _) => {
                    let origin = Origin::File(path.to_path_buf(), document.line(&entry), entry.key.clone());
                    self.values.insert(key, (origin, text));
                }
                (Err(wrong), Entries::AllKnown) => return Err(ConfigError(wrong)),
                (Err(_), Entries::Any) => {}
            }
        }
        Ok(())
    }
}

/// The setting of an entry and its text, or what is wrong with it.
fn read_entry(document: &Document, entry: &Entry) -> Result<(&'static str, String), String> {
    let Some(setting) = SETTINGS.iter().find(|s| s.key == entry.key.replace('_', "-")) else {
        let meant = near(&entry.key, &known_keys()).map_or_else(
            || "; `infer config print` lists the keys".to_owned(),
            |meant| format!("; did you mean `{meant}`?"),
        );
        return Err(document.wrong(entry, format!("unknown key{meant}")));
    };
    let text = entry.text().ok_or_else(|| {
        let message = format!("expected a string, a number or a boolean, found {}", entry.kind());
        document.wrong(entry, message)
    })?;
    Ok((setting.key, text))
}

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

fn known_keys() -> Vec<&'static str> {
    SETTINGS.iter().map(|setting| setting.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(pairs: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
        pairs.iter().map(|&(k, v)| (k, v.to_owned())).collect()
    }

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::new(pairs.iter().map(|&(name, value)| (name.into(), value.into())))
    }

    fn gather(environment: &Environment) -> Result<Settings, ConfigError> {
        let empty = tempfile::NamedTempFile::new().unwrap();
        Settings::gather(&flags(&[]), environment, Some(empty.path()))
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
            ("INFER_CUDA_EARLI", "INFER_CUDA_EARLY"),
            ("INFER_CUDA_FEWROWS", "INFER_CUDA_FEW_ROWS"),
            ("INFER_CUDA_IMGAE", "INFER_CUDA_IMAGE"),
            ("INFER_max_batch_size", "INFER_MAX_BATCH_SIZE"),
        ] {
            let error = gather(&environment(&[(name, "3")])).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(meant), "{error}");
        }
        for name in [
            "INFER_ADMIN_TOKEN",
            "INFER_API_KEY",
            "INFER_CUDA_CARVEOUT",
            "INFER_CUDA_EARLY",
            "INFER_CUDA_FEW_ROWS",
            "INFER_CUDA_IMAGE",
            "INFER_CUDA_LIB",
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

    #[test]
    fn flags_win_over_environment_which_wins_over_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("infer.toml");
        std::fs::write(&path, "port = 1\nmax_batch_size = 2\nprefix-caching = false\n").unwrap();
        let environment = environment(&[("INFER_PORT", "5"), ("INFER_SEED", "5"), ("INFER_HOST", "")]);
        let all = Settings::gather(&flags(&[("port", "9")]), &environment, Some(&path)).unwrap();
        assert_eq!(all.get("host"), None, "an empty variable counts as absent");
        assert_eq!(all.get("port").unwrap(), (&Origin::Flag("port"), "9"));
        assert_eq!(all.get("seed").unwrap().1, "5");
        assert_eq!(all.get("max-batch-size").unwrap().1, "2");
        assert_eq!(all.get("prefix-caching").unwrap().1, "off");
        assert_eq!(all.origin("seed").to_string(), "INFER_SEED");
        assert!(all.origin("max-batch-size").to_string().ends_with("infer.toml:2: max_batch_size"));
    }

    #[test]
    fn unknown_key_of_the_file_is_named_with_a_hint() {
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
