//! The start: what each slot gets of what an earlier host saved.
//!
//! What is configured is loaded first, as without a saved state. What was swapped in is then loaded and checked as at a
//! swap, and swapped in before the first step, so that the configured policy is where a rollback or a removal leads to.
//! At last the live policies get what those of their names exported, as at a swap from these.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use infer_api::admin::{HistoryEntry, QuarantineEntry, RestoredState};
use infer_core::engine::Exported;
use infer_core::policy::{AnyPolicy, PolicyInfo, PolicyKind};
use infer_core::{Engine, Micros};
use infer_wasm::PolicyLoader;

use super::exported::{Saved, Waiting};
use super::format::{Document, Kept, SlotRecord, Source, are_same, name_of};
use super::keeper::{Begins, Cold, Keeper, Knowledge, Unrestored};
use super::store::{EXPORTED, OpenError, ReadError, Store, check, read, read_exported};
use crate::config::{Config, ConfigError};
use crate::engine::{Clock, EngineHandle, Quarantine};
use crate::policies::{Origin, Origins, PolicySource, load_kept};
use crate::serve::StartError;
use crate::tenants::{Numbering, Tenants};
use crate::utc::unix_us;

/// Longest time between two hosts that counts: a wall clock that is years ahead was set wrong, and would be believed at
/// each start.
const LONGEST_AWAY: Micros = Micros(366 * 86_400 * 1_000_000);

/// Refuses a directory or files in it that a start couldn't use, without changing anything.
pub fn check_place(config: &Config) -> Result<(), ConfigError> {
    match &config.policy_state {
        Some(dir) if dir.exists() => {
            check(dir).and_then(|()| check_files(dir)).map_err(|why| wrong(dir, &why))
        }
        _ => Ok(()),
    }
}

/// Fails for a file that a start would move away; says what that would cost.
fn check_files(dir: &Path) -> Result<(), String> {
    read(dir).map_err(|error| match error {
        ReadError::Unread(why) => format!("can't read policies.json: {why}"),
        ReadError::Unusable(why) => format!(
            "policies.json can't be used; a start would move it to unread/, and the slots would get what is configured, \
             with an empty quarantine: {why}"
        ),
    })?;
    read_exported(dir).map_err(|why| {
        format!(
            "{EXPORTED} can't be used; a start would move it to unread/, and policies would begin without what they \
             knew: {why}"
        )
    })?;
    Ok(())
}

fn wrong(dir: &Path, why: &str) -> ConfigError {
    ConfigError(format!("--policy-state: {}: {why}", dir.display()))
}

/// What an earlier host saved, before anything is made of it.
pub struct Found {
    store: Store,
    document: Document,
    /// What its policies exported.
    saved: Saved,
    /// How long before this start that was.
    away: Micros,
    /// What was wrong with the files, and where they are now.
    unread: Vec<String>,
}

/// Opens the directory, if one is configured, and reads what is there.
///
/// # Errors
/// The directory can't be used, or another host uses it.
pub fn open(dir: Option<&Path>) -> Result<Option<Found>, StartError> {
    let Some(dir) = dir else { return Ok(None) };
    let mut store = Store::open(dir).map_err(|error| match error {
        OpenError::Wrong(why) => wrong(dir, &why).into(),
        OpenError::Busy => StartError::Machine(format!(
            "--policy-state: another host uses {}; give each host a directory of its own",
            dir.display()
        )),
    })?;
    let mut unread = Vec::new();
    let document = match store.read() {
        Ok(Some(document)) => document,
        Ok(None) => {
            tracing::info!(
                "nothing is in {} yet; swaps and the quarantine will be saved there",
                dir.display()
            );
            Document::default()
        }
        // Going on without it would lose it with the first change.
        Err(ReadError::Unread(why)) => {
            let dir = dir.display();
            return Err(StartError::Machine(format!(
                "--policy-state: can't read policies.json in {dir}: {why}"
            )));
        }
        Err(ReadError::Unusable(why)) => {
            let kept = match store.set_aside() {
                Ok(place) => format!("it is now in {}", place.display()),
                Err(error) => format!("it can't be moved out of the way, so no change is saved: {error}"),
            };
            tracing::error!(
                "the state of the policies in {} is not restored, so the slots get what is configured and the \
                 quarantine is empty: {why}; {kept}",
                dir.display()
            );
            unread.push(format!("the state in {} was not restored: {why}; {kept}", dir.display()));
            Document::default()
        }
    };
    let saved = exported(&store, dir).unwrap_or_else(|why| {
        unread.push(why);
        None
    });
    let away = saved.as_ref().map_or(Micros::ZERO, |saved| away(saved, unix_us()));
    Ok(Some(Found { store, document, saved: saved.unwrap_or_default(), away, unread }))
}

