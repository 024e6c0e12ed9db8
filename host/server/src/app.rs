//! What every request handler can reach: configuration, clock, metrics, and, once it is loaded, the model.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use infer_api::trace::Settings;
use infer_chat::ChatTemplate;
use infer_model::{SamplingDefaults, Tokenizer};
use tokio::sync::{Semaphore, watch};

use crate::config::{Config, ConfigError};
use crate::data::{Compiler, PendingTemplate};
use crate::engine::{Clock, EngineHandle};
use crate::http::{ApiError, BodyRoom, Room, Tls};
use crate::metrics::{Recorder, Scrapes};
use crate::otel::Traces;
use crate::policies::PolicyManager;
use crate::reload::Reload;
use crate::tenants::Tenants;

/// Text below this length is tokenized where it stands: handing it over would take longer.
const INLINE_TOKENIZE_BYTES: usize = 1_024;

/// Shared by both planes.
pub struct App {
    /// As it was told.
    pub config: Config,
    /// Since start.
    pub clock: Clock,
    /// Who may ask.
    pub tenants: Tenants,
    /// Histograms and windows.
    pub recorder: Recorder,
    /// Of `/metrics`, one at a time.
    pub scrapes: Scrapes,
    /// True once connections are to end.
    pub shutdown: watch::Receiver<bool>,
    /// Encrypts the data plane.
    pub tls: Option<Arc<Tls>>,
    /// Connections of the data plane that are open.
    pub connections: Arc<AtomicUsize>,
    /// Memory that the data plane's bodies share.
    pub body_room: BodyRoom,
    /// What can be read again while the host runs.
    pub reload: Reload,
    /// Where traces of requests go.
    pub traces: Traces,
    /// Where the data plane listens, `http://HOST:PORT`.
    pub data_url: String,
    draining: AtomicBool,
    turned_away: AtomicU64,
    served: OnceLock<Served>,
}

/// How the data plane is entered.
pub struct Doors {
    /// Who may ask.
    pub tenants: Tenants,
    /// Encrypts it.
    pub tls: Option<Arc<Tls>>,
    /// Where it listens.
    pub data_url: String,
}

/// The loaded model and everything around it.
pub struct Served {
    /// Reaches the engine.
    pub engine: EngineHandle,
    /// The three slots.
    pub policies: PolicyManager,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// What outputs must be, compiled.
    pub compiler: Compiler,
    /// Names that requests may give; the first is shown.
    pub model_names: Vec<String>,
    /// How its weights are held: `f32`, `bf16` or `q8`.
    pub weights: String,
    /// The model's end tokens.
    pub stop_tokens: Arc<[u32]>,
    /// How tokens are drawn where a request doesn't say.
    pub sampling: SamplingDefaults,
    /// Rows of its embedding.
    pub vocab_size: u32,
    /// Longest prompt plus output.
    pub max_seq_len: u32,
    /// Bytes that one KV block takes.
    pub block_bytes: u64,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// The engine's settings, as a recording tells them.
    pub settings: Settings,
    /// Where it computes.
    pub device: String,
    /// For requests that bring no seed.
    pub seeds: Seeds,
    chat: PendingTemplate,
    keys: RandomState,
    tokenizing: Arc<Semaphore>,
}

/// What `Served` is made of, before it gets what is its own.
#[allow(missing_docs, reason = "as in `Served`")]
pub struct Parts {
    pub engine: EngineHandle,
    pub policies: PolicyManager,
    pub tokenizer: Tokenizer,
    pub chat: PendingTemplate,
    pub model_names: Vec<String>,
    pub weights: String,
    pub stop_tokens: Arc<[u32]>,
    pub sampling: SamplingDefaults,
    pub vocab_size: u32,
    pub max_seq_len: u32,
    pub block_bytes: u64,
    pub block_size: u32,
    pub total_blocks: u32,
    pub settings: Settings,
    pub seed: Option<u64>,
    pub threads: usize,
    /// Where it computes.
    pub device: String,
}

impl App {
    /// Before the model is loaded.
    pub fn new(
        config: Config,
        doors: Doors,
        clock: Clock,
        shutdown: watch::Receiver<bool>,
    ) -> Result<Self, ConfigError> {
        let Doors { tenants, tls, data_url } = doors;
        Ok(Self {
            traces: Traces::start(config.otlp.as_deref()).map_err(|e| ConfigError(format!("--otlp: {e}")))?,
            reload: Reload::new(&config, &tenants),
            body_room: BodyRoom::new(config.max_body_memory_bytes),
            config,
            clock,
            tenants,
            tls,
            connections: Arc::default(),
            recorder: Recorder::default(),
            scrapes: Scrapes::default(),
            shutdown,
            data_url,
            draining: AtomicBool::new(false),
            turned_away: AtomicU64::new(0),
            served: OnceLock::new(),
        })
    }

