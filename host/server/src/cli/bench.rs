//! `infer bench serve`: measures serving over HTTP, and the in-process baseline beside it.

use clap::{Args, Subcommand, ValueEnum};

use super::Failure;
use super::flags::Flags;
use crate::bench::{self, Dialect, Plan, Report, Target, Workload};
use crate::config::Config;
use crate::generate::Sequential;
use crate::serve::{RunningServer, Server};

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
W1: requests one after the other, 256 tokens in, 256 out. W2: 16 at a time, 32 to 1,024 tokens in, 64 to
256 out. Prompts are random token ids that share nothing (see --shared-prefix), end tokens are ignored,
sampling is greedy. Without --url a server is started in this process on free loopback ports (--host,
--port and --admin don't count) with the model and the policies that the other flags name.

Exit code 1 if a request failed.";

/// Benchmarks.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Generates load over HTTP and compares it with the same prompts in process
    #[command(after_help = AFTER_HELP)]
    Serve(Box<ServeArgs>),
}

/// Arguments of `infer bench serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Server to measure, http://HOST:PORT or a whole completions address [default: one of its own]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// How the server streams
    #[arg(long, value_enum, default_value_t = Dialect::Named)]
    dialect: Dialect,
    /// Which workloads
    #[arg(long, value_enum, default_value_t = Which::All)]
    workload: Which,
    /// Requests of W1
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Requests of W2
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// Requests of W2 at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Tokens that all prompts of a workload begin with, so that a prefix cache can help
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    shared_prefix: u32,
    /// Token ids are drawn below this [default: the model's vocabulary, 256 without a baseline]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocab_size: Option<u32>,
    /// Whether the prompts also run in process [default: on without --url, else off]
    #[arg(long, value_enum, value_name = "ON|OFF")]
    baseline: Option<Switch>,
    /// Model that requests name [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Bearer token for --url
    #[arg(long, value_name = "KEY", env = "INFER_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    flags: Flags<true>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    W1,
    W2,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Runs a benchmark.
pub fn run(command: BenchCommand) -> Result<(), Failure> {
    let BenchCommand::Serve(args) = command;
    let config = Config {
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_host: "127.0.0.1".to_owned(),
        admin_port: 0,
        ..args.flags.config()?
    };
    let wants_baseline = args.baseline.map_or(args.url.is_none(), |switch| switch == Switch::On);
    // Loaded here, before there is a runtime: loading blocks.
    let baseline = if wants_baseline { Some(Sequential::load(&config)?) } else { None };
    let workloads = args.workloads(&config, baseline.as_ref())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let report = runtime.block_on(measure(&args, &config, workloads, baseline))?;
    match args.format {
        Format::Text => print!("{}", report.text()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::failed)?),
    }
    match report.failed() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} requests failed; the report says why"))),
    }
}

async fn measure(
    args: &ServeArgs,
    config: &Config,
    workloads: Vec<Workload>,
    baseline: Option<Sequential>,
) -> Result<Report, Failure> {
    let own: Option<RunningServer> = match args.url {
        Some(_) => None,
        None => Some(Server::start(config.clone()).await?),
    };
    let url = match (&args.url, &own) {
        (Some(url), _) => url.clone(),
        (None, Some(server)) => format!("http://{}", server.data_addr),
        (None, None) => unreachable!("a server of its own is started where no URL is given"),
    };
    let subject = match &own {
        Some(_) => format!(
            "{} served in this process, {} threads, scheduler {}",
            config.model, config.threads, config.scheduler.name
        ),
        None => "a server elsewhere".to_owned(),
    };
    let plan = Plan {
        target: Target {
            url,
            dialect: args.dialect,
            api_key: args.api_key.clone(),
            model: args.served_model.clone(),
        },
        workloads,
        seed: config.seed.unwrap_or(0),
        subject,
    };
    let report = bench::run(plan, baseline).await.map_err(Failure::failed);
    if let Some(server) = own {
        server.shutdown().await;
    }
    report
}

impl ServeArgs {
    fn workloads(&self, config: &Config, baseline: Option<&Sequential>) -> Result<Vec<Workload>, Failure> {
        let vocab_size = match (self.vocab_size, baseline) {
            (Some(given), Some(model)) if given > model.vocab_size() => {
                let most = model.vocab_size();
                return Err(Failure::Usage(format!("--vocab-size: {given}; this model has {most} tokens")));
            }
            (Some(given), _) => given,
            (None, Some(model)) => model.vocab_size(),
            // Every byte-level vocabulary has at least so many.
            (None, None) => 256,
        };
        let seed = config.seed.unwrap_or(0);
        let mut workloads = Vec::new();
        if self.workload != Which::W2 {
            workloads.push(Workload::single(seed, self.repeat as usize, self.shared_prefix, vocab_size));
        }
        if self.workload != Which::W1 {
            let (requests, at_once) = (self.requests as usize, self.concurrency as usize);
            workloads.push(Workload::mixed(seed, requests, at_once, self.shared_prefix, vocab_size));
        }
        if let Some(model) = baseline {
            for workload in &workloads {
                let (longest, most) = (workload.shape.longest(), model.max_seq_len());
                if longest > most {
                    return Err(Failure::Usage(format!(
                        "--max-seq-len: {} needs {longest} tokens a request, this model serves {most}; \
                         choose another --model or --workload",
                        workload.name
                    )));
                }
            }
        }
        Ok(workloads)
    }
}
