//! What a rollout does, as plain functions of what hosts said: whether it may begin, what it does to each host, what
//! became of a canary, and the table at its end. Nothing here asks a host.

use infer_api::admin::{AvailablePolicy, CanaryInfo, OperatorInfo, Policies, PolicySlot, State};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::super::order::{Order, Source};
use super::super::several::Made;
use super::Canaries;
use crate::policies::{empty, list_members};

/// Looks at a canary in a row without work after which that is said.
const IDLE_LOOKS: u32 = 20;
/// Also names the native policy of a slot.
const BUILTIN: &str = "builtin";

/// What the preflight saw of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    run: String,
    interface: String,
    operator: Option<OperatorInfo>,
    draining: bool,
    policies: Policies,
}

impl Seen {
    pub fn new(state: State, policies: Policies) -> Self {
        let State { host, operator, draining, .. } = state;
        Self { run: host.run, interface: host.policy_interface, operator, draining, policies }
    }
}

/// The policy that all hosts are to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    /// Of a single policy that was given by name.
    name: Option<String>,
    sha256: String,
    config: Value,
    /// Component and configuration of the policy, or of each member of a list.
    parts: Vec<(String, Value)>,
}

impl Target {
    /// What a host would swap in, as far as it knows the names.
    fn of(kind: &str, order: &Order, policies: &Policies) -> Result<Self, String> {
        let config = order.config.clone().unwrap_or_else(empty);
        let names = match &order.source {
            Source::Component(bytes) => {
                let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                return Ok(Self {
                    name: None,
                    parts: vec![(sha256.clone(), config.clone())],
                    sha256,
                    config,
                });
            }
            Source::Names(names) => names,
        };
        if kind != "admission" || !names.contains(',') {
            let (name, sha256) = known(kind, names, policies)?;
            let parts = vec![(sha256.clone(), config.clone())];
            return Ok(Self { name: Some(name), sha256, config, parts });
        }
        let (mut parts, mut configs) = (Vec::new(), Vec::new());
        for (name, config) in list_members(names, &config)? {
            let (name, sha256) = known(kind, name, policies)?;
            configs.push(json!({"name": name, "config": config}));
            parts.push((sha256, config));
        }
        let sha256 = parts.iter().map(|(sha256, _)| sha256.as_str()).collect::<Vec<_>>().join("+");
        Ok(Self { name: None, sha256, config: Value::Array(configs), parts })
    }

    /// Whether a slot runs it, on trial or for good.
    pub fn is_in(&self, slot: &PolicySlot) -> bool {
        self.name.as_ref().is_none_or(|name| *name == slot.name)
            && (&self.sha256, &self.config) == (&slot.sha256, &slot.config)
    }

    /// Whether a slot runs it for good.
    pub fn is_live(&self, slot: &PolicySlot) -> bool {
        self.is_in(slot) && slot.state == "live"
    }

    /// The failure that bars it from a host, unless it is forced.
    fn quarantined<'a>(&self, kind: &str, policies: &'a Policies) -> Option<(&'a str, &'a str)> {
        // A list may have failed as a whole, with the configurations of its members.
        let configs = || Value::Array(self.parts.iter().map(|(_, config)| config.clone()).collect());
        let list = (self.parts.len() > 1).then(|| (self.sha256.clone(), configs()));
        let bars = |sha256: &str, config: &Value| {
            self.parts.iter().chain(&list).any(|(own, with)| own == sha256 && with == config)
        };
        let mut entries = policies.quarantine.iter().filter(|entry| entry.kind == kind);
        let found = entries.find(|entry| bars(&entry.sha256, &entry.config))?;
        Some((found.name.as_str(), found.reason.as_str()))
    }
}

/// The policy that a host has under a name, and its digest.
fn known(kind: &str, name: &str, policies: &Policies) -> Result<(String, String), String> {
    let is_called = |own: &str, sha256: &str| own == name || name == BUILTIN && sha256.is_empty();
    let available = policies.available.iter().filter(|policy| policy.kind == kind);
    let live = policies.slots.iter().filter(|slot| slot.kind == kind && slot.name == name);
    let mut all = available
        .map(|policy| (&policy.name, &policy.sha256))
        .chain(live.map(|slot| (&slot.name, &slot.sha256)));
    let found = all.find(|(own, sha256)| is_called(own, sha256));
    let (own, sha256) = found.ok_or_else(|| {
        format!("there is no {kind} policy `{name}` (give the file of its component, which every host takes)")
    })?;
    Ok((own.clone(), sha256.clone()))
}

