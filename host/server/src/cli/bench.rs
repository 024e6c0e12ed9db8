//! `infer bench serve`: measures serving over HTTP, and the in-process baseline beside it.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use super::flags::Flags;
use super::serve::raise_open_files;
use super::{Failure, bench_engine, bench_kernels};
use crate::bench::robust::{self, HostOptions};
use crate::bench::{self, Api, Arrival, Dialect, Lengths, Plan, Report, Target, Targets, Workload, loading};
use crate::config::{Config, DialectChoice, GenerationConfig};
use crate::generate::Sequential;
use crate::serve::{RunningServer, Server};
use crate::web::Trust;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
W1: requests one after the other, 256 tokens in, 256 out. W2: 16 at a time, 32 to 1,024 tokens in, 64 to
256 out. W3: 32 requests, 16 at a time, the first 1,024 tokens shared and 32 of their own, 32 out. W4: 8
conversations of 5 turns, each turn everything said before and 32 to 96 tokens more, 32 to 96 out.
Prompts are random token ids that share nothing else (see --shared-prefix), end tokens are ignored,
sampling is greedy. With --rate requests come at random moments instead, whatever became of those before.
Without --url a server is started in this process on free loopback ports (--host, --port, --admin, --tls-cert,
--tls-key, --api-keys and --sse-dialect don't count) with the model and the policies that the other flags name.
The baseline computes token ids, so there is one for --api completions with exact lengths. W4 sends replies
again, so it needs --api text or chat where a server doesn't tell their ids (--dialect openai).

A peer, and both on one page:
  infer bench serve --url http://HOST:8080 --dialect openai --baseline off --format json --out peer.json
  infer bench report peer.json ours.json --out page.html

Exit code 1 if a request failed.";

/// Benchmarks.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Generates load over HTTP and compares it with the same prompts in process
    #[command(after_help = AFTER_HELP)]
    Serve(Box<ServeArgs>),
    /// Measures products and attention alone, on the CPU or a GPU, beside the machine's limits
    #[command(after_help = bench_kernels::AFTER_HELP)]
    Kernels(bench_kernels::KernelArgs),
    /// Many streams at once without a model, beside a bare hyper loop: tokens, processor time, memory
    Streams(StreamsArgs),
    /// More load than a host without a model can serve: who is turned away, who is served how
    Overload(OverloadArgs),
    /// Hostile peers beside an honest one, against a host without a model
    Abuse(AbuseArgs),
    /// Is the host under test of the three above
    #[command(hide = true)]
    Host(HostOptions),
    /// Measures steps of models with arbitrary weights, and the machine's limits beside them
    #[command(after_help = bench_engine::AFTER_HELP)]
    Engine(bench_engine::EngineArgs),
    /// Measures how long a checkpoint takes to load, beside a plain copy of its weights
    Load(LoadArgs),
    /// Draws reports of earlier runs (--format json) side by side on one page
    Report(ReportArgs),
}

/// Arguments of `infer bench load`.
#[derive(Args)]
pub struct LoadArgs {
    /// Rounds: a copy and a load in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: super::flags::Flags<false>,
}

/// Arguments of `infer bench streams`.
#[derive(Args)]
pub struct StreamsArgs {
    /// Streams at once
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    streams: u32,
    /// Tokens of each
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    tokens: u32,
    /// Rounds of each server, in turn
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `infer bench overload`.
#[derive(Args)]
pub struct OverloadArgs {
    /// How many times what the host can serve
    #[arg(long, default_value_t = 10.0, value_parser = factor)]
    times: f64,
    /// For how long
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    seconds: f64,
    /// Storms, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Requests that may wait
    #[arg(long, default_value_t = 2)]
    waiting: u32,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `infer bench abuse`.
#[derive(Args)]
pub struct AbuseArgs {
    /// Peers of each kind
    #[arg(long, default_value_t = 100)]
    peers: u32,
    /// For how long
    #[arg(long, default_value_t = 30.0, value_parser = seconds)]
    seconds: f64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `infer bench report`.
#[derive(Args)]
pub struct ReportArgs {
    /// Reports, as `infer bench serve --format json` writes them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where the page goes [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Arguments of `infer bench serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Server to measure, http(s)://HOST:PORT or a whole completions address [default: one of its own]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    trust: Trust,
    /// How the server streams
    #[arg(long, value_enum, default_value_t = Dialect::Named)]
    dialect: Dialect,
    /// What requests are: token ids or text for completions, or messages for chat completions
    #[arg(long, value_enum, default_value_t = Api::Completions)]
    api: Api,
    /// Whether outputs must have the length that was asked for
    #[arg(long, value_enum, default_value_t = Lengths::Exact)]
    lengths: Lengths,
    /// Which workloads, with commas between; `all` is W1 and W2, which every server takes
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Which::All])]
    workload: Vec<Which>,
    /// Open loop: conversations a second at random (Poisson); several rates are measured in turn
    #[arg(long, value_name = "PER_SECOND", value_delimiter = ',', value_parser = rate)]
    rate: Vec<f64>,
    /// A good request has its first token within this
    #[arg(long, value_name = "MS")]
    ttft_target_ms: Option<f64>,
    /// A good request's other tokens take at most this on average
    #[arg(long, value_name = "MS")]
    itl_target_ms: Option<f64>,
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
    /// Whether the prompts also run in process [default: on without --url where both sides compute the same]
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
    /// Where the report goes [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What the report calls the server
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    flags: Flags<true>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    W1,
    W2,
    W3,
    W4,
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
    Html,
}

