//! `infer policy`: a client of the admin plane of a running host. What needs no host is in `replay` and `author`.

use clap::{Args, Subcommand, ValueEnum};
use infer_api::admin::{
    AvailablePolicy, CanaryInfo, HistoryEntry, Policies, PolicySlot, ShadowInfo, SwapAnswer,
};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::admin::Host;
use super::replay::{self, ReplayArgs};
use super::{Failure, author};
use crate::policies::is_component_path;

/// A configuration beside a component stands in the request's first line, of which a host takes so much.
const MAX_CONFIG_BYTES: usize = 8 << 10;

/// Commands about policies.
#[derive(Subcommand)]
pub enum PolicyCommand {
    #[command(flatten)]
    Author(author::AuthorCommand),
    /// Shows the policies in force and what can be swapped in
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Puts a policy in force, by name or from a .wasm file
    Swap {
        /// Which slot
        kind: Kind,
        /// A bundled policy's name, or a component's path
        #[arg(value_name = "NAME|FILE.wasm")]
        policy: String,
        /// Its configuration: a JSON object, or a file that holds one
        #[arg(long, value_name = "JSON|FILE")]
        config: Option<String>,
        /// In force at once, beside the live policy without effect, or in force and watched
        #[arg(long, value_enum, default_value = "now")]
        mode: Mode,
        /// Seconds with work in them for which a canary is watched [default: 30]
        #[arg(long, value_name = "SECONDS", requires = "mode")]
        window: Option<f64>,
        /// Also where the component was taken out before, so configured
        #[arg(long)]
        force: bool,
        /// Only where this policy is in force
        #[arg(long, value_name = "NAME|SHA256")]
        of: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Makes what runs in shadow the live policy, or ends a canary's trial well
    Promote {
        /// Which slot
        kind: Kind,
        /// Only where this policy is tried
        #[arg(long, value_name = "NAME|SHA256")]
        of: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows how a shadow's decisions compare with the live policy's
    Shadow {
        /// Which slot
        kind: Kind,
        /// Ends it
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Asks a policy again what it was asked when it failed; needs no host
    Replay(ReplayArgs),
    /// Brings the previous policy of a slot back
    Rollback {
        /// Which slot
        kind: Kind,
        /// Only where this policy is in force: of two who ask at once one goes back
        #[arg(long, value_name = "NAME|SHA256")]
        of: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows who was in force in a slot, and why it changed
    History {
        /// Which slot
        kind: Kind,
        #[command(flatten)]
        target: Target,
    },
    /// Shows what a policy says about itself and how it can be configured
    Describe {
        /// A slot, or the name of a policy that can be swapped in
        #[arg(value_name = "KIND|NAME")]
        what: String,
        #[command(flatten)]
        target: Target,
    },
}

/// How a policy comes in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// In force at once
    Now,
    /// Beside the live policy, without effect
    Shadow,
    /// In force and watched; the previous one comes back when it is worse
    Canary,
}

/// A slot.
#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    /// Who runs next
    Scheduler,
    /// Who is let in
    Admission,
    /// Which prefix is kept
    PrefixCache,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Admission => "admission",
            Self::PrefixCache => "prefix-cache",
        }
    }
}

