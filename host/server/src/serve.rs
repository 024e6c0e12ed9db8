//! Starts a host, and ends it without losing a stream.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use infer_core::engine::Policies;
use infer_core::{Engine, EngineConfig, Executor, Micros};
use infer_wasm::PolicyLoader;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin;
use crate::admin::token::{Token, TokenFile};
use crate::app::{App, Doors, Parts, Served};
use crate::config::{Config, ConfigError};
use crate::data;
#[cfg(feature = "kv-events")]
use crate::engine::EngineStopped;
use crate::engine::{self, ChannelBounds, Clock, EngineHandle, EngineReport, EngineThread};
use crate::faults::{self, FaultRecorder, Library};
use crate::http::{Listener, ListenerOptions, Patience, Tls};
#[cfg(feature = "kv-events")]
use crate::kv_events;
use crate::load::{Loaded, StartError};
use crate::policies::{self, Choices, PolicyManager};
use crate::reload;
use crate::tenants::Tenants;

/// Connections of the admin plane; a handful of consoles and scripts.
const ADMIN_CONNECTIONS: usize = 64;
/// How long connections may take to close once every stream has ended.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// How long the step that is being computed may take to end when the host does.
const LAST_STEP: Duration = Duration::from_secs(30);

/// Makes what computes batches.
pub type MakeExecutor = Box<dyn FnOnce(&EngineConfig) -> Box<dyn Executor + Send> + Send>;

/// Starts hosts.
pub struct Server;

/// A host that answers requests.
pub struct RunningServer {
    /// Where the data plane listens.
    pub data_addr: SocketAddr,
    /// Where the admin plane listens.
    pub admin_addr: SocketAddr,
    /// What the admin plane asks for.
    pub admin_token: String,
    app: Arc<App>,
    engine: EngineThread,
    planes: Vec<JoinHandle<()>>,
    shutdown: watch::Sender<bool>,
    _token_file: Option<TokenFile>,
    #[cfg(feature = "kv-events")]
    kv_endpoints: Option<kv_events::Endpoints>,
}

impl Server {
    /// Binds both planes, loads model and policies, and answers once requests are taken. Health checks
    /// are answered from the beginning.
    pub async fn start(config: Config) -> Result<RunningServer, StartError> {
        Self::start_with(config, None).await
    }

    /// The same with another executor than the model's, to measure and test the host by itself.
    pub async fn start_with(
        config: Config,
        executor: Option<MakeExecutor>,
    ) -> Result<RunningServer, StartError> {
        let clock = Clock::start();
        let tenants = Tenants::open(config.api_keys.as_deref())
            .map_err(|wrong| ConfigError(format!("--api-keys: {wrong}")))?;
        let tls = open_tls(&config)?;
        let data = bind("--port", &config.host, config.port).await?;
        let control = bind("--admin", &config.admin_host, config.admin_port).await?;
        let (data_addr, admin_addr) = (data.address, control.address);
        #[cfg(feature = "kv-events")]
        let publisher = bind_kv_events(&config).await?;
        let (token, token_file) = admin_token(&config, admin_addr.port())?;
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
        #[cfg(feature = "kv-events")]
        let kv_endpoints = match publisher {
            Some(publisher) => {
                Some(publish_kv_events(publisher, &app, data_addr, &engine.handle, &stopping)?)
            }
            None => None,
        };
        tokio::spawn(watch_over(Arc::clone(&app), stopping));
        Ok(RunningServer {
            data_addr,
            admin_addr,
            admin_token: token.as_str().to_owned(),
            app,
            engine,
            planes,
            shutdown,
            _token_file: token_file,
            #[cfg(feature = "kv-events")]
            kv_endpoints,
        })
    }
}

/// Before anything is loaded: an address that can't be had is said at once.
#[cfg(feature = "kv-events")]
async fn bind_kv_events(config: &Config) -> Result<Option<kv_events::Publisher>, StartError> {
    let Some((events, replay)) = config.kv_events.clone() else { return Ok(None) };
    let wanted = kv_events::Endpoints { events, replay };
    let publisher = kv_events::Publisher::bind(&wanted).await.map_err(|error| StartError::Bind {
        flag: "--kv-events",
        address: wanted.events.clone(),
        error: std::io::Error::other(error),
    })?;
    Ok(Some(publisher))
}

