//! The host under test: starting it as a child process, and running as that child.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use infer_core::testing::ScriptedExecutor;
use infer_core::{Batch, DeviceFault, EngineConfig, Executor, StepOutput};

use super::{RobustError, serve_bare};
use crate::config::{Config, MaxSeqLen, PolicyChoice};
use crate::metrics::ProcessUsage;
use crate::serve;

/// Vocabulary size of the scripted executor: fewer tokens than any real vocabulary has.
pub const VOCAB: u32 = 200;

/// How long the host under test may take to close the last connections.
const LAST_CONNECTIONS: Duration = Duration::from_secs(60);

/// Kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HostKind {
    /// This host with the scripted executor.
    Scripted,
    /// A bare hyper loop that writes the same frames.
    Bare,
}

/// Settings of the child.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct HostOptions {
    /// Kind of server
    #[arg(value_enum)]
    pub kind: HostKind,
    /// Maximum number of running sequences
    #[arg(long, default_value_t = 32)]
    pub running: u32,
    /// Maximum number of waiting requests
    #[arg(long, default_value_t = 2_000)]
    pub waiting: u32,
    /// Duration of a step in microseconds
    #[arg(long, default_value_t = 0)]
    pub step_us: u64,
    /// Size of the KV pool in MiB; the index of cached blocks grows until the pool is full
    #[arg(long, default_value_t = 4_096)]
    pub pool_mib: u64,
}

/// A child that listens; dropping it kills the child.
pub struct Host {
    child: Child,
    /// Address of its data plane.
    pub address: SocketAddr,
}

impl Host {
    /// Starts the program at `exe` as a host under test.
    pub fn start(exe: &Path, options: HostOptions) -> Result<Self, RobustError> {
        let kind = match options.kind {
            HostKind::Scripted => "scripted",
            HostKind::Bare => "bare",
        };
        let (running, waiting) = (options.running.to_string(), options.waiting.to_string());
        let (step_us, pool_mib) = (options.step_us.to_string(), options.pool_mib.to_string());
        let mut child = Command::new(exe)
            .args([
                "bench",
                "host",
                kind,
                "--running",
                &running,
                "--waiting",
                &waiting,
                "--step-us",
                &step_us,
                "--pool-mib",
                &pool_mib,
            ])
            .env("INFER_LOG", "error")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(RobustError::of("can't start the host under test"))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).map_err(RobustError::of("the host under test"))?;
        match line.trim().parse() {
            Ok(address) => Ok(Self { child, address }),
            Err(_) => {
                let _ = child.kill();
                Err(RobustError("the host under test exited before it listened".to_owned()))
            }
        }
    }

    /// Its processor time, memory and open files.
    pub fn usage(&self) -> Result<ProcessUsage, RobustError> {
        let usage = ProcessUsage::of(self.child.id());
        usage.ok_or_else(|| RobustError("the host under test has exited".to_owned()))
    }

    /// How many files it has open once they are `most` or fewer, or else after a minute: it closes connections a little
    /// after its clients.
    pub async fn files_left(&self, most: u64) -> Result<u64, RobustError> {
        let begun = Instant::now();
        loop {
            let files = self.usage()?.open_files;
            if files <= most || begun.elapsed() > LAST_CONNECTIONS {
                return Ok(files);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs as the host under test: prints the address, serves until the parent exits.
pub async fn run_host(options: HostOptions) -> Result<(), RobustError> {
    let say = |address: SocketAddr| {
        let mut stdout = std::io::stdout().lock();
        let _ = writeln!(stdout, "{address}").and_then(|()| stdout.flush());
    };
    let parent_gone = tokio::task::spawn_blocking(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
    });
    match options.kind {
        HostKind::Bare => {
            let listener =
                crate::sockets::listen("127.0.0.1", 0).await.map_err(RobustError::of("can't listen"))?;
            say(listener.local_addr().map_err(RobustError::of("can't listen"))?);
            tokio::select! {
                () = serve_bare(listener) => {}
                _ = parent_gone => {}
            }
        }
        HostKind::Scripted => {
            let server = serve::start_with(config(options), Some(executor(options.step_us)))
                .await
                .map_err(|e| RobustError(e.to_string()))?;
            say(server.data_addr);
            let _ = parent_gone.await;
        }
    }
    Ok(())
}

fn config(options: HostOptions) -> Config {
    let mut config = Config {
        port: 0,
        admin_port: 0,
        admin_token: Some("the-host-under-test".to_owned()),
        // The scripted executor doesn't allocate it.
        kv_memory_bytes: Some(options.pool_mib << 20),
        max_batch_size: options.running,
        max_batch_tokens: Some((options.running * 8).max(2_048)),
        max_prefill_requests: options.running,
        max_waiting_requests: options.waiting,
        max_seq_len: MaxSeqLen::Tokens(2_048),
        admission: PolicyChoice {
            config: "{\"max_in_flight\": 100000, \"reserve\": 0.0, \"backpressure_at\": 1.0}".to_owned(),
            ..PolicyChoice::named("memory-aware")
        },
        ..Config::default()
    };
    // Half-open connections end within an attack, but a client that its machine holds up for a while is served.
    config.bounds.header_timeout = Duration::from_secs(15);
    config
}

/// Makes a scripted executor in place of the model's; a step takes at least `step_us`.
pub fn executor(step_us: u64) -> crate::serve::MakeExecutor {
    Box::new(move |engine: &EngineConfig| {
        let (size, blocks, entries) = (engine.block_size, engine.total_blocks, engine.prompt_cache_entries);
        let inner = ScriptedExecutor::new(size, blocks, entries, VOCAB);
        Box::new(Paced { inner, step: Duration::from_micros(step_us) })
    })
}

struct Paced {
    inner: ScriptedExecutor,
    step: Duration,
}

impl Executor for Paced {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        // Blocks the engine thread, as waiting for a device does.
        if !self.step.is_zero() {
            std::thread::sleep(self.step);
        }
        self.inner.execute(batch, output)
    }
}