/// Reads what policies exported. An error, which is logged, says why that is lost: it is no reason not to start.
fn exported(store: &Store, dir: &Path) -> Result<Option<Saved>, String> {
    store.exported().map_err(|why| {
        let kept = match store.set_exported_aside() {
            Ok(place) => format!("it is now in {}", place.display()),
            Err(error) => format!("it can't be moved, so it is replaced: {error}"),
        };
        let lost = format!("{EXPORTED} in {} was not restored: {why}; {kept}", dir.display());
        tracing::error!("policies begin without what they knew before the restart: {lost}");
        lost
    })
}

/// How long before an instant something was saved. A wall clock that went back gives no time.
fn away(saved: &Saved, unix_us: u64) -> Micros {
    Micros(unix_us).since(Micros(saved.at_us)).min(LONGEST_AWAY)
}

/// The names in that of a list, or of a policy.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split('+')
}

/// What the slots get.
pub struct Restored {
    store: Store,
    configured: [Vec<Kept>; 3],
    infos: [Arc<PolicyInfo>; 3],
    comes: [Comes; 3],
    saved: Saved,
    away: Micros,
    knowledge: Knowledge,
    unread: Vec<String>,
    history: [Vec<HistoryEntry>; 3],
    quarantine: Vec<QuarantineEntry>,
}

/// What a slot gets.
struct Comes {
    /// Whether the configured policy may be there.
    configured: bool,
    /// What is swapped in.
    swapped: Option<AnyPolicy>,
    /// What was swapped in and couldn't be loaded.
    unrestored: Option<Unrestored>,
}

impl Found {
    /// Starts the clock, which goes on from where it was when policies last exported something.
    pub fn start_clock(&self) -> Clock {
        Clock::start_at(self.saved.carried.numbers.now.plus(self.away))
    }

    /// The numbers of the earlier host's tenants.
    pub fn tenants(&self) -> &Numbering {
        &self.saved.tenants
    }

    /// Loads what was swapped in. `origins` has the configured policies, and gets these.
    pub fn load(self, loader: &PolicyLoader, origins: &Origins, clock: Clock) -> Restored {
        let Self { store, mut document, saved, away, unread } = self;
        let own = PolicyKind::ALL.map(|kind| origins.latest(kind).expect("the configured policy is loaded"));
        let quarantine = std::mem::take(&mut document.quarantine).into_iter();
        // Times since the start of another run mean nothing in this one.
        let quarantine: Vec<_> = quarantine.map(|entry| QuarantineEntry { at_ms: 0, ..entry }).collect();
        let bad = Quarantine::new(clock, Arc::default());
        quarantine.iter().for_each(|entry| bad.put_back(entry.clone()));
        let choosing = Choosing { store: &store, loader, origins, bad: &bad };
        let mut slots = PolicyKind::ALL.map(|kind| document.slots.remove(kind.name()));
        let mut at = own.iter().zip(&slots).zip(PolicyKind::ALL);
        let comes = std::array::from_fn(|_| {
            let ((own, record), kind) = at.next().expect("there are as many");
            choosing.choose(kind, own, record.as_ref())
        });
        let history = std::array::from_fn(|nth| {
            let entries = slots[nth].take().map(|slot| slot.history).unwrap_or_default();
            entries.into_iter().map(|entry| HistoryEntry { before_restart: true, ..entry }).collect()
        });
        Restored {
            configured: std::array::from_fn(|nth| Kept::all(&own[nth])),
            infos: own.map(|origin| origin.info),
            comes,
            saved,
            away,
            knowledge: Knowledge::default(),
            unread,
            history,
            quarantine,
            store,
        }
    }
}

/// What a choice for a slot takes.
struct Choosing<'a> {
    store: &'a Store,
    loader: &'a PolicyLoader,
    origins: &'a Origins,
    bad: &'a Quarantine,
}

