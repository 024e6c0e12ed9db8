//! Starts a host, and shuts it down without losing a stream.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use infer_core::engine::Policies;
use infer_core::{Engine, EngineConfig, Executor, Micros};
use infer_model::ModelError;
use infer_wasm::{LoadError, PolicyLoader};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::admin;
use crate::admin::token::{Token, TokenFile};
use crate::app::{App, Doors, Seeds, Served};
use crate::config::{Config, ConfigError};
use crate::data;
use crate::data::{Compiler, GivenTemplate, PendingTemplate};
use crate::engine::{self, ChannelBounds, Clock, EngineHandle, EngineReport, EngineStopped, EngineThread};
use crate::faults::{self, FaultRecorder};
use crate::http::{Listener, ListenerOptions, Patience, Tls, Unsent};
use crate::kv_events::{Endpoints, Publisher};
use crate::policies::{self, Choices, Origins, PolicyError, PolicyManager};
use crate::reload;
use crate::startup::checkpoint::CheckpointError;
use crate::startup::listen;
use crate::startup::load::LoadedModel;
use crate::tenants::Tenants;

/// Maximum connections of the admin plane: a few consoles and scripts.
const ADMIN_CONNECTIONS: usize = 64;
/// How long connections may take to close after the last response.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// How long the current step may take to finish at shutdown.
const LAST_STEP: Duration = Duration::from_secs(30);

/// Creates the executor that computes batches.
pub type MakeExecutor = Box<dyn FnOnce(&EngineConfig) -> Box<dyn Executor + Send> + Send>;

/// A running host.
pub struct RunningServer {
    /// Address of the data plane.
    pub data_addr: SocketAddr,
    /// Address of the admin plane.
    pub admin_addr: SocketAddr,
    /// Token of the admin plane.
    pub admin_token: String,
    app: Arc<App>,
    engine: EngineThread,
    planes: Vec<JoinHandle<()>>,
    shutdown: watch::Sender<bool>,
    _token_file: Option<TokenFile>,
    kv_endpoints: Option<Endpoints>,
}

/// Why a host didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting can't be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// There is no checkpoint.
    #[error("{0}")]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint can't be used.
    #[error("--model: {0}")]
    Model(#[from] ModelError),
    /// A policy can't be used.
    #[error("--{0}: {1}")]
    Policy(&'static str, PolicyError),
    /// The WebAssembly engine can't be set up.
    #[error("{0}")]
    Wasm(#[from] LoadError),
    /// The host can't listen on an address.
    #[error("{flag}: can't listen on {address}: {error}")]
    Bind {
        /// The flag of the address.
        flag: &'static str,
        /// The address.
        address: String,
        /// The reason.
        error: std::io::Error,
    },
    /// The engine stopped during the start.
    #[error("{0}")]
    Stopped(#[from] EngineStopped),
    /// The operating system refused something.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
}

impl StartError {
    /// Whether another command line would help: exit code 2 instead of 1.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Checkpoint(CheckpointError::Wrong(_)) => true,
            // An instance that can't be made may lack memory, which is the machine's fault.
            Self::Policy(_, PolicyError::Load(LoadError::Engine(_) | LoadError::Instantiate(_))) => false,
            Self::Policy(_, error) => matches!(
                error,
                PolicyError::Unknown { .. }
                    | PolicyError::NoConfig
                    | PolicyError::File(..)
                    | PolicyError::Load(_)
                    | PolicyError::List(_)
                    | PolicyError::ListConfig(_)
            ),
            _ => false,
        }
    }
}

/// Binds both planes, loads model and policies, and returns once requests are accepted. Health checks are
/// answered from the moment the planes are bound.
pub async fn start(config: Config) -> Result<RunningServer, StartError> {
    start_with(config, None).await
}

/// Like [`start`], with another executor than the model's, to test or measure the host alone.
pub async fn start_with(config: Config, executor: Option<MakeExecutor>) -> Result<RunningServer, StartError> {
    let clock = Clock::start();
    let tenants = Tenants::open(config.api_keys.as_deref())
        .map_err(|wrong| ConfigError(format!("--api-keys: {wrong}")))?;
    let tls = open_tls(&config)?;
    let data = listen::data_plane(&config).await?;
    let control = listen::admin_plane(&config).await?;
    let (data_addr, admin_addr) = (data.address, control.address);
    let publisher = listen::kv_events(&config).await?;
    let (token, token_file) = admin_token(&config, admin_addr.port())?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), model = config.model, "starting");
    let (shutdown, stopping) = watch::channel(false);
    warn_of_open_doors(data_addr, admin_addr, &tenants);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let doors = Doors { tenants, tls, data_url: format!("{scheme}://{data_addr}") };
    let app = Arc::new(App::new(config, doors, clock, stopping.clone())?);
    let planes = serve_planes(&app, data, control, token.clone(), &stopping);
    let engine = match start_engine(&app, executor).await {
        Ok(engine) => engine,
        Err(error) => {
            shutdown.send_replace(true);
            return Err(error);
        }
    };
    let kv_endpoints = publisher
        .map(|publisher| publish_kv_events(publisher, &app, data_addr, &engine.handle, &stopping))
        .transpose()?;
    tokio::spawn(watch_over(Arc::clone(&app), stopping));
    if let Some(file) = &token_file {
        tracing::info!("the admin token is in {}", file.path().display());
    }
    tracing::info!(data = app.data_url, admin = format!("http://{admin_addr}"), "listening");
    Ok(RunningServer {
        data_addr,
        admin_addr,
        admin_token: token.as_str().to_owned(),
        app,
        engine,
        planes,
        shutdown,
        _token_file: token_file,
        kv_endpoints,
    })
}

