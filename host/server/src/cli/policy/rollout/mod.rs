//! `infer policy rollout`: one policy on several hosts, one host after the other.
//!
//! Nothing changes before every host has passed the preflight. A host that refuses the policy, fails under it or can't
//! be reached stops the rollout, and those that had taken it are rolled back, each only while it still runs it. What is
//! done is decided in `plan`, of what hosts say; this asks them.

mod plan;
mod stop;

use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::future::join_all;
use infer_api::admin::{Policies, PolicySlot, State, SwapAnswer};
use reqwest::Method;
use serde_json::{Value, json};

use super::order::{Order, Source};
use super::several::{Made, in_time, table, unsaved};
use super::{Kind, path, window};
use crate::cli::Failure;
use crate::cli::admin::{Host, parse, print_json};
use crate::cli::hosts::{HostsArg, Named};
use crate::cli::out::harmless;
use plan::{Action, Fate, Idleness, Outcome, Plan, Seen, Step, Verdict, Wanted, plan, verdict};
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
/// Looks in a row that may fail before a host counts as gone.
const FAILED_LOOKS: u32 = 5;
/// A canary's window if none is given, in seconds: what hosts take.
const WINDOW_S: f64 = 30.0;
/// Windows in which a verdict must come: one is extended up to fourfold, and idle time doesn't count.
const WINDOWS: f64 = 20.0;

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
        return show_plan(args, &hosts, &plan);
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

/// Prints what would be done.
fn show_plan(args: &RolloutArgs, hosts: &[Named], plan: &Plan) -> Result<(), Failure> {
    let steps = || hosts.iter().zip(&plan.steps);
    if args.json {
        let row = |(named, step): (&Named, &Step)| {
            json!({"host": named.name, "admin": named.host.base(), "before": made(&step.before),
                   "action": step.action.words()})
        };
        return print_json(&json!({"hosts": steps().map(row).collect::<Vec<_>>()}));
    }
    let row = |(named, step): (&Named, &Step)| {
        [named.name.clone(), plan::cell(&step.before), step.action.words().to_owned()]
    };
    table(["host", "now", "would be done"], steps().map(row));
    println!("nothing was changed");
    Ok(())
}