impl Choosing<'_> {
    fn choose(&self, kind: PolicyKind, own: &Origin, record: Option<&SlotRecord>) -> Comes {
        let again = record.and_then(|record| self.swapped(kind, own, record));
        let (swapped, unrestored) = match again {
            Some(Ok(policy)) => (Some(policy), None),
            Some(Err(unrestored)) => (None, Some(unrestored)),
            None => (None, None),
        };
        let reason = self.quarantined(own);
        if let Some(reason) = &reason {
            let configured = &own.info.name;
            let instead = match &swapped {
                Some(_) => "it is no way back",
                None => "the built-in takes its place",
            };
            tracing::error!(
                "the configured {kind} policy `{configured}` is in quarantine, so {instead}: {reason}; name another one, \
                 or swap it in by force"
            );
        }
        Comes { configured: reason.is_none(), swapped, unrestored }
    }

    /// Loads what was swapped in, if it is to be live again.
    fn swapped(
        &self,
        kind: PolicyKind,
        own: &Origin,
        record: &SlotRecord,
    ) -> Option<Result<AnyPolicy, Unrestored>> {
        if let Some(canary) = &record.canary {
            tracing::warn!(
                "the trial of the {kind} canary `{canary}` was not over when the host ended; the policy before it is live"
            );
        }
        if let Some(shadow) = &record.shadow {
            tracing::warn!("the {kind} shadow `{shadow}` has ended with the host");
        }
        let all = record.swapped.as_ref()?;
        let name = name_of(all);
        let now = Kept::all(own);
        if are_same(all, &now) {
            // It is configured since, so it is live anyway.
            return None;
        }
        if !are_same(&record.configured, &now) {
            tracing::warn!(
                "the {kind} policy `{name}`, which was swapped in before the restart, isn't live any more: another one, or \
                 another configuration, is configured since"
            );
            return None;
        }
        match self.again(kind, all) {
            Ok((policy, origin)) => {
                if let Some(reason) = self.quarantined(&origin) {
                    tracing::error!(
                        "the {kind} policy `{name}` is in quarantine and not live any more: {reason}"
                    );
                    return None;
                }
                tracing::info!(
                    sha256 = origin.info.digest,
                    "the {kind} policy `{name}`, which was swapped in before the restart, is live again"
                );
                self.origins.remember(kind, origin);
                Some(Ok(policy))
            }
            Err(why) => {
                tracing::error!(
                    "the {kind} policy `{name}`, which was swapped in before the restart, can't be loaded, so the \
                     configured one is live; the next start tries again, unless this slot is changed: {why}"
                );
                Some(Err(Unrestored { all: all.clone(), why, knew: None }))
            }
        }
    }

    fn again(&self, kind: PolicyKind, all: &[Kept]) -> Result<(AnyPolicy, Origin), String> {
        let source = |kept: &Kept| {
            let source = match kept.source {
                Source::Native => PolicySource::Name("builtin".to_owned()),
                Source::Bundled => PolicySource::Name(kept.name.clone()),
                Source::Component => PolicySource::Component(self.store.component(&kept.sha256)?),
            };
            Ok((source, kept.config.clone()))
        };
        let members = all.iter().map(source).collect::<Result<Vec<_>, String>>()?;
        let (policy, origin) = load_kept(self.loader, kind, members).map_err(|error| error.to_string())?;
        for (kept, now) in all.iter().zip(Kept::all(&origin)) {
            if kept.sha256 != now.sha256 {
                tracing::info!(
                    before = kept.sha256,
                    now = now.sha256,
                    "this host brings another component as `{}` than the one that was swapped in",
                    kept.name
                );
            }
        }
        Ok((policy, origin))
    }

    /// Why a policy, or a member of a list, is in quarantine.
    fn quarantined(&self, origin: &Origin) -> Option<String> {
        let mut parts = origin.members.iter().map(|member| &member.info).chain([&origin.info]);
        parts.find_map(|info| self.bad.find(info)).map(|entry| entry.reason)
    }
}

impl Restored {
    /// The configured policies.
    pub fn configured(&self) -> [Arc<PolicyInfo>; 3] {
        self.infos.clone()
    }