/// Runs a benchmark.
pub fn run(command: BenchCommand) -> Result<(), Failure> {
    let args = match command {
        BenchCommand::Serve(args) => args,
        BenchCommand::Engine(args) => return bench_engine::run(&args),
        BenchCommand::Load(args) => return load(&args),
        BenchCommand::Report(args) => return page(&args),
        BenchCommand::Kernels(args) => return bench_kernels::run(&args),
        other => return robust(other),
    };
    let wants_baseline = args.wants_baseline()?;
    let config = of_its_own(args.flags.config()?);
    raise_open_files();
    // Loaded here, before there is a runtime: loading blocks.
    let baseline = if wants_baseline { Some(Sequential::load(&config)?) } else { None };
    let workloads = args.workloads(&config, baseline.as_ref())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let report = runtime.block_on(measure(&args, &config, workloads, baseline))?;
    let failed = report.failed();
    let text = match args.format {
        Format::Text => report.text(),
        Format::Json => serde_json::to_string_pretty(&report).map_err(Failure::failed)? + "\n",
        Format::Html => bench::html(&[report]),
    };
    put(args.out.as_deref(), &text)?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} requests failed; the report says why"))),
    }
}

/// The server that is measured: nobody else finds it, and the generator gets in.
fn of_its_own(config: Config) -> Config {
    Config {
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_host: "127.0.0.1".to_owned(),
        admin_port: 0,
        tls: None,
        api_keys: None,
        sse_dialect: DialectChoice::Auto,
        // Requests say how tokens are drawn; what a checkpoint wishes beside it would make the two sides differ.
        generation_config: GenerationConfig::None,
        ..config
    }
}

fn robust(command: BenchCommand) -> Result<(), Failure> {
    let exe = std::env::current_exe().map_err(Failure::failed)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    raise_open_files();
    runtime.block_on(async {
        match command {
            BenchCommand::Streams(a) => {
                let (streams, rounds) = (a.streams as usize, a.rounds.max(1) as usize);
                let report =
                    robust::streams(&exe, streams, a.tokens, rounds).await.map_err(Failure::failed)?;
                show(a.json, &report, &report.text())?;
                verdict(report.is_right(), "a stream did not bring the tokens that were due")
            }
            BenchCommand::Overload(a) => {
                let storm = robust::Storm {
                    times: a.times,
                    seconds: a.seconds,
                    rounds: a.rounds,
                    waiting: a.waiting,
                };
                let report = robust::overload(&exe, storm).await.map_err(Failure::failed)?;
                show(a.json, &report, &report.text())?;
                verdict(report.wrong == 0, "an answer was neither whole nor a proper refusal")
            }
            BenchCommand::Abuse(a) => {
                let report =
                    robust::abuse(&exe, a.peers as usize, a.seconds).await.map_err(Failure::failed)?;
                show(a.json, &report, &report.text())?;
                verdict(report.harmed == 0, "an honest request was harmed")
            }
            BenchCommand::Host(options) => robust::run_host(options).await.map_err(Failure::failed),
            BenchCommand::Serve(_)
            | BenchCommand::Load(_)
            | BenchCommand::Report(_)
            | BenchCommand::Kernels(_)
            | BenchCommand::Engine(_) => {
                unreachable!("carried out above")
            }
        }
    })
}

fn load(args: &LoadArgs) -> Result<(), Failure> {
    let config = args.flags.config()?;
    let report = loading::run(&config, args.rounds, |what| eprintln!("{what}")).map_err(Failure::failed)?;
    show(args.json, &report, &report.text())
}

