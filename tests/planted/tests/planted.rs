//! Every planted bug is found within the budget of an ordinary test run, by the machine's own books alone,
//! and shrinks to a handful of operations; without a bug nothing is found.

use std::collections::BTreeSet;
use std::path::PathBuf;

use infer_planted::bugs;
use infer_planted::fuzz::{Case, Checks, OPS, Violation, generate, minimize, play};

/// The engine's own assertions are left out, so the machine has to find the bugs itself.
const CHECKS: Checks = Checks { own: false };
/// Seeds that an ordinary test run plays.
const BUDGET: u64 = 1_500;
/// Operations that show a bug, at most.
const FEW: usize = 60;

fn hunt(seeds: u64) -> Option<(u64, Violation)> {
    (1..=seeds).find_map(|seed| Some((seed, play(&generate(seed, OPS, &[]), &[], CHECKS).err()?)))
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for &bug in bugs::ALL {
        bugs::switch(bug);
        match hunt(BUDGET) {
            Some((seed, violation)) => println!("{bug:32} seed {seed:4}  {}", violation.message),
            None => missed.push(bug),
        }
    }
    bugs::switch("");
    assert!(missed.is_empty(), "not found within {BUDGET} seeds: {missed:?}");
}

#[test]
fn minimized_cases_are_small_and_break_in_the_same_place() {
    for bug in ["leak", "double free", "lost wake-up", "stale table"] {
        bugs::switch(bug);
        let (seed, found) = hunt(BUDGET).expect("it is found");
        let case = generate(seed, OPS, &[]);
        let (small, violation) = minimize(&case, &[], CHECKS, |_| {}).expect("it is found again");
        println!("{bug}: {} operations", small.ops.len());
        assert_eq!(violation.place, found.place, "{bug}");
        assert!(small.ops.len() <= FEW, "{bug}: {} operations are left", small.ops.len());
        assert_eq!(play(&small, &[], CHECKS), Err(violation), "{bug}: it replays");
        bugs::switch("");
        assert!(play(&small, &[], CHECKS).is_ok(), "{bug}: without the bug there is nothing to find");
    }
}

#[test]
fn without_a_bug_nothing_is_found() {
    assert_eq!(hunt(200), None);
}

/// A minimized case that no longer reaches the place where it once failed would pass for ever.
#[test]
fn each_regression_case_fails_again_without_its_fix() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../host/sim/tests/regressions");
    let (mut played, mut lost) = (BTreeSet::new(), Vec::new());
    for file in folder.read_dir().expect("the cases") {
        let file = file.expect("a file").path();
        let name = file.file_stem().expect("a name").to_str().expect("a plain one");
        let bug = bugs::MENDED.iter().find(|bug| **bug == name);
        let bug = bug.unwrap_or_else(|| panic!("`{name}` has no bug in edits.rs"));
        played.insert(*bug);
        bugs::switch(bug);
        let text = std::fs::read_to_string(&file).expect("a file");
        let case = Case::from_text(&text).expect("a case");
        let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let then = told["violation"].as_str().expect("what went wrong");
        if !play(&case, &[], CHECKS).is_err_and(|violation| violation.message.contains(then)) {
            lost.push(name.to_owned());
        }
        bugs::switch("");
        assert_eq!(play(&case, &[], CHECKS).err(), None, "{name}");
    }
    assert!(lost.is_empty(), "these no longer get to what they are about: {lost:?}");
    let mended: BTreeSet<&str> = bugs::MENDED.iter().copied().collect();
    assert_eq!(played, mended, "each mend in edits.rs has a case in {}", folder.display());
}
