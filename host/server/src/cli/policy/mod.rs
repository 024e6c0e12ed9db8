//! `infer policy`: commands about policies. `LiveCommand` is a client of a running host's admin plane, unless
//! --bundled asks for the policies in this binary; the others need no host.

mod author;
mod order;
mod replay;
mod rollout;
mod several;
mod show;

use clap::{Subcommand, ValueEnum};
use infer_api::admin::{AvailablePolicy, Policies};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::admin::{Host, Target, parse, print_json};
use super::hosts::HostsArg;
use super::{Failure, POLICY_LOG};
use crate::admin::CANARY_WINDOW_S;
use crate::policies;
use order::{Order, read_config};
use replay::ReplayArgs;
use rollout::RolloutArgs;

/// Commands about policies.
#[derive(Subcommand)]
pub enum PolicyCommand {
    #[command(flatten)]
    Author(author::AuthorCommand),
    #[command(flatten)]
    Live(LiveCommand),
    /// Repeats the call at which a policy failed; needs no host
    Replay(ReplayArgs),
}

/// Commands about the policies of a running host.
#[derive(Subcommand)]
pub enum LiveCommand {
    /// Lists the live policies, and what was quarantined; of several hosts also where they differ
    List {
        /// Also list the policies that can be swapped in by name
        #[arg(long)]
        all: bool,
        /// List the policies in this binary instead; needs no host
        #[arg(long, conflicts_with_all = ["all", "admin", "hosts", "token_file"])]
        bundled: bool,
        #[command(flatten)]
        hosts: HostsArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Swaps in a policy, by name or from a .wasm file
    Swap {
        /// The slot
        kind: Kind,
        /// Name of a policy (`infer policy list --all`; several for admission, separated by commas), or path of a
        /// component
        #[arg(value_name = "NAME|FILE.wasm")]
        policy: String,
        /// Its configuration: a JSON object, or a file that contains one
        #[arg(long, value_name = "JSON|FILE")]
        config: Option<String>,
        /// Go live at once, run in shadow beside the live policy, or go live as a canary
        #[arg(long, value_enum, default_value = "now")]
        mode: Mode,
        /// How long a canary is watched, in seconds with work in them, from 1 to 300 [default: 30]
        #[arg(long, value_name = "SECONDS", value_parser = window)]
        window: Option<f64>,
        /// Swap in a quarantined policy anyway (same component, same configuration)
        #[arg(long)]
        force: bool,
        /// Swap only if this policy is live
        #[arg(long, value_name = "NAME|SHA256|TAG")]
        of: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Brings a policy to several hosts, one after the other, each as a canary; rolls all of them back if one fails
    #[command(after_help = rollout::AFTER_HELP)]
    Rollout(RolloutArgs),
    /// Promotes the shadow policy to live, or accepts the canary early
    Promote {
        /// The slot
        kind: Kind,
        /// Promote only if this policy is the shadow or the canary
        #[arg(long, value_name = "NAME|SHA256|TAG")]
        of: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows how a shadow's decisions compare with the live policy's
    Shadow {
        /// The slot
        kind: Kind,
        /// Stop the shadow
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Rolls a slot back to its previous policy
    Rollback {
        /// The slot
        kind: Kind,
        /// Roll back only if this policy is live; protects against two operators rolling back at once
        #[arg(long, value_name = "NAME|SHA256|TAG")]
        of: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Shows the changes of a slot, and the reason for each; those of several hosts in the order of time
    History {
        /// The slot
        kind: Kind,
        #[command(flatten)]
        hosts: HostsArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows a policy's description and configuration schema
    Describe {
        /// A slot, or the name of a policy that can be swapped in
        #[arg(value_name = "KIND|NAME")]
        what: String,
        /// Describe the policy in this binary with that name; needs no host
        #[arg(long, conflicts_with_all = ["admin", "token_file"])]
        bundled: bool,
        #[command(flatten)]
        target: Target,
    },
}

/// How a policy is swapped in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Live at once
    Now,
    /// Asked beside the live policy; its decisions have no effect
    Shadow,
    /// Live and watched; rolled back if it does worse than its predecessor
    Canary,
}

/// A slot.
#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    /// Plans each step
    Scheduler,
    /// Admits requests
    Admission,
    /// Evicts cached prefixes
    PrefixCache,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Admission => "admission",
            Self::PrefixCache => "prefix-cache",
        }
    }
}

/// Runs a command.
pub fn run(command: PolicyCommand) -> Result<(), Failure> {
    crate::log::start(POLICY_LOG)?;
    match command {
        PolicyCommand::Author(command) => author::run(command),
        PolicyCommand::Replay(args) => replay::run(args),
        PolicyCommand::Live(command) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(Failure::failed)?.block_on(live(command))
        }
    }
}

async fn live(command: LiveCommand) -> Result<(), Failure> {
    match command {
        LiveCommand::List { bundled: true, json, .. } => list_bundled(json),
        LiveCommand::List { all, hosts, json, .. } => match &hosts.all()?[..] {
            [one] => {
                let policies = if one.is_listed() {
                    // Who has a file of hosts doesn't mean the policies in this binary.
                    let policies = one.host.ask(Method::GET, "/admin/policies", None).await;
                    policies.map_err(|failure| one.located(failure))?
                } else {
                    all_policies(&one.host).await?
                };
                print(json, policies, |policies: Policies| show::list(&policies, all))
            }
            several => several::list(several, json, all).await,
        },
        LiveCommand::Swap { kind, policy, config, mode, window, force, of, target } => {
            let mut query = swap_query(mode, window, force)?;
            query.extend(of.map(|of| ("of", of)));
            swap(&target, kind, &Order::read(&policy, config.as_deref())?, query).await
        }
        LiveCommand::Rollout(args) => rollout::run(&args).await,
        LiveCommand::Promote { kind, of, target } => {
            let path = path(kind, "/promote", of.map(|of| ("of", of)));
            print(target.json, Host::of(&target.admin)?.ask(Method::POST, &path, None).await?, show::swap)
        }
        LiveCommand::Shadow { kind, stop, target } => {
            let path = format!("/admin/policies/{}/shadow", kind.name());
            let method = if stop { Method::DELETE } else { Method::GET };
            print(target.json, Host::of(&target.admin)?.ask(method, &path, None).await?, show::shadow)
        }
        LiveCommand::Rollback { kind, of, target } => {
            let path = path(kind, "/rollback", of.map(|of| ("of", of)));
            print(target.json, Host::of(&target.admin)?.ask(Method::POST, &path, None).await?, show::swap)
        }
        LiveCommand::History { kind, hosts, json } => match &hosts.all()?[..] {
            [one] => {
                let history = one.host.ask(Method::GET, &history(kind), None).await;
                print(json, history.map_err(|failure| one.located(failure))?, show::history)
            }
            several => several::history(several, kind, json).await,
        },
        LiveCommand::Describe { what, bundled: true, target } => describe_bundled(&target, &what),
        LiveCommand::Describe { what, target, .. } => describe(&target, &what).await,
    }
}

/// Parses the length of a canary's window.
fn window(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| CANARY_WINDOW_S.contains(seconds));
    let (least, most) = (CANARY_WINDOW_S.start(), CANARY_WINDOW_S.end());
    seconds.ok_or_else(|| format!("expected a number of seconds from {least} to {most}"))
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
            return Err(Failure::Usage("--window: only a canary has a window; add --mode canary".to_owned()));
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
    order: &Order,
    mut query: Vec<(&'static str, String)>,
) -> Result<(), Failure> {
    let body = order.body(&mut query);
    let path = path(kind, "", query);
    let response = Host::of(&target.admin)?.ask(Method::PUT, &path, Some(body)).await?;
    print(target.json, response, show::swap)
}

fn history(kind: Kind) -> String {
    format!("/admin/policies/{}/history", kind.name())
}

fn path(kind: Kind, what: &str, query: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let query: String = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    format!("/admin/policies/{}{what}?{query}", kind.name())
}

/// What a host says of all policies.
async fn all_policies(host: &Host) -> Result<Value, Failure> {
    let failure = match host.ask(Method::GET, "/admin/policies", None).await {
        Ok(all) => return Ok(all),
        Err(failure) => failure,
    };
    // A host that is there and refuses has its own reason.
    Err(match host.absence().await {
        Some(absence) => {
            let why = absence.message();
            Failure::Failed(format!("{why}; without a host, --bundled shows the policies in this binary"))
        }
        None => failure,
    })
}

async fn describe(target: &Target, what: &str) -> Result<(), Failure> {
    let all: Policies = parse(all_policies(&Host::of(&target.admin)?).await?)?;
    match all.slots.iter().find(|s| s.kind == what || s.name == what) {
        Some(slot) if target.json => print_json(slot),
        Some(slot) => {
            show::slot(slot);
            Ok(())
        }
        None => describe_one(target, what, &all.available),
    }
}

fn describe_one(target: &Target, name: &str, all: &[AvailablePolicy]) -> Result<(), Failure> {
    match all.iter().find(|policy| policy.name == name) {
        Some(policy) if target.json => print_json(policy),
        Some(policy) => {
            show::available(policy);
            Ok(())
        }
        None => {
            let known: Vec<&str> = all.iter().map(|policy| policy.name.as_str()).collect();
            let slots = Kind::value_variants().iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            Err(Failure::Usage(format!(
                "no slot or policy `{name}`; slots of a running host are {slots}; policies are {}",
                known.join(", ")
            )))
        }
    }
}

fn describe_bundled(target: &Target, name: &str) -> Result<(), Failure> {
    describe_one(target, name, &bundled()?)
}

fn list_bundled(json: bool) -> Result<(), Failure> {
    let all = bundled()?;
    if json {
        return print_json(&all);
    }
    show::catalogue(&all);
    Ok(())
}

/// The policies in this binary.
fn bundled() -> Result<Vec<AvailablePolicy>, Failure> {
    policies::shipped(&policies::loader().map_err(Failure::failed)?).map_err(Failure::failed)
}

fn print<T: DeserializeOwned>(json: bool, response: Value, show: impl FnOnce(T)) -> Result<(), Failure> {
    if json {
        return print_json(&response);
    }
    show(parse(response)?);
    Ok(())
}
