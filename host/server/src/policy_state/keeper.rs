//! Saves what lasts after each change, and what policies exported as often as the engine leaves it, on a thread of its
//! own: neither the engine nor a request waits for the disk, but whoever made a change may wait until it is saved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use infer_api::admin::{HistoryEntry, RestoredState};
use infer_core::Micros;
use infer_core::policy::PolicyKind;
use tokio::sync::watch;

use super::exported::{Saved, Waiting};
use super::format::{Document, HISTORY, Kept, SlotRecord, are_same, name_of};
use super::store::{Components, Store};
use crate::engine::{Clock, Count, Lasting, Left};
use crate::policies::{Component, Origin, Origins};
use crate::tenants::Tenants;

/// Time between two attempts to save what could not be saved.
const RETRY: Duration = Duration::from_secs(30);
/// How long whoever made a change waits until it is saved.
const PATIENCE: Duration = Duration::from_secs(10);

/// Saves the state of the slots.
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    dir: PathBuf,
    clock: Clock,
    lasting: Arc<Lasting>,
    origins: Arc<Origins>,
    tenants: Arc<Tenants>,
    configured: Mutex<[Configured; 3]>,
    /// What was wrong with the files of an earlier host.
    unread: Vec<String>,
    unrestored: Mutex<[Option<Unrestored>; 3]>,
    knowledge: Knowledge,
    attempts: watch::Sender<Attempts>,
}

/// What a keeper begins with.
pub(super) struct Begins {
    pub origins: Arc<Origins>,
    pub tenants: Arc<Tenants>,
    /// By slot: what flags and files say.
    pub configured: [Vec<Kept>; 3],
    /// What was wrong with the files of an earlier host.
    pub unread: Vec<String>,
    pub unrestored: [Option<Unrestored>; 3],
    pub knowledge: Knowledge,
}

/// What the live policies have of what those before the start exported.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    pub restored: Vec<RestoredState>,
    /// By slot.
    pub cold: Mutex<[Option<Cold>; 3]>,
}

/// A policy that began cold although there was a state for it.
#[derive(Clone, Debug)]
pub(super) struct Cold {
    pub policy: String,
    pub why: String,
}

/// What flags and files say of a slot.
#[derive(Clone, Debug, PartialEq)]
struct Configured {
    /// Now, also if something else is live.
    now: Vec<Kept>,
    /// The last time that it became live. If that is live again, because what an operator brought in is gone, it is
    /// nobody's choice: the next start has what is said now.
    live: Vec<Kept>,
}

/// What was swapped in before the start and couldn't be loaded at it. It is saved again as it is, for the next start,
/// until the slot is changed by an operator or by what is configured.
#[derive(Clone, Debug)]
pub(super) struct Unrestored {
    pub all: Vec<Kept>,
    pub why: String,
    /// What it knew.
    pub knew: Option<Waiting>,
}

impl Unrestored {
    /// Whether what a policy of this name, or a list, exported is its own, or a member's of it.
    pub fn knows(&self, name: &str) -> bool {
        name.split('+').any(|part| self.all.iter().any(|kept| kept.name == part))
    }
}

/// What policies exported last. It is kept after it was saved: another directory may take the place of that one.
struct Last {
    exported: Saved,
    /// Where it is saved.
    place: Option<u32>,
}

/// The attempts to save.
#[derive(Debug, Default)]
struct Attempts {
    /// The last change that there was an attempt to save.
    changes: u64,
    /// Why that failed.
    error: Option<String>,
    /// Why what policies exported last is not saved.
    exported_error: Option<String>,
    /// Since when the next attempt has been under way.
    begun: Option<Micros>,
}

impl Attempts {
    fn error_at(&self, now: Micros, dir: &Path) -> Option<String> {
        let hangs = self.begun.is_some_and(|begun| u128::from(now.since(begun).0) > PATIENCE.as_micros());
        if hangs {
            Some(too_slow(dir))
        } else {
            self.error.as_ref().or(self.exported_error.as_ref()).cloned()
        }
    }
}

fn too_slow(dir: &Path) -> String {
    format!("{} has taken longer than {} s so far", dir.display(), PATIENCE.as_secs())
}

