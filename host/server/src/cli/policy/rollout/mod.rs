//! `infer policy rollout`: one policy on several hosts, one host after the other.
//!
//! Nothing changes before every host has passed the preflight. A host that refuses the policy, fails under it or can't
//! be reached stops the rollout, and those that had taken it are rolled back, each only while it still runs it. What is
//! done is decided in `plan`, of what hosts say; this asks them.

mod back;
mod forward;
mod look;
mod plan;
mod report;
mod stop;

use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::future::join_all;
use infer_api::admin::{Policies, State};
use reqwest::Method;

use super::order::{Order, Source};
use super::several::in_time;
use super::{Kind, window};
use crate::cli::Failure;
use crate::cli::admin::{Host, parse};
use crate::cli::hosts::{HostsArg, Named};
use crate::cli::out::harmless;
use plan::{Fate, Plan, Seen, Wanted, plan};
use stop::Stop;

/// Shown below the flags.
pub(super) const AFTER_HELP: &str = "\
Nothing is changed before every host has answered, accepts the token for the role `operator`, and could take the policy. \
The hosts follow in the order of --hosts, then of --admin; one that runs the policy with this configuration already is \
left alone. Each swap is made only if the host still runs what it ran at first. If a host refuses or loses the policy, \
or can't be reached, the rollout stops and rolls back the hosts that had taken it, unless another policy is live there \
by then. Ctrl-C does the same, as does the end of its terminal; a second Ctrl-C leaves everything as it is.

A canary's window counts only time with work in it, so on a host without requests it never ends. The command says so, \
and waits (--wait) for requests, or for `infer policy promote` to accept the canary.";

/// Time between two looks at a host.
const POLL: Duration = Duration::from_millis(500);

/// Why a rollout stops that the user doesn't want any more.
const INTERRUPTED: &str = "it was interrupted";

/// Why a rollout stops.
struct Stopped {
    /// The host that made it stop, unless that was the user.
    host: Option<String>,
    why: String,
}

impl Stopped {
    fn interrupted() -> Self {
        Self { host: None, why: INTERRUPTED.to_owned() }
    }

    fn words(&self) -> String {
        match &self.host {
            Some(host) => format!("{host}: {}", self.why),
            None => self.why.clone(),
        }
    }
}

/// Arguments of `infer policy rollout`.
#[derive(Args)]
pub struct RolloutArgs {
    /// The slot
    kind: Kind,
    /// Name of a policy (`infer policy list --all`; several for admission, separated by commas), or path of a
    /// component
    #[arg(value_name = "NAME|FILE.wasm")]
    policy: String,
    /// Its configuration: a JSON object, or a file that contains one
    #[arg(long, value_name = "JSON|FILE")]
    config: Option<String>,
    /// Which hosts get the policy as a canary first; the others get it at once
    #[arg(long, value_enum, default_value = "all")]
    canaries: Canaries,
    /// How long each canary is watched, in seconds with work in them, from 1 to 300 [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = window)]
    window: Option<f64>,
    /// Longest wait for the verdict on a canary, in seconds; then the rollout fails [default: 20 times the window]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    wait: Option<u32>,
    /// Swap in a quarantined policy anyway (same component, same configuration)
    #[arg(long)]
    force: bool,
    /// If the rollout stops, leave the policy on the hosts that have taken it
    #[arg(long)]
    keep: bool,
    /// Only ask all hosts, and print what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    hosts: HostsArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which hosts of a rollout try the policy before they keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Canaries {
    /// Each, one after the other
    All,
    /// The first one that doesn't have the policy
    First,
    /// None: nothing is watched
    None,
}

/// Runs a rollout; fails unless the policy is live on all hosts at its end.
pub(super) async fn run(args: &RolloutArgs) -> Result<(), Failure> {
    if args.canaries == Canaries::None && (args.window.is_some() || args.wait.is_some()) {
        let flag = if args.window.is_some() { "--window" } else { "--wait" };
        return Err(Failure::Usage(format!("{flag}: without canaries there is no window to wait for")));
    }
    let order = Order::read(&args.policy, args.config.as_deref())?;
    let kind = args.kind.name();
    let interface = match &order.source {
        Source::Component(bytes) => Some(interface(kind, bytes).map_err(|why| {
            let policy = &args.policy;
            Failure::Usage(format!("{policy}: {why}"))
        })?),
        Source::Names(_) => None,
    };
    let hosts = args.hosts.all()?;
    let seen = join_all(hosts.iter().map(|named| in_time(&named.host, preflight(&named.host)))).await;
    let seen: Vec<_> = hosts.iter().map(|named| named.name.as_str()).zip(seen).collect();
    let wanted = Wanted { kind, order: &order, interface, canaries: args.canaries, force: args.force };
    let plan = plan(&wanted, &seen).map_err(|wrong| {
        Failure::Failed(format!("the rollout can't begin; nothing was changed:\n{}", wrong.join("\n")))
    })?;
    if args.dry_run {
        return report::show_plan(args, &hosts, &plan);
    }
    let keeps = args.keep;
    let stop = Stop::listen(move || {
        say(if keeps {
            "stopping; Ctrl-C again doesn't wait for anything"
        } else {
            "stopping, and rolling back what was swapped; Ctrl-C again leaves everything as it is"
        });
    })?;
    let fates = plan.steps.iter().map(|step| Fate::ahead(step.action)).collect();
    let mut rollout =
        Rollout { args, order: &order, hosts: &hosts, plan: &plan, stop, fates, taken: Vec::new() };
    let carried_out = rollout.carry_out().await;
    if carried_out.is_err() && !args.keep {
        rollout.roll_back().await;
    }
    rollout.conclude(carried_out).await
}

/// Tells how it goes on, beside the result on stdout.
fn say(text: impl AsRef<str>) {
    eprintln!("{}", harmless(text.as_ref()));
}

/// The policy interface of a component for a slot.
fn interface(kind: &str, component: &[u8]) -> Result<String, String> {
    let outline =
        infer_policy_build::outline(component).map_err(|error| format!("it is no component: {error:#}"))?;
    plan::interface_of(kind, &outline.exports)
}

/// What a host says before anything is changed.
async fn preflight(host: &Host) -> Result<Seen, Failure> {
    let state: State = parse(host.ask(Method::GET, "/admin/state", None).await?)?;
    let policies: Policies = parse(host.ask(Method::GET, "/admin/policies", None).await?)?;
    Ok(Seen::new(state, policies))
}

/// A rollout that has begun.
struct Rollout<'a> {
    args: &'a RolloutArgs,
    order: &'a Order,
    hosts: &'a [Named],
    plan: &'a Plan,
    stop: Stop,
    /// What happened on each host so far.
    fates: Vec<Fate>,
    /// The hosts that have, or may have, taken the policy.
    taken: Vec<usize>,
}
