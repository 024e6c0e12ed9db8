//! `infer policy list` and `history` of several hosts: one table, and where the hosts differ.
//!
//! A host that gives no answer has a row, too, and the command fails once everything is printed: a script must not take
//! what the others say for all there is.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use infer_api::admin::{AvailablePolicy, HistoryEntry, Policies, PolicySlot, QuarantineEntry, SwapAnswer};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Kind, show};
use crate::cli::Failure;
use crate::cli::admin::{Host, parse, print_json};
use crate::cli::hosts::Named;
use crate::cli::table::{aligned, cut, terminal_columns};

/// Longest wait for what a host says. It answers within this time even in a long step.
const LONGEST: Duration = Duration::from_secs(30);

/// What a host said, or why it said nothing.
type Said<T> = Result<T, String>;

/// A policy, as hosts are compared by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    name: String,
    sha256: String,
    config_sha256: String,
}

impl Made {
    pub fn of(slot: &PolicySlot) -> Self {
        Self {
            name: slot.name.clone(),
            sha256: slot.sha256.clone(),
            config_sha256: slot.config_sha256.clone(),
        }
    }

    /// What is live after a change.
    pub fn of_answer(answer: &SwapAnswer) -> Self {
        Self {
            name: answer.to.clone(),
            sha256: answer.sha256.clone(),
            config_sha256: answer.config_sha256.clone(),
        }
    }

    /// What was live at the end of a history. The entry of a shadow names one that isn't.
    fn last_of(history: &[HistoryEntry]) -> Option<Self> {
        let last = history.iter().rev().find(|entry| entry.mode != "shadow")?;
        Some(Self {
            name: last.to.clone(),
            sha256: last.sha256.clone(),
            config_sha256: last.config_sha256.clone(),
        })
    }

    pub fn words(&self) -> String {
        format!("{} ({})", self.name, show::made_of(&self.sha256, &self.config_sha256))
    }
}

/// Prints the live policies of several hosts; with `all`, also which of them have what can be swapped in.
pub(super) async fn list(hosts: &[Named], json: bool, all: bool) -> Result<(), Failure> {
    let answers = ask_all(hosts, "/admin/policies").await;
    let (raw, said): (Vec<Said<Value>>, Vec<_>) = answers.into_iter().map(read::<Policies>).unzip();
    let names: Vec<&str> = hosts.iter().map(|named| named.name.as_str()).collect();
    let mut kinds: Vec<&str> = Vec::new();
    for slot in said.iter().flatten().flat_map(|policies| &policies.slots) {
        if !kinds.contains(&slot.kind.as_str()) {
            kinds.push(&slot.kind);
        }
    }
    let differences: Vec<(&str, String)> = kinds
        .iter()
        .filter_map(|&kind| Some((kind, difference(kind, &in_slot(&names, &said, kind))?)))
        .collect();
    if json {
        let differ: Vec<&str> = differences.iter().map(|(kind, _)| *kind).collect();
        print_json(&json!({"hosts": rows_of_json(hosts, raw, "policies"), "differ": differ}))?;
        return complete(&names, &said);
    }
    let head = ["host", "slot", "policy", "state", "made of", "calls", "p50", "p99", "faults"];
    table(head, names.iter().zip(&said).flat_map(|(name, said)| live(name, said)));
    for (_, difference) in &differences {
        println!("{difference}");
    }
    if let Some(words) = alike(&said).filter(|_| differences.is_empty()) {
        println!("{words}");
    }
    quarantined(&names, &said);
    for line in names.iter().zip(&said).filter_map(|(name, said)| unsaved(name, said.as_ref().ok()?)) {
        println!("{line}");
    }
    if all {
        println!("can be swapped in:");
        let available = available(&names, &said);
        let columns = terminal_columns();
        for line in aligned(available) {
            println!("{}", cut(&format!("  {line}"), columns));
        }
    }
    complete(&names, &said)
}

/// Prints the changes of a slot of several hosts in the order of time.
pub(super) async fn history(hosts: &[Named], kind: Kind, json: bool) -> Result<(), Failure> {
    let answers = ask_all(hosts, &super::history(kind)).await;
    let (raw, said): (Vec<Said<Value>>, Vec<_>) = answers.into_iter().map(read::<Vec<HistoryEntry>>).unzip();
    let names: Vec<&str> = hosts.iter().map(|named| named.name.as_str()).collect();
    let last = names.iter().zip(&said).filter_map(|(name, said)| {
        let history = said.as_ref().ok()?;
        Some((*name, Made::last_of(history)?))
    });
    let difference = difference(kind.name(), &last.collect::<Vec<_>>());
    if json {
        let differ = difference.is_some();
        print_json(&json!({"hosts": rows_of_json(hosts, raw, "history"), "differ": differ}))?;
        return complete(&names, &said);
    }
    let head = ["host", "time", "step", "mode", "change", "made of", "by", "reason"];
    table(head, changes(&names, &said));
    if let Some(difference) = difference {
        println!("{difference}");
    }
    complete(&names, &said)
}

