//! The search for the highest load that policies sustain, with the real engine.

use infer_core::config::{EngineConfig, Limits};
use infer_core::engine::Policies;
use infer_sim::report::MadeBy;
use infer_sim::trace::{Recorded, TraceError, in_order};
use infer_sim::{Contender, Found, Host, Pace, Search, Settings, Slo, Subject, Sweep, report};

use crate::{named, settings};

/// Hosts that differ in the sequences they run at a time.
fn hosts(running: &[u32]) -> Vec<Host> {
    let host = |&max_running: &u32| {
        let limits = Limits { max_running, ..EngineConfig::default().limits };
        let engine =
            EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, limits, ..EngineConfig::default() };
        let slo = Slo { ttft_ms: 500.0, itl_ms: 50.0 };
        let settings = Settings { engine, slo, ..settings(1.0, 0) };
        Host { name: format!("{max_running} at a time"), settings }
    };
    running.iter().map(host).collect()
}

fn search<'a>(hosts: Vec<Host>, subjects: Vec<Subject<'a>>, threads: usize) -> Search<'a> {
    let make = || Ok(Policies::builtin());
    let contenders = vec![Contender { name: "builtin".to_owned(), make: Box::new(make) }];
    let made_by = MadeBy::default();
    Search { sweep: Sweep { hosts, contenders, subjects, seeds: vec![1, 2], threads, made_by }, share: 0.9 }
}

fn diverse() -> Subject<'static> {
    let workload = named("diverse", 300);
    Subject::Made { workload, paces: vec![Pace::Load(0.8)] }
}

/// Requests per second that are sustained, and those that are not.
fn edge(found: &Found) -> (f64, f64) {
    let rate = |cell: &Option<infer_sim::Cell>| cell.as_ref()?.offered_per_second;
    (rate(&found.sustained).expect("a load is sustained"), rate(&found.beyond).expect("a load is not"))
}

#[test]
fn edge_is_close_and_the_same_however_many_threads_search() {
    let found = search(hosts(&[16, 64]), vec![diverse()], 4).run(|_| {});
    assert_eq!(found.len(), 4, "two hosts, two seeds");
    for one in &found {
        let (low, high) = edge(one);
        assert!(low < high && high <= 1.021 * low, "{low} {high}");
        let share = |cell: &Option<infer_sim::Cell>| {
            cell.as_ref().and_then(|cell| cell.outcome.as_ref().ok()).map(|o| o.targets.share())
        };
        assert!(share(&one.sustained) >= Some(0.9) && share(&one.beyond) < Some(0.9), "{:?}", one.probes);
        let targets = one.outcome().expect("it ran").targets;
        assert_eq!(targets.met + targets.late + targets.slow + targets.unserved, 300, "{targets:?}");
    }
    // With few slots, requests wait for one, and the first host can't promise what the second can.
    assert!(edge(&found[2]).0 > 1.3 * edge(&found[0]).0, "{}", report::sustained_table(&found, 0.9));
    assert_eq!(found[0].limit(), Some("TTFT"));
    let alone = search(hosts(&[16, 64]), vec![diverse()], 1).run(|_| {});
    assert_eq!(report::sustained_json(&alone), report::sustained_json(&found));
}

#[test]
fn stricter_targets_lower_the_edge() {
    let edge_with = |itl_ms: f64, share: f64| {
        let mut hosts = hosts(&[64]);
        hosts[0].settings.slo.itl_ms = itl_ms;
        let search = Search { share, ..search(hosts, vec![diverse()], 2) };
        let found = search.run(|_| {});
        (found.iter().map(|found| edge(found).0).sum::<f64>(), found[0].limit())
    };
    let (lax, limit) = edge_with(50.0, 0.9);
    assert_eq!(limit, Some("TTFT"));
    let (strict, limit) = edge_with(7.0, 0.9);
    assert_eq!(limit, Some("ITL"));
    assert!(strict < 0.9 * lax, "{strict} {lax}");
    let (nearly_all, _) = edge_with(50.0, 0.99);
    assert!(nearly_all < lax, "{nearly_all} {lax}");
}

#[test]
fn trace_is_replayed_faster_until_it_is_too_fast() {
    let trace = |error: bool| {
        let open = move || {
            let rows = (1..=60).map(|id| {
                let at_us = id * 400_000;
                Ok(Recorded {
                    id,
                    at_us,
                    prompt_tokens: 900,
                    output_tokens: 200,
                    max_tokens: 200,
                    ..Recorded::default()
                })
            });
            let end = error
                .then(|| Err(TraceError::At { line: 61, column: 1, message: "not a number".to_owned() }));
            Ok(in_order(rows.chain(end)))
        };
        let name = if error { "broken" } else { "monday" }.to_owned();
        let (requests, closed_loop, paces) = (u64::MAX, false, vec![Pace::Load(1.0)]);
        Subject::Recorded { name, requests, closed_loop, paces, open: Box::new(open) }
    };
    let last = std::sync::Mutex::new((0, 0));
    let found = search(hosts(&[64]), vec![trace(false), trace(true)], 2).run(|progress| {
        let mut last = last.lock().expect("no holder panics");
        *last = progress.runs.max(*last);
    });
    assert_eq!(last.into_inner().expect("no holder panicked"), (4, 4));
    let (low, high) =
        (found[0].sustained.as_ref().expect("one is"), found[0].beyond.as_ref().expect("one isn't"));
    assert!(low.load > 1.0 && high.load <= 1.021 * low.load, "{:?}", found[0].probes);
    // One every 0.4 s was recorded.
    for probe in &found[0].probes {
        let rate = probe.offered_per_second.expect("the trace has a rate");
        assert!((rate - 2.5 * probe.load).abs() < 1e-9, "{probe:?}");
    }
    assert!((edge(&found[0]).0 - 2.5 * low.load).abs() < 1e-9, "{:?}", found[0].probes);
    assert!(found[2].failed.is_some() && found[2].sustained.is_none());
    let text = report::sustained_table(&found, 0.9);
    assert!(text.contains("broken\n  builtin, seed 1 failed: line 61, column 1: not a number"), "{text}");
}