/// Publishes what the engine tells; where it is to be had.
#[cfg(feature = "kv-events")]
fn publish_kv_events(
    publisher: kv_events::Publisher,
    app: &App,
    data_addr: SocketAddr,
    engine: &EngineHandle,
    stopping: &watch::Receiver<bool>,
) -> Result<kv_events::Endpoints, EngineStopped> {
    let model = app.served().map_or_else(|_| String::new(), |served| served.model_names[0].clone());
    let topic = app.config.kv_events_topic.clone().unwrap_or_else(|| format!("kv@{data_addr}@{model}"));
    let bound = publisher.endpoints();
    tracing::info!(events = bound.events, replay = bound.replay, "KV events are published");
    let (sender, inbox) = kv_events::channel();
    engine.watch_kv(Box::new(move |happened| sender.send(happened)))?;
    tokio::spawn(publisher.about(topic).run(inbox, engine.clone(), stopping.clone()));
    Ok(bound)
}

fn open_tls(config: &Config) -> Result<Option<Arc<Tls>>, ConfigError> {
    let Some((cert, key)) = &config.tls else { return Ok(None) };
    let tls = Tls::open(cert, key).map_err(|wrong| ConfigError(format!("--tls-cert: {wrong}")))?;
    Ok(Some(Arc::new(tls)))
}

fn warn_of_open_doors(data: SocketAddr, control: SocketAddr, tenants: &Tenants) {
    if !data.ip().is_loopback() && !tenants.need_keys() {
        tracing::warn!("{data} can be reached from elsewhere and asks for no key; see --api-keys");
    }
    if !control.ip().is_loopback() {
        tracing::warn!(
            "the admin plane at {control} can be reached from elsewhere, and its token crosses the network in clear"
        );
    }
    if tenants.need_keys() {
        tracing::info!(keys = tenants.key_count(), "requests need an API key");
    }
}

async fn bind(flag: &'static str, host: &str, port: u16) -> Result<Listener, StartError> {
    Listener::bind(host, port).await.map_err(|error| StartError::Bind {
        flag,
        address: format!("{host}:{port}"),
        error,
    })
}

fn admin_token(config: &Config, port: u16) -> Result<(Token, Option<TokenFile>), StartError> {
    if let Some(text) = &config.admin_token {
        let token = Token::given(text)
            .map_err(|wrong| ConfigError(format!("{}: {wrong}", admin::token::VARIABLE)))?;
        return Ok((token, None));
    }
    let wrong = |error| StartError::Io("can't keep an admin token (set INFER_ADMIN_TOKEN instead)", error);
    let token = Token::fresh().map_err(wrong)?;
    let file = TokenFile::write(port, &token).map_err(wrong)?;
    tracing::info!("the admin token is in {}", file.path().display());
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
    };
    let admin_options =
        ListenerOptions { max_connections: ADMIN_CONNECTIONS, patience, tls: None, open: Arc::default() };
    let for_data = Arc::clone(app);
    let for_admin = Arc::clone(app);
    let token = Arc::new(token);
    vec![
        tokio::spawn(data.serve(data_options, stopping.clone(), move |request| {
            data::route(Arc::clone(&for_data), request)
        })),
        tokio::spawn(control.serve(admin_options, stopping.clone(), move |request| {
            admin::route(Arc::clone(&for_admin), Arc::clone(&token), request)
        })),
    ]
}

async fn start_engine(app: &Arc<App>, executor: Option<MakeExecutor>) -> Result<EngineThread, StartError> {
    let for_loading = Arc::clone(app);
    let (engine, parts) = tokio::task::spawn_blocking(move || load(&for_loading, executor))
        .await
        .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?;
    engine.handle.set_tenants(app.tenants.terms())?;
    app.set_served(parts);
    if app.is_draining() {
        engine.handle.drain();
    }
    Ok(engine)
}

