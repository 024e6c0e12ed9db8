//! Replays of recorded hosts: their settings, tenants and decisions.

use infer_api::trace;

use super::formats::measured;
use super::{recording, recording_with, results, sim, text};

#[test]
fn recordings_of_hosts_with_different_settings_are_not_compared() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = recording(dir.path(), "small.jsonl", 100, 1);
    let large = recording(dir.path(), "large.jsonl", 200, 1);
    let compare = |flags: &[&str]| {
        let traces = ["compare", "--scheduler", "builtin", "--trace", &small, "--trace", &large];
        sim(&[&traces[..], flags].concat())
    };
    let refused = compare(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let says = format!("--trace {large}: its host had other settings than that of {small}");
    assert!(text(&refused.stderr).contains(&says), "{}", text(&refused.stderr));
    let same = compare(&["--blocks", "300"]);
    assert!(same.status.success(), "{}", text(&same.stderr));
}

#[test]
fn replay_names_the_simulated_host_and_says_where_the_recorded_one_differs() {
    let dir = tempfile::tempdir().expect("a directory");
    let monday = recording(dir.path(), "monday.jsonl", 100, 3);
    let compare = |more: &[&str]| {
        let usual =
            ["compare", "--scheduler", "builtin", "--admission", "builtin", "--prefix-cache", "builtin"];
        let output = sim(&[&usual[..], &["--trace", &monday], more].concat());
        assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let differs = "monday was recorded with demo on cpu, and is replayed on ";
    let (shown, said) = compare(&[]);
    assert!(shown.starts_with("simulated host: h100 with a model of shape 8b, at most 8 running"), "{shown}");
    assert!(
        said.contains(&format!("{differs}h100 with a model of shape 8b; see --device and --model")),
        "{said}"
    );
    let (shown, said) = compare(&["--device", "cpu", "--model", "demo"]);
    assert!(shown.starts_with("simulated host: cpu with a model of shape demo, "), "{shown}");
    assert!(!said.contains(differs), "{said}");
}

#[test]
fn replay_has_the_second_level_that_the_recorded_host_had_where_copies_have_a_price() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = recording(dir.path(), "monday.jsonl", 100, 3);
    let head = std::fs::read_to_string(&path).expect("it is there");
    std::fs::write(&path, head.replacen("\"offload_blocks\":0", "\"offload_blocks\":7", 1))
        .expect("it can be written");
    // Steps with copies take far longer, which no profile explains.
    let steps = measured(dir.path());
    let slow = |step: String| match serde_json::from_str(&step).expect("a line") {
        trace::Line::Step(mut step) if step.step < 10 => {
            (step.end, step.copied) = (step.at + 9_000, 3);
            serde_json::to_string(&trace::Line::Step(step)).expect("JSON") + "\n"
        }
        _ => step + "\n",
    };
    let lines = std::fs::read_to_string(&steps).expect("it is there");
    std::fs::write(&steps, lines.lines().map(|line| slow(line.to_owned())).collect::<String>())
        .expect("it can be written");
    let profile = dir.path().join("host.json");
    let profile = profile.to_str().expect("UTF-8");
    let said = sim(&["calibrate", &steps, "--out", profile]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(text(&said.stderr).contains("left out 10 steps that copied blocks"), "{}", text(&said.stderr));
    assert!(text(&said.stderr).contains("90 steps; error of"));
    assert!(!text(&said.stderr).contains("warning: "), "{}", text(&said.stderr));

    let compare = |more: &[&str]| {
        let output = sim(&[&["compare", "--scheduler", "builtin", "--trace", &path], more].concat());
        assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
        let lacks = text(&output.stderr).contains("the recorded host had a second level of the prefix cache");
        (text(&output.stdout).contains(", 7 more in a second level"), lacks)
    };
    assert_eq!(compare(&[]), (true, false));
    assert_eq!(compare(&["--offload-blocks", "0"]), (false, false));
    assert_eq!(compare(&["--device", profile]), (false, true));
}

#[test]
fn profile_of_a_busy_machine_is_doubted() {
    let dir = tempfile::tempdir().expect("a directory");
    let steps = measured(dir.path());
    let disturbed = |step: &str| match serde_json::from_str(step).expect("a line") {
        trace::Line::Step(mut step) if step.step % 5 == 0 => {
            step.end = step.at + 5 * (step.end - step.at);
            serde_json::to_string(&trace::Line::Step(step)).expect("JSON") + "\n"
        }
        _ => step.to_owned() + "\n",
    };
    let lines = std::fs::read_to_string(&steps).expect("it is there");
    std::fs::write(&steps, lines.lines().map(disturbed).collect::<String>()).expect("it can be written");
    let fitted = sim(&["calibrate", &steps]);
    let said = text(&fitted.stderr);
    assert!(
        fitted.status.success() && said.contains("warning: this profile doesn't predict its own steps"),
        "{said}"
    );
    assert!(said.contains("something else ran on the machine"), "{said}");
}

#[test]
fn replay_grants_tenants_what_the_recorded_host_did() {
    let dir = tempfile::tempdir().expect("a directory");
    let poor = trace::Tenant { tenant: 0, weight_permille: 1_000, rate_per_minute: 20, burst: 0 };
    let [free, limited] = [("free.jsonl", Vec::new()), ("limited.jsonl", vec![poor])]
        .map(|(name, tenants)| recording_with(dir.path(), name, 100, 10, tenants));
    let refused = |path: &str, more: &[&str]| {
        let usual = ["run", "--trace", path, "--scheduler", "builtin", "--admission", "token-bucket"];
        results(&[&usual[..], &["--prefix-cache", "builtin"], more].concat())[0]["refused"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(refused(&free, &[]), 0);
    assert!((5..10).contains(&refused(&limited, &[])));
    let own = dir.path().join("own.toml");
    std::fs::write(&own, "[tenants.first]\n").expect("it can be written");
    assert_eq!(refused(&limited, &["--api-keys", own.to_str().expect("UTF-8")]), 0, "a file replaces them");
    let compared = sim(&["compare", "--scheduler", "builtin", "--trace", &free, "--trace", &limited]);
    let says = "its host had other weights or rates of tenants than that of";
    assert!(text(&compared.stderr).contains(says), "{}", text(&compared.stderr));
    assert!(text(&compared.stderr).contains("or give all the same by --api-keys"));
}

#[test]
fn terms_of_recorded_tenants_do_not_reach_other_traffic() {
    let dir = tempfile::tempdir().expect("a directory");
    let poor = trace::Tenant { tenant: 0, weight_permille: 1_000, rate_per_minute: 20, burst: 0 };
    let limited = recording_with(dir.path(), "limited.jsonl", 100, 10, vec![poor]);
    let azure = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/traces/azure.csv");
    let compare = |more: &[&str]| {
        sim(&[&["compare", "--scheduler", "builtin", "--trace", &limited][..], more].concat())
    };
    for other in [["--workload", "diverse"], ["--trace", azure]] {
        let output = compare(&other);
        let says = format!(
            "--trace {limited}: its host's weights and rates of tenants don't apply to other traffic"
        );
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(&says), "{}", text(&output.stderr));
    }
    let own = dir.path().join("own.toml");
    std::fs::write(&own, "[tenants.first]\n").expect("it can be written");
    let own = own.to_str().expect("UTF-8");
    let output = compare(&["--trace", azure, "--api-keys", own]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(compare(&[]).status.success(), "by itself");
}

#[test]
fn trace_without_requests_is_a_failure() {
    let dir = tempfile::tempdir().expect("a directory");
    let idle = recording(dir.path(), "idle.jsonl", 100, 0);
    let output = sim(&["compare", "--scheduler", "builtin", "--trace", &idle]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("idle: the trace has no requests to replay"),
        "{}",
        text(&output.stderr)
    );
    assert!(output.stdout.is_empty(), "no table of zeros");
}

#[test]
fn recording_of_refused_requests_alone_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = recording(dir.path(), "full.jsonl", 100, 0);
    let head = std::fs::read_to_string(&path).expect("it was written");
    let refused = trace::Line::Refused(trace::Refused { prompt: 9, max: 9, ..trace::Refused::default() });
    let refused = serde_json::to_string(&refused).expect("JSON") + "\n";
    let builtin = ["--scheduler", "builtin", "--admission", "builtin", "--prefix-cache", "builtin"];
    for (refusals, what) in [(1, "a request"), (3, "3 requests")] {
        std::fs::write(&path, head.clone() + &refused.repeat(refusals)).expect("it can be written");
        let why = format!("; its host refused {what} while it was recorded, which no replay can send");
        for command in ["run", "compare", "capacity"] {
            let output = sim(&[&[command, "--trace", &path][..], &builtin].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            assert!(
                said.contains(&format!("full: the trace has no requests to replay{why}")),
                "{command}: {said}"
            );
        }
        let output = sim(&["judge", "--device", "cpu", "--model", "demo", &path]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("full.jsonl: no request generated a token{why}")), "{said}");
    }
}

#[test]
fn decisions_behind_a_gap_are_no_empty_recording() {
    let head = trace::Head { format: trace::FORMAT, decisions: true, ..trace::Head::default() };
    let asked = trace::Asked {
        kind: "prefix-cache".to_owned(),
        question: serde_json::json!({"evict": {"now": 1, "need": 1}}),
        answer: serde_json::json!([]),
        ..trace::Asked::default()
    };
    let (head, asked) = (trace::Line::Head(Box::new(head)), trace::Line::Asked(Box::new(asked)));
    let gap = trace::Line::Lost { happenings: 3 };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("gap.jsonl");
    for (lines, says) in [
        (vec![&head, &gap, &asked, &asked], "all 2 are behind a gap"),
        (vec![&head], "the recording contains no decisions"),
    ] {
        let line = |line: &&trace::Line| serde_json::to_string(line).expect("JSON") + "\n";
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).expect("it can be written");
        let output = sim(&["decisions", path.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(says), "{says}: {}", text(&output.stderr));
    }
}

#[test]
fn policies_that_were_changed_while_recording_are_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = recording(dir.path(), "monday.jsonl", 100, 3);
    let content = std::fs::read_to_string(&path).expect("it was written");
    let lines: Vec<trace::Line> =
        content.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let policy = |name: &str| {
        let member = trace::Member { name: name.to_owned(), ..trace::Member::default() };
        trace::Policy { kind: "scheduler".to_owned(), members: vec![member] }
    };
    let said = |command: &str, changes: &[&str]| {
        let mut lines = lines.clone();
        let trace::Line::Head(head) = &mut lines[0] else { panic!("a head comes first") };
        head.policies = vec![policy("fair")];
        lines.extend(changes.iter().map(|name| trace::Line::Policy(policy(name))));
        let line = |line: &trace::Line| serde_json::to_string(line).expect("JSON") + "\n";
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).expect("it can be written");
        let builtin = ["--scheduler", "builtin", "--admission", "builtin", "--prefix-cache", "builtin"];
        let output = sim(&[&[command, "--trace", &path][..], &builtin].concat());
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        text(&output.stderr)
    };
    for unchanged in [&[][..], &["fair", "fair"][..]] {
        let said = said("compare", unchanged);
        assert!(!said.contains("changed"), "{unchanged:?}: {said}");
    }
    for (command, changes, says) in [
        ("compare", &["srpt"][..], "once while it was recorded; only the chosen ones are simulated\n"),
        (
            "run",
            &["srpt", "fair"],
            "2 times while it was recorded; only the chosen ones are simulated, or else those at its start\n",
        ),
    ] {
        let (said, says) =
            (said(command, changes), format!("monday: its host's policies were changed {says}"));
        assert!(said.contains(&says), "{command}: {said}");
    }
}