fn show(json: bool, report: &impl serde::Serialize, text: &str) -> Result<(), Failure> {
    let json = if json { Some(serde_json::to_string_pretty(report).map_err(Failure::failed)?) } else { None };
    println!("{}", json.as_deref().unwrap_or(text.trim_end()));
    Ok(())
}

fn verdict(holds: bool, otherwise: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Failed(otherwise.to_owned())) }
}

fn page(args: &ReportArgs) -> Result<(), Failure> {
    let read = |path: &PathBuf| {
        let wrong = |error: &dyn std::fmt::Display| Failure::Failed(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        serde_json::from_str(&text).map_err(|e| wrong(&e))
    };
    let reports: Vec<Report> = args.files.iter().map(read).collect::<Result<_, _>>()?;
    put(args.out.as_deref(), &bench::html(&reports))
}

fn put(out: Option<&Path>, text: &str) -> Result<(), Failure> {
    let Some(path) = out else {
        print!("{text}");
        return Ok(());
    };
    std::fs::write(path, text).map_err(|e| Failure::Failed(format!("can't write {}: {e}", path.display())))
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.01..=1_000.0).contains(factor));
    factor.ok_or_else(|| "expected a number from 0.01 to 1000".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.1 to 86400".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=100_000.0).contains(rate));
    rate.ok_or_else(|| "expected a number a second from 0.001 to 100000".to_owned())
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
    let subject = match (&args.label, &own) {
        (Some(label), _) => label.clone(),
        (None, Some(_)) => format!(
            "{} served in this process, {} threads, scheduler {}",
            config.model, config.threads, config.scheduler.name
        ),
        (None, None) => "a server elsewhere".to_owned(),
    };
    let plan = Plan {
        target: Target {
            url,
            trust: args.trust.clone(),
            dialect: args.dialect,
            api: args.api,
            lengths: args.lengths,
            api_key: args.api_key.clone(),
            model: args.served_model.clone(),
        },
        workloads,
        seed: config.seed.unwrap_or(0),
        targets: Targets { ttft_ms: args.ttft_target_ms, itl_ms: args.itl_target_ms },
        subject,
    };
    let report = bench::run(plan, baseline).await.map_err(Failure::failed);
    if let Some(server) = own {
        server.shutdown().await;
    }
    report
}

impl ServeArgs {
    /// Whether the prompts also run in process. Refuses what would not be the work that a report says it is.
    fn wants_baseline(&self) -> Result<bool, Failure> {
        let ids = self.api == Api::Completions;
        if ids && self.dialect == Dialect::Openai && self.workload.contains(&Which::W4) {
            return Err(Failure::Usage(
                "--workload: w4 sends replies again, and OpenAI's dialect doesn't tell their token ids; \
                 take --api text or --api chat"
                    .to_owned(),
            ));
        }
        let same = ids && self.lengths == Lengths::Exact;
        match self.baseline {
            None => Ok(same && self.url.is_none()),
            Some(Switch::On) if !same => Err(Failure::Usage(
                "--baseline: it computes the same token ids, as many as are asked for; that needs \
                 --api completions and --lengths exact"
                    .to_owned(),
            )),
            Some(switch) => Ok(switch == Switch::On),
        }
    }

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
        let wanted = |which| self.workload.contains(&which);
        if wanted(Which::W1) || wanted(Which::All) {
            workloads.push(Workload::single(seed, self.repeat as usize, self.shared_prefix, vocab_size));
        }
        if wanted(Which::W2) || wanted(Which::All) {
            let (requests, at_once) = (self.requests as usize, self.concurrency as usize);
            workloads.push(Workload::mixed(seed, requests, at_once, self.shared_prefix, vocab_size));
        }
        if wanted(Which::W3) {
            workloads.push(Workload::shared(seed, vocab_size));
        }
        if wanted(Which::W4) {
            workloads.push(Workload::conversations(seed, vocab_size));
        }
        if !self.rate.is_empty() {
            let open = |workload: Workload| {
                let round = move |(round, &rate): (usize, &f64)| {
                    workload.clone().retold(seed, round).arriving(Arrival::Poisson(rate))
                };
                self.rate.iter().enumerate().map(round)
            };
            workloads = workloads.into_iter().flat_map(open).collect();
        }
        if let Some(model) = baseline {
            for workload in &workloads {
                let (longest, most) = (workload.shape.longest(workload.turns), model.max_seq_len());
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
