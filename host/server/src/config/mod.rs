//! The validated configuration of a host, built once at start. Nothing after this reads flags or settings
//! again.
//!
//! Values that depend on the model (the size of the KV pool, the default sequence length) are derived in
//! `startup::sizing`, which knows the model's shapes.

mod document;
mod local;
pub(crate) mod parse;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use infer_core::policy::PolicyKind;
use infer_model::{DType, KvCacheKind, Quantize};

use crate::http::AllowedOrigins;
use crate::startup::device::DeviceChoice;
pub use document::{Document, Entry, near};
use local::data_address;
pub use local::local_url;

pub use settings::{Environment, Origin, SETTINGS, Setting, Settings, environment_name};

/// A setting that can't be used; the message says where it was given and what is accepted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Validated configuration of a host.
#[derive(Clone, Debug)]
pub struct Config {
    /// `demo`, a directory, a `.gguf` file, or `ORG/NAME`.
    pub model: String,
    /// Names of the model in requests; empty for its own.
    pub served_model_names: Vec<String>,
    /// Address of the data plane.
    pub host: String,
    /// Port of the data plane; 0 for a free one.
    pub port: u16,
    /// Address of the admin plane.
    pub admin_host: String,
    /// Port of the admin plane; 0 for a free one.
    pub admin_port: u16,
    /// Bearer token of the admin plane; `None` to generate one and keep it in a file.
    pub admin_token: Option<String>,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Share of a GPU's memory that may be used.
    pub gpu_memory_utilization: f32,
    /// Whether results must be independent of the batch on GPUs, too.
    pub deterministic: bool,
    /// Type of the weights and the KV cache; `None` for the checkpoint's.
    pub dtype: Option<DType>,
    /// Whether to hold weights as 8-bit integers.
    pub quantize: Quantize,
    /// What to take from generation_config.json for requests that leave sampling parameters out.
    pub generation_config: GenerationConfig,
    /// Chat template in place of the checkpoint's own.
    pub chat_template: Option<PathBuf>,
    /// Maximum length of a sequence, prompt plus output; `None` for the model's, at most 4,096.
    pub max_seq_len: Option<u32>,
    /// Maximum number of sequences running at once.
    pub max_batch_size: u32,
    /// Maximum tokens per step, if given; see [`Config::step_tokens`].
    pub max_batch_tokens: Option<u32>,
    /// Maximum prompt tokens of one sequence per step.
    pub prefill_chunk: u32,
    /// Maximum number of sequences in prefill per step.
    pub max_prefill_requests: u32,
    /// Maximum working memory for the prompt tokens of a step.
    pub max_prefill_memory_bytes: u64,
    /// Capacity of the queue.
    pub max_waiting_requests: u32,
    /// Storage of keys and values.
    pub kv_cache: KvCacheKind,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Memory of the KV pool; `None` for a share of the free memory.
    pub kv_memory_bytes: Option<u64>,
    /// Whole prompts whose last logits are kept.
    pub prompt_cache_entries: u32,
    /// How long such an entry is kept after its last use.
    pub prompt_cache_ttl: Duration,
    /// Whether requests with the same prefix share KV blocks.
    pub prefix_caching: bool,
    /// Plans each step.
    pub scheduler: PolicyChoice,
    /// Admits requests.
    pub admission: PolicyChoice,
    /// Whether the admission policy was given, rather than the default.
    pub admission_chosen: bool,
    /// Evicts cached prefixes.
    pub prefix_cache: PolicyChoice,
    /// Draft tokens per sequence and step; 0 disables speculation.
    pub speculate: u32,
    /// Whether to plan the next step while the device computes the current one.
    pub plan_ahead: bool,
    /// Directory for recorded policy faults; `None` for the user's cache directory.
    pub fault_dir: Option<PathBuf>,
    /// Whether the admin plane shows the text of cached prefixes.
    pub show_text: bool,
    /// Compute threads.
    pub threads: usize,
    /// Seed for requests without one.
    pub seed: Option<u64>,
    /// File of tenants and the digests of their keys; `None` to serve without keys.
    pub api_keys: Option<PathBuf>,
    /// Web pages that may use the data plane; `None` for none.
    pub allowed_origins: Option<AllowedOrigins>,
    /// Where `/metrics` is served.
    pub metrics: MetricsPlane,
    /// File of the policies' configurations, read again on SIGHUP.
    pub policy_config: Option<PathBuf>,
    /// Certificate and key of the data plane.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Endpoint that publishes KV events, and the one that resends missed ones.
    pub kv_events: Option<(String, Option<String>)>,
    /// Topic of the KV events; `None` to build it from address and model.
    pub kv_events_topic: Option<String>,
    /// Collector for traces.
    pub otlp: Option<String>,
    /// Maximum size of a request body.
    pub max_body_bytes: usize,
    /// Maximum memory for all request bodies together; short ones are not counted.
    pub max_body_memory_bytes: usize,
    /// Format of streams.
    pub sse_dialect: DialectChoice,
    /// Time limits and sizes of connections and streams.
    pub bounds: Bounds,
}