fn load(app: &App, executor: Option<MakeExecutor>) -> Result<(EngineThread, Parts), StartError> {
    let config = &app.config;
    let loading = Instant::now();
    // Before the model, which may be gigabytes to fetch: a policy's name that is wrong is said at once.
    let loader = policies::loader()?;
    let (slots, library) = initial_policies(&loader, &app.reload.choices())?;
    let loaded = Loaded::load(config)?;
    let mut key = [0u8; 16];
    getrandom::fill(&mut key)
        .map_err(|e| StartError::Io("no randomness", std::io::Error::other(e.to_string())))?;
    let key = u128::from_ne_bytes(key);
    let engine_config = loaded.engine_config(config, [key as u64, (key >> 64) as u64]);
    let settings = crate::trace::settings(&engine_config);
    let executor = match executor {
        Some(make) => make(&engine_config),
        None => loaded.executor(config)?,
    };
    // Not before the policies, so that nothing compiles beside those.
    let chat = data::PendingTemplate::begin(&loaded.source)
        .map_err(|e| StartError::Io("can't start a thread for the chat template", e))?;
    let engine = Engine::new(engine_config, slots);
    let bounds = ChannelBounds {
        max_waiting: config.max_waiting_requests,
        max_running: config.max_batch_size,
        stream_events: config.bounds.stream_events,
    };
    let thread = engine::spawn(engine, executor, app.clock, bounds)
        .map_err(|e| StartError::Io("can't start the engine thread", e))?;
    let library = Arc::new(library);
    write_faults(config, &thread.handle, &library);
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
    let parts = Parts {
        engine: thread.handle.clone(),
        policies: PolicyManager::new(loader, thread.handle.clone(), library),
        stop_tokens: loaded.stop_tokens,
        sampling: loaded.sampling,
        vocab_size: loaded.model.vocab_size(),
        tokenizer: loaded.tokenizer,
        weights: loaded.model.weight_type.to_string(),
        chat,
        model_names: model_names(&config.served_model_names, loaded.names),
        max_seq_len: loaded.sizing.max_seq_len,
        block_bytes: loaded.sizing.block_bytes,
        block_size: config.block_size,
        total_blocks: loaded.sizing.total_blocks,
        settings,
        seed: config.seed,
        threads: config.threads,
        device,
    };
    Ok((thread, parts))
}

/// What requests may call the model, each name once: what was chosen, else the checkpoint's own.
fn model_names(chosen: &[String], own: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = if chosen.is_empty() { own } else { chosen.to_vec() };
    all.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// The policies that are chosen.
pub fn initial_policies(loader: &PolicyLoader, choices: &Choices) -> Result<(Policies, Library), StartError> {
    policies::load_initial(loader, choices).map_err(|(kind, error)| StartError::Policy(kind.name(), error))
}

/// A directory that can't be used costs the files, not the host.
fn write_faults(config: &Config, engine: &EngineHandle, library: &Arc<Library>) {
    let Some(dir) = config.fault_dir.clone().or_else(faults::default_dir) else { return };
    match FaultRecorder::start(&dir, Arc::clone(library)) {
        Ok(recorder) => engine.observer().write_faults(recorder),
        Err(error) => tracing::warn!("policy faults are not written down: {}: {error}", dir.display()),
    }
}

/// Every second: notes the counters, so that rates are there when somebody asks first, and ends requests
/// that have lived too long.
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
                Micros::NEVER => "it had not started yet".to_owned(),
                _ => format!("{} tokens had been generated", row.generated_tokens),
            };
            let message = format!(
                "the request took longer than this host allows, {seconds} s (--request-timeout); {so_far}"
            );
            (row.id, message)
        })
        .collect();
    if !overdue.is_empty() {
        // Where it can't be said now, they are as overdue in a second.
        let _ = served.engine.expire(overdue);
    }
}

impl RunningServer {
    /// Reaches the engine: for tests that hold its steps or read its report.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine.handle
    }

    /// Where the data plane is reached, `http://HOST:PORT` or `https://HOST:PORT`.
    pub fn data_url(&self) -> &str {
        &self.app.data_url
    }

    /// Where KV events are to be had.
    #[cfg(feature = "kv-events")]
    pub fn kv_endpoints(&self) -> Option<&kv_events::Endpoints> {
        self.kv_endpoints.as_ref()
    }

    /// Reads API keys, certificate and policy configurations again, and says what came of each.
    pub async fn reload(&self) -> Vec<reload::Outcome> {
        reload::reload(&self.app).await
    }

    /// New requests are turned away from now on.
    pub fn drain(&self) {
        self.app.drain();
    }

    /// Completes when the engine has stopped by itself: it failed an internal check, or the device is lost.
    pub async fn engine_stopped(&self) {
        self.engine.handle.stopped().await;
    }

    /// Drains, waits for the streams that are open, closes everything.
    pub async fn shutdown(self) {
        self.app.drain();
        let bound = self.app.config.bounds.drain_timeout;
        let handle = self.engine.handle.clone();
        let mut engine = Some(self.engine);
        if tokio::time::timeout(bound, handle.idle()).await.is_err() {
            let live = handle.live();
            tracing::warn!("{live} streams are cut: they did not end within {} s", bound.as_secs());
            // They are told by the engine's end, while their connections are there.
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

/// Ends the engine thread, if that wasn't done yet. One that its device holds is left behind.
async fn stop(engine: Option<EngineThread>) {
    let Some(engine) = engine else { return };
    let ended = tokio::task::spawn_blocking(move || engine.stop());
    if tokio::time::timeout(LAST_STEP, ended).await.is_err() {
        tracing::error!("the step that is being computed does not end within {} s", LAST_STEP.as_secs());
    }
}