#[test]
fn requests_that_were_refused_while_recording_are_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = recording(dir.path(), "monday.jsonl", 100, 3);
    let whole = std::fs::read_to_string(&path).expect("it was written");
    let refused = trace::Line::Refused(trace::Refused { prompt: 9, max: 9, ..trace::Refused::default() });
    let refused = serde_json::to_string(&refused).expect("JSON") + "\n";
    for (refusals, says) in [
        (0, None),
        (1, Some("monday: its host refused a request while")),
        (3, Some("monday: its host refused 3 requests while")),
    ] {
        std::fs::write(&path, whole.clone() + &refused.repeat(refusals)).expect("it can be written");
        let builtin = ["--scheduler", "builtin", "--admission", "builtin", "--prefix-cache", "builtin"];
        let output = sim(&[&["run", "--trace", &path][..], &builtin].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stderr);
        assert_eq!(said.contains("its host refused"), says.is_some(), "{said}");
        assert!(says.is_none_or(|says| said.contains(says)), "{said}");
    }
}

#[test]
fn decisions_after_a_state_that_is_not_imported_are_skipped() {
    let lru = infer_bundle::find("prefix-cache", "lru").expect("it is shipped");
    let kind = "prefix-cache".to_owned();
    let member = trace::Member {
        name: "lru".to_owned(),
        sha256: lru.sha256.to_owned(),
        config: serde_json::json!({}),
    };
    let head = trace::Head {
        format: trace::FORMAT,
        decisions: true,
        policies: vec![trace::Policy { kind: kind.clone(), members: vec![member] }],
        ..trace::Head::default()
    };
    let asked = |sha256: &str, state: Option<&str>| {
        trace::Line::Asked(Box::new(trace::Asked {
            kind: kind.clone(),
            sha256: sha256.to_owned(),
            state: state.map(str::to_owned),
            question: serde_json::json!({"evict": {"now": 1, "need": 1}}),
            answer: serde_json::json!([]),
            ..trace::Asked::default()
        }))
    };
    let cold = [
        trace::Line::Head(Box::new(head)),
        // It keeps no state.
        asked(lru.sha256, Some("ff")),
        asked(lru.sha256, None),
    ];
    let all = [&cold[..], &[asked("", Some(""))]].concat();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cold.jsonl");
    let refusal = "line 2: the prefix-cache policy lru did not import its recorded state: this policy keeps no state; its";
    for (lines, code, says) in [
        (&all[..], 0, "2 more follow a state that the policy did not import\n"),
        (&cold[..], 1, "no decision could be checked: 2 follow a state that the policy did not import"),
    ] {
        let line = |line: &trace::Line| serde_json::to_string(line).expect("JSON") + "\n";
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).expect("it can be written");
        let output = sim(&["decisions", path.to_str().expect("UTF-8")]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(says) && said.matches(refusal).count() == 1, "{said}");
        assert_eq!(code == 0, said.starts_with("1 of 1 answers of prefix caches are equal\n"), "{said}");
    }
}

