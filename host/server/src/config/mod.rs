//! The validated configuration of a host, built once at start. Nothing after this reads flags or settings
//! again.
//!
//! `table` lists the settings, `settings` gathers their texts from flags, `environment` and file (`document`),
//! `policy_config` reads the policies' file, `validate` makes a `Config` of all. Values that depend on the model (the size of the KV pool, the default sequence length) are derived
//! in `startup::sizing`, which knows the model's shapes.

mod document;
mod environment;
mod local;
pub(crate) mod parse;
mod policy_config;
mod settings;
mod table;
mod validate;

use std::path::PathBuf;
use std::time::Duration;

use infer_core::policy::PolicyKind;
use infer_model::{DType, KvCacheKind, Quantize};

use crate::http::AllowedOrigins;
use crate::kv_events::Endpoints;
use crate::startup::device::DeviceChoice;
pub use document::{Document, Entry, near, read_text};
pub use environment::{Environment, environment_name};
pub use local::local_url;
pub use policy_config::read_policy_configs;
pub use settings::{Origin, Settings};
pub use table::{SETTINGS, Setting};

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
    /// Adapters that are served beside the model.
    pub lora: Vec<AdapterChoice>,
    /// Most adapters at once, if they are more than these.
    pub max_adapters: u32,
    /// Most memory of their matrices, if that is more than these take.
    pub max_adapter_memory_bytes: u64,
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
    /// File of further operators of the admin plane.
    pub operators: Option<PathBuf>,
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
    /// How to make embeddings.
    pub pooling: PoolingChoice,
    /// Chat template in place of the checkpoint's own.
    pub chat_template: Option<PathBuf>,
    /// Maximum length of a sequence, prompt plus output.
    pub max_seq_len: MaxSeqLen,
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
    /// Size of the prefix cache's second level; `None` for none.
    pub kv_offloading_bytes: Option<u64>,
    /// Directory of the file that it is in; `None` for memory.
    pub kv_offloading_dir: Option<PathBuf>,
    /// File that keeps the prefix cache across restarts.
    pub cache_file: Option<PathBuf>,
    /// Maximum size of that file.
    pub cache_file_bytes: u64,
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
    /// Limits of policies.
    pub policy_limits: PolicyLimits,
    /// Directory that keeps swaps and the quarantine across restarts.
    pub policy_state: Option<PathBuf>,
    /// Directory for recorded policy faults; `None` for the user's cache directory.
    pub fault_dir: Option<PathBuf>,
    /// Whether the admin plane shows the text of cached prefixes.
    pub show_text: bool,
    /// Compute threads.
    pub threads: usize,
    /// Seed for requests without one.
    pub seed: Option<u64>,
    /// File of tenants and the digests of their keys.
    pub api_keys: Option<PathBuf>,
    /// The one key that requests need if there is no such file; without either they need none.
    pub api_key: Option<String>,
    /// Web pages that may use the data plane; `None` for none.
    pub allowed_origins: Option<AllowedOrigins>,
    /// Where `/metrics` is served.
    pub metrics: MetricsPlane,
    /// File of the policies' configurations, read again on SIGHUP.
    pub policy_config: Option<PathBuf>,
    /// Certificate and key of the data plane.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Endpoint that publishes KV events, and the one that resends missed ones.
    pub kv_events: Option<Endpoints>,
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

/// An adapter, by its name in requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterChoice {
    /// The name.
    pub name: String,
    /// A directory, or `ORG/NAME`.
    pub place: String,
}

/// Maximum length of a sequence, prompt plus output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxSeqLen {
    /// The model's, at most 4,096.
    #[default]
    Usual,
    /// The model's, or as much as the KV pool holds.
    Auto,
    /// This many tokens.
    Tokens(u32),
}

/// What to take from a checkpoint's generation_config.json, besides its end tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationConfig {
    /// The sampling parameters, for requests that leave them out.
    Auto,
    /// Nothing.
    None,
}

/// How to make one vector of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingChoice {
    /// As the checkpoint says; not at all if it says nothing.
    Auto,
    /// From the last token's hidden state, also if the checkpoint says nothing or something else.
    Last,
}

/// Which planes serve `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsPlane {
    /// Both. The data plane asks for no key and, if there is a file of tenants, shows nothing of single ones.
    Public,
    /// Both, each with the metrics of every tenant. The data plane asks for no key.
    Tenants,
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

