//! What a rollout does, as plain functions of what hosts said: whether it may begin, what it does to each host, what
//! became of a canary, and the table at its end. Nothing here asks a host.

mod fate;
mod target;
mod verdict;

use infer_api::admin::{AvailablePolicy, OperatorInfo, Policies, PolicySlot, State, SwapAnswer};
use serde_json::{Map, Value};

use super::Canaries;
use crate::cli::policy::order::{Order, Source};
use crate::cli::policy::several::Made;
use crate::cli::policy::show;

pub(super) use fate::{Fate, Outcome, cell, row};
pub(super) use target::{Target, interface_of};
pub(super) use verdict::{Idleness, Verdict, verdict};

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
    /// Whether a slot still runs what the preflight saw, in the same state.
    pub fn is_there(&self, slot: &PolicySlot) -> bool {
        Made::of(slot) == Made::of(&self.before) && slot.state == self.before.state
    }

    /// Whether this is another run of the host.
    pub fn is_another_run(&self, run: &str) -> bool {
        ![self.run.as_str(), run].contains(&"") && self.run != run
    }

    /// The policy of the preflight, for `?of=`.
    pub fn of(&self) -> String {
        of_slot(&self.before)
    }
}

/// What a slot runs, for `?of=`.
pub(super) fn of_slot(slot: &PolicySlot) -> String {
    most_exact([&slot.tag, &slot.sha256, &slot.name])
}

/// What is live after a change, for `?of=`.
pub(super) fn of_answer(answer: &SwapAnswer) -> String {
    most_exact([&answer.tag, &answer.sha256, &answer.to])
}

/// The first one that there is: a host of an earlier version gives no tags, and native policies have no digest.
fn most_exact(names: [&String; 3]) -> String {
    names.into_iter().find(|name| !name.is_empty()).cloned().unwrap_or_default()
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
        wrong.push("it drains; leave it out".to_owned());
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
    let short = |sha256: &str| show::made_of(sha256, "");
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

#[cfg(test)]
mod tests;