/// The policy interface of a component for this slot.
pub(super) fn interface_of(kind: &str, exports: &[String]) -> Result<String, String> {
    let own = format!("infer:policy/{kind}@");
    let version = exports.iter().find_map(|export| export.strip_prefix(&own));
    version.map(|version| format!("infer:policy@{version}")).ok_or_else(|| {
        let other = exports.iter().filter(|export| !export.contains("/lifecycle@")).cloned();
        format!("it is no {kind} policy: it exports {}", other.collect::<Vec<_>>().join(", "))
    })
}

/// What is to be brought to which slot, and how.
pub(super) struct Wanted<'a> {
    pub kind: &'a str,
    pub order: &'a Order,
    /// Of a component.
    pub interface: Option<String>,
    pub canaries: Canaries,
    pub force: bool,
}

/// What a rollout does.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub target: Target,
    /// One for each host, in their order.
    pub steps: Vec<Step>,
}

/// What it does to a host.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    /// The host's run at the preflight; empty if it doesn't say.
    pub run: String,
    /// What ran there at the preflight.
    pub before: PolicySlot,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing: the policy is live there.
    Leave,
    Canary,
    Now,
}

impl Action {
    /// As the plan says it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Leave => "has it already",
            Self::Canary => "canary",
            Self::Now => "swap at once",
        }
    }
}

impl Step {
    /// Whether a slot still runs what the preflight saw. `of` alone would miss another configuration.
    pub fn is_there(&self, slot: &PolicySlot) -> bool {
        Made::of(slot) == Made::of(&self.before) && slot.state == self.before.state
    }

    /// Whether this is another run of the host.
    pub fn is_another_run(&self, run: &str) -> bool {
        ![self.run.as_str(), run].contains(&"") && self.run != run
    }

    /// The policy of the preflight, for `?of=`.
    pub fn of(&self) -> String {
        of(&self.before.name, &self.before.sha256)
    }
}

/// The most exact name that `?of=` takes.
pub(super) fn of(name: &str, sha256: &str) -> String {
    if sha256.is_empty() { name.to_owned() } else { sha256.to_owned() }
}

/// How what a slot ran is swapped in by name, if the host still knows each part under its name.
pub(super) fn by_name(slot: &PolicySlot, policies: &Policies) -> Option<Order> {
    let is_known = |name: &str, sha256: &str| {
        let is_it = |policy: &AvailablePolicy| {
            (policy.kind.as_str(), policy.name.as_str(), policy.sha256.as_str())
                == (slot.kind.as_str(), name, sha256)
        };
        policies.available.iter().any(is_it)
    };
    let Value::Array(members) = &slot.config else {
        let config = Some(slot.config.clone()).filter(|config| config.is_object());
        return is_known(&slot.name, &slot.sha256)
            .then(|| Order { source: Source::Names(slot.name.clone()), config });
    };
    let digests: Vec<&str> = slot.sha256.split('+').collect();
    let (mut names, mut configs) = (Vec::new(), Map::new());
    for (member, sha256) in members.iter().zip(&digests) {
        let name = member["name"].as_str().filter(|name| is_known(name, sha256))?;
        configs.insert(name.to_owned(), member["config"].clone());
        names.push(name);
    }
    // Configurations go by name, so each may be there once.
    let is_whole = names.len() == digests.len() && names.len() == members.len();
    (is_whole && configs.len() == names.len())
        .then(|| Order { source: Source::Names(names.join(",")), config: Some(Value::Object(configs)) })
}

/// Plans a rollout over hosts with these names, or says all that is wrong.
pub(super) fn plan(wanted: &Wanted<'_>, hosts: &[(&str, Result<Seen, String>)]) -> Result<Plan, Vec<String>> {
    let (mut wrong, mut planned) = (Vec::new(), Vec::new());
    for (name, seen) in hosts {
        let looked = seen.as_ref().map_err(|why| vec![why.clone()]);
        match looked.and_then(|seen| Ok((look(wanted, seen)?, &seen.run))) {
            Ok(((target, before), run)) => planned.push((*name, (target, before, run))),
            Err(all) => wrong.extend(all.into_iter().map(|why| format!("{name}: {why}"))),
        }
    }
    let answered: Vec<(&str, &Seen)> =
        hosts.iter().filter_map(|(name, seen)| Some((*name, seen.as_ref().ok()?))).collect();
    wrong.extend(twice(&answered));
    wrong.extend(interfaces(&answered));
    let targets: Vec<(&str, &Target)> = planned.iter().map(|(name, (target, ..))| (*name, target)).collect();
    wrong.extend(components(&targets));
    let target = match targets.first() {
        Some((_, target)) if wrong.is_empty() => (*target).clone(),
        _ => return Err(wrong),
    };
    let mut tried = false;
    let steps = planned.into_iter().map(|(_, (target, before, run))| {
        let action = match wanted.canaries {
            _ if target.is_live(&before) => Action::Leave,
            Canaries::None => Action::Now,
            Canaries::First if tried => Action::Now,
            Canaries::First | Canaries::All => Action::Canary,
        };
        tried |= action != Action::Leave;
        Step { run: run.clone(), before, action }
    });
    Ok(Plan { steps: steps.collect(), target })
}

