//! The host under test: how it is started as a child, and what it does when it is one.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use infer_core::testing::ScriptedExecutor;
use infer_core::{Batch, DeviceFault, EngineConfig, Executor, StepOutput};

use super::{RobustError, serve_bare};
use crate::config::{Config, PolicyChoice};
use crate::metrics::ProcessUsage;
use crate::serve;

/// Tokens that the scripted executor draws from: fewer than any vocabulary has.
pub const VOCAB: u32 = 200;

/// What kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HostKind {
    /// This host with the scripted executor.
    Scripted,
    /// A bare hyper loop that writes the same frames.
    Bare,
}

/// How the child is set up.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct HostOptions {
    /// What kind of server
    #[arg(value_enum)]
    pub kind: HostKind,
    /// Sequences that run at once
    #[arg(long, default_value_t = 32)]
    pub running: u32,
    /// Requests that may wait
    #[arg(long, default_value_t = 2_000)]
    pub waiting: u32,
    /// Microseconds that a step takes
    #[arg(long, default_value_t = 0)]
    pub step_us: u64,
    /// Size of the KV pool in MiB. What is cached there is remembered, so memory grows until it is full
    #[arg(long, default_value_t = 4_096)]
    pub pool_mib: u64,
}

/// A child that listens. Killed when dropped.
pub struct Host {
    child: Child,
    /// Its data plane.
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
                Err(RobustError("the host under test ended before it listened".to_owned()))
            }
        }
    }

    /// What it takes.
    pub fn usage(&self) -> Result<ProcessUsage, RobustError> {
        let usage = ProcessUsage::of(self.child.id());
        usage.ok_or_else(|| RobustError("the host under test is gone".to_owned()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the host under test: prints its address, serves until its parent goes away.
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
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
                .await
                .map_err(RobustError::of("can't listen"))?;
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
        // Nothing is computed in it.
        kv_memory_bytes: Some(options.pool_mib << 20),
        max_batch_size: options.running,
        max_batch_tokens: Some((options.running * 8).max(2_048)),
        max_prefill_requests: options.running,
        max_waiting_requests: options.waiting,
        max_seq_len: Some(2_048),
        admission: PolicyChoice {
            config: "{\"max_in_flight\": 100000, \"reserve\": 0.0, \"backpressure_at\": 1.0}".to_owned(),
            ..PolicyChoice::named("memory-aware")
        },
        ..Config::default()
    };
    config.bounds.header_timeout = Duration::from_secs(5);
    config
}

/// The scripted executor in place of the model's; a step takes at least `step_us`.
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
        // As a device does: this thread waits for it.
        if !self.step.is_zero() {
            std::thread::sleep(self.step);
        }
        self.inner.execute(batch, output)
    }
}