/// Starts publishing the engine's KV events; returns the addresses of the sockets.
fn publish_kv_events(
    publisher: Publisher,
    app: &App,
    data_addr: SocketAddr,
    engine: &EngineHandle,
    stopping: &watch::Receiver<bool>,
) -> Result<Endpoints, EngineStopped> {
    let model = app.served().map_or_else(|_| String::new(), |served| served.model_names[0].clone());
    let topic = app.config.kv_events_topic.clone().unwrap_or_else(|| format!("kv@{data_addr}@{model}"));
    let bound = publisher.endpoints();
    tracing::info!(events = bound.events, replay = bound.replay, "publishing KV events");
    publisher.publish(topic, engine, stopping.clone())?;
    Ok(bound)
}

fn open_tls(config: &Config) -> Result<Option<Arc<Tls>>, ConfigError> {
    let Some((cert, key)) = &config.tls else { return Ok(None) };
    let tls = Tls::open(cert, key).map_err(|wrong| ConfigError(format!("--tls-cert: {wrong}")))?;
    Ok(Some(Arc::new(tls)))
}

fn warn_of_open_doors(data: SocketAddr, control: SocketAddr, tenants: &Tenants) {
    if !data.ip().is_loopback() && !tenants.need_keys() {
        tracing::warn!(
            "the data plane at {data} accepts requests from other machines without a key; see --api-keys"
        );
    }
    if !control.ip().is_loopback() {
        tracing::warn!(
            "the admin plane at {control} can be reached from other machines, and its token crosses the network unencrypted"
        );
    }
    if tenants.need_keys() {
        tracing::info!(keys = tenants.key_count(), "requests need an API key");
    }
}

fn admin_token(config: &Config, port: u16) -> Result<(Token, Option<TokenFile>), StartError> {
    if let Some(text) = &config.admin_token {
        let token = Token::given(text)
            .map_err(|wrong| ConfigError(format!("{}: {wrong}", admin::token::VARIABLE)))?;
        return Ok((token, None));
    }
    let wrong = |error| {
        StartError::Io("can't write a file for the admin token (set INFER_ADMIN_TOKEN instead)", error)
    };
    let token = Token::fresh().map_err(wrong)?;
    let file = TokenFile::write(port, &token).map_err(wrong)?;
    Ok((token, Some(file)))
}

fn serve_planes(
    app: &Arc<App>,
    data: Listener,
    control: Listener,
    token: Token,
    stopping: &watch::Receiver<bool>,
) -> Vec<JoinHandle<()>> {
    let bounds = &app.config.bounds;
    let patience =
        Patience { head: bounds.header_timeout, idle: bounds.idle_timeout, write: bounds.write_timeout };
    let data_options = ListenerOptions {
        max_connections: bounds.max_connections,
        patience,
        tls: app.tls.clone(),
        open: Arc::clone(&app.connections),
        unsent: app.unsent.clone(),
    };
    let admin_options = ListenerOptions {
        max_connections: ADMIN_CONNECTIONS,
        patience,
        tls: None,
        open: Arc::default(),
        unsent: Unsent::default(),
    };
    let for_data = Arc::clone(app);
    let for_admin = Arc::clone(app);
    let token = Arc::new(token);
    vec![
        tokio::spawn(data.serve(data_options, stopping.clone(), move |peer, request| {
            data::route(Arc::clone(&for_data), peer, request)
        })),
        tokio::spawn(control.serve(admin_options, stopping.clone(), move |_, request| {
            admin::route(Arc::clone(&for_admin), Arc::clone(&token), request)
        })),
    ]
}

