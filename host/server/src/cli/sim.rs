//! `infer sim`: the same engine and the same components on virtual hardware, in virtual time.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use infer_core::config::{EngineConfig, Limits};
use infer_core::engine::Policies;
use infer_core::ids::Micros;
use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_sim::{Cell, Contender, Hardware, ModelShape, Profile, Settings, Sweep, Workload, report};
use infer_wasm::{LoaderConfig, PolicyLoader};

use super::Failure;
use crate::policies::is_component_path;

/// Fuel of one call: far beyond any honest plan, and the same on every machine.
const FUEL: u64 = 500_000_000;
const AFTER_HELP: &str = "\
Policies are names (see `infer policy list`), `builtin`, or .wasm files, each with an optional configuration:
  infer sim compare --scheduler continuous --scheduler 'srpt={\"patience_ms\": 1000}' --workload heavy-tail
Durations in tables are milliseconds; a `*` marks the best of a group. The output depends on the arguments and
the seed alone.";

/// What to simulate.
#[derive(Subcommand)]
pub enum SimCommand {
    /// Runs one set of policies on one workload
    #[command(after_help = AFTER_HELP)]
    Run(RunArgs),
    /// Compares policies on workloads, by default the shipped schedulers on three
    #[command(after_help = AFTER_HELP)]
    Compare(CompareArgs),
}

/// Arguments of `infer sim run`.
#[derive(Args)]
pub struct RunArgs {
    /// What clients ask: see --list
    #[arg(long, default_value = "chat")]
    workload: String,
    /// Who runs next
    #[arg(long, default_value = "continuous")]
    scheduler: String,
    /// Who is let in
    #[arg(long, default_value = "memory-aware")]
    admission: String,
    /// Which prefix is kept
    #[arg(long, default_value = "lru")]
    prefix_cache: String,
    /// Offered work, as a part of what the device can finish
    #[arg(long, default_value_t = 0.8)]
    load: f64,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `infer sim compare`.
#[derive(Args)]
pub struct CompareArgs {
    /// What clients ask, repeatable [default: chat, heavy-tail, bursty]
    #[arg(long)]
    workload: Vec<String>,
    /// Who runs next, repeatable [default: every shipped scheduler]
    #[arg(long)]
    scheduler: Vec<String>,
    /// Who is let in, repeatable [default: memory-aware]
    #[arg(long)]
    admission: Vec<String>,
    /// Which prefix is kept, repeatable [default: lru]
    #[arg(long)]
    prefix_cache: Vec<String>,
    /// Offered work, as a part of what the device can finish, repeatable [default: 0.9]
    #[arg(long)]
    load: Vec<f64>,
    /// Runs at a time [default: the machine's cores]
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Requests of a run
    #[arg(long, default_value_t = 2_000)]
    requests: u64,
    /// The device: cpu, l4, a100, h100 or h200
    #[arg(long, default_value = "h100")]
    hardware: String,
    /// The model's shape: demo, 1b, 8b or 70b
    #[arg(long, default_value = "8b")]
    model: String,
    /// Blocks of the pool [default: what the device's memory holds beside the weights]
    #[arg(long)]
    blocks: Option<u32>,
    /// Tokens in a block
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Sequences that run at once
    #[arg(long, default_value_t = 64)]
    max_batch_size: u32,
    /// Tokens of a step
    #[arg(long, default_value_t = 2_048)]
    max_batch_tokens: u32,
    /// Prompt tokens of one sequence in a step
    #[arg(long, default_value_t = 512)]
    prefill_chunk: u32,
    /// Prompt and output of one request
    #[arg(long, default_value_t = 8_192)]
    max_seq_len: u32,
    /// Requests that may wait
    #[arg(long, default_value_t = 1_000)]
    max_waiting_requests: u32,
    /// Names the traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How the result is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Writes the result here instead of to the terminal
    #[arg(long)]
    out: Option<PathBuf>,
    /// Lists the known workloads and ends
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Csv,
    /// One page with charts
    Html,
}

/// Simulates.
pub fn run(command: SimCommand) -> Result<(), Failure> {
    let sweep = match command {
        SimCommand::Run(RunArgs { workload, scheduler, admission, prefix_cache, load, common }) => {
            CompareArgs {
                workload: vec![workload],
                scheduler: vec![scheduler],
                admission: vec![admission],
                prefix_cache: vec![prefix_cache],
                load: vec![load],
                threads: Some(1),
                common,
            }
        }
        SimCommand::Compare(args) => args,
    };
    if sweep.common.list {
        return list();
    }
    compare(sweep)
}

fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for workload in Workload::NAMES.iter().filter_map(|name| Workload::named(name, 1)) {
        text.push_str(&format!("{:12} {}\n", workload.name, workload.about));
    }
    emit(None, &text)
}