impl Keeper {
    /// Starts the thread, which saves at once.
    pub(super) fn start(
        store: Store,
        lasting: Arc<Lasting>,
        clock: Clock,
        begins: Begins,
    ) -> io::Result<Arc<Self>> {
        let Begins { origins, tenants, configured, unread, unrestored, knowledge } = begins;
        lasting.inherit();
        let shared = Arc::new(Shared {
            dir: store.dir().to_owned(),
            clock,
            lasting,
            origins,
            tenants,
            configured: Mutex::new(configured.map(|all| Configured { live: all.clone(), now: all })),
            unread,
            unrestored: Mutex::new(unrestored),
            knowledge,
            attempts: watch::Sender::new(Attempts::default()),
        });
        let own = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("policy-state".to_owned()).spawn(move || own.keep(store))?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Notes what flags and files say of a slot, and whether that has become live.
    pub fn set_configured(&self, kind: PolicyKind, origin: &Origin, is_live: bool) {
        let now = Kept::all(origin);
        let mut configured = self.shared.configured.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut configured[kind as usize];
        let live = if is_live { now.clone() } else { slot.live.clone() };
        let said = Configured { now, live };
        if *slot != said {
            let is_other = !are_same(&slot.now, &said.now);
            *slot = said;
            drop(configured);
            if is_other {
                self.shared.unrestored()[kind as usize] = None;
            }
            self.shared.lasting.changes().note();
        }
    }

    /// Waits until all changes so far are saved. Returns why they are not.
    pub async fn not_saved(&self) -> Option<String> {
        let wanted = self.shared.lasting.changes().count().changes;
        let mut attempts = self.shared.attempts.subscribe();
        let tried = tokio::time::timeout(PATIENCE, attempts.wait_for(|last| last.changes >= wanted)).await;
        match tried {
            Ok(Ok(last)) => last.error.clone(),
            Ok(Err(_)) => Some("nothing saves it any more".to_owned()),
            Err(_) => Some(too_slow(&self.shared.dir)),
        }
    }

    /// Why the last attempt to save failed, if it did, or that the disk seems to hang.
    pub fn error(&self) -> Option<String> {
        self.shared.attempts.borrow().error_at(self.shared.clock.now(), &self.shared.dir)
    }

    /// What live policies went on with at the start.
    pub fn restored(&self) -> Vec<RestoredState> {
        self.shared.knowledge.restored.clone()
    }

    /// What of the state of an earlier host is not in effect, and why.
    pub fn not_restored(&self) -> Vec<String> {
        PolicyKind::ALL.iter().for_each(|kind| self.shared.forget_replaced(*kind));
        let unrestored = self.shared.unrestored();
        let slots = PolicyKind::ALL.into_iter().zip(&*unrestored).filter_map(|(kind, slot)| {
            let Unrestored { all, why, knew } = slot.as_ref()?;
            let (name, with) = (name_of(all), if knew.is_some() { ", with what it knew" } else { "" });
            Some(format!(
                "the {kind} policy `{name}` couldn't be loaded; the next start tries again{with}: {why}"
            ))
        });
        let slots: Vec<String> = slots.collect();
        drop(unrestored);
        let cold = self.shared.cold().clone();
        let cold = PolicyKind::ALL.into_iter().zip(cold).filter_map(|(kind, slot)| {
            let Cold { policy, why } = slot?;
            Some(format!("the {kind} policy `{policy}` began without what it knew before the restart: {why}"))
        });
        self.shared.unread.iter().cloned().chain(slots).chain(cold).collect()
    }

    /// Saves what has changed last, and gives up the directory. Blocks.
    pub fn close(&self) {
        self.shared.lasting.changes().close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Saves all changes until there are no more to come.
    fn keep(&self, mut store: Store) {
        let changes = self.lasting.changes();
        let mut now = changes.count();
        // Nothing is saved yet.
        let (mut saved, mut last) = (None, None::<Last>);
        loop {
            if saved != Some((now.changes, store.place())) {
                let (document, components) = self.collect();
                self.begin();
                let outcome = store.save(&document, &components);
                saved = outcome.is_ok().then(|| (now.changes, store.place()));
                self.tell(now.changes, outcome);
            }
            if let Some(left) = self.lasting.take_left() {
                last = Some(Last { exported: self.exported(left), place: None });
            }
            if let Some(last) = last.as_mut().filter(|last| last.place != Some(store.place())) {
                self.begin();
                let outcome = store.save_exported(&last.exported);
                last.place = outcome.is_ok().then(|| store.place());
                self.tell_exported(outcome);
            }
            if saved.is_some_and(|(_, place)| place != store.place()) {
                // Only now it was found that another directory has taken the place of the one with the state.
                continue;
            }
            if now.closed {
                return;
            }
            let failed = saved.is_none() || last.as_ref().is_some_and(|last| last.place.is_none());
            let next = changes.wait(now, failed.then_some(RETRY));
            // What failed last is tried once more.
            if next == (Count { closed: true, ..now }) && !failed {
                return;
            }
            now = next;
        }
    }

    /// What the engine left, with the numbers of its tenants: more of them by now, perhaps, but never other ones. And
    /// what was left before by policies that couldn't be loaded.
    fn exported(&self, Left { carried, at_us }: Left) -> Saved {
        PolicyKind::ALL.iter().for_each(|kind| self.forget_replaced(*kind));
        let waiting = self.unrestored().iter().flatten().filter_map(|slot| slot.knew.clone()).collect();
        Saved { at_us, carried, tenants: self.tenants.numbering(), waiting }
    }

    /// An attempt begins.
    fn begin(&self) {
        self.attempts.send_modify(|last| last.begun = Some(self.clock.now()));
    }

    fn unrestored(&self) -> MutexGuard<'_, [Option<Unrestored>; 3]> {
        self.unrestored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cold(&self) -> MutexGuard<'_, [Option<Cold>; 3]> {
        self.knowledge.cold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operator who changes a slot gives up what couldn't be loaded for it, and what its policy didn't take.
    fn forget_replaced(&self, kind: PolicyKind) {
        let at = kind as usize;
        let (mut unrestored, mut cold) = (self.unrestored(), self.cold());
        let has_any = unrestored[at].is_some() || cold[at].is_some();
        if has_any && is_decided(&self.lasting.history(kind)) {
            (unrestored[at], cold[at]) = (None, None);
        }
    }

    fn tell(&self, changes: u64, outcome: io::Result<()>) {
        let dir = self.dir.display();
        let error = outcome.err().map(|error| format!("{dir}: {error}"));
        self.attempts.send_modify(|last| {
            match &error {
                Some(now) if last.error.as_ref() != Some(now) => tracing::error!(
                    "swaps and the quarantine can't be saved, so a restart would undo what has changed: {now} \
                     (--policy-state)"
                ),
                None if last.error.is_some() => tracing::info!("swaps and the quarantine are saved again in {dir}"),
                _ => {}
            }
            (last.changes, last.error, last.begun) = (changes, error, None);
        });
    }

    fn tell_exported(&self, outcome: io::Result<()>) {
        let dir = self.dir.display();
        let error = outcome.err().map(|error| format!("{dir}: what policies know can't be saved: {error}"));
        self.attempts.send_modify(|last| {
            match &error {
                Some(now) if last.exported_error.as_ref() != Some(now) => tracing::error!(
                    "after a restart policies would begin with what they knew some time before: {now} (--policy-state)"
                ),
                None if last.exported_error.is_some() => {
                    tracing::info!("what policies know is saved again in {dir}");
                }
                _ => {}
            }
            (last.exported_error, last.begun) = (error, None);
        });
    }

    /// What is to be saved.
    fn collect(&self) -> (Document, Components) {
        let mut document = Document::new(self.clock.utc(self.clock.now()));
        let mut components = Components::new();
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (kind, said) in PolicyKind::ALL.into_iter().zip(configured) {
            let standing = self.lasting.standing(kind);
            let live = standing.policy.and_then(|policy| self.origins.find(kind, &policy));
            // What is configured is loaded from there again.
            let live = live
                .map(|origin| (Kept::all(&origin), origin))
                .filter(|(all, _)| !are_same(all, &said.now) && !are_same(all, &said.live));
            let swapped = live.map(|(all, origin)| {
                for (kept, member) in all.iter().zip(&origin.members) {
                    if let Component::Given(bytes) = &member.component {
                        components.insert(kept.sha256.clone(), Arc::clone(bytes));
                    }
                }
                all
            });
            self.forget_replaced(kind);
            let unrestored = || self.unrestored()[kind as usize].as_ref().map(|slot| slot.all.clone());
            let swapped = swapped.or_else(unrestored);
            let history = worth_saving(self.lasting.history(kind));
            let (canary, shadow) = (standing.canary, standing.shadow);
            let record = SlotRecord { configured: said.now, swapped, canary, shadow, history };
            document.slots.insert(kind.name().to_owned(), record);
        }
        document.quarantine = self.lasting.quarantine().list();
        (document, components)
    }
}

/// Whether an operator has decided since the start what a slot runs. A canary decides nothing until it stays: if it
/// fails or is rolled back, the slot has what it had.
fn is_decided(history: &[HistoryEntry]) -> bool {
    let mut on_trial = false;
    history.iter().filter(|entry| !entry.before_restart).any(|entry| match entry.mode.as_str() {
        "swap" | "promote" | "stays" => true,
        "rollback" => !std::mem::take(&mut on_trial),
        mode => {
            on_trial = mode == "canary" || (on_trial && !["fault", "verdict"].contains(&mode));
            false
        }
    })
}

/// The latest entries of a history. Of starts in a row with the same policy only the last counts: a host that fails after
/// each start, again and again, would leave nothing else.
fn worth_saving(mut history: Vec<HistoryEntry>) -> Vec<HistoryEntry> {
    history.reverse();
    history.dedup_by(|earlier, later| {
        let made = (&earlier.to, &earlier.sha256, &earlier.config_sha256);
        let is_again = made == (&later.to, &later.sha256, &later.config_sha256);
        is_again && earlier.mode == "start" && later.mode == "start"
    });
    history.truncate(HISTORY);
    history.reverse();
    history
}

#[cfg(test)]
mod tests;