/// What policies may use and do before they are removed.
#[derive(Clone, Copy, Debug)]
pub struct PolicyLimits {
    /// Processor time of one call.
    pub deadline: Duration,
    /// Memory of one instance.
    pub memory_bytes: usize,
    /// Faults within `strike_window` that remove a policy.
    pub strikes: u32,
    /// See `strikes`.
    pub strike_window: Duration,
    /// How long a scheduler may ignore a sequence that could run, or an admission canary hold requests on an idle host.
    pub starvation_bound: Duration,
}

impl Default for PolicyLimits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(20),
            memory_bytes: 64 << 20,
            strikes: 3,
            strike_window: Duration::from_secs(10),
            starvation_bound: Duration::from_secs(5),
        }
    }
}

impl PolicyLimits {
    /// Processor time of all calls of a step: those of five calls.
    pub fn step_budget(&self) -> Duration {
        5 * self.deadline
    }
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
    /// How long the engine may take to end a request that reached that limit, and to answer an operator.
    pub engine_patience: Duration,
    /// How long a scrape waits for the current step: scrapers give up after ten seconds, two scrapes may follow each other,
    /// and metrics are needed most when the device is stuck. No setting.
    pub scrape_patience: Duration,
    /// Limit for a client that reads nothing of its response.
    pub write_timeout: Duration,
    /// Limit for a whole request body.
    pub body_timeout: Duration,
    /// Maximum open connections of the data plane.
    pub max_connections: usize,
    /// Maximum open connections of the admin plane: a few consoles and scripts. No setting.
    pub admin_connections: usize,
    /// Size of each plane's waiting room. No setting.
    pub waiting_room: usize,
    /// How long a connection waits there for a place: enough for an idle one to close. No setting.
    pub room_time: Duration,
    /// Events by which a stream's reader may lag before its request is cancelled.
    pub stream_events: usize,
    /// Silence on a stream after which a comment is sent.
    pub keep_alive: Duration,
    /// Limit for a step, after which health checks report a hung device.
    pub step_timeout: Duration,
    /// Limit for draining, after which streams are cut.
    pub drain_timeout: Duration,
    /// How long it may take to save what has changed last of the policies, at the end. No setting.
    pub last_save: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(3_600),
            engine_patience: Duration::from_secs(10),
            scrape_patience: Duration::from_secs(2),
            write_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            max_connections: 4_096,
            admin_connections: 64,
            waiting_room: 256,
            room_time: Duration::from_millis(100),
            stream_events: 1_024,
            keep_alive: Duration::from_secs(15),
            step_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(600),
            last_save: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// Maximum tokens per step on a GPU or on the CPU.
    ///
    /// A GPU needs many tokens to be busy. On a CPU, products cost about the same per token from some fifty
    /// tokens on (with tile registers from more; BENCH.md has figures), and every stream waits for the whole step.
    pub fn step_tokens(&self, on_gpu: bool) -> u32 {
        let enough = if on_gpu { 2_048 } else { 64 };
        self.max_batch_tokens.unwrap_or(enough.max(2 * self.max_batch_size))
    }

    /// The most adapters that the host may have at once.
    pub fn most_adapters(&self) -> usize {
        self.lora.len().max(self.max_adapters as usize)
    }

    /// Bytes that they may take, those of the start included, if others are expected to come.
    pub fn expected_adapter_bytes(&self) -> u64 {
        if self.max_adapters > 0 { self.max_adapter_memory_bytes } else { 0 }
    }

    /// Maximum tokens sampled per step on a GPU, those after draft tokens included.
    ///
    /// By the ratio of a GPU's arithmetic to its bandwidth, a decode of up to some hundred tokens takes as long as reading
    /// the weights, so draft tokens are nearly free. With more, they would compete with the tokens of other sequences.
    pub fn step_samples(&self) -> u32 {
        const NEARLY_FREE: u32 = 128;
        let drafting = self.max_batch_size * (1 + self.speculate);
        drafting.min(NEARLY_FREE).max(self.max_batch_size).min(self.step_tokens(true))
    }

    /// Whether anyone may read the metrics of single tenants.
    pub fn shows_tenants(&self) -> bool {
        self.api_keys.is_none() || self.metrics == MetricsPlane::Tenants
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

#[cfg(test)]
mod tests;
