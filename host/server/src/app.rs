//! State that all request handlers share: configuration, clock, metrics and, once it is loaded, the model.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use infer_api::trace::Settings;
use infer_chat::ChatTemplate;
use infer_model::{SamplingDefaults, Tokenizer};
use tokio::sync::watch;

use crate::adapters::{AdapterHold, Adapters, ServedAdapter};
use crate::admin::operators::Operators;
use crate::config::{Config, ConfigError};
use crate::data::{Compiler, Embeds, Models, PendingTemplate, no_template};
use crate::engine::{Clock, EngineHandle};
use crate::http::{ApiError, BodyRoom, Connections, Tls, Unsent};
use crate::metrics::{Recorder, Scrapes};
use crate::otel::Traces;
use crate::policies::PolicyManager;
use crate::reload::Reload;
use crate::tenants::{Tenant, Tenants};
use crate::texts::Turns;

/// Shared by both planes.
pub struct App {
    /// The configuration.
    pub config: Config,
    /// Time since the start, of this host or, if it goes on from there, of the first one.
    pub clock: Clock,
    /// Tenants and their API keys.
    pub tenants: Arc<Tenants>,
    /// Operators and their tokens.
    pub operators: Operators,
    /// Histograms and windows.
    pub recorder: Recorder,
    /// Scrapes of `/metrics`, one at a time.
    pub scrapes: Scrapes,
    /// Turns true when connections must close.
    pub shutdown: watch::Receiver<bool>,
    /// TLS of the data plane.
    pub tls: Option<Arc<Tls>>,
    /// Connections of the data plane.
    pub connections: Connections,
    /// Responses of the data plane that are not sent yet.
    pub unsent: Unsent,
    /// Memory shared by the bodies of the data plane.
    pub body_room: BodyRoom,
    /// The files that are read again on SIGHUP.
    pub reload: Reload,
    /// Exporter for traces of requests.
    pub traces: Traces,
    /// URL of the data plane, `http://HOST:PORT`.
    pub data_url: String,
    draining: AtomicBool,
    /// Whether the host shuts down and so drains for good. Locked while `draining` changes, here and in the engine.
    ending: Mutex<bool>,
    saving: AtomicBool,
    turned_away: AtomicU64,
    beyond_rates: AtomicU64,
    served: OnceLock<Served>,
}

/// What guards the planes.
pub struct Doors {
    /// Tenants and their API keys.
    pub tenants: Arc<Tenants>,
    /// Operators and their tokens.
    pub operators: Operators,
    /// TLS of the data plane, if it is configured.
    pub tls: Option<Arc<Tls>>,
    /// URL of the data plane.
    pub data_url: String,
}

/// The loaded model and everything that serves it.
pub struct Served {
    /// Handle of the engine thread.
    pub engine: EngineHandle,
    /// The policies of the three slots.
    pub policies: PolicyManager,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Compiles constraints on outputs.
    pub compiler: Compiler,
    /// The checkpoint's own name.
    pub checkpoint: String,
    /// Names of the model itself in requests, of which responses show the first.
    pub model_names: Vec<String>,
    /// The adapters beside it.
    pub adapters: Adapters,
    /// Type of the weights, such as `bf16` or `q8`.
    pub weights: String,
    /// The model's end tokens.
    pub stop_tokens: Arc<[u32]>,
    /// Sampling parameters for requests that leave them out.
    pub sampling: SamplingDefaults,
    /// How it makes vectors, or why it makes none.
    pub embeds: Result<Embeds, String>,
    /// Rows of the embedding.
    pub vocab_size: u32,
    /// Maximum length of a sequence, prompt plus output.
    pub max_seq_len: u32,
    /// Bytes per KV block.
    pub block_bytes: u64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// The engine's settings, as recordings contain them.
    pub settings: Settings,
    /// Name of the device that computes.
    pub device: String,
    /// Seeds for requests without one.
    pub seeds: Seeds,
    pub(crate) chat: PendingTemplate,
    pub(crate) keys: RandomState,
    pub(crate) turns: Turns,
}

/// Whether the engine can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It can. A long step counts as work.
    Working,
    /// The current step exceeds `--step-timeout`; with its time so far.
    Hanging(Duration),
    /// The engine thread has ended.
    Stopped,
}

impl App {
    /// The state before the model is loaded.
    pub fn new(
        config: Config,
        doors: Doors,
        clock: Clock,
        shutdown: watch::Receiver<bool>,
    ) -> Result<Self, ConfigError> {
        let Doors { tenants, operators, tls, data_url } = doors;
        Ok(Self {
            traces: Traces::start(config.otlp.as_deref()).map_err(|e| ConfigError(format!("--otlp: {e}")))?,
            reload: Reload::new(&config, &tenants),
            body_room: BodyRoom::new(config.max_body_memory_bytes),
            config,
            clock,
            tenants,
            operators,
            tls,
            connections: Connections::default(),
            unsent: Unsent::default(),
            recorder: Recorder::default(),
            scrapes: Scrapes::default(),
            shutdown,
            data_url,
            draining: AtomicBool::new(false),
            ending: Mutex::new(false),
            saving: AtomicBool::new(false),
            turned_away: AtomicU64::new(0),
            beyond_rates: AtomicU64::new(0),
            served: OnceLock::new(),
        })
    }

    /// Sets the model, once.
    pub fn set_served(&self, served: Served) {
        assert!(self.served.set(served).is_ok(), "the model is loaded once");
        // A drain in between found no engine to tell.
        let _turn = self.ending();
        self.tell_engine();
    }

