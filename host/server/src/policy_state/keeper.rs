//! Saves what lasts after each change, on a thread of its own: neither the engine nor a request waits for the disk, but
//! whoever made a change may wait until it is saved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use infer_api::admin::HistoryEntry;
use infer_core::Micros;
use infer_core::policy::PolicyKind;
use tokio::sync::watch;

use super::format::{Document, HISTORY, Kept, SlotRecord, are_same, name_of};
use super::store::{Components, Store};
use crate::engine::{Clock, Lasting};
use crate::policies::{Component, Origin, Origins};

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
    configured: Mutex<[Configured; 3]>,
    /// What was wrong with the file of an earlier host.
    unread: Option<String>,
    unrestored: Mutex<[Option<Unrestored>; 3]>,
    saved: watch::Sender<Saved>,
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
}

/// What was saved.
#[derive(Debug, Default)]
struct Saved {
    /// The last change that there was an attempt to save.
    changes: u64,
    /// Why that failed.
    error: Option<String>,
    /// Since when the next attempt has been under way.
    begun: Option<Micros>,
}

impl Saved {
    fn error_at(&self, now: Micros, dir: &Path) -> Option<String> {
        let hangs = self.begun.is_some_and(|begun| u128::from(now.since(begun).0) > PATIENCE.as_micros());
        if hangs { Some(too_slow(dir)) } else { self.error.clone() }
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
        origins: Arc<Origins>,
        configured: [Vec<Kept>; 3],
        (unread, unrestored): (Option<String>, [Option<Unrestored>; 3]),
        clock: Clock,
    ) -> io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            dir: store.dir().to_owned(),
            clock,
            lasting,
            origins,
            configured: Mutex::new(configured.map(|all| Configured { live: all.clone(), now: all })),
            unread,
            unrestored: Mutex::new(unrestored),
            saved: watch::Sender::new(Saved::default()),
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
        let mut saved = self.shared.saved.subscribe();
        let tried = tokio::time::timeout(PATIENCE, saved.wait_for(|saved| saved.changes >= wanted)).await;
        match tried {
            Ok(Ok(saved)) => saved.error.clone(),
            Ok(Err(_)) => Some("nothing saves it any more".to_owned()),
            Err(_) => Some(too_slow(&self.shared.dir)),
        }
    }

    /// Why the last attempt to save failed, if it did, or that the disk seems to hang.
    pub fn error(&self) -> Option<String> {
        self.shared.saved.borrow().error_at(self.shared.clock.now(), &self.shared.dir)
    }

    /// What of the state of an earlier host is not in effect, and why.
    pub fn not_restored(&self) -> Vec<String> {
        PolicyKind::ALL.iter().for_each(|kind| self.shared.forget_replaced(*kind));
        let unrestored = self.shared.unrestored().clone();
        let slots = PolicyKind::ALL.into_iter().zip(unrestored).filter_map(|(kind, slot)| {
            let Unrestored { all, why } = slot?;
            let name = name_of(&all);
            Some(format!("the {kind} policy `{name}` couldn't be loaded; the next start tries again: {why}"))
        });
        self.shared.unread.iter().cloned().chain(slots).collect()
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
        loop {
            let (document, components) = self.collect();
            self.saved.send_modify(|saved| saved.begun = Some(self.clock.now()));
            let outcome = store.save(&document, &components);
            let failed = outcome.is_err();
            self.tell(now.changes, outcome);
            if now.closed {
                return;
            }
            let next = changes.wait(now, failed.then_some(RETRY));
            // What failed last is tried once more.
            if next.closed && next.changes == now.changes && !failed {
                return;
            }
            now = next;
        }
    }

    fn unrestored(&self) -> MutexGuard<'_, [Option<Unrestored>; 3]> {
        self.unrestored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operator who changes a slot gives up what couldn't be loaded for it.
    fn forget_replaced(&self, kind: PolicyKind) {
        let mut unrestored = self.unrestored();
        let slot = &mut unrestored[kind as usize];
        let chosen = |entry: &HistoryEntry| {
            !entry.before_restart && ["swap", "promote", "rollback"].contains(&entry.mode.as_str())
        };
        if slot.is_some() && self.lasting.history(kind).iter().any(chosen) {
            *slot = None;
        }
    }

    fn tell(&self, changes: u64, outcome: io::Result<()>) {
        let dir = self.dir.display();
        let error = outcome.err().map(|error| format!("{dir}: {error}"));
        self.saved.send_modify(|saved| {
            match &error {
                Some(now) if saved.error.as_ref() != Some(now) => tracing::error!(
                    "swaps and the quarantine can't be saved, so a restart would undo what has changed: {now} \
                     (--policy-state)"
                ),
                None if saved.error.is_some() => tracing::info!("swaps and the quarantine are saved again in {dir}"),
                _ => {}
            }
            *saved = Saved { changes, error, begun: None };
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
            let swapped = swapped.or_else(|| Some(self.unrestored()[kind as usize].clone()?.all));
            let history = worth_saving(self.lasting.history(kind));
            let (canary, shadow) = (standing.canary, standing.shadow);
            let record = SlotRecord { configured: said.now, swapped, canary, shadow, history };
            document.slots.insert(kind.name().to_owned(), record);
        }
        document.quarantine = self.lasting.quarantine().list();
        (document, components)
    }
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
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;
    use crate::policy_state::format::Source;

    #[tokio::test]
    async fn what_could_not_be_saved_is_tried_once_more_at_the_end() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("state");
        let store = Store::open(&dir).unwrap();
        let clock = Clock::start();
        let (name, config) = ("fcfs".to_owned(), json!({}));
        let native = Kept { source: Source::Native, name, sha256: String::new(), config };
        let configured = [(); 3].map(|()| vec![native.clone()]);
        let lasting = Arc::new(Lasting::new(clock));
        let keeper =
            Keeper::start(store, Arc::clone(&lasting), Arc::default(), configured, Default::default(), clock)
                .unwrap();
        lasting.changes().note();
        assert_eq!(keeper.not_saved().await, None);
        fs::remove_dir_all(&dir).unwrap();
        lasting.changes().note();
        assert!(keeper.not_saved().await.is_some_and(|why| why.contains("No such file")));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        keeper.close();
        assert_eq!(keeper.error(), None);
        assert!(dir.join("policies.json").exists());
    }

    #[test]
    fn disk_that_hangs_is_an_error_after_a_while() {
        let error = |begun: Option<u64>, last: Option<&str>| {
            let (begun, error) = (begun.map(Micros), last.map(str::to_owned));
            Saved { changes: 1, error, begun }.error_at(Micros(60_000_000), Path::new("d"))
        };
        assert_eq!(error(None, None), None);
        assert_eq!(error(Some(59_000_000), Some("full")).as_deref(), Some("full"));
        assert_eq!(error(Some(59_000_000), None), None);
        for last in [None, Some("full")] {
            assert_eq!(error(Some(1_000_000), last).as_deref(), Some("d has taken longer than 10 s so far"));
        }
    }

    #[test]
    fn starts_in_a_row_leave_room_for_what_happened_before() {
        let entry = |mode: &str, to: &str, step: u64| HistoryEntry {
            mode: mode.to_owned(),
            to: to.to_owned(),
            step,
            ..HistoryEntry::default()
        };
        let begun = [entry("start", "fair", 1), entry("swap", "srpt", 2)];
        let starts = (0..2 * HISTORY as u64).map(|nth| entry("start", "srpt", 3 + nth));
        let changed =
            [entry("start", "fair", 1_000), entry("swap", "fair", 1_001), entry("swap", "fair", 1_002)];
        let saved = worth_saving(begun.into_iter().chain(starts).chain(changed).collect());
        let steps: Vec<u64> = saved.iter().map(|entry| entry.step).collect();
        assert_eq!(steps, [1, 2, 2 + 2 * HISTORY as u64, 1_000, 1_001, 1_002]);
        let swaps = (0..=HISTORY as u64).map(|nth| entry("swap", "srpt", nth));
        let saved = worth_saving(swaps.collect());
        assert_eq!((saved.len(), saved[0].step), (HISTORY, 1));
    }
}
