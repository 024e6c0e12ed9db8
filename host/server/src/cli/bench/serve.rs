//! `infer bench serve`: measures serving over HTTP, and the in-process baseline beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, FromArgMatches as _, ValueEnum};

use super::super::flags::Flags;
use super::super::serve::raise_open_files;
use super::policies::Source;
use super::rate::RateArgs;
use super::trace::{Access, TraceArgs, Traced};
use super::{Failure, check_out, emit, report, runtime};
use crate::bench::{self, Api, Arrival, Dialect, Lengths, Plan, Report, Target, Workload};
use crate::cli::base_url;
use crate::config::{Config, DialectChoice, GenerationConfig, MaxSeqLen, Setting, Settings};
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
sessions, priorities and deadlines. A server in this process knows the trace's tenants, too. Which policies suit a trace, live and predicted:
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
    let traced = args.trace.read(vocab_size, config.seed.unwrap_or(0))?;
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

impl ServeArgs {
    /// Flags of the load, and settings of what computes in this process, that are not their defaults.
    fn given(&self, settings: &Settings) -> Result<BTreeMap<String, String>, Failure> {
        let load = self.load().into_iter().zip(Self::usual()?.load());
        let load = load.filter(|(given, usual)| given != usual);
        let applies = |setting: &Setting| match self.url {
            None => true,
            // Only the baseline computes here.
            Some(_) => self.wants_baseline() && setting.generate,
        };
        let settings = report::of_host(settings, applies).map(|(key, value)| (key, value.to_owned()));
        let given = load.map(|(given, _)| given).chain(settings);
        Ok(given.map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Names what is measured, with these settings.
    fn subject(&self, config: &Config, settings: &BTreeMap<String, String>) -> String {
        match (&self.label, &self.url) {
            (Some(label), _) => label.clone(),
            // The settings are those of the load and of the baseline.
            (None, Some(_)) => "remote server".to_owned(),
            (None, None) => format!(
                "{} served in this process, {} threads, scheduler {}{}",
                config.model,
                config.threads,
                config.scheduler.name,
                report::unseen(settings)
            ),
        }
    }

    /// The flags that describe the load, as text; those without a value are empty.
    fn load(&self) -> [(&'static str, String); 22] {
        // No `..`, so that a new flag isn't forgotten.
        let Self {
            url: _,
            trust: _,
            dialect,
            api,
            lengths,
            workload,
            rates:
                RateArgs { rate, burstiness, find_rate, share, probe_seconds, ttft_target_ms, itl_target_ms },
            repeat,
            requests,
            concurrency,
            shared_prefix,
            trace: TraceArgs { trace, speed, first, closed_loop },
            vocab_size,
            baseline,
            served_model,
            api_key: _,
            format: _,
            out: _,
            label: _,
            flags: _,
        } = self;
        [
            ("dialect", name(dialect)),
            ("api", name(api)),
            ("lengths", name(lengths)),
            ("workload", workload.iter().map(name).collect::<Vec<_>>().join(",")),
            ("rate", rate.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
            ("burstiness", burstiness.to_string()),
            ("find-rate", text(find_rate.then_some("yes"))),
            ("share", share.to_string()),
            ("probe-seconds", probe_seconds.to_string()),
            ("ttft-target-ms", text(*ttft_target_ms)),
            ("itl-target-ms", text(*itl_target_ms)),
            ("repeat", repeat.to_string()),
            ("requests", requests.to_string()),
            ("concurrency", concurrency.to_string()),
            ("shared-prefix", shared_prefix.to_string()),
            ("trace", text(trace.as_ref().map(|path| path.display()))),
            ("speed", speed.to_string()),
            ("first", text(*first)),
            ("closed-loop", text(closed_loop.then_some("yes"))),
            ("vocab-size", text(*vocab_size)),
            ("baseline", baseline.as_ref().map(name).unwrap_or_default()),
            ("served-model", served_model.clone().unwrap_or_default()),
        ]
    }

    /// The arguments of a command line without flags.
    fn usual() -> Result<Self, Failure> {
        let command = Self::augment_args(clap::Command::new("serve"));
        let matches = command.try_get_matches_from(["serve"]).map_err(Failure::failed)?;
        Self::from_arg_matches(&matches).map_err(Failure::failed)
    }

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
        let has_baseline = matches!(self.baseline, Some(Switch::On));
        if let Some(fault) = self.rates.fault(self.trace.trace.is_some(), has_baseline) {
            return refused(fault);
        }
        if has_baseline && self.trace.trace.is_some() {
            return refused("--baseline: a trace has none; its requests depend on each other's times");
        }
        if has_baseline && !self.has_same_tokens() {
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

    /// Whether responses carry token ids.
    fn returns_ids(&self) -> bool {
        self.api == Api::Completions && self.dialect == Dialect::Named
    }

    fn wants_baseline(&self) -> bool {
        match self.baseline {
            None => {
                let others = self.url.is_some() || self.trace.trace.is_some() || self.rates.find_rate;
                !others && self.has_same_tokens()
            }
            Some(switch) => switch == Switch::On,
        }
    }

    fn vocab_size(&self, baseline: Option<&Sequential>) -> Result<u32, Failure> {
        match (self.vocab_size, baseline) {
            (Some(given), Some(model)) if given > model.vocab_size() => {
                let most = model.vocab_size();
                Err(Failure::Usage(format!("--vocab-size: {given}; this model has {most} tokens")))
            }
            (Some(given), _) => Ok(given),
            (None, Some(model)) => Ok(model.vocab_size()),
            // Every byte-level vocabulary has at least this many.
            (None, None) => Ok(256),
        }
    }

    fn workloads(
        &self,
        config: &Config,
        vocab_size: u32,
        baseline: Option<&Sequential>,
    ) -> Result<Vec<Workload>, Failure> {
        let seed = config.seed.unwrap_or(0);
        let mut workloads = Vec::new();
        let wanted = |which| self.workload.contains(&which);
        if wanted(Which::W1) || wanted(Which::All) && !self.rates.find_rate {
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
        if !self.rates.rate.is_empty() && !self.rates.find_rate {
            let burstiness = self.rates.burstiness;
            let open = |workload: Workload| {
                let round = move |(round, &rate): (usize, &f64)| {
                    workload.clone().retold(seed, round).arriving(Arrival::open(rate, burstiness))
                };
                self.rates.rate.iter().enumerate().map(round)
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

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    /// What a report says was given, with these flags and this infer.toml.
    fn given(flags: &[&str], file: &str) -> Vec<(String, String)> {
        let Line { args } = Line::parse_from([&["serve"][..], flags].concat());
        let settings = Settings::of_text(Path::new("infer.toml"), file).unwrap();
        args.given(&settings).unwrap_or_else(|_| panic!("{flags:?}")).into_iter().collect()
    }

    #[test]
    fn reports_say_what_was_given_other_than_the_defaults() {
        let file = "max-batch-size = 4\nthreads = 2\nport = 9\noperators = \"o\"\nprefix-caching = false\nplan-ahead = false\nblock-size = 16";
        let host = [("max-batch-size", "4"), ("prefix-caching", "off"), ("threads", "2")];
        let load = [
            "--workload",
            "w1,w3",
            "--rate",
            "2,0.5",
            "--burstiness",
            "0.25",
            "--requests",
            "16",
            "--itl-target-ms",
            "50",
        ];
        let given_load =
            [("burstiness", "0.25"), ("itl-target-ms", "50"), ("rate", "2,0.5"), ("workload", "w1,w3")];
        let remote = ["--url", "http://h", "--api", "text", "--served-model", "m", "--api-key", "secret"];
        let cases = [
            (vec![], host.to_vec()),
            (load.to_vec(), [&host[..], &given_load].concat()),
            (vec!["--url", "http://h"], vec![]),
            (vec!["--url", "http://h", "--baseline", "on"], vec![("baseline", "on"), ("threads", "2")]),
            (remote.to_vec(), vec![("api", "text"), ("served-model", "m")]),
        ];
        for (flags, mut expected) in cases {
            expected.sort_unstable();
            let found = given(&flags, file);
            let found: Vec<(&str, &str)> = found.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            assert_eq!(found, expected, "{flags:?}");
        }
    }

    #[test]
    fn server_of_its_own_has_nobodys_keys_and_tokens_and_swaps() {
        let file = || Some(PathBuf::from("/etc/infer/one.toml"));
        let given = Config { api_keys: file(), operators: file(), policy_state: file(), ..Config::default() };
        let own = of_its_own(given);
        assert_eq!((own.api_keys, own.operators, own.api_key), (None, None, None));
        assert_eq!(own.policy_state, None);
    }

    #[test]
    fn remote_server_is_named_without_the_settings_of_the_baseline() {
        let subject = |flags: &[&str]| {
            let Line { args } = Line::parse_from([&["serve"][..], flags].concat());
            let settings = given(flags, "dtype = \"bf16\"\nspeculate = 4");
            args.subject(&Config::default(), &BTreeMap::from_iter(settings))
        };
        let own = subject(&[]);
        assert!(own.ends_with(", dtype bf16, speculate 4"), "{own}");
        assert_eq!(subject(&["--url", "http://h", "--baseline", "on"]), "remote server");
        assert_eq!(subject(&["--url", "http://h", "--label", "l"]), "l");
    }
}
