//! `infer bench serve`: measures serving over HTTP, and the in-process baseline beside it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::super::flags::Flags;
use super::super::serve::raise_open_files;
use super::{Failure, put, runtime};
use crate::bench::{self, Api, Arrival, Dialect, Lengths, Plan, Report, Target, Targets, Workload};
use crate::cli::base_url;
use crate::config::{Config, DialectChoice, GenerationConfig};
use crate::generate::Sequential;
use crate::serve::{self, RunningServer};
use crate::web::Trust;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
W1: sequential requests, 256 tokens in, 256 out. W2: 16 at a time, 32 to 1,024 tokens in, 64 to 256 out.
W3: 32 requests, 16 at a time, 1,024 shared and 32 distinct tokens in, 32 out. W4: 8 conversations of 5
turns; each turn sends the whole history plus 32 to 96 new tokens, 32 to 96 out.
Prompts are random token ids that share nothing else (see --shared-prefix), end tokens are ignored,
sampling is greedy. With --rate, requests arrive at random times instead, however long earlier ones take.
Without --url, a server is started in this process on free loopback ports, with the model and the policies
that the other flags name; --host, --port, --admin, --tls-cert, --tls-key, --api-keys, --sse-dialect and
--generation-config are ignored. --seed determines prompts and lengths (default: 0). The baseline needs
--api completions and exact lengths, because it compares token ids. W4 resends the output of earlier turns,
so it needs --api text or chat if the server doesn't return token ids (--dialect openai).

To measure another server and compare both on one page:
  infer bench serve --url http://HOST:8080 --dialect openai --baseline off --format json --out peer.json
  infer bench report peer.json ours.json --out page.html

Exit code 1 if a request failed.";

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
    /// Open loop: conversations per second, with Poisson arrivals; several rates are measured in turn
    #[arg(long, value_name = "PER_SECOND", value_delimiter = ',', value_parser = rate)]
    rate: Vec<f64>,
    /// Goodput target: time to the first token
    #[arg(long, value_name = "MS")]
    ttft_target_ms: Option<f64>,
    /// Goodput target: mean time per token after the first
    #[arg(long, value_name = "MS")]
    itl_target_ms: Option<f64>,
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
    /// Token ids of prompts are below this [default: the model's vocabulary; 256 without a baseline]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocab_size: Option<u32>,
    /// Also run the prompts in process [default: on without --url, if both sides compute the same tokens]
    #[arg(long, value_enum, value_name = "ON|OFF")]
    baseline: Option<Switch>,
    /// Model name in requests [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Bearer token for --url
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
    args.check()?;
    let config = of_its_own(args.flags.config()?);
    raise_open_files();
    // Before the runtime exists, because loading blocks.
    let baseline = if args.wants_baseline() { Some(Sequential::load(&config)?) } else { None };
    let workloads = args.workloads(&config, baseline.as_ref())?;
    let report = runtime()?.block_on(measure(args, &config, workloads, baseline))?;
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

/// Configures the server under test so that nothing else can reach it and the load generator needs no key.
fn of_its_own(config: Config) -> Config {
    Config {
        host: "127.0.0.1".to_owned(),
        port: 0,
        admin_host: "127.0.0.1".to_owned(),
        admin_port: 0,
        tls: None,
        api_keys: None,
        sse_dialect: DialectChoice::Auto,
        // The checkpoint's sampling defaults would apply to only one of the two sides.
        generation_config: GenerationConfig::None,
        ..config
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
        None => Some(serve::start(config.clone()).await?),
    };
    let url = match (&args.url, &own) {
        (Some(url), _) => base_url(url),
        (None, Some(server)) => format!("http://{}", server.data_addr),
        (None, None) => unreachable!("a server is started unless there is a URL"),
    };
    let subject = match (&args.label, &own) {
        (Some(label), _) => label.clone(),
        (None, Some(_)) => format!(
            "{} served in this process, {} threads, scheduler {}",
            config.model, config.threads, config.scheduler.name
        ),
        (None, None) => "remote server".to_owned(),
    };
    let plan = Plan {
        target: Target {
            url,
            trust: args.trust.clone(),
            dialect: args.dialect,
            api: args.api,
            lengths: args.lengths,
            // An empty variable counts as absent.
            api_key: args.api_key.clone().filter(|key| !key.is_empty()),
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
    /// Refuses combinations of flags that would measure something other than what the report says.
    fn check(&self) -> Result<(), Failure> {
        let refused = |why: &str| Err(Failure::Usage(why.to_owned()));
        if self.url.is_some() && self.flags.has("served-model-name") {
            return refused(
                "--served-model-name renames the model of the server that `infer bench serve` starts; \
                 with --url, name the model of requests with --served-model",
            );
        }
        let ids = self.api == Api::Completions;
        if ids && self.dialect == Dialect::Openai && self.workload.contains(&Which::W4) {
            return refused(
                "--workload: w4 resends the output of earlier turns, and OpenAI's dialect doesn't return \
                 token ids; use --api text or --api chat",
            );
        }
        if matches!(self.baseline, Some(Switch::On)) && !self.has_same_tokens() {
            return refused(
                "--baseline: both sides must compute the same number of the same token ids; use \
                 --api completions and --lengths exact",
            );
        }
        Ok(())
    }

    /// Whether a baseline would compute the same token ids as the server.
    fn has_same_tokens(&self) -> bool {
        self.api == Api::Completions && self.lengths == Lengths::Exact
    }

    fn wants_baseline(&self) -> bool {
        match self.baseline {
            None => self.url.is_none() && self.has_same_tokens(),
            Some(switch) => switch == Switch::On,
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
            // Every byte-level vocabulary has at least this many.
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
                        "--max-seq-len: {} needs {longest} tokens per request, but this model serves \
                         {most}; choose another --model or --workload",
                        workload.name
                    )));
                }
            }
        }
        Ok(workloads)
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=100_000.0).contains(rate));
    rate.ok_or_else(|| "expected a number a second from 0.001 to 100000".to_owned())
}