/// What is wanted of a host and what it runs, or all that is wrong with it.
fn look(wanted: &Wanted<'_>, seen: &Seen) -> Result<(Target, PolicySlot), Vec<String>> {
    let Wanted { kind, order, interface, force, .. } = wanted;
    let mut wrong = Vec::new();
    if let Some(OperatorInfo { name, role }) =
        seen.operator.as_ref().filter(|operator| !operator.may_change())
    {
        wrong.push(format!("this takes the role `operator`; `{name}` is a `{role}`"));
    }
    if seen.draining {
        wrong.push("it drains and will end; leave it out".to_owned());
    }
    if let Some(own) = interface.as_ref().filter(|own| !seen.interface.is_empty() && **own != seen.interface)
    {
        wrong
            .push(format!("its policies have the interface {}, but the component has {own}", seen.interface));
    }
    if let Some(slot) = seen.policies.slots.iter().find(|slot| slot.state == "canary") {
        wrong.push(format!(
            "the canary `{}` is on trial in the {} slot; wait for its verdict, promote it, or roll it back",
            slot.name, slot.kind
        ));
    }
    let slot = seen.policies.slots.iter().find(|slot| slot.kind == *kind);
    if slot.is_none() {
        wrong.push(format!("it has no {kind} slot"));
    }
    let target = Target::of(kind, order, &seen.policies);
    let target = target.map_err(|why| wrong.push(why)).ok();
    let (Some(target), Some(slot)) = (target, slot) else { return Err(wrong) };
    let barred = target.quarantined(kind, &seen.policies).filter(|_| !force && !target.is_live(slot));
    if let Some((name, reason)) = barred {
        wrong.push(format!("`{name}` is quarantined: {reason} (--force swaps it in anyway)"));
    }
    if wrong.is_empty() { Ok((target, slot.clone())) } else { Err(wrong) }
}

/// Names that lead to one host, for example over a load balancer.
fn twice(hosts: &[(&str, &Seen)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, (name, seen)) in hosts.iter().enumerate() {
        let same = |(_, other): &&(&str, &Seen)| !seen.run.is_empty() && other.run == seen.run;
        if let Some((other, _)) = hosts[..at].iter().find(same) {
            wrong.push(format!(
                "{other} and {name} are the same host; name each once, by an address of its own"
            ));
        }
    }
    wrong
}

/// Hosts whose policies have different interfaces. Those that don't say theirs are taken to have the same one.
fn interfaces(hosts: &[(&str, &Seen)]) -> Option<String> {
    let said = hosts.iter().map(|(name, seen)| (*name, seen.interface.as_str()));
    let ((first, has), (other, differs)) = apart(said.filter(|(_, interface)| !interface.is_empty()))?;
    Some(format!("the hosts have different policy interfaces: {first} has {has}, {other} has {differs}"))
}

/// Hosts on which a name stands for different components.
fn components(targets: &[(&str, &Target)]) -> Option<String> {
    let digests = targets.iter().map(|(name, target)| (*name, target.sha256.as_str()));
    let ((first, has), (other, differs)) = apart(digests)?;
    let short = |sha256: &str| super::super::show::made_of(sha256, "");
    Some(format!(
        "the policy is not the same component on all hosts: {first} has {}, {other} has {}; give the file of one",
        short(has),
        short(differs)
    ))
}

type Has<'a> = (&'a str, &'a str);

/// The first host, and the first one that has something else.
fn apart<'a>(mut all: impl Iterator<Item = Has<'a>>) -> Option<(Has<'a>, Has<'a>)> {
    let first = all.next()?;
    Some((first, all.find(|other| other.1 != first.1)?))
}

/// What became of a canary.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Watching { watched_s: f64, window_s: f64 },
    /// It is live for good; why, in the host's words.
    Stays(String),
    /// It isn't live any more; why.
    Gone(String),
}