/// A policy in JSON.
fn made(slot: &PolicySlot) -> Value {
    json!({"name": slot.name, "sha256": slot.sha256, "config_sha256": slot.config_sha256, "state": slot.state})
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

impl Rollout<'_> {
    /// Brings the policy to one host after the other.
    async fn carry_out(&mut self) -> Result<(), Stopped> {
        let plan = self.plan;
        for (at, step) in plan.steps.iter().enumerate() {
            if step.action == Action::Leave {
                continue;
            }
            self.all_keep_it().await?;
            self.bring(at, step).await?;
        }
        self.all_keep_it().await
    }

    /// Brings the policy to a host, and waits for the verdict if it is a canary.
    async fn bring(&mut self, at: usize, step: &Step) -> Result<(), Stopped> {
        let hosts = self.hosts;
        let name = &hosts[at].name;
        let found = tokio::select! {
            biased;
            () = self.stop.reached(1) => return Err(Stopped::interrupted()),
            found = self.look(at) => found,
        };
        match found {
            Ok(slot) if step.is_there(&slot) => {}
            Ok(slot) => {
                let (found, before) = (Made::of(&slot).words(), Made::of(&step.before).words());
                let by = self.changed_by(at).await;
                return self.fails(at, format!("runs {found} now, not {before}: {by}"));
            }
            Err(why) => return self.fails(at, why),
        }
        say(format!("{name}: {} ({})", self.args.policy, step.action.words()));
        let stop = self.stop.clone();
        let answer = tokio::select! {
            biased;
            answer = self.swap(at, step) => answer,
            () = stop.reached(2) => {
                self.fates[at] = Fate::new(Outcome::Left, "it may still do what was asked");
                return Err(Stopped::interrupted());
            }
        };
        match answer {
            Ok(Ok(answer)) => {
                self.taken.push(at);
                if let Some(canary) = answer.canary {
                    say(format!("{name}: the canary is live: {}", canary.reason));
                }
            }
            Ok(Err(refusal)) => return self.fails(at, refusal),
            Err(failure) => {
                // It may have been swapped all the same.
                self.taken.push(at);
                return self.fails(at, failure.message());
            }
        }
        if step.action == Action::Now {
            self.fates[at] = Fate::new(Outcome::Live, "swapped at once");
            return Ok(());
        }
        let longest = self.longest_wait();
        let watched = tokio::select! {
            biased;
            () = stop.reached(1) => {
                self.fates[at] = Fate::new(Outcome::Undecided, INTERRUPTED);
                return Err(Stopped::interrupted());
            }
            watched = tokio::time::timeout(longest, self.watch(at)) => watched,
        };
        match watched {
            Ok(Ok(reason)) => {
                say(format!("{name}: stays: {reason}"));
                self.fates[at] = Fate::new(Outcome::Live, reason);
                Ok(())
            }
            Ok(Err(why)) => self.fails(at, why),
            Err(_) => {
                let why = "a window counts only time with work in it (see --wait and --canaries)";
                let why = format!("none within {} s; {why}", longest.as_secs());
                let text = format!("no verdict: {why}");
                self.fates[at] = Fate::new(Outcome::Undecided, why);
                Err(Stopped { host: Some(name.clone()), why: text })
            }
        }
    }

    /// Notes that a host failed, which stops the rollout.
    fn fails<T>(&mut self, at: usize, why: String) -> Result<T, Stopped> {
        self.fates[at] = Fate::new(Outcome::Failed, why.clone());
        Err(Stopped { host: Some(self.hosts[at].name.clone()), why })
    }

    /// Looks at the slot of a host, several times if it doesn't answer: a lost connection is no lost host.
    async fn look(&self, at: usize) -> Result<PolicySlot, String> {
        let mut failures = 0;
        let policies = loop {
            match self.all_slots(at).await {
                Ok(policies) => break policies,
                Err(why) => {
                    failures += 1;
                    if failures >= FAILED_LOOKS {
                        return Err(why);
                    }
                    let name = &self.hosts[at].name;
                    say(format!("{name}: doesn't answer ({failures} of {FAILED_LOOKS}): {why}"));
                }
            }
            tokio::time::sleep(POLL).await;
        };
        self.own_slot(&policies).cloned().ok_or_else(|| format!("it has no {} slot", self.args.kind.name()))
    }

    /// Whether it is known that a host was restarted since the preflight.
    async fn is_restarted(&self, at: usize) -> bool {
        let host = &self.hosts[at].host;
        let state = in_time(host, host.ask(Method::GET, "/admin/state", None)).await;
        let state = state.and_then(|state| parse::<State>(state).map_err(Failure::message));
        state.is_ok_and(|state| self.plan.steps[at].is_another_run(&state.host.run))
    }

    /// Why a host has lost the policy, with its restart, which explains more than what it runs since.
    async fn gone(&self, at: usize, why: String) -> String {
        if self.is_restarted(at).await { format!("it was restarted meanwhile, and {why}") } else { why }
    }

    /// What else than this rollout changes a host.
    async fn changed_by(&self, at: usize) -> &'static str {
        if self.is_restarted(at).await {
            "it was restarted meanwhile"
        } else {
            "somebody else has changed it"
        }
    }

    async fn all_slots(&self, at: usize) -> Result<Policies, String> {
        let host = &self.hosts[at].host;
        let policies = in_time(host, host.ask(Method::GET, "/admin/policies", None)).await?;
        parse(policies).map_err(Failure::message)
    }

    fn own_slot<'a>(&self, policies: &'a Policies) -> Option<&'a PolicySlot> {
        policies.slots.iter().find(|slot| slot.kind == self.args.kind.name())
    }

    /// Fails if a host that has the policy, or had it at first, lost it meanwhile, or if the user wants it to stop.
    async fn all_keep_it(&mut self) -> Result<(), Stopped> {
        let good: Vec<usize> = (0..self.fates.len()).filter(|&at| self.fates[at].is_good()).collect();
        let slots = tokio::select! {
            biased;
            () = self.stop.reached(1) => return Err(Stopped::interrupted()),
            slots = join_all(good.iter().map(|&at| self.look(at))) => slots,
        };
        let mut result = Ok(());
        for (at, slot) in good.into_iter().zip(slots) {
            let why = match slot {
                Ok(slot) if self.plan.target.is_live(&slot) => continue,
                Ok(slot) => match verdict(&slot, &self.plan.target) {
                    Verdict::Gone(why) => self.gone(at, why).await,
                    Verdict::Watching { .. } | Verdict::Stays(_) => "it is on trial once more".to_owned(),
                },
                Err(why) => why,
            };
            let failed = self.fails(at, format!("lost the policy: {why}"));
            result = result.and(failed);
        }
        result
    }

    async fn swap(&self, at: usize, step: &Step) -> Result<Result<SwapAnswer, String>, Failure> {
        let mut query = vec![("of", step.of())];
        if step.action == Action::Canary {
            query.push(("mode", "canary".to_owned()));
            query.push(("window_s", self.window_s().to_string()));
        }
        if self.args.force {
            query.push(("force", "true".to_owned()));
        }
        let body = self.order.body(&mut query);
        let path = path(self.args.kind, "", query);
        match self.hosts[at].host.order(Method::PUT, &path, Some(body)).await? {
            Ok(answer) => parse(answer).map(Ok),
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    fn window_s(&self) -> f64 {
        self.args.window.unwrap_or(WINDOW_S)
    }

    fn longest_wait(&self) -> Duration {
        let given = self.args.wait.map(|seconds| Duration::from_secs(seconds.into()));
        given.unwrap_or_else(|| Duration::from_secs_f64(self.window_s() * WINDOWS))
    }

    /// Waits for the verdict on a canary. Returns why it stays.
    async fn watch(&self, at: usize) -> Result<String, String> {
        let mut idleness = Idleness::default();
        loop {
            tokio::time::sleep(POLL).await;
            let slot = self.look(at).await?;
            match verdict(&slot, &self.plan.target) {
                Verdict::Stays(reason) => return Ok(reason),
                Verdict::Gone(why) => return Err(self.gone(at, why).await),
                Verdict::Watching { watched_s, window_s } => {
                    if idleness.is_news(watched_s) {
                        self.say_idle(at, &slot, watched_s, window_s);
                    }
                }
            }
        }
    }

    /// Says why nothing happens, and what would help.
    fn say_idle(&self, at: usize, slot: &PolicySlot, watched_s: f64, window_s: f64) {
        let (Named { name, host }, kind) = (&self.hosts[at], self.args.kind.name());
        say(format!(
            "{name}: has no work, and only time with work counts ({watched_s:.1} of {window_s:.1} s), so the host \
             decides nothing until requests come; `infer policy promote {kind} --of {} --admin {}` accepts the canary \
             as it is",
            plan::of(&slot.name, &slot.sha256),
            host.base()
        ));
    }

    /// Brings back what ran before, on the hosts that still run the policy: on all at once, because one that doesn't
    /// answer must not hold up the others.
    async fn roll_back(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        let rollout = &*self;
        let restored = join_all(taken.into_iter().map(|at| async move {
            let fate = tokio::select! {
                biased;
                () = rollout.stop.reached(2) => Some(Fate::new(Outcome::Left, "")),
                fate = rollout.restore(at) => fate,
            };
            if let Some(fate) = &fate {
                say(format!("{}: {}", rollout.hosts[at].name, fate.words()));
            }
            (at, fate)
        }))
        .await;
        for (at, fate) in restored {
            if let Some(fate) = fate {
                self.fates[at] = fate.after(&self.fates[at]);
            }
        }
    }

    /// Rolls a host back. `None` if it is known already why it doesn't run the policy any more.
    async fn restore(&self, at: usize) -> Option<Fate> {
        let left = |why: String| Some(Fate::new(Outcome::Left, why));
        let slot = match self.look(at).await {
            Ok(slot) if !self.plan.target.is_in(&slot) => {
                return match (self.fates[at].outcome, verdict(&slot, &self.plan.target)) {
                    (Outcome::Failed, _) => None,
                    // The verdict came after all.
                    (Outcome::Undecided, Verdict::Gone(why)) => left(self.gone(at, why).await),
                    _ => {
                        let by = self.changed_by(at).await;
                        left(format!("it runs {} now: {by}", Made::of(&slot).words()))
                    }
                };
            }
            Ok(slot) => slot,
            Err(why) => return left(format!("it can't be rolled back: {why}")),
        };
        let of = Some(("of", plan::of(&slot.name, &slot.sha256)));
        let path = path(self.args.kind, "/rollback", of);
        let host = &self.hosts[at].host;
        let answer: SwapAnswer = match host.ask(Method::POST, &path, None).await.and_then(parse) {
            Ok(answer) => answer,
            Err(failure) => return left(format!("it can't be rolled back: {}", failure.message())),
        };
        let before = &self.plan.steps[at].before;
        if Made::of_answer(&answer) == Made::of(before) {
            return Some(Fate::new(Outcome::RolledBack, ""));
        }
        // After a restart the host goes back to the policy that is configured.
        Some(match self.bring_back(at, &answer).await {
            Ok(()) => Fate::new(Outcome::RolledBack, ""),
            Err(why) => {
                let (found, before) = (Made::of_answer(&answer).words(), Made::of(before).words());
                let why = format!("{found}, not {before}, which can't be brought back: {why}");
                Fate::new(Outcome::RolledBackToAnother, why)
            }
        })
    }

    /// Swaps in what ran before on a host that a rollback has led to something else.
    async fn bring_back(&self, at: usize, found: &SwapAnswer) -> Result<(), String> {
        let before = &self.plan.steps[at].before;
        let policies = self.all_slots(at).await?;
        let order = plan::by_name(before, &policies)
            .ok_or_else(|| "the host doesn't know it by its name any more".to_owned())?;
        let mut query = vec![("of", plan::of(&found.to, &found.sha256))];
        let body = order.body(&mut query);
        let path = path(self.args.kind, "", query);
        let answer = self.hosts[at].host.ask(Method::PUT, &path, Some(body)).await;
        let answer: SwapAnswer = answer.and_then(parse).map_err(Failure::message)?;
        if Made::of_answer(&answer) == Made::of(before) {
            Ok(())
        } else {
            Err(format!("its name leads to {}", Made::of_answer(&answer).words()))
        }
    }

    /// Prints what happened on each host and what runs there now.
    async fn conclude(self, carried_out: Result<(), Stopped>) -> Result<(), Failure> {
        let looks = (0..self.hosts.len()).map(|at| self.all_slots(at));
        let policies: Vec<Option<Policies>> = join_all(looks).await.into_iter().map(Result::ok).collect();
        let slot = |policies: &Option<Policies>| self.own_slot(policies.as_ref()?).cloned();
        let now: Vec<Option<PolicySlot>> = policies.iter().map(slot).collect();
        let all = || self.hosts.iter().zip(&self.plan.steps).zip(now.iter().zip(&self.fates));
        let is_live =
            |slot: &Option<PolicySlot>| slot.as_ref().is_some_and(|slot| self.plan.target.is_live(slot));
        let live = now.iter().filter(|slot| is_live(slot)).count();
        if self.args.json {
            let not_saved = policies.iter().map(|policies| policies.as_ref()?.not_saved.as_ref());
            let rows = all().zip(not_saved).map(|(((named, step), (now, fate)), not_saved)| {
                json!({"host": named.name, "admin": named.host.base(), "before": made(&step.before),
                       "now": now.as_ref().map(made), "outcome": fate.outcome, "detail": fate.detail,
                       "not_saved": not_saved})
            });
            let stopped = carried_out.as_ref().err();
            let stopped = stopped.map(|Stopped { host, why }| json!({"host": host, "why": why}));
            let is_everywhere = stopped.is_none() && live == now.len();
            print_json(&json!({"hosts": rows.collect::<Vec<_>>(), "live_on_all": is_everywhere,
                               "stopped": stopped}))?;
        } else {
            let rows =
                all().map(|((named, step), (now, fate))| plan::row(&named.name, step, now.as_ref(), fate));
            table(["host", "before", "now", "what happened"], rows);
            let said = self.hosts.iter().zip(&policies);
            for line in said.filter_map(|(named, policies)| unsaved(&named.name, policies.as_ref()?)) {
                println!("{line}");
            }
        }
        match carried_out {
            Ok(()) if live == now.len() => Ok(()),
            Ok(()) => Err(Failure::Failed(format!("the policy is live on {live} of {} hosts", now.len()))),
            Err(stopped) => {
                let why = stopped.words();
                Err(Failure::Failed(format!("the rollout stopped: {why}")))
            }
        }
    }
}
