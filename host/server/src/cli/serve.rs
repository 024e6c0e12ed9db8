//! `infer serve`: starts a host, prints its address, and drains it on a signal.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;
use super::flags::Flags;
use crate::admin::token;
use crate::config::{Bounds, Config, Environment};
use crate::log::{self, Queue};
use crate::notify;
use crate::serve::{self, RunningServer};
use crate::tenants;

/// Text below the flags.
pub const AFTER_HELP: &str = "\
Flags win over the environment, which wins over infer.toml.
INFER_API_KEY is one key that all requests need; --api-keys names a file of several tenants' keys.
INFER_ADMIN_TOKEN sets the token of the admin plane; without it, a token is generated and kept in a \
file that only this user can read. INFER_LOG filters the log (`info`, `infer_server=debug`); \
INFER_LOG_FORMAT=json writes it as JSON. SIGHUP reads the API keys, the operators, the TLS \
certificate and --policy-config again. SIGTERM shuts down after running streams have finished; a second one cuts them.

Try:  curl -N localhost:8000/v1/completions -d '{\"model\":\"demo\",\"prompt\":\"What is a prefix cache?\"}'";

/// How long streams may take to report that the engine has stopped, and then everything to close.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Open files that are no connections of the two planes: logs, models, policies, sockets of KV events.
const OTHER_FILES: u64 = 512;
/// The lowest limit of open files to start with: an idle host has some twenty open.
const LEAST_FILES: u64 = 64;
/// How long stderr may take for the last lines of the log.
const LAST_LINES: Duration = Duration::from_secs(1);

const STOPPED: &str = "the engine has stopped; see the log for the reason";

/// Arguments of `infer serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    flags: Flags<true>,
}

/// Serves until a signal or an internal failure.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let log = Queue::start(std::io::stderr()).map_err(Failure::failed)?;
    let outcome = serve_until_signal(args, &log);
    if !log.flush(LAST_LINES)
        && let Err(failure) = &outcome
    {
        // Nobody reads stderr, so the failure's message would wait forever.
        let usage = matches!(failure, Failure::Usage(_));
        std::process::exit(if usage { 2 } else { 1 });
    }
    outcome
}

fn serve_until_signal(args: ServeArgs, log: &Arc<Queue>) -> Result<(), Failure> {
    log::start_queued("info", log)?;
    let (mut config, settings) = args.flags.config_and_settings()?;
    warn_of_variables(&config);
    fit_connections(&mut config.bounds)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::new().map_err(Failure::failed)?;
        // Triggers a reload of keys, certificates and configurations.
        let mut hangups = signal(SignalKind::hangup()).map_err(Failure::failed)?;
        let server = tokio::select! {
            started = serve::start(config) => {
                started.map_err(|error| Failure::from(error).located(&settings))?
            }
            () = signals.next() => return Ok(()),
        };
        let line = format!("listening on {} (admin http://{})", server.data_url(), server.admin_addr);
        // The parent process may have closed stdout; that is no reason to stop serving.
        let _ = writeln!(std::io::stdout().lock(), "{line}").and_then(|()| std::io::stdout().flush());
        notify::tell(notify::READY);
        loop {
            tokio::select! {
                () = signals.next() => break,
                _ = hangups.recv() => tokio::select! {
                    _ = server.reload() => {}
                    () = signals.next() => break,
                },
                () = server.engine_stopped() => {
                    // Streams get an error event, and requests that were read get a response.
                    let _ = tokio::time::timeout(LAST_WORDS, server.finish_streams()).await;
                    // Longer than the planes may take, so that the last traces are sent.
                    let _ = tokio::time::timeout(2 * LAST_WORDS, server.close()).await;
                    return Err(Failure::Failed(STOPPED.to_owned()));
                }
            }
        }
        shut_down(server, &mut signals, log).await
    });
    // Don't wait for a model that is still being downloaded or loaded.
    runtime.shutdown_background();
    outcome
}