/// A policy by name or path, and its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChoice {
    /// Name of a bundled policy, or path of a `.wasm` file.
    pub name: String,
    /// JSON text; `{}` for the policy's defaults.
    pub config: String,
}

impl PolicyChoice {
    /// A policy with its defaults.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), config: "{}".to_owned() }
    }
}

/// What to take from a checkpoint's generation_config.json, besides its end tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationConfig {
    /// The sampling parameters, for requests that leave them out.
    Auto,
    /// Nothing.
    None,
}

/// Which planes serve `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsPlane {
    /// Both; the data plane asks for no key.
    Public,
    /// The admin plane alone.
    Admin,
}

/// How streams are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectChoice {
    /// The request decides.
    Auto,
    /// Named events.
    Named,
    /// OpenAI chunks.
    OpenAi,
}

/// Bounds of connections and streams.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Limit for a request's head, from its first byte to its last; on a new connection from the moment it is
    /// accepted.
    pub header_timeout: Duration,
    /// Limit for a connection between two requests.
    pub idle_timeout: Duration,
    /// Limit for a whole request.
    pub request_timeout: Duration,
    /// Limit for a client that reads nothing of its response.
    pub write_timeout: Duration,
    /// Limit for a whole request body.
    pub body_timeout: Duration,
    /// Maximum open connections of the data plane.
    pub max_connections: usize,
    /// Events by which a stream's reader may lag before its request is cancelled.
    pub stream_events: usize,
    /// Silence on a stream after which a comment is sent.
    pub keep_alive: Duration,
    /// Limit for a step, after which health checks report a hung device.
    pub step_timeout: Duration,
    /// Limit for draining, after which streams are cut.
    pub drain_timeout: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(3_600),
            write_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            max_connections: 4_096,
            stream_events: 1_024,
            keep_alive: Duration::from_secs(15),
            step_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(600),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::from_settings(&Settings::default()).expect("the defaults are valid")
    }
}

