//! Plans and verdicts of what hosts might say.

use infer_api::admin::{CanaryInfo, HostInfo, QuarantineEntry};
use serde_json::json;

use super::verdict::IDLE_LOOKS;
use super::*;
use crate::policies::empty;

fn slot(kind: &str, name: &str, sha256: &str, config: Value) -> PolicySlot {
    PolicySlot {
        kind: kind.into(),
        name: name.into(),
        sha256: sha256.into(),
        state: "live".into(),
        config_sha256: if config == empty() { String::new() } else { format!("of {config}") },
        config,
        ..PolicySlot::default()
    }
}

fn step(before: PolicySlot, action: Action) -> Step {
    Step { run: "1".to_owned(), before, action }
}

fn available(kind: &str, name: &str, sha256: &str) -> AvailablePolicy {
    AvailablePolicy {
        kind: kind.into(),
        name: name.into(),
        sha256: sha256.into(),
        ..AvailablePolicy::default()
    }
}

/// A host with the usual policies, which runs `fair`.
fn host(run: &str) -> Seen {
    let operator = OperatorInfo { name: "bo".into(), role: "operator".into() };
    let host =
        HostInfo { run: run.into(), policy_interface: "infer:policy@0.1.0".into(), ..HostInfo::default() };
    let policies = Policies {
        slots: vec![
            slot("scheduler", "fair", "f1", empty()),
            slot("admission", "memory-aware", "a1", empty()),
        ],
        available: vec![
            available("scheduler", "fair", "f1"),
            available("scheduler", "srpt", "51"),
            available("scheduler", "builtin-fcfs", ""),
            available("admission", "memory-aware", "a1"),
            available("admission", "builtin-accept", ""),
        ],
        ..Policies::default()
    };
    Seen::new(State { host, operator: Some(operator), ..State::default() }, policies)
}

fn order(names: &str, config: Option<Value>) -> Order {
    Order { source: Source::Names(names.to_owned()), config }
}

fn wanted(order: &Order) -> Wanted<'_> {
    Wanted { kind: "scheduler", order, interface: None, canaries: Canaries::All, force: false }
}

fn actions(wanted: &Wanted<'_>, hosts: Vec<Seen>) -> Vec<Action> {
    let hosts: Vec<_> = ["a", "b", "c"].into_iter().zip(hosts.into_iter().map(Ok)).collect();
    plan(wanted, &hosts).unwrap().steps.iter().map(|step| step.action).collect()
}

/// All that is wrong with these hosts.
fn wrong(wanted: &Wanted<'_>, hosts: Vec<Result<Seen, String>>) -> Vec<String> {
    let hosts: Vec<_> = ["a", "b", "c"].into_iter().zip(hosts).collect();
    plan(wanted, &hosts).unwrap_err()
}

#[test]
fn hosts_that_run_the_policy_with_this_configuration_are_left_alone() {
    let order = order("srpt", Some(json!({"patience_ms": 5})));
    let with = |run: &str, config: Value, state: &str| {
        let mut seen = host(run);
        seen.policies.slots[0] =
            PolicySlot { state: state.into(), ..slot("scheduler", "srpt", "51", config) };
        seen
    };
    let hosts = || {
        vec![
            with("1", json!({"patience_ms": 5}), "live"),
            with("2", json!({"patience_ms": 6}), "live"),
            host("3"),
        ]
    };
    let wanted = wanted(&order);
    assert_eq!(actions(&wanted, hosts()), [Action::Leave, Action::Canary, Action::Canary]);
    let first = Wanted { canaries: Canaries::First, ..wanted };
    assert_eq!(actions(&first, hosts()), [Action::Leave, Action::Canary, Action::Now]);
    let none = Wanted { canaries: Canaries::None, ..first };
    assert_eq!(actions(&none, hosts()), [Action::Leave, Action::Now, Action::Now]);
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let order = order("srpt", None);
    let wanted = wanted(&order);
    let viewer = {
        let mut seen = host("1");
        seen.operator = Some(OperatorInfo { name: "ana".into(), role: "viewer".into() });
        seen.draining = true;
        seen
    };
    let tried = {
        let mut seen = host("2");
        seen.policies.slots[1].state = "canary".into();
        seen.interface = "infer:policy@0.2.0".into();
        seen
    };
    let found = wrong(&wanted, vec![Ok(viewer), Err("it can't be reached".into()), Ok(tried)]);
    let want = [
        "a: this takes the role `operator`; `ana` is a `viewer`",
        "a: it drains; leave it out",
        "b: it can't be reached",
        "c: the canary `memory-aware` is on trial in the admission slot; wait for its verdict, promote it, or roll it \
         back",
        "the hosts have different policy interfaces: a has infer:policy@0.1.0, c has infer:policy@0.2.0",
    ];
    assert_eq!(found, want);
}