/// Lets running streams finish, unless a second signal cuts them; a third doesn't wait for anything.
async fn shut_down(server: RunningServer, signals: &mut Signals, log: &Queue) -> Result<(), Failure> {
    tracing::info!("shutting down after running streams have finished; a second signal cuts them");
    notify::tell(&notify::stopping(server.longest_shutdown()));
    let outcome = tokio::select! {
        // The second signal may come with the first, to a host that has nothing to finish.
        biased;
        () = server.finish_streams() => Ok(()),
        () = signals.next() => Err(Failure::Failed("running streams were cut by a second signal".to_owned())),
    };
    let engine = server.engine().clone();
    // A second signal that finds no stream to cut is no reason to lose what is being saved.
    let mut is_last = outcome.is_err();
    let mut closing = std::pin::pin!(server.close());
    loop {
        tokio::select! {
            () = &mut closing => break,
            () = signals.next() => if is_last {
                tracing::warn!("a signal ended the shutdown; what it would have saved or sent is lost");
                log.flush(LAST_LINES);
                std::process::exit(1)
            },
        }
        is_last = true;
        tracing::info!("no stream is left to cut; another signal ends the shutdown at once");
    }
    match engine.has_failed() {
        true => Err(Failure::Failed(STOPPED.to_owned())),
        false => outcome,
    }
}

/// The signals that end a command.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Warns of variables that have no effect here, or less, although the operator may expect one.
pub(super) fn warn_of_variables(config: &Config) {
    let environment = Environment::of_process();
    for (name, meant) in environment.doubtful() {
        tracing::warn!("{name} is not a variable of this host and has no effect; did you mean {meant}?");
    }
    if config.api_keys.is_some() && config.api_key.is_some() {
        tracing::warn!("{} has no effect here: the keys are those of --api-keys", tenants::VARIABLE);
    } else if config.api_key.as_deref().is_some_and(tenants::is_short) {
        tracing::warn!(
            "{} is short enough to be guessed; `infer keys new` makes longer keys",
            tenants::VARIABLE
        );
    }
    if config.admin_token.as_deref().is_some_and(tenants::is_short) {
        tracing::warn!(
            "{} is short enough to be guessed; `openssl rand -hex 32` makes longer tokens, and without it the host \
             generates one",
            token::VARIABLE
        );
    }
}

/// Makes the limit of open files large enough for all connections, or the connections few enough: without a
/// descriptor left, neither plane can be reached.
fn fit_connections(bounds: &mut Bounds) -> Result<(), Failure> {
    let connections = bounds.max_connections + bounds.admin_connections + 2 * bounds.waiting_room;
    let limit = raise_open_files(connections as u64 + OTHER_FILES);
    if limit < LEAST_FILES {
        return Err(Failure::Failed(format!(
            "open files are limited to {limit} (`ulimit -n`), too few to serve; {LEAST_FILES} are the least"
        )));
    }
    let wanted = bounds.max_connections;
    fit_within(limit, bounds);
    if bounds.max_connections < wanted {
        tracing::warn!(
            "open files are limited to {limit} (`ulimit -n`): --max-connections is {} instead of {wanted}, \
             and the admin plane has {} connections",
            bounds.max_connections,
            bounds.admin_connections
        );
    }
    Ok(())
}

/// Lowers the numbers of connections to those for which a limit of open files has room, beside other files. All of
/// them, because whoever fills the places of one plane would otherwise take the descriptors of the other.
fn fit_within(limit: u64, bounds: &mut Bounds) {
    let others = OTHER_FILES.min(limit / 2);
    let all = usize::try_from(limit - others).unwrap_or(usize::MAX);
    bounds.waiting_room = bounds.waiting_room.min(all / 5);
    bounds.admin_connections = bounds.admin_connections.min(all / 5);
    let rest = all - bounds.admin_connections - 2 * bounds.waiting_room;
    bounds.max_connections = bounds.max_connections.min(rest);
}

/// Raises the soft limit of open files to `wanted`, or as far as the hard one allows: the usual 1,024 are fewer than
/// the connections may be. Returns the limit.
pub fn raise_open_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    let raised = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if raised <= current {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }) {
        Ok(()) => raised,
        Err(error) => {
            tracing::warn!("can't raise the limit of open files from {current} to {raised}: {error}");
            current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        for (limit, places, admin, room) in
            [(u64::MAX, 4_096, 64, 256), (5_184, 4_096, 64, 256), (2_000, 912, 64, 256), (64, 14, 6, 6)]
        {
            let mut bounds = Bounds::default();
            fit_within(limit, &mut bounds);
            let fitted = (bounds.max_connections, bounds.admin_connections, bounds.waiting_room);
            assert_eq!(fitted, (places, admin, room), "{limit}");
        }
        let mut few = Bounds { max_connections: 1, ..Bounds::default() };
        fit_within(LEAST_FILES, &mut few);
        assert_eq!(few.max_connections, 1);
    }
}