    /// Gives the slots of a new engine what they get.
    pub fn bring_in(&mut self, engine: &mut Engine, clock: Clock) {
        engine.continue_from(&self.saved.carried.numbers, clock.begin());
        let now = clock.now();
        for (kind, comes) in PolicyKind::ALL.into_iter().zip(&mut self.comes) {
            if !comes.configured {
                drop(engine.leave_to_builtin(kind));
            }
            let Some(policy) = comes.swapped.take() else { continue };
            let info = policy.info();
            engine.swap(policy, now);
            if !engine.slot(kind).policy.is_same(&info) {
                tracing::error!("the {kind} policy `{}` failed as it was brought back", info.name);
            }
        }
        self.give_back(engine);
        // That was no change: nobody made it now, and the history begins with what it led to.
        engine.drain_events(&mut Vec::new());
        drop(engine.take_retired());
    }

    /// Gives the live policies what was exported, each what is meant for it. What a policy knew that couldn't be loaded
    /// waits for it, whatever is live instead; once it is live again, that comes before what the other one knew.
    fn give_back(&mut self, engine: &mut Engine) {
        let states = std::mem::take(&mut self.saved.carried.states);
        let has_its_own = self.give_waiting(engine, &states);
        let at_us = self.saved.at_us;
        for exported in states {
            let at = exported.kind as usize;
            if has_its_own[at] {
                continue;
            }
            let known = Waiting { at_us, exported };
            let taken = self.give(engine, &known);
            let Exported { kind, policy, .. } = &known.exported;
            let (kind, live) = (*kind, engine.slot(*kind).policy.name.clone());
            let all_taken =
                taken == Some(true) && parts(policy).all(|part| parts(&live).any(|own| own == part));
            let waits = self.comes[at].unrestored.as_mut();
            match waits.filter(|waits| !all_taken && waits.knew.is_none() && waits.knows(policy)) {
                Some(waits) => {
                    tracing::info!("what the {kind} policy `{policy}` knew is kept until it can be loaded");
                    waits.knew = Some(known);
                }
                None if taken.is_none() => tell_forgotten(kind, policy, &live, "is live"),
                None => {}
            }
        }
    }

    /// Gives what waited to the policy that couldn't be loaded again, or else to the live one, unless that exported
    /// something later. Returns which slots go on with that.
    fn give_waiting(&mut self, engine: &mut Engine, states: &[Exported]) -> [bool; 3] {
        let mut goes_on = [false; 3];
        for known in std::mem::take(&mut self.saved.waiting) {
            let Exported { kind, policy, .. } = &known.exported;
            let kind = *kind;
            // A host that was killed right after a swap may leave what waited for the policy before it.
            let waits = self.comes[kind as usize].unrestored.as_mut().filter(|waits| waits.knows(policy));
            if let Some(waits) = waits {
                waits.knew = Some(known);
                continue;
            }
            let live = engine.slot(kind).policy.name.clone();
            if states.iter().any(|one| one.kind == kind && one.policy == live) {
                tell_forgotten(kind, policy, &live, "is live and exported something later");
                continue;
            }
            let taken = self.give(engine, &known);
            if taken.is_none() {
                tell_forgotten(kind, policy, &live, "is live");
            }
            goes_on[kind as usize] = taken == Some(true);
        }
        goes_on
    }

    /// Gives a live policy what was exported, if it is meant for it. Returns whether it goes on with that.
    fn give(&mut self, engine: &mut Engine, Waiting { at_us, exported }: &Waiting) -> Option<bool> {
        let kind = exported.kind;
        let policy = engine.slot(kind).policy.name.clone();
        let outcome = engine.import_state(exported)?;
        let taken = outcome.is_ok();
        let cold = match outcome {
            Ok(()) => {
                let before = Micros(self.saved.at_us).since(Micros(*at_us)).min(LONGEST_AWAY);
                let age_s = self.away.plus(before).0 / 1_000_000;
                tracing::info!(
                    age_s,
                    "the {kind} policy `{policy}` goes on with what it knew before the restart"
                );
                self.knowledge.restored.push(RestoredState { kind: kind.name().to_owned(), policy, age_s });
                None
            }
            Err(why) => {
                tracing::warn!(
                    "the {kind} policy `{policy}` begins without what it knew before the restart: {why}"
                );
                Some(Cold { policy, why })
            }
        };
        self.knowledge.cold.get_mut().unwrap_or_else(PoisonError::into_inner)[kind as usize] = cold;
        Some(taken)
    }

