//! Starts a host, and shuts it down without losing a stream.
//!
//! Tests start hosts with this module. Deliberately absent: flags, signals and the line on stdout, which are
//! `cli::serve`'s.

mod error;
mod load;
mod planes;
mod shutdown;
mod upkeep;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::operators::Operators;
use crate::admin::token::TokenFile;
use crate::app::{App, Doors, Served};
use crate::config::Config;
use crate::engine::{Clock, EngineHandle, EngineStopped, EngineThread};
use crate::kv_events::{Endpoints, Publisher};
use crate::policy_state::{self, Found};
use crate::reload;
use crate::startup::listen;
use crate::tenants::Tenants;
pub use error::StartError;
use load::start_engine;
pub use load::{MakeExecutor, initial_policies};
use planes::{Closing, Planes, admin_token, open_tls, serve_planes, warn_of_open_doors};
use upkeep::watch_over;

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
    planes: Planes,
    publishing: Option<JoinHandle<()>>,
    shutdown: watch::Sender<bool>,
    /// Closes the admin plane, which stays open until the engine has ended.
    end: watch::Sender<bool>,
    _token_file: Option<TokenFile>,
    kv_endpoints: Option<Endpoints>,
}

/// Binds both planes, loads model and policies, and returns once requests are accepted. Health checks are
/// answered from the moment the planes are bound.
pub async fn start(config: Config) -> Result<RunningServer, StartError> {
    start_with(config, None).await
}

/// Like [`start`], with another executor than the model's, to test or measure the host alone.
pub async fn start_with(config: Config, executor: Option<MakeExecutor>) -> Result<RunningServer, StartError> {
    let saved = saved_state(&config).await?;
    let clock = saved.as_ref().map_or_else(Clock::start, Found::start_clock);
    let tenants = Arc::new(match &saved {
        Some(saved) => Tenants::open_after(&config, saved.tenants())?,
        None => Tenants::open(&config)?,
    });
    let tls = open_tls(&config)?;
    let data = listen::data_plane(&config).await?;
    let control = listen::admin_plane(&config).await?;
    let (data_addr, admin_addr) = (data.address, control.address);
    let publisher = listen::kv_events(&config).await?;
    let (token, token_file) = admin_token(&config, admin_addr.port())?;
    let operators = Operators::open(&config, token.clone())?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), model = config.model, "starting");
    let (shutdown, stopping) = watch::channel(false);
    let (end, ending) = watch::channel(false);
    warn_of_open_doors(data_addr, admin_addr, &tenants);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let doors = Doors { tenants, operators, tls, data_url: format!("{scheme}://{data_addr}") };
    let app = Arc::new(App::new(config, doors, clock, stopping.clone())?);
    let closing = Closing { data: stopping.clone(), control: ending };
    let planes = serve_planes(&app, data, control, closing);
    let engine = match start_engine(&app, saved, executor).await {
        Ok(engine) => engine,
        Err(error) => {
            shutdown.send_replace(true);
            end.send_replace(true);
            return Err(error);
        }
    };
    let (kv_endpoints, publishing) = publisher
        .map(|publisher| publish_kv_events(publisher, &app, data_addr, &engine.handle, &stopping))
        .transpose()?
        .unzip();
    tokio::spawn(watch_over(Arc::clone(&app), stopping));
    tokio::spawn(prepare(Arc::clone(&app)));
    if app.operators.has_file() {
        tracing::info!(
            tokens = app.operators.token_count(),
            "the admin plane also accepts the operators' tokens"
        );
    }
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
        publishing,
        shutdown,
        end,
        _token_file: token_file,
        kv_endpoints,
    })
}

/// Reads what an earlier host saved of its policies, on a thread that may block. First of all, because the clock goes
/// on from there, and tenants have the numbers that policies know.
async fn saved_state(config: &Config) -> Result<Option<Found>, StartError> {
    let dir = config.policy_state.clone();
    let opened = tokio::task::spawn_blocking(move || policy_state::open(dir.as_deref())).await;
    opened.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
}

/// Prepares what only some requests need, when the rest is served: on one core it would delay the start by seconds. Chats
/// come first, because more clients ask for them.
async fn prepare(app: Arc<App>) {
    let Ok(served) = app.served() else { return };
    let _ = served.chat_template().await;
    let _ = served.compiler.prepare().await;
    // Last: a look at the policies that can be swapped in waits for all to be compiled, where no cache has them.
    served.policies.prepare().await;
}

/// Starts publishing the engine's KV events; returns the addresses of the sockets, and the task that serves them.
fn publish_kv_events(
    publisher: Publisher,
    app: &App,
    data_addr: SocketAddr,
    engine: &EngineHandle,
    stopping: &watch::Receiver<bool>,
) -> Result<(Endpoints, JoinHandle<()>), EngineStopped> {
    let model = app.served().map_or_else(|_| String::new(), |served| served.model_names[0].clone());
    let topic = app.config.kv_events_topic.clone().unwrap_or_else(|| format!("kv@{data_addr}@{model}"));
    let bound = publisher.endpoints();
    let replay = bound.replay.as_ref().map(ToString::to_string);
    tracing::info!(events = bound.events.to_string(), replay, "publishing KV events");
    let publishing = publisher.publish(topic, engine, stopping.clone())?;
    Ok((bound, publishing))
}

impl RunningServer {
    /// The engine, for tests that hold its steps or read its report.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine.handle
    }

    /// Whether `GET /admin/policies` answers without compiling anything, for tests.
    pub fn lists_policies(&self) -> bool {
        self.served().is_some_and(|served| served.policies.is_listed())
    }

    /// The loaded model and its settings, once they are there.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.app.served().ok()
    }

    /// URL of the data plane, `http://HOST:PORT` or `https://HOST:PORT`.
    pub fn data_url(&self) -> &str {
        &self.app.data_url
    }

    /// Addresses of the sockets for KV events, if they are published.
    pub fn kv_endpoints(&self) -> Option<&Endpoints> {
        self.kv_endpoints.as_ref()
    }

    /// Reads API keys, operators, certificate and policy configurations again, and returns the outcome of each.
    pub async fn reload(&self) -> Vec<reload::Outcome> {
        reload::reload(&self.app, None).await
    }
}