async fn start_engine(app: &Arc<App>, executor: Option<MakeExecutor>) -> Result<EngineThread, StartError> {
    let for_loading = Arc::clone(app);
    let (engine, served) = tokio::task::spawn_blocking(move || load(&for_loading, executor))
        .await
        .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?;
    engine.handle.set_tenants(app.tenants.terms())?;
    app.set_served(served);
    // A reload in between found no engine to tell.
    reload::tell_terms(app).await?;
    if app.is_draining() {
        engine.handle.drain();
    }
    Ok(engine)
}

fn load(app: &App, executor: Option<MakeExecutor>) -> Result<(EngineThread, Served), StartError> {
    let config = &app.config;
    let loading = Instant::now();
    // Policies and the template first, so that a fault in them is found before gigabytes are downloaded.
    let loader = policies::loader()?;
    let (slots, origins) = initial_policies(&loader, &app.reload.choices())?;
    let template = GivenTemplate::open(config)?;
    let loaded = LoadedModel::load(config)?;
    let mut key = [0u8; 16];
    getrandom::fill(&mut key)
        .map_err(|e| StartError::Io("can't get random bytes", std::io::Error::other(e.to_string())))?;
    let key = u128::from_ne_bytes(key);
    let engine_config = loaded.engine_config(config, [key as u64, (key >> 64) as u64]);
    let settings = crate::trace::settings(&engine_config);
    let executor = match executor {
        Some(make) => make(&engine_config),
        None => loaded.executor(config)?,
    };
    // After the policies, so that they don't compete for the compiler's threads.
    let chat = PendingTemplate::begin(&loaded.source, template)
        .map_err(|e| StartError::Io("can't start a thread for the chat template", e))?;
    let engine = Engine::new(engine_config, slots);
    let bounds = ChannelBounds {
        max_waiting: config.max_waiting_requests,
        max_running: config.max_batch_size,
        stream_events: config.bounds.stream_events,
    };
    let thread = engine::spawn(engine, executor, app.clock, bounds)
        .map_err(|e| StartError::Io("can't start the engine thread", e))?;
    let origins = Arc::new(origins);
    write_faults(config, &thread.handle, &origins);
    tracing::info!(
        model = loaded.names[0],
        weights = %loaded.model.weight_type,
        weight_bytes = loaded.model.weight_bytes(),
        load_ms = loading.elapsed().as_millis() as u64,
        max_seq_len = loaded.sizing.max_seq_len,
        blocks = loaded.sizing.total_blocks,
        kv_bytes = u64::from(loaded.sizing.total_blocks) * loaded.sizing.block_bytes,
        threads = config.threads,
        "model loaded"
    );
    let device = loaded.device().to_owned();
    let vocab_size = loaded.model.vocab_size();
    let stop_tokens = loaded.stop_tokens;
    let served = Served {
        engine: thread.handle.clone(),
        policies: PolicyManager::new(loader, thread.handle.clone(), origins),
        compiler: Compiler::new(loaded.tokenizer.clone(), vocab_size, Arc::clone(&stop_tokens)),
        tokenizer: loaded.tokenizer,
        checkpoint: loaded.names[0].clone(),
        model_names: model_names(&config.served_model_names, loaded.names),
        weights: loaded.model.weight_type.to_string(),
        stop_tokens,
        sampling: loaded.sampling,
        vocab_size,
        max_seq_len: loaded.sizing.max_seq_len,
        block_bytes: loaded.sizing.block_bytes,
        block_size: config.block_size,
        total_blocks: loaded.sizing.total_blocks,
        settings,
        device,
        seeds: Seeds::new(config.seed),
        chat,
        keys: RandomState::new(),
        tokenizing: Arc::new(Semaphore::new(config.threads.max(1))),
    };
    Ok((thread, served))
}