    /// The model, or a 503 while it is loading.
    pub fn served(&self) -> Result<&Served, ApiError> {
        self.served.get().ok_or_else(|| ApiError::unavailable("loading", "the model is still loading"))
    }

    /// Whether only this machine is meant to reach the host, without keys.
    pub fn is_for_this_machine(&self) -> bool {
        let host = self.config.host.as_str();
        let loopback =
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        loopback && !self.tenants.need_keys()
    }

    /// Whether new requests are refused, because an operator wants it or the host is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether the prefix cache is being saved, at the end.
    pub fn is_saving(&self) -> bool {
        self.saving.load(Ordering::Acquire)
    }

    /// Sets whether the prefix cache is being saved.
    pub fn set_saving(&self, is_saving: bool) {
        self.saving.store(is_saving, Ordering::Release);
    }

    /// Refuses new requests from now on; running ones finish normally.
    pub fn drain(&self) {
        let _turn = self.ending();
        if !self.draining.swap(true, Ordering::AcqRel) {
            tracing::info!("draining: refusing new requests");
        }
        self.tell_engine();
    }

    /// The same, for good: the host shuts down.
    pub fn end(&self) {
        *self.ending() = true;
        self.drain();
    }

    /// Takes new requests again. Returns false, and changes nothing, if the host is shutting down.
    pub fn undrain(&self) -> bool {
        let ending = self.ending();
        if *ending {
            return false;
        }
        if self.draining.swap(false, Ordering::AcqRel) {
            tracing::info!("taking new requests again");
        }
        self.tell_engine();
        true
    }

    fn ending(&self) -> MutexGuard<'_, bool> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the engine whether the host drains. The caller holds `ending`, so that the latest word is the last.
    fn tell_engine(&self) {
        let Some(served) = self.served.get() else { return };
        match self.is_draining() {
            true => served.engine.drain(),
            false => served.engine.undrain(),
        }
    }

    /// Counts a request that was refused because the host is draining; the engine never sees it.
    pub fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests refused because the host is draining.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Counts a request that was refused because its tenant has sent too many; the engine never sees it.
    pub fn count_beyond_rate(&self) {
        self.beyond_rates.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests refused because their tenants had sent too many.
    pub fn beyond_rates(&self) -> u64 {
        self.beyond_rates.load(Ordering::Relaxed)
    }

    /// Fails with a 503 while the host is draining.
    pub fn refuse_if_draining(&self) -> Result<(), ApiError> {
        if self.is_draining() {
            return Err(ApiError::draining());
        }
        Ok(())
    }
}

impl Served {
    /// All names that requests may use now: those of the model, and then those of its adapters.
    pub fn names(&self) -> Vec<String> {
        let adapters = self.adapters.current();
        let of_adapters = adapters.iter().map(|adapter| adapter.name().to_owned());
        self.model_names.iter().cloned().chain(of_adapters).collect()
    }

    /// The names that a tenant's requests may use, of the model and these adapters.
    pub(crate) fn models<'a>(&'a self, tenant: &'a Tenant, adapters: &'a [Arc<ServedAdapter>]) -> Models<'a> {
        Models::of(&self.model_names, adapters, &tenant.models)
    }

    /// The name that responses show to a tenant: that of the adapter that the request chose, or else the first of the
    /// model's that the tenant may use.
    pub fn shown_name<'a>(&'a self, tenant: &Tenant, adapter: Option<&'a AdapterHold>) -> &'a str {
        match adapter {
            Some(adapter) => adapter.name(),
            None => self.own_name(tenant).unwrap_or(&self.model_names[0]),
        }
    }

    /// The first name of the model itself that a tenant may use, if there is one.
    pub fn own_name(&self, tenant: &Tenant) -> Option<&str> {
        self.model_names.iter().find(|name| tenant.models.allows(name)).map(String::as_str)
    }

    /// Whether the engine can serve; `step_timeout` is the limit for a step.
    pub fn health(&self, step_timeout: Duration) -> Health {
        let computing = self.engine.computing_for();
        match () {
            () if !self.engine.is_alive() => Health::Stopped,
            () if computing > step_timeout => Health::Hanging(computing),
            () => Health::Working,
        }
    }

    /// The chat template; waits until it is compiled.
    pub async fn chat_template(&self) -> Result<Arc<ChatTemplate>, ApiError> {
        self.chat.ready().await?.ok_or_else(|| no_template("this model has no chat template"))
    }

    /// A hash of a client's text, keyed per process so that clients can't craft collisions.
    pub fn key_of(&self, domain: &str, text: &str) -> u64 {
        self.keys.hash_one((domain, text)).max(1)
    }

    /// An identifier of this run of the host.
    pub fn run(&self) -> String {
        format!("{:016x}", self.keys.hash_one("run"))
    }
}

/// Seeds for requests without one: a reproducible sequence with `--seed`, else random.
pub struct Seeds {
    base: Option<u64>,
    count: AtomicU64,
}

impl Seeds {
    /// Seeds derived from `base`, or from the system.
    pub fn new(base: Option<u64>) -> Self {
        Self { base, count: AtomicU64::new(0) }
    }

    /// The seed of the next request.
    pub fn next(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        match self.base {
            Some(base) => mix(base.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            None => getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(count)),
        }
    }
}

/// Spreads consecutive numbers (the finalizer of SplitMix64, Steele et al. 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_host_repeats_its_sequence_of_seeds() {
        let sequence = |base| {
            let seeds = Seeds::new(base);
            (0..4).map(|_| seeds.next()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(Some(7)), sequence(Some(7)));
        assert_ne!(sequence(Some(7)), sequence(Some(8)));
        assert_ne!(sequence(None), sequence(None));
    }
}
