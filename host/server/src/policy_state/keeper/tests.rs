//! What is written when, and what becomes of it if a disk fails or hangs, or another directory takes the place of this one.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use infer_core::engine::{Carried, Numbers};
use serde_json::json;

use super::*;
use crate::config::Config;
use crate::policy_state::format::Source;
use crate::policy_state::store::EXPORTED;

fn native(name: &str) -> Kept {
    Kept { source: Source::Native, name: name.to_owned(), sha256: String::new(), config: json!({}) }
}

/// A keeper of slots with native policies.
fn started(dir: &Path) -> (Arc<Lasting>, Arc<Keeper>) {
    started_without(dir, [None, None, None])
}

/// Likewise, after a start at which these couldn't be loaded.
fn started_without(dir: &Path, unrestored: [Option<Unrestored>; 3]) -> (Arc<Lasting>, Arc<Keeper>) {
    let store = Store::open(dir).unwrap();
    let clock = Clock::start();
    let native = native("fcfs");
    let lasting = Arc::new(Lasting::new(clock));
    let begins = Begins {
        origins: Arc::default(),
        tenants: Arc::new(Tenants::open(&Config::default()).unwrap()),
        configured: [(); 3].map(|()| vec![native.clone()]),
        unread: Vec::new(),
        unrestored,
        knowledge: Knowledge::default(),
    };
    let keeper = Keeper::start(store, Arc::clone(&lasting), clock, begins).unwrap();
    (lasting, keeper)
}

#[tokio::test]
async fn what_could_not_be_saved_is_tried_once_more_at_the_end() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let (lasting, keeper) = started(&dir);
    lasting.changes().note();
    assert_eq!(keeper.not_saved().await, None);
    fs::remove_dir_all(&dir).unwrap();
    lasting.changes().note();
    assert!(keeper.not_saved().await.is_some_and(|why| why.contains("No such file")));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    lasting.leave(Carried::default());
    keeper.close();
    assert_eq!(keeper.error(), None);
    assert!(["policies.json", EXPORTED].iter().all(|name| dir.join(name).exists()));
}

#[tokio::test]
async fn what_policies_exported_is_saved_as_it_comes_and_no_change_waits_for_it() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let (lasting, keeper) = started(&dir);
    let exported =
        |next_id| Carried { numbers: Numbers { next_id, ..Numbers::default() }, states: Vec::new() };
    let errors = async |wanted: bool| {
        let mut attempts = keeper.shared.attempts.subscribe();
        let told = attempts.wait_for(|last| last.exported_error.is_some() == wanted).await;
        told.unwrap().exported_error.clone()
    };
    // What stands in the way of the new file keeps it from its place.
    fs::create_dir(dir.join(EXPORTED)).unwrap();
    lasting.leave(exported(2));
    let why = errors(true).await.unwrap();
    assert!(why.contains("what policies know can't be saved: "), "{why}");
    assert_eq!((keeper.error(), keeper.not_saved().await), (Some(why), None));
    fs::remove_dir(dir.join(EXPORTED)).unwrap();
    lasting.leave(exported(3));
    assert_eq!(errors(false).await, None);
    keeper.close();
    let saved = Store::open(&dir).unwrap().exported().unwrap().unwrap();
    assert_eq!((saved.carried.numbers.next_id, saved.tenants.next), (3, 1));
}

#[tokio::test]
async fn directory_in_the_place_of_another_gets_all_files_whichever_comes_first() {
    for change_comes_first in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("state");
        let (lasting, keeper) = started(&dir);
        lasting.leave(Carried::default());
        // With the second change or before, what was left is saved, and nothing is under way after it.
        for _ in 0..2 {
            lasting.changes().note();
            assert_eq!(keeper.not_saved().await, None);
        }
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        match change_comes_first {
            true => lasting.changes().note(),
            false => lasting.leave(Carried::default()),
        }
        keeper.close();
        assert_eq!(keeper.error(), None);
        for name in ["policies.json", EXPORTED] {
            assert!(dir.join(name).exists(), "{name}, {change_comes_first}");
        }
    }
}

#[test]
fn what_could_not_be_loaded_waits_until_an_operator_has_decided_what_is_in_its_place() {
    for (happened, waits) in [
        (&["start", "shadow", "fault"][..], true),
        (&["swap"], false),
        (&["promote"], false),
        (&["rollback"], false),
        (&["canary", "disturbed"], true),
        (&["canary", "disturbed", "stays"], false),
        (&["canary", "verdict"], true),
        (&["canary", "fault", "rollback"], false),
        // The second canary takes the place of the first.
        (&["canary", "rollback", "canary", "shadow", "rollback"], true),
        (&["canary", "rollback", "rollback"], false),
    ] {
        let home = tempfile::tempdir().unwrap();
        let lost = Unrestored { all: vec![native("mine")], why: "memory is short".to_owned(), knew: None };
        let (lasting, keeper) = started_without(&home.path().join("state"), [None, Some(lost), None]);
        assert_eq!(keeper.not_restored().len(), 1);
        for mode in happened {
            let entry = HistoryEntry { mode: (*mode).to_owned(), ..HistoryEntry::default() };
            lasting.add_history(PolicyKind::Admission, entry);
        }
        assert_eq!(keeper.not_restored().len(), usize::from(waits), "{happened:?}");
        keeper.close();
    }
}

#[test]
fn disk_that_hangs_is_an_error_after_a_while() {
    let error = |begun: Option<u64>, last: Option<&str>| {
        let (begun, error) = (begun.map(Micros), last.map(str::to_owned));
        Attempts { changes: 1, error, begun, ..Attempts::default() }
            .error_at(Micros(60_000_000), Path::new("d"))
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
    let changed = [entry("start", "fair", 1_000), entry("swap", "fair", 1_001), entry("swap", "fair", 1_002)];
    let saved = worth_saving(begun.into_iter().chain(starts).chain(changed).collect());
    let steps: Vec<u64> = saved.iter().map(|entry| entry.step).collect();
    assert_eq!(steps, [1, 2, 2 + 2 * HISTORY as u64, 1_000, 1_001, 1_002]);
    let swaps = (0..=HISTORY as u64).map(|nth| entry("swap", "srpt", nth));
    let saved = worth_saving(swaps.collect());
    assert_eq!((saved.len(), saved[0].step), (HISTORY, 1));
}
