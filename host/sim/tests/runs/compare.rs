//! Sweeps: the order of results, several seeds and hosts, and runs that fail without harm to the others.

use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, Chain, Load, Policy, PolicyFault, PolicyInfo, Pressure, Verdict,
};
use infer_sim::cost::{Cost, Fit, Fitted};
use infer_sim::report::{self, MadeBy};
use infer_sim::trace::{Recorded, TraceError, in_order};
use infer_sim::{Cell, Contender, Host, Outcome, Pace, Profile, Subject, Sweep};

use crate::{named, settings};

/// A sweep of two contenders with the built-ins.
fn sweep<'a>(subjects: Vec<Subject<'a>>, seeds: &[u64]) -> Sweep<'a> {
    let contender =
        |name: &str| Contender { name: name.to_owned(), make: Box::new(|| Ok(Policies::builtin())) };
    let contenders = vec![contender("one"), contender("other")];
    let hosts = vec![Host { name: "h100".to_owned(), settings: settings(1.0, 0) }];
    let made_by = MadeBy { version: "0.9.0".to_owned(), args: vec!["sim".to_owned(), "compare".to_owned()] };
    Sweep { hosts, contenders, subjects, seeds: seeds.to_vec(), threads: 2, made_by }
}

fn diverse(paces: &[Pace]) -> Subject<'static> {
    Subject::Made { workload: named("diverse", 40), paces: paces.to_vec() }
}

/// A trace of ten requests that all arrive at once, and possibly ends in an error.
fn recorded(error: Option<&'static str>) -> Subject<'static> {
    let open = move || {
        let rows = (1..=10).map(|id| {
            Ok(Recorded { id, prompt_tokens: 100, output_tokens: 20, max_tokens: 20, ..Recorded::default() })
        });
        let end =
            error.map(|message| Err(TraceError::At { line: 11, column: 2, message: message.to_owned() }));
        Ok(in_order(rows.chain(end)))
    };
    Subject::Recorded {
        name: "monday".to_owned(),
        requests: u64::MAX,
        closed_loop: false,
        paces: vec![Pace::Load(1.0)],
        open: Box::new(open),
    }
}

fn outcomes(cells: &[Cell]) -> Vec<&Outcome> {
    cells.iter().map(|cell| cell.outcome.as_ref().expect("it ran")).collect()
}

#[test]
fn results_are_ordered_and_a_seed_gives_the_same_with_others_and_alone() {
    let run = |seeds: &[u64], threads| {
        let sweep = Sweep { threads, ..sweep(vec![diverse(&[Pace::Load(0.5), Pace::Load(0.9)])], seeds) };
        sweep.run(|_| {})
    };
    let both = run(&[3, 1], 4);
    let order: Vec<_> =
        both.iter().map(|cell| (cell.load, &cell.contender[..], cell.settings.seed)).collect();
    let each = |load: f64| [(load, "one", 3_u64), (load, "one", 1), (load, "other", 3), (load, "other", 1)];
    assert_eq!(order, [each(0.5), each(0.9)].concat());
    let alone = run(&[1], 1);
    for (with_others, alone) in both.chunks(2).zip(&alone) {
        let [_, same] = with_others else { panic!("two seeds each") };
        assert_eq!(same.outcome, alone.outcome);
        assert_ne!(outcomes(with_others)[0].fingerprint, outcomes(with_others)[1].fingerprint);
    }
}

#[test]
fn results_say_what_made_them() {
    let chained = || -> Result<Policies, String> {
        let members: [Box<dyn AdmissionPolicy>; 2] = [Box::new(Named("first")), Box::new(Named("second"))];
        let chain = Chain::new(members.into()).map_err(|fault| fault.to_string())?;
        Ok(Policies { admission: Box::new(chain), ..Policies::builtin() })
    };
    let mut sweep = sweep(vec![diverse(&[Pace::Load(0.5)])], &[1]);
    sweep.contenders.truncate(1);
    sweep.contenders.push(Contender { name: "chained".to_owned(), make: Box::new(chained) });
    let make = || Err("no such component".to_owned());
    sweep.contenders.push(Contender { name: "gone".to_owned(), make: Box::new(make) });
    let cells = sweep.run(|_| {});
    let runs: serde_json::Value = serde_json::from_str(&report::json(&cells)).expect("JSON");
    for run in runs.as_array().expect("a list") {
        assert_eq!(
            (&run["version"], &run["args"]),
            (&"0.9.0".into(), &serde_json::json!(["sim", "compare"]))
        );
    }
    let builtin = &runs[0]["policies"];
    assert_eq!(builtin["scheduler"]["name"], Policies::builtin().scheduler.info().name);
    assert!(
        builtin["admission"][0]["sha256"].is_null() && builtin["admission"].get(1).is_none(),
        "{builtin}"
    );
    let member = serde_json::json!(
        {"name": "second", "version": "2.0.0", "sha256": "digest of second", "config": {"limit": 3}}
    );
    assert_eq!(runs[1]["policies"]["admission"][1], member);
    assert!(runs[2]["policies"].is_null() && runs[2]["error"] == "no such component", "{}", runs[2]);
    let csv = report::csv(&cells);
    let [head, _, chained, gone] = csv.lines().collect::<Vec<_>>()[..] else { panic!("three runs: {csv}") };
    assert!(
        head.ends_with(",prefix_cache,prefix_cache_version,prefix_cache_sha256,prefix_cache_config"),
        "{head}"
    );
    assert!(
        chained.contains(",\"first,second\",\"2.0.0,2.0.0\",\"digest of first,digest of second\","),
        "{csv}"
    );
    assert!(gone.ends_with(",0.9.0,sim compare,,,,,,,,,,,,"), "{gone}");
}

/// An admission policy of a file, which admits everything.
struct Named(&'static str);

impl Policy for Named {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo {
            name: self.0.to_owned(),
            version: "2.0.0".to_owned(),
            digest: format!("digest of {}", self.0),
            config: r#"{"limit": 3}"#.to_owned(),
            ..PolicyInfo::default()
        })
    }
}

