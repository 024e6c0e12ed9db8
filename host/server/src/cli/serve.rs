//! `infer serve`: starts a host, says where, drains it when it is told to end.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;
use super::flags::Flags;
use crate::serve::Server;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
Flags win over the environment, which wins over infer.toml.
INFER_ADMIN_TOKEN sets the admin plane's token; without it one is made and kept in a file that
only this user can read. INFER_LOG filters the log (`info`, `infer_server=debug`),
INFER_LOG_FORMAT=json writes it as JSON. SIGHUP reads API keys, TLS certificate and --policy-config again;
SIGTERM lets streams end first.

Try:  curl -N localhost:8000/v1/completions -d '{\"model\":\"demo\",\"prompt\":\"What is a prefix cache?\"}'";

/// For streams to be told that the engine has stopped.
const LAST_WORDS: Duration = Duration::from_secs(10);

const STOPPED: &str = "the engine has stopped; the log says why";

/// Arguments of `infer serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    flags: Flags<true>,
}

/// Serves until a signal or an internal failure ends it.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    crate::log::start("info")?;
    let config = args.flags.config()?;
    raise_open_files();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::new().map_err(Failure::failed)?;
        // Asks for keys, certificates and configurations to be read again.
        let mut hangups = signal(SignalKind::hangup()).map_err(Failure::failed)?;
        let server = tokio::select! {
            started = Server::start(config) => started?,
            () = signals.next() => return Ok(()),
        };
        let line = format!("listening on {} (admin http://{})", server.data_url(), server.admin_addr);
        // Whoever started it may have closed stdout; that is no reason to stop serving.
        let _ = writeln!(std::io::stdout().lock(), "{line}").and_then(|()| std::io::stdout().flush());
        loop {
            tokio::select! {
                () = signals.next() => break,
                _ = hangups.recv() => tokio::select! {
                    _ = server.reload() => {}
                    () = signals.next() => break,
                },
                () = server.engine_stopped() => {
                    // Its streams are told, and whatever was read is answered.
                    let _ = tokio::time::timeout(LAST_WORDS, server.shutdown()).await;
                    return Err(Failure::Failed(STOPPED.to_owned()));
                }
            }
        }
        tracing::info!("ending: streams may finish; a second signal ends at once");
        let engine = server.engine().clone();
        tokio::select! {
            () = server.shutdown() => match engine.has_failed() {
                false => Ok(()),
                true => Err(Failure::Failed(STOPPED.to_owned())),
            },
            () = signals.next() => std::process::exit(1),
        }
    });
    // A model that is still being fetched or loaded is nothing to wait for.
    runtime.shutdown_background();
    outcome
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Every stream is a connection, and the usual soft limit of 1,024 files is below what may wait.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(1 << 16).min(1 << 16);
    if limit.current.is_some_and(|now| now < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!("can't raise the limit of open files: {error}");
        }
    }
}