    /// The model is there.
    pub fn set_served(&self, parts: Parts) {
        let served = Served {
            engine: parts.engine,
            policies: parts.policies,
            compiler: Compiler::new(
                parts.tokenizer.clone(),
                parts.vocab_size,
                Arc::clone(&parts.stop_tokens),
            ),
            tokenizer: parts.tokenizer,
            chat: parts.chat,
            model_names: parts.model_names,
            weights: parts.weights,
            stop_tokens: parts.stop_tokens,
            sampling: parts.sampling,
            vocab_size: parts.vocab_size,
            max_seq_len: parts.max_seq_len,
            block_bytes: parts.block_bytes,
            block_size: parts.block_size,
            total_blocks: parts.total_blocks,
            settings: parts.settings,
            seeds: Seeds::new(parts.seed),
            keys: RandomState::new(),
            tokenizing: Arc::new(Semaphore::new(parts.threads.max(1))),
            device: parts.device,
        };
        assert!(self.served.set(served).is_ok(), "the model is loaded once");
    }

    /// The model, or the 503 of a host that is still loading it.
    pub fn served(&self) -> Result<&Served, ApiError> {
        self.served.get().ok_or_else(|| ApiError::unavailable("loading", "the model is still loading"))
    }

    /// Whether new requests are turned away because the host is going down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Turns new requests away from now on; those that run end normally.
    pub fn drain(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            tracing::info!("draining: new requests are turned away");
        }
        if let Some(served) = self.served.get() {
            served.engine.drain();
        }
    }

    /// Counts a request that was turned away because the host is going down: the engine never sees it.
    pub fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// The 503 of a host that is going down.
    pub fn refuse_if_draining(&self) -> Result<(), ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("draining", "the host is shutting down; try another one"));
        }
        Ok(())
    }
}

impl Served {
    /// Tokenizes a text that came in a body.
    pub async fn encode(&self, text: String, special: bool, room: Room) -> Result<Vec<u32>, ApiError> {
        let bytes = text.len();
        let encode = move |tokenizer: &Tokenizer| {
            let _room = room;
            tokenizer.encode(&text, special)
        };
        self.with_tokenizer(bytes, encode).await?.map_err(|e| ApiError::invalid("prompt", e))
    }

    /// Does work on so many bytes of text: at once where it is little, else on a thread that may block.
    pub async fn with_tokenizer<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Tokenizer) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= INLINE_TOKENIZE_BYTES {
            return Ok(work(&self.tokenizer));
        }
        let tokenizer = self.tokenizer.clone();
        self.off_thread(move || work(&tokenizer)).await
    }

    /// Does work with text on a thread that may block; so much of it at once as there are processors, and none
    /// without its turn: work that has begun goes on when its client has gone.
    pub async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.tokenizing).acquire_owned().await.expect("the semaphore is never closed");
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| ApiError::internal("tokenizer", "the tokenizer failed on this text"))
    }

    /// Messages to a prompt. Waits where the host has only just begun.
    pub async fn chat_template(&self) -> Result<Arc<ChatTemplate>, ApiError> {
        self.chat.ready().await.ok_or_else(|| {
            let message = "this model has no chat template; use /v1/completions";
            ApiError::invalid("messages", message).code("no_chat_template")
        })
    }

    /// A number for a client's text. Keyed per process: nobody can craft two texts that share one.
    pub fn key_of(&self, domain: &str, text: &str) -> u64 {
        self.keys.hash_one((domain, text)).max(1)
    }

    /// Another one at every start.
    pub fn run(&self) -> String {
        format!("{:016x}", self.keys.hash_one("run"))
    }
}

/// Seeds for requests without one: a reproducible sequence under `--seed`, else from the system.
pub struct Seeds {
    base: Option<u64>,
    count: AtomicU64,
}

impl Seeds {
    fn new(base: Option<u64>) -> Self {
        Self { base, count: AtomicU64::new(0) }
    }

    /// The next request's seed.
    pub fn next(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        match self.base {
            Some(base) => mix(base.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            None => getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(count)),
        }
    }
}

/// Spreads neighbouring numbers (the finalizer of SplitMix64, Steele et al. 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_host_draws_the_same_sequence_again() {
        let draw = |base| {
            let seeds = Seeds::new(base);
            (0..4).map(|_| seeds.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(Some(7)), draw(Some(7)));
        assert_ne!(draw(Some(7)), draw(Some(8)));
        assert_ne!(draw(None), draw(None));
    }
}