impl Config {
    /// Parses and checks settings.
    pub fn from_settings(all: &Settings) -> Result<Self, ConfigError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (host, port) = data_address(all)?;
        let (admin_host, admin_port) = read(all, "admin", ("127.0.0.1".to_owned(), 8001), parse::address)?;
        let policy_config = read(all, "policy-config", None, |t| Ok(Some(PathBuf::from(t))))?;
        let policy_configs =
            read(all, "policy-config", BTreeMap::new(), |t| read_policy_configs(Path::new(t)))?;
        let policy =
            |kind: PolicyKind, key: &'static str, default: &str| -> Result<PolicyChoice, ConfigError> {
                let name = read(all, key, default.to_owned(), non_empty)?;
                let config =
                    policy_configs.get(kind.name()).map_or_else(|| "{}".to_owned(), ToString::to_string);
                Ok(PolicyChoice { name, config })
            };
        let config = Self {
            model: read(all, "model", "demo".to_owned(), non_empty)?,
            served_model_names: read(all, "served-model-name", Vec::new(), |t| {
                t.split(',').map(non_empty).collect()
            })?,
            host,
            port,
            admin_host,
            admin_port,
            admin_token: None,
            device: read(all, "device", DeviceChoice::Auto, DeviceChoice::parse)?,
            gpu_memory_utilization: read(all, "gpu-memory-utilization", 0.9, parse::share)?,
            deterministic: read(all, "deterministic", false, parse::switch)?,
            dtype: read(all, "dtype", None, dtype)?,
            quantize: read(all, "quantize", Quantize::Auto, |t| {
                parse::choice(t, &[("auto", Quantize::Auto), ("off", Quantize::Off), ("q8", Quantize::Q8)])
            })?,
            generation_config: read(all, "generation-config", GenerationConfig::Auto, |t| {
                parse::choice(t, &[("auto", GenerationConfig::Auto), ("none", GenerationConfig::None)])
            })?,
            chat_template: read(all, "chat-template", None, path)?,
            max_seq_len: read(all, "max-seq-len", None, |t| parse::number(t, 2, 1 << 24).map(Some))?,
            max_batch_size: read(all, "max-batch-size", 32, |t| parse::number(t, 1, 4_096))?,
            max_batch_tokens: read(all, "max-batch-tokens", None, |t| match t {
                "auto" => Ok(None),
                _ => parse::number(t, 1, 1 << 20).map(Some),
            })?,
            prefill_chunk: read(all, "prefill-chunk", 512, |t| parse::number(t, 1, 1 << 20))?,
            max_prefill_requests: read(all, "max-prefill-requests", 8, |t| parse::number(t, 1, 4_096))?,
            max_prefill_memory_bytes: read(all, "max-prefill-memory", 4 << 30, parse::bytes)?,
            max_waiting_requests: read(all, "max-waiting-requests", 1_000, |t| parse::number(t, 1, 100_000))?,
            kv_cache: read(all, "kv-cache", KvCacheKind::Paged, |t| {
                parse::choice(t, &[("paged", KvCacheKind::Paged), ("contiguous", KvCacheKind::Contiguous)])
            })?,
            block_size: read(all, "block-size", 16, |t| parse::number(t, 1, 1_024))?,
            kv_memory_bytes: read(all, "kv-memory", None, auto_bytes)?,
            prompt_cache_entries: read(all, "prompt-cache-entries", 100, |t| parse::number(t, 0, 100_000))?,
            prompt_cache_ttl: read(all, "prompt-cache-ttl", Duration::from_secs(300), parse::seconds)?,
            prefix_caching: read(all, "prefix-caching", true, parse::switch)?,
            scheduler: policy(PolicyKind::Scheduler, "scheduler", "continuous")?,
            admission: policy(PolicyKind::Admission, "admission", "memory-aware")?,
            admission_chosen: all.get("admission").is_some(),
            prefix_cache: policy(PolicyKind::PrefixCache, "prefix-cache", "lru")?,
            speculate: read(all, "speculate", 0, |t| parse::number(t, 0, 32))?,
            plan_ahead: read(all, "plan-ahead", false, parse::switch)?,
            fault_dir: read(all, "fault-dir", None, path)?,
            show_text: read(all, "show-text", false, parse::switch)?,
            threads: read(all, "threads", cores, |t| parse::number(t, 1, 1_024))?,
            seed: read(all, "seed", None, |t| parse::number(t, 0, u64::MAX).map(Some))?,
            policy_config,
            tls: tls(all)?,
            kv_events: kv_events(all)?,
            kv_events_topic: read(all, "kv-events-topic", None, |t| non_empty(t).map(Some))?,
            otlp: read(all, "otlp", None, otlp)?,
            api_keys: read(all, "api-keys", None, path)?,
            allowed_origins: read(all, "allowed-origins", None, |t| AllowedOrigins::parse(t).map(Some))?,
            metrics: read(all, "metrics", MetricsPlane::Public, |t| {
                parse::choice(t, &[("public", MetricsPlane::Public), ("admin", MetricsPlane::Admin)])
            })?,
            max_body_bytes: read(all, "max-body-bytes", 8 << 20, |t| {
                let bytes = parse::bytes(t)?;
                if (1_024..=1 << 30).contains(&bytes) {
                    Ok(bytes as usize)
                } else {
                    Err(format!("`{t}` is not from 1KiB to 1GiB"))
                }
            })?,
            max_body_memory_bytes: read(all, "max-body-memory", 256 << 20, |t| {
                usize::try_from(parse::bytes(t)?).map_err(|e| format!("`{t}`: {e}"))
            })?,
            sse_dialect: read(all, "sse-dialect", DialectChoice::Auto, |t| {
                let choices = [
                    ("auto", DialectChoice::Auto),
                    ("named", DialectChoice::Named),
                    ("openai", DialectChoice::OpenAi),
                ];
                parse::choice(t, &choices)
            })?,
            bounds: bounds(all)?,
        };
        config.check(all)?;
        Ok(config)
    }

    /// Checks settings against each other.
    fn check(&self, all: &Settings) -> Result<(), ConfigError> {
        if self.port != 0 && self.port == self.admin_port && self.host == self.admin_host {
            return Err(ConfigError(format!(
                "{}: {}:{} is the address of the data plane; the admin plane needs its own",
                all.origin("admin"),
                self.host,
                self.port
            )));
        }
        if self.max_body_memory_bytes < self.max_body_bytes {
            return Err(ConfigError(format!(
                "{}: {} bytes can't hold one body of {} bytes (--max-body-bytes)",
                all.origin("max-body-memory"),
                self.max_body_memory_bytes,
                self.max_body_bytes
            )));
        }
        if let Some(tokens) = self.max_batch_tokens
            && tokens < self.max_batch_size
        {
            return Err(ConfigError(format!(
                "{}: {} tokens per step are too few for {} sequences; give at least {}, or a smaller --max-batch-size",
                all.origin("max-batch-tokens"),
                tokens,
                self.max_batch_size,
                self.max_batch_size
            )));
        }
        Ok(())
    }

    /// Maximum tokens per step on a GPU or on the CPU.
    ///
    /// A GPU needs many tokens to be busy. On a CPU, products cost about the same per token from some fifty
    /// tokens on, and every stream waits for the whole step.
    pub fn step_tokens(&self, on_gpu: bool) -> u32 {
        let enough = if on_gpu { 2_048 } else { 64 };
        self.max_batch_tokens.unwrap_or(enough.max(2 * self.max_batch_size))
    }

    /// The policy of a slot.
    pub fn policy(&self, kind: PolicyKind) -> &PolicyChoice {
        match kind {
            PolicyKind::Scheduler => &self.scheduler,
            PolicyKind::Admission => &self.admission,
            PolicyKind::PrefixCache => &self.prefix_cache,
        }
    }
}