/// Names of the model in requests, without duplicates: those of the configuration, else the checkpoint's own.
fn model_names(chosen: &[String], own: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = if chosen.is_empty() { own } else { chosen.to_vec() };
    all.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// Loads the configured policies.
pub fn initial_policies(loader: &PolicyLoader, choices: &Choices) -> Result<(Policies, Origins), StartError> {
    policies::load_initial(loader, choices).map_err(|(kind, error)| StartError::Policy(kind.name(), error))
}

/// Starts recording policy faults. If the directory can't be used, the host runs without these records.
fn write_faults(config: &Config, engine: &EngineHandle, origins: &Arc<Origins>) {
    let Some(dir) = config.fault_dir.clone().or_else(faults::default_dir) else { return };
    match FaultRecorder::start(&dir, Arc::clone(origins)) {
        Ok(recorder) => engine.observer().write_faults(recorder),
        Err(error) => {
            tracing::warn!("policy faults are not recorded: {}: {error}; see --fault-dir", dir.display());
        }
    }
}

/// Once a second, samples the counters, so that the first client that asks gets rates, and ends requests that
/// exceeded their time limit.
async fn watch_over(app: Arc<App>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        let Ok(served) = app.served() else { return };
        match admin::report(served).await {
            Ok(report) => {
                admin::rates(&app, &report.snapshot);
                end_overdue(&app, served, &report);
            }
            Err(_) if !served.engine.is_alive() => return,
            Err(_) => {}
        }
    }
}

fn end_overdue(app: &App, served: &Served, report: &EngineReport) {
    let limit = Micros(app.config.bounds.request_timeout.as_micros() as u64);
    let seconds = app.config.bounds.request_timeout.as_secs_f32();
    let rows = report.snapshot.requests.iter().filter(|row| report.at.since(row.arrived) > limit);
    let overdue: Vec<_> = rows
        .map(|row| {
            let so_far = match row.started {
                Micros::NEVER => "it had not started".to_owned(),
                _ => format!("it had generated {} tokens", row.generated_tokens),
            };
            let message = format!(
                "the request took longer than this host allows, {seconds} s (--request-timeout); {so_far}"
            );
            (row.id, message)
        })
        .collect();
    if !overdue.is_empty() {
        // If the engine's queue is full, the next tick tries again.
        let _ = served.engine.expire(overdue);
    }
}

impl RunningServer {
    /// The engine, for tests that hold its steps or read its report.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine.handle
    }

    /// URL of the data plane, `http://HOST:PORT` or `https://HOST:PORT`.
    pub fn data_url(&self) -> &str {
        &self.app.data_url
    }

    /// Addresses of the sockets for KV events, if they are published.
    pub fn kv_endpoints(&self) -> Option<&Endpoints> {
        self.kv_endpoints.as_ref()
    }

    /// Reads API keys, certificate and policy configurations again, and returns the outcome of each.
    pub async fn reload(&self) -> Vec<reload::Outcome> {
        reload::reload(&self.app).await
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.app.drain();
    }

    /// Completes when the engine has stopped on its own: it failed an internal check, or lost the device.
    pub async fn engine_stopped(&self) {
        self.engine.handle.stopped().await;
    }

    /// Drains, waits for open streams, then closes everything.
    pub async fn shutdown(self) {
        self.finish_streams().await;
        self.close().await;
    }

    /// Refuses new requests, waits for running ones and until their responses are sent, at most for the drain timeout.
    pub async fn finish_streams(&self) {
        self.app.drain();
        let bound = self.app.config.bounds.drain_timeout;
        let finished = async {
            self.engine.handle.idle().await;
            self.app.unsent.all_sent().await;
        };
        if tokio::time::timeout(bound, finished).await.is_err() {
            tracing::warn!("streams did not finish within {} s (--drain-timeout)", bound.as_secs());
        }
    }

    /// Closes everything. Streams that still run end with an error event.
    pub async fn close(self) {
        self.app.drain();
        let mut engine = Some(self.engine);
        let streams = engine.as_ref().map_or(0, |engine| engine.handle.live());
        if streams > 0 {
            tracing::warn!(streams, "cutting streams that did not finish");
            // Stopping the engine sends them the event while their connections are still open.
            stop(engine.take()).await;
        }
        self.shutdown.send_replace(true);
        for plane in self.planes {
            let abort = plane.abort_handle();
            if tokio::time::timeout(CLOSE_TIME, plane).await.is_err() {
                abort.abort();
            }
        }
        let app = Arc::clone(&self.app);
        let _ = tokio::task::spawn_blocking(move || app.traces.flush()).await;
        stop(engine).await;
        tracing::info!("stopped");
    }
}

/// Stops the engine thread, unless that is done. A thread that hangs in its device is left behind.
async fn stop(engine: Option<EngineThread>) {
    let Some(engine) = engine else { return };
    let ended = tokio::task::spawn_blocking(move || engine.stop());
    if tokio::time::timeout(LAST_STEP, ended).await.is_err() {
        tracing::error!("the current step did not finish within {} s", LAST_STEP.as_secs());
    }
}
