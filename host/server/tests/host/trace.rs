//! Recordings of a live host: what they hold, what they keep secret, and that replaying them gives the same decisions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::common::{Host, LONG, config, token_ids};
use infer_server::config::Config;
use reqwest::Method;
use serde_json::{Value, json};

/// A recording of a host under mixed traffic.
struct Recorded {
    lines: Vec<Value>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

const SHARED: &str = "You are a careful assistant that answers questions about inference servers in one short sentence and \
     never makes anything up. What you do not know you say that you do not know, and whoever asks for more \
     than one sentence gets one all the same, since more would only keep the others waiting. ";

async fn record() -> Recorded {
    let host = Host::start(config()).await;
    let start = host.admin(Method::POST, "/admin/trace/start?decisions=on").send().await.unwrap();
    assert_eq!(
        (start.status().as_u16(), &start.headers()["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    let reading = tokio::spawn(start.text());

    // Prompts with a common prefix, concurrently.
    let questions = ["What is a page?", "What is a batch?", "What is a prefix?", "Why do tokens stream?"];
    let ask = |text: String| {
        let host = &host;
        async move { host.events(json!({"prompt": text, "max_tokens": 24, "ignore_eos": true})).await }
    };
    ask(format!("{SHARED}{}", questions[0])).await;
    futures_util::future::join_all(questions.map(|question| ask(format!("{SHARED}{question}")))).await;
    // A session whose second turn sends the first turn's prompt and output, as tokens.
    let first: Vec<u64> = (0..70).map(|n| 5 + n * 3 % 200).collect();
    let turn = |prompt: Vec<u64>| {
        let host = &host;
        let body =
            json!({"prompt": prompt, "max_tokens": 20, "ignore_eos": true, "session_id": "secret session"});
        async move { token_ids(&host.events(body).await) }
    };
    let answer = turn(first.clone()).await;
    turn([first, answer, (0..30).map(|n| 40 + n).collect()].concat()).await;
    // A scheduler swapped while tokens stream.
    let swap = host.admin(Method::PUT, "/admin/policies/scheduler").json(&json!({"name": "srpt"})).send();
    let (_, swapped) = tokio::join!(ask("Tell me a long story about blocks.".repeat(8)), swap);
    assert_eq!(swapped.unwrap().status(), 200);
    futures_util::future::join_all(questions.map(|question| ask(question.to_owned()))).await;

    let again = host.admin(Method::POST, "/admin/trace/start").send().await.unwrap();
    assert_eq!(again.status(), 409, "only one recording at a time");
    let stopped: Value =
        host.admin(Method::POST, "/admin/trace/stop").send().await.unwrap().json().await.unwrap();
    assert_eq!(stopped["lost"], 0);
    let text = reading.await.unwrap().unwrap();
    host.server.shutdown().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.jsonl");
    std::fs::write(&path, &text).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Recorded { lines, path, _dir: dir }
}

fn of<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter_map(|line| line.get(kind)).collect()
}

fn infer(arguments: &[&str], path: &Path) -> Output {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    infer.arg("sim").args(arguments).arg(path).output().expect("infer starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recording_holds_no_texts_and_replays_to_the_same_decisions() {
    let recorded = record().await;
    let Recorded { lines, path, .. } = &recorded;

    // What it holds.
    assert!(lines[0].get("head").is_some() && lines.last().unwrap().get("foot").is_some());
    let (requests, ends) = (of(lines, "request"), of(lines, "end"));
    assert_eq!((requests.len(), ends.len()), (12, 12));
    assert!(ends[..5].iter().all(|end| end["output"] == 24 && end["reason"] == "length"));
    let drawn: u64 = of(lines, "step")
        .iter()
        .flat_map(|step| step["drew"].as_array().unwrap())
        .map(|drew| drew.as_u64().unwrap())
        .sum();
    let output: u64 = ends.iter().map(|end| end["output"].as_u64().unwrap()).sum();
    assert_eq!(drawn, output, "every token is in a step");
    assert!(of(lines, "step").iter().all(|step| step["at"].as_u64() < step["end"].as_u64()));
    let blocks = |at: usize| requests[at]["blocks"].as_array().unwrap();
    assert!(blocks(1).len() > 2 && blocks(1)[..2] == blocks(2)[..2], "a common prefix is visible");
    // Four came concurrently, in any order; one of them repeats the first prompt.
    let again = requests[1..5].iter().filter(|request| request["whole"] == requests[0]["whole"]);
    assert_eq!(again.count(), 1, "a repeated prompt is visible");
    let (first, second) = (requests[5], requests[6]);
    assert_eq!(second["shares"], json!({"id": first["id"], "tokens": 90}));
    assert_eq!((&second["after"], &second["session"]), (&first["id"], &first["session"]));
    assert_eq!(of(lines, "policy")[0]["members"][0]["name"], "srpt");

    // What it must not hold.
    let text = std::fs::read_to_string(path).unwrap();
    for secret in ["secret session", "careful assistant", "page", "[5,8,11,14", "hash_key"] {
        assert!(!text.contains(secret), "{secret}");
    }

    // The same components give the same plans, also after the swap.
    let decisions = of(lines, "decision").len();
    assert!(decisions > 100, "{decisions}");
    let again = infer(&["decisions"], path);
    assert!(again.status.success(), "{}", said(&again));
    assert!(
        said(&again).starts_with(&format!("{decisions} of {decisions} plans are equal\n")),
        "{}",
        said(&again)
    );
    // And so do admission policies and prefix caches.
    let asked = |kind: &str| of(lines, "asked").iter().filter(|asked| asked["kind"] == kind).count();
    for (kind, what) in [("admission", "admission policies"), ("prefix-cache", "prefix caches")] {
        let count = asked(kind);
        // The first request was admitted before the recording started.
        assert!(count > 8, "{kind}: {count}");
        let equal = format!("{count} of {count} answers of {what} are equal\n");
        assert!(said(&again).contains(&equal), "{}", said(&again));
    }
    let other = infer(&["decisions", "--scheduler", "static-batch"], path);
    assert!(other.status.success() && said(&other).contains("now"), "{}", said(&other));

    // A plan that differs is found.
    let mut tampered = lines.clone();
    let of_one =
        |line: &Value| line["decision"]["plan"]["tokens"].as_array().is_some_and(|all| !all.is_empty());
    let at = tampered.iter().position(of_one).unwrap();
    let tokens = &mut tampered[at]["decision"]["plan"]["tokens"][0];
    *tokens = (tokens.as_u64().unwrap() + 1).into();
    let other = path.with_file_name("tampered.jsonl");
    std::fs::write(&other, tampered.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let found = infer(&["decisions"], &other);
    assert_eq!(found.status.code(), Some(1));
    assert!(
        said(&found).contains(&format!("{} of {decisions} plans are equal", decisions - 1)),
        "{}",
        said(&found)
    );

    let mut tampered = lines.clone();
    let at = tampered.iter().position(|line| line["asked"]["question"].get("admit").is_some()).unwrap();
    tampered[at]["asked"]["answer"] = "wait".into();
    std::fs::write(&other, tampered.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let found = infer(&["decisions"], &other);
    assert_eq!(found.status.code(), Some(1));
    assert!(said(&found).contains("then \"wait\"; now \"admit\""), "{}", said(&found));

    skips_decisions_behind_a_gap(&recorded);
    replays_with_the_same_hits(&recorded);
    plays_incomplete_recordings_but_none_with_gaps(&recorded);
    calibrates_and_judges(&recorded);

    // A profile does not predict that the machine stops while a host is recorded, so that may be another one.
    let mut error = error_of_throughput(&recorded);
    for _ in 0..9 {
        if error < 50.0 {
            break;
        }
        error = error_of_throughput(&record().await);
    }
    assert!(error < 50.0, "{error} %");
}

/// By how many percent a profile fitted to a recording misses its throughput.
fn error_of_throughput(Recorded { path, .. }: &Recorded) -> f64 {
    let profile = path.with_file_name("own.json");
    let profile = profile.to_str().unwrap();
    let fitted = infer(&["calibrate", "--out", profile], path);
    assert!(fitted.status.success(), "{}", said(&fitted));
    let judged = infer(&["judge", "--format", "json", "--device", profile], path);
    let figures: Vec<Value> = serde_json::from_slice(&judged.stdout).unwrap();
    let throughput = figures.iter().find(|figure| figure["what"] == "output tok/s").unwrap();
    throughput["error_percent"].as_f64().unwrap().abs()
}

/// After a loss the state of a policy is unknown until it is recorded again.
fn skips_decisions_behind_a_gap(Recorded { lines, path, .. }: &Recorded) {
    let other = path.with_file_name("gap.jsonl");
    let told = |line: &Value| line["asked"]["question"].get("observe").is_some();
    let mut lossy = lines.clone();
    let at =
        lossy.iter().position(|line| told(line) && line["asked"].get("state").is_none_or(Value::is_null));
    lossy[at.unwrap()] = json!({"lost": {"happenings": 1}});
    std::fs::write(&other, lossy.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let found = infer(&["decisions"], &other);
    assert!(found.status.success(), "{}", said(&found));
    assert!(said(&found).contains("more are behind a gap"), "{}", said(&found));
    // A scheduler's state is recorded when it becomes live.
    let srpt = lines.iter().position(|line| line.get("policy").is_some()).unwrap();
    let asked = lines[srpt..].iter().filter(|line| line.get("decision").is_some()).count();
    let before = lines[..at.unwrap()].iter().filter(|line| line.get("decision").is_some()).count();
    let equal = format!("{0} of {0} plans are equal\n", before + asked);
    assert!(said(&found).contains(&equal), "{equal}: {}", said(&found));
}

/// In the simulator, prompts share what they shared on the host.
fn replays_with_the_same_hits(Recorded { lines, path, .. }: &Recorded) {
    let replayed = infer(&["run", "--device", "cpu", "--model", "demo", "--format", "json", "--trace"], path);
    assert!(replayed.status.success(), "{}", said(&replayed));
    let cells: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let started = of(lines, "started");
    let names = ["CONVERSATIONAL_HIT", "CROSS_REQUEST_HIT", "MISS_FULL", "FULL_HIT_NO_PREFILL_NEEDED"];
    let on_the_host = names.map(|name| started.iter().filter(|start| start["event"] == name).count());
    let in_the_simulator = names.map(|name| cells[0]["cache"]["events"][name].as_u64().unwrap() as usize);
    assert_eq!(in_the_simulator, on_the_host);
    assert!(on_the_host[0] == 1 && on_the_host[1] > 2, "{on_the_host:?}");
    assert_eq!((&cells[0]["finished"], &cells[0]["requests"]), (&json!(12), &json!(12)));
    let changed = "host: its host's policies were changed once while it was recorded; only the chosen";
    assert!(said(&replayed).contains(changed), "{}", said(&replayed));
    // Played twice as fast, it takes less time.
    let faster = infer(
        &["run", "--device", "cpu", "--model", "demo", "--load", "2", "--format", "json", "--trace"],
        path,
    );
    let cells_faster: Value = serde_json::from_slice(&faster.stdout).unwrap();
    assert!(cells_faster[0]["seconds"].as_f64() < cells[0]["seconds"].as_f64());
}

/// A recording may end anywhere, even within a line, and may be of an older host; but nothing may be missing inside.
fn plays_incomplete_recordings_but_none_with_gaps(Recorded { lines, path, .. }: &Recorded) {
    let other = path.with_file_name("other.jsonl");
    let play = |lines: &[String]| {
        std::fs::write(&other, lines.join("\n")).unwrap();
        infer(&["run", "--device", "cpu", "--model", "demo", "--format", "json", "--trace"], &other)
    };
    let whole: Vec<String> = lines.iter().map(Value::to_string).collect();
    let end_of = |id: &Value| lines.iter().position(|line| line["end"]["id"] == *id).unwrap();
    let last_end = end_of(&of(lines, "request")[11]["id"]);

    let mut cut = whole[..=last_end].to_vec();
    cut[last_end].truncate(12);
    let played = play(&cut);
    assert!(played.status.success() && said(&played).contains("was cut off"), "{}", said(&played));
    let cells: Value = serde_json::from_slice(&played.stdout).unwrap();
    assert_eq!((&cells[0]["finished"], &cells[0]["requests"]), (&json!(12), &json!(12)));
    let generated = cells[0]["output_per_second"].as_f64().unwrap() * cells[0]["seconds"].as_f64().unwrap();
    let output: u64 = of(lines, "end").iter().map(|end| end["output"].as_u64().unwrap()).sum();
    assert_eq!(generated.round() as u64, output, "the last request's tokens are in its steps");
    let decisions = infer(&["decisions"], &other);
    assert!(decisions.status.success(), "{}", said(&decisions));
    let judged = infer(&["judge", "--device", "cpu", "--model", "demo"], &other);
    assert!(
        judged.status.success() && said(&judged).matches("was cut off").count() == 1,
        "{}",
        said(&judged)
    );

    let mut garbled = whole.clone();
    garbled[2].truncate(12);
    let played = play(&garbled);
    assert!(!played.status.success() && said(&played).contains("line 3, column 12"), "{}", said(&played));

    let mut lossy = whole;
    let in_its_midst = end_of(&of(lines, "request")[0]["id"]);
    lossy[in_its_midst] = json!({"lost": {"happenings": 3}}).to_string();
    let missing = format!("line {}, column 1: 3 events are missing here", in_its_midst + 1);
    for refused in [play(&lossy), infer(&["judge", "--device", "cpu", "--model", "demo"], &other)] {
        assert!(!refused.status.success() && said(&refused).contains(&missing), "{}", said(&refused));
    }

    let mut earlier = lines.clone();
    for setting in ["speculate", "plan_ahead"] {
        assert!(earlier[0]["head"]["engine"].as_object_mut().unwrap().remove(setting).is_some(), "{setting}");
    }
    let played = play(&earlier.iter().map(Value::to_string).collect::<Vec<_>>());
    assert!(played.status.success(), "{}", said(&played));
}

/// A profile fitted to a recording predicts such traffic.
fn calibrates_and_judges(Recorded { path, .. }: &Recorded) {
    let profile = path.with_file_name("profile.json");
    let fitted = infer(&["calibrate", "--out", profile.to_str().unwrap()], path);
    assert!(
        fitted.status.success() && said(&fitted).contains("steps; error of a step's predicted time"),
        "{}",
        said(&fitted)
    );
    let once = std::fs::read_to_string(&profile).unwrap();
    infer(&["calibrate", "--out", profile.to_str().unwrap()], path);
    assert_eq!(std::fs::read_to_string(&profile).unwrap(), once, "the same recording gives the same profile");
    let judged = infer(&["judge", "--format", "json", "--device", profile.to_str().unwrap()], path);
    assert!(judged.status.success(), "{}", said(&judged));
    let changed = "changed once while it was recorded; the predictions are for those at its start";
    assert!(said(&judged).contains(changed), "{}", said(&judged));
    let figures: Vec<Value> = serde_json::from_slice(&judged.stdout).unwrap();
    assert_eq!(figures.len(), 7);
    for figure in &figures {
        let (was, is) = (figure["measured"].as_f64().unwrap(), figure["predicted"].as_f64().unwrap());
        assert!(was > 0.0 && is > 0.0, "{figure}");
    }
    let table = path.with_file_name("figures.csv");
    let (table_path, profile_path) = (table.to_str().unwrap(), profile.to_str().unwrap());
    let written = infer(&["judge", "--format", "csv", "--out", table_path, "--device", profile_path], path);
    assert!(written.status.success() && written.stdout.is_empty(), "{}", said(&written));
    let rows = csv::Reader::from_path(&table).unwrap().into_deserialize();
    let rows: Vec<BTreeMap<String, String>> = rows.map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), figures.len());
    for (row, figure) in rows.iter().zip(&figures) {
        for key in ["recording", "what"] {
            assert_eq!(figure[key], row[key], "{figure}");
        }
        for key in ["measured", "predicted", "error_percent"] {
            let (written, shown) = (row[key].parse::<f64>().unwrap(), figure[key].as_f64().unwrap());
            assert!((written - shown).abs() <= 1e-9 * shown.abs(), "{key}: {row:?} {figure}");
        }
    }
    let steady = infer(&["calibrate", "--steady", "--format", "json"], path);
    let steady: Value = serde_json::from_slice(&steady.stdout).unwrap();
    assert_eq!(steady["spread"], json!([]));
    let generated = infer(&["run", "--requests", "30", "--format", "csv", "--device"], &profile);
    assert!(
        generated.status.success() && said(&generated).contains("chat,0.8,continuous,30,30"),
        "{}",
        said(&generated)
    );
}

#[tokio::test]
async fn recordings_are_started_and_stopped_over_the_admin_plane() {
    let host = Host::start(config()).await;
    let post = |path: &'static str| {
        let request = host.admin(Method::POST, path);
        async move {
            let answer = request.send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        }
    };
    for (path, status, says) in [
        ("/admin/trace/stop", 409, "no recording is running"),
        ("/admin/trace/start?decisions=maybe", 422, "neither `on` nor `off`"),
        ("/admin/trace/start?max_mib=0", 422, "whole number from 1"),
        ("/admin/trace/start?file=/etc/passwd", 422, "unknown query parameter `file`"),
    ] {
        let (code, text) = post(path).await;
        assert_eq!(code, status, "{path}");
        assert!(text.contains(says), "{path}: {text}");
    }
    // Disconnecting ends it.
    let mut start = host.admin(Method::POST, "/admin/trace/start").send().await.unwrap();
    assert!(start.chunk().await.unwrap().unwrap().starts_with(b"{\"head\""));
    drop(start);
    host.complete(json!({})).await.text().await.unwrap();
    let begun = Instant::now();
    let mut second = loop {
        let second = host.admin(Method::POST, "/admin/trace/start?max_mib=1").send().await.unwrap();
        if second.status() == 200 {
            break second;
        }
        // The host may not have noticed yet.
        assert!(second.status() == 409 && begun.elapsed() < LONG, "{:?}", second.text().await);
    };
    assert!(second.chunk().await.unwrap().is_some());
    assert_eq!(post("/admin/trace/stop").await.0, 200);
    let mut rest = Vec::new();
    while let Some(chunk) = second.chunk().await.unwrap() {
        rest.extend(chunk);
    }
    assert!(String::from_utf8(rest).unwrap().contains("\"reason\":\"stopped\""));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_draft_tokens_are_counted_and_prevent_calibration() {
    let host = Host::start(Config { speculate: 4, ..config() }).await;
    let start = host.admin(Method::POST, "/admin/trace/start").send().await.unwrap();
    let reading = tokio::spawn(start.text());
    let prompt: Vec<u64> = (0..90).map(|n| 5 + n % 6).collect();
    host.events(json!({"prompt": prompt, "max_tokens": 64, "ignore_eos": true})).await;
    host.events(json!({"prompt": "one two three one two three one two", "max_tokens": 64})).await;
    let accepted = host.admin_get("/admin/state").await["counters"]["accepted_tokens"].clone();
    host.admin(Method::POST, "/admin/trace/stop").send().await.unwrap();
    let text = reading.await.unwrap().unwrap();
    host.server.shutdown().await;

    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let drew: Vec<u64> = of(&lines, "step")
        .iter()
        .flat_map(|step| step["drew"].as_array().unwrap())
        .map(|drew| drew.as_u64().unwrap())
        .collect();
    let beside: u64 = drew.iter().map(|drew| drew.saturating_sub(1)).sum();
    assert!(accepted.as_u64() > Some(0) && accepted == beside, "{accepted} accepted, {beside} recorded");
    let output: u64 = of(&lines, "end").iter().map(|end| end["output"].as_u64().unwrap()).sum();
    assert_eq!(drew.iter().sum::<u64>(), output, "every token is in a step");
    assert_eq!(lines[0]["head"]["engine"]["speculate"], 4);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guessed.jsonl");
    std::fs::write(&path, &text).unwrap();
    for arguments in [&["calibrate"][..], &["judge", "--device", "cpu", "--model", "demo"]] {
        let refused = infer(arguments, &path);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(said(&refused).contains("used draft tokens (--speculate)"), "{}", said(&refused));
    }
    let played = infer(&["run", "--device", "cpu", "--model", "demo", "--trace"], &path);
    assert!(
        played.status.success() && said(&played).contains("the simulated one doesn't"),
        "{}",
        said(&played)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recording_makes_a_new_file_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.jsonl");
    let host = Host::start(config()).await;
    let record = |admin: &str| {
        let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
        infer.args(["sim", "record", "--seconds", "1", "--admin", admin, "--out"]).arg(&path);
        infer.env("INFER_ADMIN_TOKEN", &host.server.admin_token).output().expect("infer starts")
    };
    let under_way = host.admin(Method::POST, "/admin/trace/start").send().await.unwrap();
    let here = host.server.admin_addr.to_string();
    for (admin, says) in [("127.0.0.1:1", "can't be reached"), (&here, "a recording is already running")] {
        let output = record(admin);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(says), "{}", said(&output));
        assert!(!path.exists(), "no recording started");
    }
    host.admin(Method::POST, "/admin/trace/stop").send().await.unwrap();
    assert!(under_way.text().await.unwrap().contains("\"foot\""));
    let output = record(&here);
    assert!(output.status.success(), "{}", said(&output));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"head\"") && text.contains("\"reason\":\"stopped\""), "{text}");
    let again = record(&here);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("host.jsonl exists"), "{}", said(&again));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "a recording is not overwritten");
    host.server.shutdown().await;
}