fn read<T>(
    all: &Settings,
    key: &'static str,
    default: T,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    match all.get(key) {
        None => Ok(default),
        Some((origin, text)) => parse(text).map_err(|wrong| ConfigError(format!("{origin}: {wrong}"))),
    }
}

fn non_empty(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn path(text: &str) -> Result<Option<PathBuf>, String> {
    non_empty(text).map(|path| Some(PathBuf::from(path)))
}

fn dtype(text: &str) -> Result<Option<DType>, String> {
    let types = [("f32", DType::F32), ("bf16", DType::Bf16), ("f16", DType::F16)];
    let mut choices = vec![("auto", None)];
    choices.extend(types.map(|(name, dtype)| (name, Some(dtype))));
    parse::choice(text, &choices)
}

fn auto_bytes(text: &str) -> Result<Option<u64>, String> {
    if text.trim().eq_ignore_ascii_case("auto") { Ok(None) } else { parse::bytes(text).map(Some) }
}

fn bounds(all: &Settings) -> Result<Bounds, ConfigError> {
    let default = Bounds::default();
    let time = |key, default| read(all, key, default, parse::time_limit);
    Ok(Bounds {
        header_timeout: time("header-timeout", default.header_timeout)?,
        body_timeout: time("body-timeout", default.body_timeout)?,
        idle_timeout: time("idle-timeout", default.idle_timeout)?,
        write_timeout: time("write-timeout", default.write_timeout)?,
        request_timeout: time("request-timeout", default.request_timeout)?,
        step_timeout: time("step-timeout", default.step_timeout)?,
        drain_timeout: time("drain-timeout", default.drain_timeout)?,
        max_connections: read(all, "max-connections", default.max_connections, |t| {
            parse::number(t, 1, 1_000_000)
        })?,
        ..default
    })
}

fn tls(all: &Settings) -> Result<Option<(PathBuf, PathBuf)>, ConfigError> {
    match (read(all, "tls-cert", None, path)?, read(all, "tls-key", None, path)?) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigError(format!("{}: needs --tls-key as well", all.origin("tls-cert")))),
        (None, Some(_)) => Err(ConfigError(format!("{}: needs --tls-cert as well", all.origin("tls-key")))),
    }
}

fn kv_events(all: &Settings) -> Result<Option<(String, Option<String>)>, ConfigError> {
    let endpoint = |key| {
        read(all, key, None, |text| {
            if !cfg!(feature = "kv-events") {
                return Err(
                    "this build can't publish KV events; build it with `--features kv-events`".to_owned()
                );
            }
            match text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')) {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Some(text.to_owned()))
                }
                _ => Err(format!("`{text}` is not tcp://HOST:PORT")),
            }
        })
    };
    match (endpoint("kv-events")?, endpoint("kv-events-replay")?) {
        (Some(events), replay) => Ok(Some((events, replay))),
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(ConfigError(format!("{}: needs --kv-events as well", all.origin("kv-events-replay"))))
        }
    }
}

fn otlp(text: &str) -> Result<Option<String>, String> {
    if !cfg!(feature = "otel") {
        return Err("this build can't send traces; build it with `--features otel`".to_owned());
    }
    if !text.starts_with("http://") {
        return Err(format!(
            "`{text}` is not http://HOST:PORT; traces are sent without TLS, to a collector on the same network"
        ));
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

/// Reads the file of the policies' configurations, by kind of policy.
pub fn read_policy_configs(path: &Path) -> Result<BTreeMap<String, serde_json::Value>, String> {
    let shown = path.display();
    let json = std::fs::read_to_string(path).map_err(|e| format!("can't read {shown}: {e}"))?;
    let map: BTreeMap<String, serde_json::Value> = serde_json::from_str(&json).map_err(|e| {
        format!("{shown} is not a JSON object of {{\"scheduler\": {{..}}, \"admission\": {{..}}}}: {e}")
    })?;
    for (key, value) in &map {
        let kinds = PolicyKind::ALL.map(PolicyKind::name);
        if !kinds.contains(&key.as_str()) {
            let meant = near(key, &kinds).map_or_else(
                || format!("known keys are {}", kinds.join(", ")),
                |meant| format!("did you mean `{meant}`?"),
            );
            return Err(format!("{shown}: unknown key `{key}`; {meant}"));
        }
        if !value.is_object() {
            return Err(format!("{shown}: {key}: expected a JSON object"));
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests;