/// Which host.
#[derive(Args)]
pub struct Target {
    /// Admin plane of the host
    #[arg(long, value_name = "URL", env = "INFER_ADMIN", default_value = "http://127.0.0.1:8001")]
    admin: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs a command.
pub fn run(command: PolicyCommand) -> Result<(), Failure> {
    let command = match command {
        PolicyCommand::Replay(args) => return replay::run(args),
        PolicyCommand::Author(command) => return author::run(command),
        live => live,
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        match command {
            PolicyCommand::Author(_) | PolicyCommand::Replay(_) => {
                unreachable!("carried out above, without a runtime")
            }
            PolicyCommand::List { target } => list(&target).await,
            PolicyCommand::Swap { kind, policy, config, mode, window, force, of, target } => {
                let mut query = swap_query(mode, window, force)?;
                query.extend(of.map(|of| ("of", of)));
                swap(&target, kind, &policy, config.as_deref(), query).await
            }
            PolicyCommand::Promote { kind, of, target } => {
                let path = path(kind, "/promote", of.map(|of| ("of", of)));
                let answer = Host::of(&target.admin)?.ask(Method::POST, &path, None).await?;
                print(&target, answer, show_swap)
            }
            PolicyCommand::Shadow { kind, stop, target } => {
                let path = format!("/admin/policies/{}/shadow", kind.name());
                let method = if stop { Method::DELETE } else { Method::GET };
                let answer = Host::of(&target.admin)?.ask(method, &path, None).await?;
                print(&target, answer, show_shadow)
            }
            PolicyCommand::Rollback { kind, of, target } => {
                let path = path(kind, "/rollback", of.map(|of| ("of", of)));
                let answer = Host::of(&target.admin)?.ask(Method::POST, &path, None).await?;
                print(&target, answer, show_swap)
            }
            PolicyCommand::History { kind, target } => {
                let path = format!("/admin/policies/{}/history", kind.name());
                let answer = Host::of(&target.admin)?.ask(Method::GET, &path, None).await?;
                print(&target, answer, show_history)
            }
            PolicyCommand::Describe { what, target } => describe(&target, &what).await,
        }
    })
}

async fn list(target: &Target) -> Result<(), Failure> {
    let answer = Host::of(&target.admin)?.ask(Method::GET, "/admin/policies", None).await?;
    print(target, answer, |all: Policies| {
        println!("in force:");
        for slot in &all.slots {
            let faults = if slot.faults == 0 { String::new() } else { format!("  {} faults", slot.faults) };
            println!(
                "  {:<13} {:<16} {:<8} {:<9} {:>9} calls  p50 {:.1} us  p99 {:.1} us{faults}",
                slot.kind, slot.name, slot.version, slot.state, slot.calls, slot.p50_us, slot.p99_us
            );
            if let Some(fault) = &slot.last_fault {
                println!(
                    "    last fault: {} of {} at step {}: {}",
                    fault.reason,
                    fault.policy,
                    fault.step,
                    first_line(&fault.message)
                );
                if let Some(path) = &fault.artifact {
                    println!("      infer policy replay {path}");
                }
            }
            if let Some(canary) = &slot.canary {
                show_canary(canary);
            }
            if let Some(shadow) = slot.shadow.as_ref().filter(|shadow| shadow.state == "watching") {
                println!("    shadow: {}", agreement(shadow));
            }
        }
        println!("can be swapped in:");
        for policy in &all.available {
            println!(
                "  {:<13} {:<16} {:<8} {}",
                policy.kind, policy.name, policy.version, policy.description
            );
        }
        if !all.quarantine.is_empty() {
            println!("taken out, not taken in again without --force:");
        }
        for entry in &all.quarantine {
            println!(
                "  {:<13} {:<16} {:.12} {} {}",
                entry.kind,
                entry.name,
                entry.sha256,
                entry.config,
                first_line(&entry.reason)
            );
        }
    })
}

fn swap_query(mode: Mode, window: Option<f64>, force: bool) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut query = Vec::new();
    match mode {
        Mode::Now => {}
        Mode::Shadow => query.push(("mode", "shadow".to_owned())),
        Mode::Canary => query.push(("mode", "canary".to_owned())),
    }
    match window {
        Some(seconds) if mode == Mode::Canary => query.push(("window_s", seconds.to_string())),
        Some(_) => {
            return Err(Failure::Usage("--window: only a canary has one; add --mode canary".to_owned()));
        }
        None => {}
    }
    if force {
        query.push(("force", "true".to_owned()));
    }
    Ok(query)
}