fn compare(args: CompareArgs) -> Result<(), Failure> {
    let common = &args.common;
    let settings = settings(common)?;
    let workloads = or_default(&args.workload, &["chat", "heavy-tail", "bursty"])
        .iter()
        .map(|name| {
            Workload::named(name, common.requests).ok_or_else(|| {
                let known = Workload::NAMES.join(", ");
                Failure::Usage(format!("--workload: there is no `{name}`; there are {known}"))
            })
        })
        .collect::<Result<_, _>>()?;
    let loads = if args.load.is_empty() { vec![0.9] } else { args.load.clone() };
    if let Some(load) = loads.iter().find(|load| !(0.01..=100.0).contains(*load)) {
        return Err(Failure::Usage(format!("--load must be from 0.01 to 100, not {load}")));
    }
    let loader = PolicyLoader::new(LoaderConfig {
        cache_dir: crate::policies::cache_base().map(|base| base.join("policies")),
        fuel: Some(FUEL),
        ..LoaderConfig::default()
    })
    .map_err(Failure::failed)?;
    let schedulers = choices(PolicyKind::Scheduler, &or_default(&args.scheduler, &shipped_schedulers()))?;
    let admissions = choices(PolicyKind::Admission, &or_default(&args.admission, &["memory-aware"]))?;
    let caches = choices(PolicyKind::PrefixCache, &or_default(&args.prefix_cache, &["lru"]))?;
    let mut contenders = Vec::new();
    for scheduler in &schedulers {
        for admission in &admissions {
            for cache in &caches {
                let varying = [(&schedulers, scheduler), (&admissions, admission), (&caches, cache)];
                let names =
                    varying.iter().filter(|(all, _)| all.len() > 1).map(|(_, one)| one.label.as_str());
                let name = names.collect::<Vec<_>>().join(" ");
                let name = if name.is_empty() { scheduler.label.clone() } else { name };
                let loader = &loader;
                let make = move || policies(loader, scheduler, admission, cache);
                contenders.push(Contender { name, make: Box::new(make) });
            }
        }
    }
    // What can't be loaded is better known before an hour of simulation.
    for contender in &contenders {
        (contender.make)().map_err(|message| Failure::Usage(format!("{}: {message}", contender.name)))?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sweep = Sweep { settings, contenders, workloads, loads, threads: args.threads.unwrap_or(cores) };
    let runs = sweep.runs();
    let cells = sweep.run(|done| progress(done, runs)).map_err(Failure::failed)?;
    emit(common.out.as_deref(), &render(common.format, &cells, &about(common)))
}

fn settings(common: &Common) -> Result<Settings, Failure> {
    let profile = Profile {
        hardware: Hardware::named(&common.hardware).ok_or_else(|| {
            let known = Hardware::NAMES.join(", ");
            Failure::Usage(format!("--hardware: there is no `{}`; there are {known}", common.hardware))
        })?,
        model: ModelShape::named(&common.model).ok_or_else(|| {
            let known = ModelShape::NAMES.join(", ");
            Failure::Usage(format!("--model: there is no `{}`; there are {known}", common.model))
        })?,
    };
    let positive = [
        ("--block-size", common.block_size),
        ("--max-batch-size", common.max_batch_size),
        ("--max-batch-tokens", common.max_batch_tokens),
        ("--prefill-chunk", common.prefill_chunk),
        ("--max-waiting-requests", common.max_waiting_requests),
    ];
    if let Some((flag, _)) = positive.iter().find(|(_, value)| *value == 0) {
        return Err(Failure::Usage(format!("{flag} must be at least 1")));
    }
    if common.max_seq_len < 16 {
        return Err(Failure::Usage("--max-seq-len must be at least 16".to_owned()));
    }
    let total_blocks = common.blocks.unwrap_or_else(|| profile.blocks(common.block_size));
    if total_blocks < common.max_seq_len.div_ceil(common.block_size) {
        return Err(Failure::Usage(format!(
            "a pool of {total_blocks} blocks can't hold one sequence of {} tokens: choose a larger device, a \
             smaller model, a smaller --max-seq-len or --blocks",
            common.max_seq_len
        )));
    }
    let engine = EngineConfig {
        limits: Limits {
            max_batch_tokens: common.max_batch_tokens,
            max_running: common.max_batch_size,
            prefill_chunk: common.prefill_chunk,
            max_prefill_sequences: common.max_batch_size,
            max_prefill_tokens: common.max_batch_tokens,
        },
        block_size: common.block_size,
        total_blocks,
        max_waiting: common.max_waiting_requests,
        max_seq_len: common.max_seq_len,
        hash_key: [common.seed, 0],
        prompt_cache_ttl: Micros(300_000_000),
        ..EngineConfig::default()
    };
    Ok(Settings { engine, profile, load: 1.0, seed: common.seed })
}

fn shipped_schedulers() -> Vec<&'static str> {
    infer_bundle::POLICIES.iter().filter(|p| p.kind == "scheduler").map(|p| p.name).collect()
}