#[test]
fn a_host_is_named_once_and_a_name_is_the_same_component_everywhere() {
    let order = order("srpt", None);
    let wanted = wanted(&order);
    let found = wrong(&wanted, vec![Ok(host("1")), Ok(host("2")), Ok(host("1"))]);
    assert_eq!(found, ["a and c are the same host; name each once, by an address of its own"]);
    let mut other = host("2");
    other.policies.available[1].sha256 = "52".repeat(32);
    let found = wrong(&wanted, vec![Ok(host("1")), Ok(other)]);
    let end = "b has 525252525252; give the file of one";
    assert!(found.len() == 1 && found[0].ends_with(end), "{found:?}");
    let mut without = host("2");
    without.policies.available.clear();
    let found = wrong(&wanted, vec![Ok(host("1")), Ok(without)]);
    assert!(found.len() == 1 && found[0].starts_with("b: there is no scheduler policy `srpt`"), "{found:?}");
}

#[test]
fn quarantined_policy_needs_force_and_only_with_its_configuration() {
    let order = order("srpt", None);
    let barred = |config: Value| {
        let mut seen = host("1");
        seen.policies.quarantine.push(QuarantineEntry {
            sha256: "51".into(),
            config,
            name: "srpt".into(),
            kind: "scheduler".into(),
            reason: "it trapped".into(),
            at_ms: 1,
            at_utc: String::new(),
        });
        seen
    };
    let wanted = wanted(&order);
    let found = wrong(&wanted, vec![Ok(barred(empty()))]);
    assert_eq!(found, ["a: `srpt` is quarantined: it trapped (--force swaps it in anyway)"]);
    assert_eq!(actions(&wanted, vec![barred(json!({"patience_ms": 5}))]), [Action::Canary]);
    let forced = Wanted { force: true, ..wanted };
    assert_eq!(actions(&forced, vec![barred(empty())]), [Action::Canary]);
}

#[test]
fn list_is_barred_by_its_own_quarantine_and_by_that_of_a_member() {
    let config = json!({"memory-aware": {"reserve": 0.2}});
    let list = order("memory-aware,builtin", Some(config));
    let wanted = Wanted { kind: "admission", ..wanted(&list) };
    let barred = |sha256: &str, config: Value| {
        let mut seen = host("1");
        seen.policies.quarantine.push(QuarantineEntry {
            sha256: sha256.into(),
            config,
            kind: "admission".into(),
            ..QuarantineEntry::default()
        });
        plan(&wanted, &[("a", Ok(seen))]).is_err()
    };
    for (sha256, config, is_barred) in [
        ("a1", json!({"reserve": 0.2}), true),
        ("a1", empty(), false),
        ("a1+", json!([{"reserve": 0.2}, {}]), true),
        ("a1+", json!([{}, {}]), false),
        ("a1", json!([{"reserve": 0.2}, {}]), false),
    ] {
        assert_eq!(barred(sha256, config.clone()), is_barred, "{sha256} {config}");
    }
}

#[test]
fn component_must_have_the_interface_of_the_hosts() {
    let order = Order { source: Source::Component(b"wasm".to_vec()), config: None };
    let of = |interface: &str| Wanted { interface: Some(interface.to_owned()), ..wanted(&order) };
    assert_eq!(actions(&of("infer:policy@0.1.0"), vec![host("1")]), [Action::Canary]);
    let found = wrong(&of("infer:policy@0.2.0"), vec![Ok(host("1"))]);
    let why =
        "a: its policies have the interface infer:policy@0.1.0, but the component has infer:policy@0.2.0";
    assert_eq!(found, [why]);
    // A host that doesn't say which it has checks the component itself.
    let mut silent = host("1");
    silent.interface.clear();
    assert_eq!(actions(&of("infer:policy@0.2.0"), vec![silent]), [Action::Canary]);

    let exports = ["infer:policy/lifecycle@0.1.0", "infer:policy/scheduler@0.1.0"].map(str::to_owned);
    assert_eq!(interface_of("scheduler", &exports), Ok("infer:policy@0.1.0".to_owned()));
    let why = "it is no admission policy: it exports infer:policy/scheduler@0.1.0";
    assert_eq!(interface_of("admission", &exports), Err(why.to_owned()));
}