/// Asks all hosts at once.
async fn ask_all(hosts: &[Named], path: &str) -> Vec<Said<Value>> {
    let asked = hosts.iter().map(|named| in_time(&named.host, named.host.ask(Method::GET, path, None)));
    join_all(asked).await
}

/// Waits for a host no longer than for one that is busy.
pub(super) async fn in_time<T>(host: &Host, answer: impl Future<Output = Result<T, Failure>>) -> Said<T> {
    match tokio::time::timeout(LONGEST, answer).await {
        Ok(answer) => answer.map_err(Failure::message),
        Err(_) => Err(format!("{} gave no answer in {} s", host.base(), LONGEST.as_secs())),
    }
}

/// An answer as it came, and what it says.
fn read<T: DeserializeOwned>(answer: Said<Value>) -> (Said<Value>, Said<T>) {
    let said = answer.clone().and_then(|answer| parse(answer).map_err(Failure::message));
    (answer, said)
}

/// An object a host, with what it said under `key`.
fn rows_of_json(hosts: &[Named], answers: Vec<Said<Value>>, key: &str) -> Vec<Value> {
    let row = |(named, answer): (&Named, Said<Value>)| {
        let mut row = json!({"host": named.name, "admin": named.host.base()});
        match answer {
            Ok(answer) => row[key] = answer,
            Err(why) => row["error"] = why.into(),
        }
        row
    };
    hosts.iter().zip(answers).map(row).collect()
}

/// Fails if a host said nothing.
fn complete<T>(names: &[&str], said: &[Said<T>]) -> Result<(), Failure> {
    let missing = names.iter().zip(said).filter_map(|(name, said)| Some((name, said.as_ref().err()?)));
    let lines: Vec<String> = missing.map(|(name, why)| format!("{name}: {why}")).collect();
    if lines.is_empty() { Ok(()) } else { Err(Failure::Failed(lines.join("\n"))) }
}

/// That hosts don't differ, if there is more than one to compare. Of one that gave no answer nobody knows.
fn alike(said: &[Said<Policies>]) -> Option<&'static str> {
    match said.iter().flatten().count() {
        0 | 1 => None,
        all if all == said.len() => Some("these hosts have the same policies in all slots"),
        _ => Some("the hosts that answered have the same policies in all slots"),
    }
}

/// The live policies of a slot, of the hosts that have one.
fn in_slot<'a>(names: &[&'a str], said: &[Said<Policies>], kind: &str) -> Vec<(&'a str, Made)> {
    let of_host = |(name, said): (&&'a str, &Said<Policies>)| {
        let slot = said.as_ref().ok()?.slots.iter().find(|slot| slot.kind == kind)?;
        Some((*name, Made::of(slot)))
    };
    names.iter().zip(said).filter_map(of_host).collect()
}

