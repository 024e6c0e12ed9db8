//! `infer bench serve`: measures serving over HTTP, and the in-process baseline beside it.

mod checks;
mod given;
mod workloads;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::super::flags::Flags;
use super::super::serve::raise_open_files;
use super::policies::Source;
use super::rate::RateArgs;
use super::trace::{Access, TraceArgs, Traced};
use super::{Failure, check_out, emit, runtime};
use crate::bench::{self, Api, Dialect, Lengths, Plan, Report, Target, Workload};
use crate::cli::base_url;
use crate::config::{Config, DialectChoice, GenerationConfig, MaxSeqLen};
use crate::generate::Sequential;
use crate::serve::{self, RunningServer};
use crate::web::Trust;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
W1: sequential requests, 256 tokens in, 256 out. W2: 16 at a time, 32 to 1,024 tokens in, 64 to 256 out.
W3: 32 requests, 16 at a time, 1,024 shared and 32 distinct tokens in, 32 out. W4: 8 conversations of 5 \
turns; each turn sends the whole history plus 32 to 96 new tokens, 32 to 96 out.
Prompts are random token ids that share nothing else (see --shared-prefix), end tokens are ignored, \
sampling is greedy. With --rate, requests arrive at random times instead, however long earlier ones take, in bursts \
if --burstiness is below 1.
Without --url, a server is started in this process on free loopback ports, with the model and the policies \
that the other flags name; --host, --port, --admin, --tls-cert, --tls-key, --api-keys, --operators, --sse-dialect \
and --generation-config are ignored. --seed determines prompts and lengths (default: 0). The baseline needs \
--api completions and exact lengths, because it compares token ids. W4 resends the output of earlier turns, \
so it needs --api text or chat if the server doesn't return token ids (--dialect openai).

A trace's requests are sent at their recorded times, or when those that they waited for have ended, with the \
recorded lengths and shared prefixes; with --api completions and the dialect named, the host is also told their \
sessions, priorities, deadlines and expected lengths. A server in this process knows the trace's tenants, too. --rate \
scales the times of a trace to a mean rate, and keeps their order and their bursts, as that of `infer sim run` does. \
Which policies suit a trace, live and predicted:
  infer bench serve --trace requests.jsonl --scheduler fair --format json --out fair.json
  infer sim compare --trace requests.jsonl --scheduler fair --scheduler continuous

How many requests a second a server can promise: twice or half the last rate until one is sustained and one \
isn't, then between the two until they are within 5 %. Requests that fail count as late. `all` is W2 here.
  infer bench serve --url http://HOST:8000 --find-rate --ttft-target-ms 500 --itl-target-ms 50

A report names the policies of the host. Those of --url are known if INFER_ADMIN (default: port 8001 of this machine) is \
its admin plane and a token for it is here, as for `infer policy list`.

To measure another server and compare both on one page:
  infer bench serve --url http://HOST:8080 --dialect openai --baseline off --format json --out peer.json
  infer bench report peer.json ours.json --out page.html

Exit code 1 if a request failed; with --find-rate, if all did.";

/// Arguments of `infer bench serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Server to measure, [http(s)://]HOST:PORT or the full URL of a completions endpoint [default: start one]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    trust: Trust,
    /// Stream format of the server
    #[arg(long, value_enum, default_value_t = Dialect::Named)]
    dialect: Dialect,
    /// What requests carry: token ids or text for completions, or messages for chat completions
    #[arg(long, value_enum, default_value_t = Api::Completions)]
    api: Api,
    /// Whether outputs must have exactly the requested length
    #[arg(long, value_enum, default_value_t = Lengths::Exact)]
    lengths: Lengths,
    /// Workloads, comma-separated; `all` is W1 and W2, which work with every server
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Which::All])]
    workload: Vec<Which>,
    #[command(flatten)]
    rates: RateArgs,
    /// Number of requests of W1
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Number of requests of W2
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// Concurrent requests of W2
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Tokens that all prompts of a workload share at the start, to exercise the prefix cache
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    shared_prefix: u32,
    #[command(flatten)]
    trace: TraceArgs,
    /// Token ids of prompts are below this [default: the model's vocabulary; 256 without a baseline]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocab_size: Option<u32>,
    /// Also run the prompts in process [default: on without --url, if both sides compute the same tokens]
    #[arg(long, value_enum, value_name = "ON|OFF")]
    baseline: Option<Switch>,
    /// Model name in requests [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Bearer token for --url; with --trace several, comma-separated, which its tenants get in turn
    #[arg(long, value_name = "KEY", env = "INFER_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File for the report [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Name of the server in the report
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