/// Reads what became of a canary from its slot.
pub(super) fn verdict(slot: &PolicySlot, target: &Target) -> Verdict {
    let canary = slot.canary.as_ref();
    if target.is_in(slot) && slot.state == "canary" {
        let (watched_s, window_s) = canary.map_or((0.0, 0.0), |canary| {
            let CanaryInfo { watched_s, window_s, longest_s, .. } = *canary;
            // A trial goes on beyond its window if that was extended.
            (watched_s, if watched_s < window_s { window_s } else { longest_s.max(window_s) })
        });
        return Verdict::Watching { watched_s, window_s };
    }
    if target.is_live(slot) {
        return Verdict::Stays(canary.map(|canary| canary.reason.clone()).unwrap_or_default());
    }
    match canary.filter(|canary| canary.state == "rolled_back" && canary.sha256 == target.sha256) {
        Some(canary) => Verdict::Gone(format!("the canary was rolled back: {}", canary.reason)),
        None => Verdict::Gone(format!("`{}` is live there now", slot.name)),
    }
}

/// Notices that a canary's window stands still: it counts only time with work, so without any it never ends.
#[derive(Default)]
pub(super) struct Idleness {
    watched_s: f64,
    looks: u32,
    is_said: bool,
}

impl Idleness {
    /// Takes in the next look. True once, when the host has had no work for a while: work that comes and goes is no
    /// news.
    pub fn is_news(&mut self, watched_s: f64) -> bool {
        if watched_s > self.watched_s {
            (self.watched_s, self.looks) = (watched_s, 0);
        }
        self.looks = self.looks.saturating_add(1);
        let is_news = self.looks >= IDLE_LOOKS && !self.is_said;
        self.is_said |= is_news;
        is_news
    }
}

/// What happened on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub outcome: Outcome,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It had the policy already.
    Unchanged,
    /// The rollout stopped before it.
    NotReached,
    /// It has the policy.
    Live,
    /// It did not take the policy, or did not keep it.
    Failed,
    /// It has the policy as a canary, without a verdict.
    Undecided,
    /// It had taken the policy, and has its former one again.
    RolledBack,
    /// It had taken the policy, and has one again that is neither this one nor its former one.
    RolledBackToAnother,
    /// It was not rolled back.
    Left,
}

impl Fate {
    pub fn new(outcome: Outcome, detail: impl Into<String>) -> Self {
        Self { outcome, detail: detail.into() }
    }

    /// Of a host that the rollout has not come to yet.
    pub fn ahead(action: Action) -> Self {
        let outcome = if action == Action::Leave { Outcome::Unchanged } else { Outcome::NotReached };
        Self::new(outcome, "")
    }

    /// This one, which followed on another one, with what made it necessary.
    pub fn after(self, earlier: &Self) -> Self {
        if !matches!(earlier.outcome, Outcome::Failed | Outcome::Undecided) || earlier.detail.is_empty() {
            return self;
        }
        let why = earlier.words();
        let detail = if self.detail.is_empty() { why } else { format!("{}; before: {why}", self.detail) };
        Self { detail, ..self }
    }

    /// Whether the policy is live there.
    pub fn is_good(&self) -> bool {
        matches!(self.outcome, Outcome::Unchanged | Outcome::Live)
    }

    pub fn words(&self) -> String {
        let outcome = match self.outcome {
            Outcome::Unchanged => "had it already",
            Outcome::NotReached => "not reached",
            Outcome::Live => "live",
            Outcome::Failed => "failed",
            Outcome::Undecided => "no verdict",
            Outcome::RolledBack => "rolled back",
            Outcome::RolledBackToAnother => "rolled back to another policy",
            Outcome::Left => "left as it is",
        };
        let detail = self.detail.lines().next().unwrap_or_default();
        if detail.is_empty() { outcome.to_owned() } else { format!("{outcome}: {detail}") }
    }
}

/// A row of the table at the end. `now` is `None` for a host that doesn't answer.
pub(super) fn row(host: &str, step: &Step, now: Option<&PolicySlot>, fate: &Fate) -> [String; 4] {
    let now = now.map_or_else(|| "?".to_owned(), cell);
    [host.to_owned(), cell(&step.before), now, fate.words()]
}

/// What a slot runs, with its state unless it is live for good.
pub(super) fn cell(slot: &PolicySlot) -> String {
    let words = Made::of(slot).words();
    if slot.state == "live" { words } else { format!("{words}, {}", slot.state) }
}

#[cfg(test)]
mod tests;