    /// Restores the histories and the quarantine, and saves all changes, and what policies export, from now on.
    pub fn keep(
        self,
        engine: &EngineHandle,
        origins: &Arc<Origins>,
        tenants: &Arc<Tenants>,
    ) -> std::io::Result<Arc<Keeper>> {
        let lasting = engine.observer().lasting();
        lasting.restore(self.history, self.quarantine);
        let begins = Begins {
            origins: Arc::clone(origins),
            tenants: Arc::clone(tenants),
            configured: self.configured,
            unread: self.unread,
            unrestored: self.comes.map(|comes| comes.unrestored),
            knowledge: self.knowledge,
        };
        Keeper::start(self.store, Arc::clone(lasting), engine.clock(), begins)
    }
}

fn tell_forgotten(kind: PolicyKind, policy: &str, live: &str, why: &str) {
    tracing::info!("what the {kind} policy `{policy}` knew before the restart is forgotten: `{live}` {why}");
}

#[cfg(test)]
mod tests {
    use infer_core::EngineConfig;
    use infer_core::engine::{Carried, Policies};
    use serde_json::json;

    use super::*;

    /// Whose state, and of when, waits after a start for the scheduler `lost`, which couldn't be loaded. What the file
    /// says was waiting is of the time 1, what was live then exported something at 2.
    fn waits_for_lost(waiting: &str, exported: &str) -> Option<(String, u64)> {
        let home = tempfile::tempdir().unwrap();
        let config = EngineConfig { total_blocks: 16, ..EngineConfig::default() };
        let mut engine = Engine::new(config, Policies::builtin());
        let state = |policy: &str| Exported {
            kind: PolicyKind::Scheduler,
            policy: policy.to_owned(),
            state: b"it".to_vec(),
        };
        let carried = Carried { states: vec![state(exported)], ..Carried::default() };
        let waiting = vec![Waiting { at_us: 1, exported: state(waiting) }];
        let (source, name, sha256) = (Source::Component, "lost".to_owned(), String::new());
        let lost = Kept { source, name, sha256, config: json!({}) };
        let lost = Unrestored { all: vec![lost], why: "it is damaged".to_owned(), knew: None };
        let mut restored = Restored {
            store: Store::open(&home.path().join("state")).unwrap(),
            configured: Default::default(),
            infos: PolicyKind::ALL.map(|kind| engine.slot(kind).policy),
            comes: [Some(lost), None, None].map(|lost| Comes {
                configured: true,
                swapped: None,
                unrestored: lost,
            }),
            saved: Saved { at_us: 2, carried, waiting, ..Saved::default() },
            away: Micros::ZERO,
            knowledge: Knowledge::default(),
            unread: Vec::new(),
            history: Default::default(),
            quarantine: Vec::new(),
        };
        restored.give_back(&mut engine);
        let [scheduler, ..] = restored.comes;
        let knew = scheduler.unrestored.unwrap().knew?;
        Some((knew.exported.policy, knew.at_us))
    }

    #[test]
    fn policy_that_could_not_be_loaded_waits_with_what_it_knew_and_not_with_what_another_did() {
        for (waiting, exported, kept) in [
            ("lost", "fcfs", Some(("lost", 1))),
            ("fair+lost", "lost", Some(("fair+lost", 1))),
            ("other", "fcfs", None),
            ("other", "lost", Some(("lost", 2))),
            ("other", "fair+lost", Some(("fair+lost", 2))),
        ] {
            let waits = waits_for_lost(waiting, exported);
            let waits = waits.as_ref().map(|(policy, at_us)| (policy.as_str(), *at_us));
            assert_eq!(waits, kept, "{waiting} waited, {exported} exported");
        }
    }

    #[test]
    fn time_between_two_hosts_is_never_negative_and_not_absurd() {
        let passed = |now_us: u64| away(&Saved { at_us: 5_000_000, ..Saved::default() }, now_us);
        assert_eq!([0, 5_000_000, 5_000_007].map(passed), [Micros::ZERO, Micros::ZERO, Micros(7)]);
        assert_eq!(passed(u64::MAX), LONGEST_AWAY);
    }
}