/// Runs the benchmark.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    check_out(args.out.as_deref())?;
    args.check()?;
    let config = of_its_own(args.flags.config()?);
    raise_open_files(1 << 16);
    // Before the runtime exists, because loading blocks.
    let baseline =
        if args.wants_baseline() { Some(Sequential::load(&beside_a_server(&config))?) } else { None };
    let vocab_size = args.vocab_size(baseline.as_ref())?;
    let rate = args.rates.rate.first().copied();
    let traced = args.trace.read(rate, vocab_size, config.seed.unwrap_or(0))?;
    if traced.as_ref().is_some_and(|traced| traced.recording.has_turns()) && !args.returns_ids() {
        eprintln!(
            "the server returns no token ids (--api completions --dialect named does), so later turns of the trace \
             don't share earlier outputs"
        );
    }
    let workloads = match traced {
        Some(_) => Vec::new(),
        None => args.workloads(&config, vocab_size, baseline.as_ref())?,
    };
    let report = runtime()?.block_on(measure(args, config, workloads, traced, baseline))?;
    let failed = match args.rates.find_rate && report.workloads.iter().any(|run| run.completed > 0) {
        true => 0,
        false => report.failed(),
    };
    let text = match args.format {
        Format::Text => report.text(),
        Format::Json => serde_json::to_string_pretty(&report).map_err(Failure::failed)? + "\n",
        Format::Html => bench::html(&[report]),
    };
    emit(args.out.as_deref(), &text)?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} requests failed; the report says why"))),
    }
}

/// Configures the baseline so that it leaves memory to the server: lengths that the pool decides would take all.
fn beside_a_server(config: &Config) -> Config {
    let max_seq_len = match config.max_seq_len {
        MaxSeqLen::Auto => MaxSeqLen::Usual,
        given => given,
    };
    Config { max_seq_len, ..config.clone() }
}

/// Configures the server under test so that nothing else can reach it and the load generator needs no key.
fn of_its_own(config: Config) -> Config {
    Config {
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_host: "127.0.0.1".to_owned(),
        admin_port: 0,
        tls: None,
        api_keys: None,
        api_key: None,
        operators: None,
        // A running host's: its operators' swaps would be measured, and this server's life saved over it.
        policy_state: None,
        sse_dialect: DialectChoice::Auto,
        // The checkpoint's sampling defaults would apply to only one of the two sides.
        generation_config: GenerationConfig::None,
        ..config
    }
}

async fn measure(
    args: &ServeArgs,
    config: Config,
    workloads: Vec<Workload>,
    mut traced: Option<Traced>,
    baseline: Option<Sequential>,
) -> Result<Report, Failure> {
    let settings = args.given(&args.flags.settings()?)?;
    let (seed, subject) = (config.seed.unwrap_or(0), args.subject(&config, &settings));
    // An empty variable counts as absent.
    let given = args.api_key.as_deref().filter(|key| !key.is_empty());
    // Its file is kept until the end, because the server may read it again.
    let access = match &mut traced {
        Some(traced) if args.url.is_none() => traced.make_keys()?,
        Some(traced) => traced.use_keys(given),
        None => Access { api_key: given.map(str::to_owned), tenants: None },
    };
    let own: Option<RunningServer> = match args.url {
        Some(_) => None,
        None => {
            let api_keys = access.tenants.as_ref().map(|file| file.path().to_owned());
            Some(serve::start(Config { api_keys, ..config }).await?)
        }
    };
    let url = match (&args.url, &own) {
        (Some(url), _) => base_url("--url", url, "http://127.0.0.1:8000")?.0,
        (None, Some(server)) => format!("http://{}", server.data_addr),
        (None, None) => unreachable!("a server is started unless there is a URL"),
    };
    let target = Target {
        url,
        trust: args.trust.clone(),
        dialect: args.dialect,
        api: args.api,
        lengths: args.lengths,
        api_key: access.api_key.clone(),
        model: args.served_model.clone(),
    };
    let source = match &own {
        Some(server) => Source::Own(server),
        None => Source::at(&target).await?,
    };
    let live = source.live().await?;
    let policies = live.policies();
    if let (Some(traced), Some(server)) = (&traced, &own) {
        traced.warn_of_differences(server, &policies);
    }
    let plan = Plan {
        target,
        workloads,
        recordings: traced.into_iter().map(|traced| traced.recording).collect(),
        seed,
        targets: args.rates.targets(),
        search: args.rates.search(),
        subject,
        settings,
        policies,
    };
    let mut report = bench::run(plan, baseline).await.map_err(Failure::failed);
    if let Ok(report) = &mut report {
        report.policies_after = source.changed(&live).await;
    }
    if let Some(server) = own {
        server.shutdown().await;
    }
    report
}

#[cfg(test)]
mod tests;
