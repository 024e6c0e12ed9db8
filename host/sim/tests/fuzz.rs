//! The fault machine: a short run finds no violation, reaches every kind of event and is reproducible, and old findings
//! stay fixed. `SEED=n` runs one seed, `SEEDS=n` that many.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use infer_core::engine::Policies;
use infer_core::policy::AnyPolicy;
use infer_sim::fuzz::{Case, CaseError, Checks, Hunt, OPS, Outsider, Summary, generate, play};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// How long a seed may be late before it counts as one that hangs: a busy machine may be slow.
const PATIENCE: Duration = Duration::from_secs(600);

fn hunt(seed: u64, seeds: u64, threads: usize) -> Summary {
    let checks = Checks::default();
    let hunt = Hunt { seed, seeds, steps: u64::MAX, ops: OPS, threads, outsiders: Vec::new(), checks };
    let late = Mutex::new(None::<(u64, Instant)>);
    hunt.run(|summary| {
        let mut late = late.lock().unwrap();
        match (*late, summary.late) {
            (Some((seed, since)), Some(still)) if seed == still => {
                if since.elapsed() > PATIENCE {
                    // Captured output of a test that never ends is never shown.
                    let _ = writeln!(std::io::stderr(), "SEED={seed} has been playing for ten minutes");
                    std::process::exit(1);
                }
            }
            (_, now) => *late = now.map(|seed| (seed, Instant::now())),
        }
    })
}

#[test]
fn a_budget_of_seeds_finds_nothing_and_reaches_everything() {
    let (seed, seeds) = number("SEED").map_or((1, number("SEEDS").unwrap_or(600)), |seed| (seed, 1));
    let summary = hunt(seed, seeds, 2);
    if let Some((seed, violation)) = &summary.violation {
        panic!(
            "SEED={seed}: {violation:?}; `infer sim fuzz --seed {seed} --seeds 1 --minimize` minimizes it"
        );
    }
    // A machine that never reaches an event can't find bugs in it. Canary verdicts take longer than most cases last.
    if seeds > 1 {
        for (name, count) in summary.reached.rows() {
            assert!(count > 10 || name.ends_with("verdict"), "{name}: {count}\n{}", summary.reached);
        }
    }
}

#[test]
fn results_depend_on_the_seed_alone() {
    let [first, again, other] = [hunt(7, 40, 1), hunt(7, 40, 3), hunt(8, 40, 1)];
    assert_eq!(first, again);
    assert_ne!(first.fingerprint, other.fingerprint);
    let steps = Hunt {
        seed: 7,
        seeds: u64::MAX,
        steps: first.steps,
        ops: OPS,
        threads: 3,
        outsiders: Vec::new(),
        checks: Checks::default(),
    };
    assert_eq!(steps.run(|_| {}), first, "a limit of steps ends at a whole seed");
}

/// The results of the seeds behind it are kept until it ends.
#[test]
fn seeds_do_not_run_far_ahead_of_one_that_takes_long() {
    let (begun, played, ahead) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let make = || {
        if !begun.swap(true, Ordering::Relaxed) {
            // Until the other thread waits, or has played everything.
            let mut before = u64::MAX;
            while before != played.load(Ordering::Relaxed) {
                before = played.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(200));
            }
            ahead.store(before, Ordering::Relaxed);
        }
        AnyPolicy::Scheduler(Policies::builtin().scheduler)
    };
    let hunt = Hunt {
        seed: 1,
        seeds: 1_000,
        steps: u64::MAX,
        ops: 1,
        threads: 2,
        outsiders: vec![Outsider { name: "scheduler slow".to_owned(), make: Box::new(make) }],
        checks: Checks::default(),
    };
    let summary = hunt.run(|_| {
        played.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!((summary.seeds, summary.violation), (1_000, None));
    assert!(begun.load(Ordering::Relaxed), "no seed was slow");
    let ahead = ahead.load(Ordering::Relaxed);
    assert!(ahead < 600, "{ahead} seeds were played meanwhile");
}

#[test]
fn cases_survive_a_round_trip_through_their_file() {
    for seed in 0..20 {
        let case = generate(seed, OPS, &["scheduler x".to_owned()]);
        let read = Case::from_text(&case.to_text("it \"failed\"\n")).unwrap();
        assert_eq!(read, case, "SEED={seed}");
    }
    let text = generate(1, 3, &[]).to_text("");
    for (from, to, message) in [
        ("\"version\": 1", "\"version\": 2", "version 2"),
        ("\"block_size\":", "\"block_length\":", "unknown field"),
        ("\"total_blocks\":", "\"total_blocks\":9999999,\"x\":", "x"),
        ("\"ops\": [", "\"ops\": [{\"op\":\"dance\"},", "dance"),
    ] {
        let error = Case::from_text(&text.replacen(from, to, 1)).unwrap_err();
        assert!(error.to_string().contains(message), "{from}: {error}");
    }
    let mut huge = generate(1, 3, &[]);
    huge.setup.total_blocks = u32::MAX;
    assert!(matches!(Case::from_text(&huge.to_text("")), Err(CaseError::Setup(_))));
    for (others, fits) in [(7, true), (8, false)] {
        let mut case = generate(1, 3, &[]);
        let admission = &mut case.setup.policies[1];
        admission.also = vec![admission.style; others];
        let read = Case::from_text(&case.to_text(""));
        assert!(
            if fits { read.is_ok() } else { matches!(read, Err(CaseError::Setup(_))) },
            "{others} others"
        );
    }
}

/// Minimized cases that once failed; `tests/REGRESSIONS.md` says how.
#[test]
fn fixed_cases_stay_fixed() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let case = Case::from_text(&std::fs::read_to_string(&file).unwrap()).unwrap();
        if let Err(violation) = play(&case, &[], Checks::default()) {
            panic!("{}: {violation:?}", file.display());
        }
    }
}