impl AdmissionPolicy for Named {
    fn admit(&mut self, _request: &AdmissionRequest, _load: &Load) -> Result<Verdict, PolicyFault> {
        Ok(Verdict::Admit)
    }

    fn measure(&mut self, _load: &Load) -> Result<Pressure, PolicyFault> {
        Ok(Pressure::default())
    }
}

#[test]
fn failed_runs_leave_the_others_alone() {
    let subjects = vec![diverse(&[Pace::Load(0.5)]), recorded(Some("not a number"))];
    let mut sweep = sweep(subjects, &[1, 2]);
    let make = || Err("no such component".to_owned());
    sweep.contenders.push(Contender { name: "gone".to_owned(), make: Box::new(make) });
    let cells = sweep.run(|_| {});
    assert_eq!(cells.len(), 2 * 3 * 2);
    for cell in &cells {
        let failure = cell.failure();
        match (&cell.workload[..], &cell.contender[..]) {
            (_, "gone") => {
                let failure = failure.expect("it can't be created");
                assert!(
                    failure.starts_with("gone at load") && failure.contains("no such component"),
                    "{failure}"
                );
            }
            ("monday", _) => {
                let failure = failure.expect("the trace is broken");
                assert!(failure.contains("on monday: line 11, column 2: not a number"), "{failure}");
            }
            _ => assert!(failure.is_none() && outcomes(std::slice::from_ref(cell))[0].finished == 40),
        }
    }
}

#[test]
fn progress_ends_at_all_runs_even_if_some_fail() {
    let subjects = vec![recorded(None), recorded(Some("cut off"))];
    let last = std::sync::Mutex::new((0, 0));
    sweep(subjects, &[1, 2]).run(|progress| {
        let mut last = last.lock().expect("no holder panics");
        *last = progress.runs.max(*last);
    });
    assert_eq!(last.into_inner().expect("no holder panics"), (8, 8));
}

#[test]
fn seed_of_a_trace_only_changes_measured_costs() {
    let latencies = |profile: Option<Profile>| {
        let mut sweep = sweep(vec![recorded(None)], &[1, 2]);
        sweep.contenders.truncate(1);
        if let Some(profile) = profile {
            sweep.hosts[0].settings.profile = profile;
        }
        let cells = sweep.run(|_| {});
        let outcomes = outcomes(&cells);
        [outcomes[0].latency_ms.mean, outcomes[1].latency_ms.mean]
    };
    let [one, other] = latencies(None);
    assert_eq!(one, other, "a roofline doesn't vary");
    let cost = Cost { step_us: 1_000.0, row_us: 100.0, ..Cost::default() };
    let spread = vec![0.5, 0.9, 1.1, 1.5];
    let measured = Fitted::new("here".to_owned(), (16, 8_000), cost, spread, Fit::default());
    let [one, other] = latencies(Some(Profile::Fitted(measured)));
    assert!(one > 0.0 && (one - other).abs() > 0.001 * one, "{one} {other}");
}