fn or_default(given: &[String], default: &[&str]) -> Vec<String> {
    if given.is_empty() { default.iter().map(|&name| name.to_owned()).collect() } else { given.to_vec() }
}

/// A policy that was asked for.
struct Choice {
    kind: PolicyKind,
    label: String,
    /// `None` is the built-in.
    component: Option<Vec<u8>>,
    config: String,
}

fn choices(kind: PolicyKind, given: &[String]) -> Result<Vec<Choice>, Failure> {
    given.iter().map(|text| choice(kind, text)).collect()
}

/// `NAME`, `FILE.wasm`, or either followed by `={"key": ..}`.
fn choice(kind: PolicyKind, text: &str) -> Result<Choice, Failure> {
    let (name, config) = match text.split_once('=') {
        Some((name, config)) => (name, config),
        None => (text, "{}"),
    };
    if let Err(error) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(config) {
        let message = format!("--{kind} {name}: the configuration is no JSON object: {error}");
        return Err(Failure::Usage(message));
    }
    let component = if is_component_path(name) {
        let bytes = std::fs::read(name);
        Some(bytes.map_err(|error| Failure::Usage(format!("--{kind}: can't read {name}: {error}")))?)
    } else if name == "builtin" {
        None
    } else {
        let bundled = infer_bundle::find(kind.name(), name).ok_or_else(|| {
            let names = infer_bundle::POLICIES.iter().filter(|p| p.kind == kind.name()).map(|p| p.name);
            let known = names.chain(["builtin"]).collect::<Vec<_>>().join(", ");
            Failure::Usage(format!("--{kind}: there is no `{name}`; there are {known}, and .wasm files"))
        })?;
        Some(bundled.component.to_vec())
    };
    let label = if config == "{}" { name.to_owned() } else { format!("{name}{config}") };
    Ok(Choice { kind, label, component, config: config.to_owned() })
}

fn policies(
    loader: &PolicyLoader,
    scheduler: &Choice,
    admission: &Choice,
    cache: &Choice,
) -> Result<Policies, String> {
    let mut slots = Policies::builtin();
    for choice in [scheduler, admission, cache] {
        let Some(component) = &choice.component else { continue };
        match loader.load(choice.kind, component, &choice.config).map_err(|error| error.to_string())? {
            AnyPolicy::Scheduler(policy) => slots.scheduler = policy,
            AnyPolicy::Admission(policy) => slots.admission = policy,
            AnyPolicy::PrefixCache(policy) => slots.prefix_cache = policy,
        }
    }
    Ok(slots)
}

fn render(format: Format, cells: &[Cell], about: &str) -> String {
    match format {
        Format::Text => report::table(cells),
        Format::Json => report::json(cells) + "\n",
        Format::Csv => report::csv(cells),
        Format::Html => report::html(cells, about),
    }
}

/// What was simulated, in a sentence.
fn about(common: &Common) -> String {
    format!(
        "The engine and its policies in virtual time: {} with a model of shape {}, {} places, {} tokens a step, \
         prompts in chunks of {}, seed {}.",
        common.hardware,
        common.model,
        common.max_batch_size,
        common.max_batch_tokens,
        common.prefill_chunk,
        common.seed
    )
}

/// A line that is written over, where somebody looks at it.
fn progress(done: usize, runs: usize) {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let filled = 30 * done / runs.max(1);
        let end = if done == runs { "\n" } else { "" };
        let _ = write!(
            stderr,
            "\r[{}{}] {done} of {runs} runs{end}",
            "#".repeat(filled),
            ".".repeat(30 - filled)
        );
        let _ = stderr.flush();
    }
}

fn emit(out: Option<&std::path::Path>, text: &str) -> Result<(), Failure> {
    match out {
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::Failed(format!("can't write {}: {error}", path.display()))),
        None => {
            // A reader that has seen enough, `head` say, is no failure.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            Ok(())
        }
    }
}