/// Which hosts run what, if that isn't the same; what most of them run first.
fn difference(kind: &str, live: &[(&str, Made)]) -> Option<String> {
    let mut groups: Vec<(&Made, Vec<&str>)> = Vec::new();
    for (name, made) in live {
        match groups.iter_mut().find(|(known, _)| *known == made) {
            Some((_, names)) => names.push(*name),
            None => groups.push((made, vec![*name])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let groups = groups.iter().map(|(made, names)| format!("{} on {}", made.words(), names.join(", ")));
    Some(format!("the hosts differ in {kind}: {}", groups.collect::<Vec<_>>().join("; ")))
}

/// A row for each slot of a host, or one that says that there is no answer.
fn live(name: &str, said: &Said<Policies>) -> Vec<[String; 9]> {
    let row = |slot: &PolicySlot| {
        let [calls, p50, p99] = show::cost(slot.calls, slot.p50_us, slot.p99_us, !slot.is_native());
        [
            name.to_owned(),
            slot.kind.clone(),
            format!("{} {}", slot.name, slot.version),
            slot.state.clone(),
            show::made_of(&slot.sha256, &slot.config_sha256),
            calls,
            p50,
            p99,
            slot.faults.to_string(),
        ]
    };
    match said {
        Ok(policies) => policies.slots.iter().map(row).collect(),
        Err(_) => vec![silent(name)],
    }
}

/// The row of a host that gave no answer; why is the command's failure.
fn silent<const N: usize>(name: &str) -> [String; N] {
    let mut row = [const { String::new() }; N];
    row[0] = name.to_owned();
    row[1] = "no answer".to_owned();
    row
}

/// The changes of all hosts, oldest first, as far as the hosts' clocks agree.
fn changes(names: &[&str], said: &[Said<Vec<HistoryEntry>>]) -> Vec<[String; 8]> {
    let mut all: Vec<(&str, &HistoryEntry)> = Vec::new();
    let mut rows = Vec::new();
    for (name, said) in names.iter().zip(said) {
        match said {
            Ok(history) => all.extend(history.iter().map(|entry| (*name, entry))),
            Err(_) => rows.push(silent(name)),
        }
    }
    // Stable: those of a host keep their order.
    all.sort_by(|(_, a), (_, b)| a.at_utc.cmp(&b.at_utc));
    let row = |(name, entry): (&str, &HistoryEntry)| {
        let from = if entry.from.is_empty() { "-" } else { &entry.from };
        let reason = if entry.reason == entry.mode { "" } else { show::first_line(&entry.reason) };
        [
            name.to_owned(),
            entry.at_utc.clone(),
            if entry.before_restart {
                format!("{} before restart", entry.step)
            } else {
                entry.step.to_string()
            },
            entry.mode.clone(),
            format!("{from} -> {}", entry.to),
            show::made_of(&entry.sha256, &entry.config_sha256),
            entry.by.clone().unwrap_or_else(|| "-".to_owned()),
            reason.to_owned(),
        ]
    };
    let mut changes: Vec<_> = all.into_iter().map(row).collect();
    changes.append(&mut rows);
    changes
}

/// Says that a host could not save what was changed there, and why.
pub(super) fn unsaved(name: &str, policies: &Policies) -> Option<String> {
    let why = policies.not_saved.as_ref()?;
    Some(format!("{name}: not saved, so a restart would undo what was changed: {why}"))
}

fn quarantined(names: &[&str], said: &[Said<Policies>]) {
    let of_host = |(name, said): (&&str, &Said<Policies>)| -> Vec<[String; 6]> {
        let entries = said.as_ref().map_or(&[][..], |policies| policies.quarantine.as_slice());
        let row = |entry: &QuarantineEntry| {
            [
                (*name).to_owned(),
                entry.kind.clone(),
                entry.name.clone(),
                show::made_of(&entry.sha256, ""),
                entry.config.to_string(),
                show::first_line(&entry.reason).to_owned(),
            ]
        };
        entries.iter().map(row).collect()
    };
    let rows: Vec<_> = names.iter().zip(said).flat_map(of_host).collect();
    if !rows.is_empty() {
        println!("quarantined, swapped in again only with --force:");
    }
    for line in aligned(rows) {
        println!("  {line}");
    }
}

/// What can be swapped in, and on which hosts: a host of another version may have other policies.
fn available(names: &[&str], said: &[Said<Policies>]) -> Vec<[String; 4]> {
    let mut all: Vec<(&AvailablePolicy, Vec<&str>)> = Vec::new();
    for (name, policies) in
        names.iter().zip(said).filter_map(|(name, said)| Some((name, said.as_ref().ok()?)))
    {
        for policy in &policies.available {
            let same = |known: &AvailablePolicy| {
                (&known.kind, &known.name, &known.sha256) == (&policy.kind, &policy.name, &policy.sha256)
            };
            match all.iter_mut().find(|(known, _)| same(known)) {
                Some((_, on)) => on.push(*name),
                None => all.push((policy, vec![*name])),
            }
        }
    }
    let row = |(policy, on): (&AvailablePolicy, Vec<&str>)| {
        let on = if on.len() == names.len() { "all hosts".to_owned() } else { on.join(", ") };
        let (kind, sha256) = (policy.kind.clone(), show::made_of(&policy.sha256, ""));
        [kind, format!("{} {}", policy.name, policy.version), sha256, on]
    };
    all.into_iter().map(row).collect()
}

/// Prints rows below their head, each cut at the terminal's edge.
pub(super) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let columns = terminal_columns();
    for line in aligned(std::iter::once(head.map(str::to_owned)).chain(rows)) {
        println!("{}", cut(&line, columns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(kind: &str, name: &str, sha256: &str, config_sha256: &str) -> PolicySlot {
        PolicySlot {
            kind: kind.into(),
            name: name.into(),
            version: "0.1.0".into(),
            state: "live".into(),
            sha256: sha256.into(),
            config_sha256: config_sha256.into(),
            ..PolicySlot::default()
        }
    }

    fn host(slots: Vec<PolicySlot>) -> Said<Policies> {
        Ok(Policies { slots, ..Policies::default() })
    }

    #[test]
    fn hosts_differ_in_policy_component_or_configuration() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let usual = || slot("scheduler", "srpt", &a, "");
        let words = |other: PolicySlot| {
            let said = [host(vec![usual()]), Err("gone".to_owned()), host(vec![other]), host(vec![usual()])];
            difference("scheduler", &in_slot(&["w", "x", "y", "z"], &said, "scheduler"))
        };
        assert_eq!(words(usual()), None, "a host without an answer is no difference");
        let start = "the hosts differ in scheduler: srpt (aaaaaaaaaaaa) on w, z; ";
        for (other, end) in [
            (slot("scheduler", "fair", "", ""), "fair (native) on y"),
            (slot("scheduler", "srpt", &b, ""), "srpt (bbbbbbbbbbbb) on y"),
            (slot("scheduler", "srpt", &a, &b), "srpt (aaaaaaaaaaaa, config bbbbbbbbbbbb) on y"),
        ] {
            assert_eq!(words(other), Some(format!("{start}{end}")));
        }
        assert_eq!(words(slot("admission", "slo", &b, "")), None, "another slot");
    }

    #[test]
    fn silent_host_has_a_row_and_makes_the_command_fail() {
        let said = [host(vec![slot("scheduler", "srpt", "", "")]), Err("it can't be reached".to_owned())];
        let rows: Vec<_> = ["w", "x"].iter().zip(&said).flat_map(|(name, said)| live(name, said)).collect();
        let begins: Vec<_> = rows.iter().map(|row| [row[0].as_str(), row[1].as_str()]).collect();
        assert_eq!(begins, [["w", "scheduler"], ["x", "no answer"]]);
        let Err(Failure::Failed(why)) = complete(&["w", "x"], &said) else { panic!("one said nothing") };
        assert_eq!(why, "x: it can't be reached");
        assert!(complete(&["w"], &said[..1]).is_ok());

        let answers = || host(Vec::new());
        assert_eq!(alike(&said), None, "there is nothing to compare");
        let words = alike(&[answers(), answers()]).unwrap();
        assert!(words.starts_with("these hosts have "), "{words}");
        let words = alike(&[answers(), Err("it can't be reached".to_owned()), answers()]).unwrap();
        assert!(words.starts_with("the hosts that answered have "), "{words}");
    }

    #[test]
    fn histories_are_merged_by_time_and_end_with_what_is_live() {
        let entry = |at_utc: &str, mode: &str, to: &str| HistoryEntry {
            at_utc: format!("2026-01-02T{at_utc}Z"),
            mode: mode.into(),
            to: to.into(),
            ..HistoryEntry::default()
        };
        let mut one = vec![entry("03:00:00", "start", "fair"), entry("05:00:00", "swap", "srpt")];
        (one[0].before_restart, one[0].step, one[1].step) = (true, 7, 2);
        let other = vec![
            entry("04:00:00", "start", "fair"),
            entry("05:00:00", "swap", "srpt"),
            entry("06:00:00", "shadow", "slo"),
        ];
        assert_eq!(Made::last_of(&one), Made::last_of(&other));
        assert_eq!(Made::last_of(&other[2..]), None);
        let rows = changes(&["a", "b"], &[Ok(one), Ok(other)]);
        let order: Vec<_> = rows.iter().map(|row| format!("{} {}", row[0], row[4])).collect();
        let want = ["a - -> fair", "b - -> fair", "a - -> srpt", "b - -> srpt", "b - -> slo"];
        assert_eq!(order, want);
        let steps: Vec<_> = rows.iter().filter(|row| row[0] == "a").map(|row| row[2].as_str()).collect();
        assert_eq!(steps, ["7 before restart", "2"], "steps count from a start");
    }

    #[test]
    fn policies_that_only_some_hosts_have_name_them() {
        let policy = |name: &str| AvailablePolicy {
            kind: "scheduler".into(),
            name: name.into(),
            ..AvailablePolicy::default()
        };
        let said = |names: &[&str]| {
            let available = names.iter().map(|name| policy(name)).collect();
            Ok(Policies { available, ..Policies::default() })
        };
        let rows = available(&["a", "b"], &[said(&["fair", "srpt"]), said(&["fair"])]);
        let on: Vec<_> = rows.iter().map(|row| row[3].as_str()).collect();
        assert_eq!(on, ["all hosts", "a"]);
    }
}