async fn swap(
    target: &Target,
    kind: Kind,
    policy: &str,
    config: Option<&str>,
    mut query: Vec<(&'static str, String)>,
) -> Result<(), Failure> {
    let config = config.map(read_config).transpose()?;
    let body = if is_component_path(policy) {
        let bytes = read_component(policy)?;
        if let Some(config) = config.map(|config| config.to_string()) {
            if config.len() > MAX_CONFIG_BYTES {
                return Err(Failure::Usage(format!(
                    "--config: beside a component it has at most {MAX_CONFIG_BYTES} bytes, not {}; swap the component \
                     in shadow without one, then by its name with this one",
                    config.len()
                )));
            }
            query.push(("config", config));
        }
        ("application/wasm", bytes)
    } else {
        let body = serde_json::json!({"name": policy, "config": config});
        ("application/json", body.to_string().into_bytes())
    };
    let path = path(kind, "", query);
    let answer = Host::of(&target.admin)?.ask(Method::PUT, &path, Some(body)).await?;
    print(target, answer, show_swap)
}

fn path(kind: Kind, what: &str, query: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let query: String = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    format!("/admin/policies/{}{what}?{query}", kind.name())
}

fn read_component(path: &str) -> Result<Vec<u8>, Failure> {
    let unreadable = |error| {
        let mut message = format!("can't read the component {path}: {error}");
        if path.contains(',') {
            message += "; a list takes names: swap each component of it in shadow first, then the list with its name";
        }
        Failure::Usage(message)
    };
    std::fs::read(path).map_err(unreadable)
}

/// A JSON object, as it stands or in a file.
pub(super) fn read_config(text: &str) -> Result<Value, Failure> {
    let inline = text.trim_start().starts_with('{');
    let json = if inline {
        text.to_owned()
    } else {
        std::fs::read_to_string(text).map_err(|e| {
            Failure::Usage(format!("--config: {text} is no JSON object and can't be read: {e}"))
        })?
    };
    let value: Value =
        serde_json::from_str(&json).map_err(|e| Failure::Usage(format!("--config: not valid JSON: {e}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Failure::Usage("--config: expected a JSON object".to_owned()))
    }
}

async fn describe(target: &Target, what: &str) -> Result<(), Failure> {
    let answer = Host::of(&target.admin)?.ask(Method::GET, "/admin/policies", None).await?;
    let all: Policies = parse(answer)?;
    let slot = all.slots.iter().find(|s| s.kind == what || s.name == what);
    let available = all.available.iter().find(|p| p.name == what);
    match (slot, available) {
        (Some(slot), _) if target.json => print_json(slot),
        (None, Some(policy)) if target.json => print_json(policy),
        (Some(slot), _) => {
            show_slot(slot);
            Ok(())
        }
        (None, Some(policy)) => {
            show_available(policy);
            Ok(())
        }
        (None, None) => {
            let mut names: Vec<&str> = all.available.iter().map(|p| p.name.as_str()).collect();
            names.dedup();
            let known = names.join(", ");
            Err(Failure::Usage(format!(
                "no slot or policy `{what}`; slots are scheduler, admission, prefix-cache; policies are {known}"
            )))
        }
    }
}

fn show_slot(slot: &PolicySlot) {
    println!("{} {} ({}, {})", slot.name, slot.version, slot.kind, slot.state);
    println!("  {}", slot.description);
    if !slot.sha256.is_empty() {
        println!("  sha256   {}", slot.sha256);
    }
    if let Some(canary) = &slot.canary {
        show_canary(canary);
    }
    println!("  calls    {} (p50 {:.1} us, p99 {:.1} us)", slot.calls, slot.p50_us, slot.p99_us);
    println!("  faults   {}, decided by the built-in instead: {}", slot.faults, slot.fallbacks);
    println!("  previous {}", slot.previous.as_deref().unwrap_or("none"));
    println!("  config   {}", slot.config);
    println!("  schema   {}", slot.config_schema);
}

fn show_available(policy: &AvailablePolicy) {
    println!("{} {} ({})", policy.name, policy.version, policy.kind);
    println!("  {}", policy.description);
    if !policy.sha256.is_empty() {
        println!("  sha256   {}", policy.sha256);
    }
    println!("  schema   {}", policy.config_schema);
}

fn show_swap(answer: SwapAnswer) {
    let beside = if answer.mode == "shadow" { "beside it in shadow:" } else { "->" };
    println!(
        "{}: {} {beside} {} before step {}, {} state, engine paused for {:.1} us",
        answer.kind, answer.from, answer.to, answer.at_step, answer.state, answer.pause_us
    );
    if answer.mode == "canary" {
        println!("it is watched; `infer policy list` says how it does");
    }
}

fn agreement(shadow: &ShadowInfo) -> String {
    let share = shadow.agreements as f64 * 100.0 / (shadow.questions as f64).max(1.0);
    format!("{} {} agrees in {share:.1}% of {} answers", shadow.policy, shadow.version, shadow.questions)
}

fn show_shadow(shadow: ShadowInfo) {
    println!("{} ({})", agreement(&shadow), shadow.state);
    if !shadow.reason.is_empty() {
        println!("  {}", shadow.reason);
    }
    if let Some(path) = shadow.fault.as_ref().and_then(|fault| fault.artifact.as_ref()) {
        println!("  infer policy replay {path}");
    }
    for (name, cost) in [("live", shadow.live_cost), ("shadow", shadow.cost)] {
        println!("  {name:<7} p50 {:.1} us  p99 {:.1} us  {} calls", cost.p50_us, cost.p99_us, cost.calls);
    }
    for (kind, count) in &shadow.divergences {
        println!("  differs in {kind}: {count}");
    }
    for example in &shadow.examples {
        println!("    step {:<8} live {}; shadow {}", example.step, example.live, example.shadow);
    }
}

/// A guest's panic takes several.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn show_canary(canary: &CanaryInfo) {
    println!(
        "    canary: {} instead of {}: {}, {}",
        canary.policy, canary.previous, canary.state, canary.reason
    );
    if canary.state == "watching" {
        println!("      {:.1} of {:.1} s with work in them", canary.watched_s, canary.window_s);
    }
    let measured =
        [("before", canary.before), ("since", canary.after)].into_iter().filter(|(_, w)| w.busy_s > 0.0);
    for (name, window) in measured {
        println!(
            "      {name:<7} ITL p50 {:.1} ms  p95 {:.1} ms  TTFT p50 {:.1} ms  {:.0} tokens/s  {:.1} requests/s",
            window.itl_p50_ms,
            window.itl_p95_ms,
            window.ttft_p50_ms,
            window.tokens_per_second,
            window.requests_per_second
        );
    }
}

fn show_history(entries: Vec<HistoryEntry>) {
    for entry in entries {
        let from = if entry.from.is_empty() { "-" } else { &entry.from };
        let seconds = entry.at_ms as f64 / 1e3;
        let reason = if entry.reason == entry.mode {
            String::new()
        } else {
            format!("  {}", first_line(&entry.reason))
        };
        let digest = entry.sha256.get(..12).unwrap_or("native");
        println!(
            "{seconds:>10.3} s  step {:<8} {:<8} {from} -> {} ({digest}){reason}",
            entry.step, entry.mode, entry.to
        );
    }
}

fn print<T: DeserializeOwned>(target: &Target, answer: Value, show: impl FnOnce(T)) -> Result<(), Failure> {
    if target.json {
        return print_json(&answer);
    }
    show(parse(answer)?);
    Ok(())
}

fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value).map_err(Failure::failed)?);
    Ok(())
}

fn parse<T: DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer)
        .map_err(|e| Failure::Failed(format!("the host's answer can't be read: {e}")))
}