/// A sweep like `sweep` on an H100, then on an L4.
fn on_two_hosts(subject: Subject<'_>) -> Sweep<'_> {
    let mut sweep = sweep(vec![subject], &[1]);
    let mut settings = sweep.hosts[0].settings.clone();
    settings.profile = Profile::named("l4", "1b").expect("a known profile");
    sweep.hosts.push(Host { name: "l4".to_owned(), settings });
    sweep
}

#[test]
fn hosts_get_the_same_requests() {
    let cells = on_two_hosts(diverse(&[Pace::Load(0.7)])).run(|_| {});
    let order: Vec<_> = cells.iter().map(|cell| (&cell.contender[..], &cell.settings.device[..])).collect();
    let each =
        |host| [(if host == "h100" { ["h100 one", "h100 other"] } else { ["l4 one", "l4 other"] }, host)];
    let expected =
        ["h100", "l4"].into_iter().flat_map(each).flat_map(|(names, host)| names.map(|name| (name, host)));
    assert_eq!(order, Vec::from_iter(expected));
    let own = on_two_hosts(diverse(&[Pace::Load(0.7)]));
    let alone = Sweep { hosts: own.hosts[1..].to_vec(), ..own }.run(|_| {});
    let rate = |cell: &Cell| cell.offered_per_second.expect("synthetic traffic has a rate");
    assert_eq!(rate(&cells[0]), rate(&cells[2]), "of the first host's capacity");
    assert_ne!(rate(&cells[2]), rate(&alone[0]), "of its own");
    let tokens = |cell: &Cell| {
        let outcome = outcomes(std::slice::from_ref(cell))[0];
        (outcome.finished, outcome.tenants[0].tokens)
    };
    assert_eq!(tokens(&cells[0]), tokens(&cells[2]));
    assert_ne!(outcomes(&cells)[0].seconds, outcomes(&cells)[2].seconds, "they take different times");
}

#[test]
fn rate_is_the_load_that_offers_it() {
    let at_load = sweep(vec![diverse(&[Pace::Load(0.6)])], &[1]).run(|_| {});
    let rate = at_load[0].offered_per_second.expect("synthetic traffic has a rate");
    let at_rate = sweep(vec![diverse(&[Pace::Rate(rate)])], &[1]).run(|_| {});
    assert_eq!(at_rate[0].offered_per_second, Some(rate));
    assert!((at_rate[0].load - 0.6).abs() < 1e-12, "{}", at_rate[0].load);
    let [fast, slow] = [20.0, 10.0].map(|rate| {
        let cells = sweep(vec![diverse(&[Pace::Rate(rate)])], &[1]).run(|_| {});
        outcomes(&cells)[0].seconds
    });
    assert!(fast < slow, "{fast} {slow}");
}

/// A trace of ten requests a second apart, but that four come at once, in the middle.
fn uneven(paces: &[Pace]) -> Subject<'static> {
    let open = || {
        let rows = (1..).zip([0, 1, 2, 3, 3, 3, 3, 7, 8, 9]).map(|(id, second)| {
            let at_us = 1_000_000 * second;
            let ttft_us = Some(60_000_000);
            let (prompt_tokens, output_tokens, max_tokens) = (100, 20, 20);
            Ok(Recorded {
                id,
                at_us,
                ttft_us,
                prompt_tokens,
                output_tokens,
                max_tokens,
                ..Recorded::default()
            })
        });
        Ok(in_order(rows))
    };
    let name = "uneven".to_owned();
    let (requests, closed_loop, paces) = (u64::MAX, false, paces.to_vec());
    Subject::Recorded { name, requests, closed_loop, paces, open: Box::new(open) }
}

#[test]
fn rate_of_a_trace_is_the_load_that_scales_its_times_to_it() {
    // It has one request per second.
    let cells = sweep(vec![uneven(&[Pace::Rate(4.0), Pace::Load(4.0), Pace::Rate(0.5)])], &[1]).run(|_| {});
    let [at_rate, _, at_load, _, slow, _] = &cells[..] else { panic!("two contenders each: {cells:?}") };
    assert_eq!((at_rate.load, at_rate.offered_per_second), (4.0, Some(4.0)));
    assert_eq!((at_load.load, at_load.offered_per_second), (4.0, None));
    assert_eq!((slow.load, slow.offered_per_second), (0.5, Some(0.5)));
    assert_eq!(at_rate.outcome, at_load.outcome);
    let offered = outcomes(&cells).iter().map(|outcome| outcome.offered_seconds).collect::<Vec<_>>();
    assert_eq!((offered[0], offered[4]), (2.25, 18.0));
    let text = report::table(&cells);
    for heading in
        ["uneven at load 4.00, 4.00 requests/s: 10", "uneven at load 4.00: 10", "uneven at load 0.50"]
    {
        assert_eq!(text.matches(heading).count(), 1, "{heading}: {text}");
    }
}

#[test]
fn trace_without_a_rate_or_an_end_fails_at_any_rate() {
    let at_rates = |subject: Subject<'static>| match subject {
        Subject::Recorded { name, requests, closed_loop, open, .. } => {
            let paces = vec![Pace::Rate(2.0), Pace::Rate(3.0)];
            Subject::Recorded { name, requests, closed_loop, open, paces }
        }
        made @ Subject::Made { .. } => made,
    };
    for (error, says) in [(None, "its 10 requests came at one time"), (Some("cut off"), "line 11, column 2")]
    {
        let cells = sweep(vec![at_rates(recorded(error))], &[1]).run(|_| {});
        assert_eq!(cells.len(), 4);
        let failures: Vec<String> = cells.iter().filter_map(Cell::failure).collect();
        assert!(failures.len() == 4 && failures.iter().all(|why| why.contains(says)), "{failures:?}");
        let text = report::table(&cells);
        assert!(text.contains("2.00 requests/s") && text.contains("3.00 requests/s"), "{text}");
    }
}