#[test]
fn targets_are_recognized_in_slots_as_hosts_show_them() {
    let seen = host("1");
    let target = |kind: &str, order: &Order| Target::of(kind, order, &seen.policies).unwrap();
    let native = target("scheduler", &order("builtin", None));
    assert!(native.is_live(&slot("scheduler", "builtin-fcfs", "", empty())));
    assert!(!native.is_live(&slot("scheduler", "another", "", empty())));
    let removed = PolicySlot { state: "fallback".into(), ..slot("scheduler", "builtin-fcfs", "", empty()) };
    assert!(!native.is_live(&removed), "it replaces a removed policy");

    let list = order("memory-aware, builtin", Some(json!({"memory-aware": {"reserve": 0.2}})));
    let list = target("admission", &list);
    let config = json!([{"name": "memory-aware", "config": {"reserve": 0.2}},
                        {"name": "builtin-accept", "config": {}}]);
    assert!(list.is_live(&slot("admission", "memory-aware+builtin-accept", "a1+", config)));
    assert!(!list.is_live(&slot("admission", "memory-aware", "a1", empty())));
    let misplaced =
        Target::of("admission", &order("memory-aware,builtin", Some(json!({"x": {}}))), &seen.policies);
    assert!(misplaced.unwrap_err().contains("has `x`"));

    let component = Order { source: Source::Component(b"abc".to_vec()), config: None };
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert!(target("scheduler", &component).is_live(&slot("scheduler", "whatever", sha256, empty())));
}

#[test]
fn another_configuration_of_the_same_policy_is_a_change() {
    let step = step(slot("scheduler", "fair", "f1", empty()), Action::Canary);
    assert_eq!(step.of(), "f1");
    assert!(step.is_there(&PolicySlot { calls: 7, ..step.before.clone() }));
    assert!(!step.is_there(&slot("scheduler", "fair", "f1", json!({"x": 1}))));
    assert!(!step.is_there(&PolicySlot { state: "canary".into(), ..step.before.clone() }));
    let native = self::step(slot("scheduler", "builtin-fcfs", "", empty()), Action::Now);
    assert_eq!(native.of(), "builtin-fcfs");
}

#[test]
fn a_change_names_the_configuration_too_where_the_host_has_a_name_for_it() {
    let tagged = PolicySlot { tag: "fair@7a".into(), ..slot("scheduler", "fair", "f1", empty()) };
    assert_eq!(step(tagged, Action::Canary).of(), "fair@7a");
    let answer = SwapAnswer { to: "fair".into(), sha256: "f1".into(), ..SwapAnswer::default() };
    assert_eq!(of_answer(&answer), "f1");
    assert_eq!(of_answer(&SwapAnswer { sha256: String::new(), ..answer.clone() }), "fair");
    assert_eq!(of_answer(&SwapAnswer { tag: "fair@7a".into(), ..answer }), "fair@7a");
}

#[test]
fn what_ran_before_is_named_only_if_the_host_knows_it() {
    let policies = host("1").policies;
    let named = |slot: PolicySlot| {
        let Order { source: Source::Names(names), config } = by_name(&slot, &policies)? else {
            panic!("names are no component")
        };
        Some((names, config))
    };
    let config = json!({"patience_ms": 5});
    let srpt = slot("scheduler", "srpt", "51", config.clone());
    assert_eq!(named(srpt), Some(("srpt".to_owned(), Some(config))));
    let native = slot("scheduler", "builtin-fcfs", "", empty());
    assert_eq!(named(native), Some(("builtin-fcfs".to_owned(), Some(empty()))));
    assert_eq!(named(slot("scheduler", "srpt", "52", empty())), None, "another component");
    assert_eq!(named(slot("admission", "srpt", "51", empty())), None, "another slot");

    let member = |name: &str, config: Value| json!({"name": name, "config": config});
    let reserve = json!({"reserve": 0.2});
    let both = json!([member("memory-aware", reserve.clone()), member("builtin-accept", empty())]);
    let list = slot("admission", "memory-aware+builtin-accept", "a1+", both.clone());
    let configs = json!({"memory-aware": reserve, "builtin-accept": {}});
    assert_eq!(named(list), Some(("memory-aware,builtin-accept".to_owned(), Some(configs))));
    assert_eq!(named(slot("admission", "memory-aware+builtin-accept", "a2+", both)), None);
    let twice = json!([member("memory-aware", empty()), member("memory-aware", empty())]);
    assert_eq!(named(slot("admission", "memory-aware+memory-aware", "a1+a1", twice)), None);
}

#[test]
fn restarted_host_has_another_run() {
    let order = order("srpt", None);
    let plan = plan(&wanted(&order), &[("a", Ok(host("1"))), ("b", Ok(host("")))]).unwrap();
    let another = |at: usize, run: &str| plan.steps[at].is_another_run(run);
    assert_eq!(
        [another(0, "1"), another(0, "2"), another(0, ""), another(1, "2")],
        [false, true, false, false]
    );
}