#[test]
fn unknown_component_matters_only_to_who_asks_about_its_slot() {
    let digest = "ab".repeat(32);
    let policy = |kind: &str, name: &str, sha256: &str| trace::Policy {
        kind: kind.to_owned(),
        members: vec![trace::Member {
            name: name.to_owned(),
            sha256: sha256.to_owned(),
            config: serde_json::json!({}),
        }],
    };
    let head = trace::Head {
        format: trace::FORMAT,
        decisions: true,
        policies: vec![policy("admission", "mine", &digest)],
        ..trace::Head::default()
    };
    let asked = |kind: &str, sha256: &str, question: serde_json::Value, answer: serde_json::Value| {
        trace::Line::Asked(Box::new(trace::Asked {
            kind: kind.to_owned(),
            sha256: sha256.to_owned(),
            state: Some(String::new()),
            question,
            answer,
            ..trace::Asked::default()
        }))
    };
    let unknown = || {
        let memory =
            serde_json::json!({"block_size": 16, "total_blocks": 8, "free_blocks": 4, "cached_blocks": 2});
        let load = super::load(&memory, 1);
        asked("admission", &digest, serde_json::json!({"measure": load}), serde_json::json!({}))
    };
    let evict = serde_json::json!({"evict": {"now": 1, "need": 1}});
    let known = asked("prefix-cache", "", evict, serde_json::json!([]));
    let lines = [trace::Line::Head(Box::new(head)), unknown(), unknown(), known];
    let line = |line: &trace::Line| serde_json::to_string(line).expect("JSON") + "\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("unknown.jsonl");
    std::fs::write(&path, lines.iter().map(line).collect::<String>()).expect("it can be written");
    let path = path.to_str().expect("UTF-8");

    let output = sim(&["decisions", path]);
    let said = text(&output.stderr);
    let lacks = format!("admission `mine` with SHA-256 {digest} is not bundled");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{lacks}; give its file with --component FILE.wasm")), "{said}");

    let output = sim(&["decisions", path, "--prefix-cache", "lru"]);
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(shown.contains("2 answers of admission policies are not checked: their component"), "{shown}");
    assert!(shown.contains("1 of 1 answers of prefix caches are equal"), "{shown}");
    assert_eq!(said.matches(&lacks).count(), 1, "{said}");
}