#[test]
fn verdicts_are_read_from_the_slot() {
    let target = Target::of("scheduler", &order("srpt", None), &host("1").policies).unwrap();
    let canary = |state: &str, sha256: &str| {
        Some(CanaryInfo {
            state: state.into(),
            sha256: sha256.into(),
            reason: "as it was".into(),
            watched_s: 2.0,
            window_s: 30.0,
            ..CanaryInfo::default()
        })
    };
    let own = || slot("scheduler", "srpt", "51", empty());
    let other = || slot("scheduler", "fair", "f1", empty());
    let gone = |why: &str| Verdict::Gone(why.to_owned());
    let extended = |watched_s: f64| {
        let canary =
            canary("watching", "51").map(|canary| CanaryInfo { watched_s, longest_s: 120.0, ..canary });
        PolicySlot { state: "canary".into(), canary, ..own() }
    };
    for (slot, expected) in [
        (
            PolicySlot { state: "canary".into(), canary: canary("watching", "51"), ..own() },
            Verdict::Watching { watched_s: 2.0, window_s: 30.0 },
        ),
        (extended(2.0), Verdict::Watching { watched_s: 2.0, window_s: 30.0 }),
        (extended(40.0), Verdict::Watching { watched_s: 40.0, window_s: 120.0 }),
        (PolicySlot { canary: canary("promoted", "51"), ..own() }, Verdict::Stays("as it was".to_owned())),
        (
            PolicySlot { canary: canary("rolled_back", "51"), ..other() },
            gone("the canary was rolled back: as it was"),
        ),
        (PolicySlot { canary: canary("rolled_back", "f1"), ..other() }, gone("`fair` is live there now")),
        (other(), gone("`fair` is live there now")),
        (slot("scheduler", "srpt", "51", json!({"patience_ms": 5})), gone("`srpt` is live there now")),
    ] {
        assert_eq!(verdict(&slot, &target), expected, "{slot:?}");
    }
}

#[test]
fn host_without_work_is_noticed_once() {
    let mut idleness = Idleness::default();
    let mut news = |watched_s: f64, looks: u32| (0..looks).filter(|_| idleness.is_news(watched_s)).count();
    assert_eq!((1..100).map(|look| news(f64::from(look), 1)).sum::<usize>(), 0);
    assert_eq!(news(99.0, IDLE_LOOKS - 2), 0);
    assert_eq!(news(99.0, 3 * IDLE_LOOKS), 1);
    // Work came, and went again.
    assert_eq!(news(99.5, 3 * IDLE_LOOKS), 0);
}

#[test]
fn rows_say_what_ran_what_runs_and_what_happened() {
    let step = step(slot("scheduler", "fair", "f1", empty()), Action::Canary);
    let before = "fair (native)";
    let tried = PolicySlot { state: "canary".into(), ..slot("scheduler", "srpt", "51", empty()) };
    for (now, fate, cells) in [
        (
            Some(&tried),
            Fate::new(Outcome::Undecided, "none within 3 s; idle"),
            ["srpt (native), canary", "no verdict: none within 3 s; idle"],
        ),
        (None, Fate::ahead(Action::Canary), ["?", "not reached"]),
        (Some(&step.before), Fate::ahead(Action::Leave), [before, "had it already"]),
        (Some(&step.before), Fate::new(Outcome::Failed, "a\nb"), [before, "failed: a"]),
        (
            Some(&step.before),
            Fate::new(Outcome::RolledBackToAnother, "x"),
            [before, "rolled back to another policy: x"],
        ),
    ] {
        let row = row("a", &step, now, &fate);
        assert_eq!(row, ["a", before, cells[0], cells[1]]);
        assert_eq!(fate.is_good(), fate.outcome == Outcome::Unchanged);
    }
}

#[test]
fn a_rollback_keeps_what_made_it_necessary() {
    let (live, failed) = (Fate::new(Outcome::Live, "no fault"), Fate::new(Outcome::Failed, "a\nb"));
    let undecided = Fate::new(Outcome::Undecided, "it was interrupted");
    let back = || Fate::new(Outcome::RolledBack, "");
    assert_eq!(back().after(&live), back());
    assert_eq!(back().after(&failed).words(), "rolled back: failed: a");
    assert_eq!(back().after(&undecided).words(), "rolled back: no verdict: it was interrupted");
    let left = Fate::new(Outcome::Left, "it doesn't answer").after(&failed);
    assert_eq!(left.words(), "left as it is: it doesn't answer; before: failed: a");
}
