//! `infer policy replay` repeats a fault.

use serde_json::{Value, json};

use crate::process::Home;

/// The exit code says whether the fault recurs, so that a script can check a corrected policy.
#[test]
fn replay_fails_if_the_policy_still_fails() {
    let home = Home::new();
    let lifecycle = json!("lifecycle");
    let evict = json!({"evict": {"now": 1, "need": 1}});
    let cases = [
        // Not a call that this slot's policy has.
        (("scheduler", "builtin-fcfs"), "setup", &evict, 1, "the policy still fails, in the same way"),
        (("scheduler", "builtin-fcfs"), "trap", &evict, 1, "the policy still fails, in another way"),
        (("scheduler", "builtin-fcfs"), "trap", &lifecycle, 0, "does not fail in this one call; a fault"),
        (("scheduler", "builtin-fcfs"), "step-budget", &lifecycle, 0, "can't show"),
        (("scheduler", "builtin-fcfs"), "starvation", &lifecycle, 0, "can't show"),
        // The file does not contain the pool that the policy knew.
        (("prefix-cache", "builtin-keep"), "trap", &evict, 0, "can't show"),
    ];
    for ((slot, name), kind, question, code, words) in cases {
        let fault = json!({
            "format": 1, "slot": slot, "step": 1, "at_us": 1, "shadow": false, "removed": false, "state": "",
            "policy": {"name": name, "version": "0.1.0",
                "members": [{"name": name, "version": "0.1.0", "sha256": "", "config": {}}]},
            "fault": {"kind": kind, "message": "it failed"}, "question": question,
        });
        std::fs::write(home.path("fault.json"), fault.to_string()).unwrap();
        let replay = |more: &[&str]| {
            let mut command = home.command("", &["policy", "replay", "fault.json"]);
            command.args(more).output().expect("sh starts")
        };
        let output = replay(&[]);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{slot} {kind}: {said}");
        assert!(said.contains(words), "{slot} {kind}: `{words}` isn't in: {said}");
        if words.contains("this one call") {
            let said = String::from_utf8_lossy(&replay(&["--times", "3"]).stdout).into_owned();
            assert!(said.contains("(3 calls)\n") && said.contains("in these calls; a fault"), "{said}");
        }
        let output = replay(&["--json"]);
        assert_eq!(output.status.code(), Some(code), "{slot} {kind}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["fails"], code == 1, "{slot} {kind}: {answer}");
        let decided = if slot == "prefix-cache" { json!([]) } else { Value::Null };
        assert_eq!(answer["answer"], decided, "{slot} {kind}: {answer}");
        if slot == "prefix-cache" {
            let said = String::from_utf8_lossy(&replay(&["--show"]).stdout).into_owned();
            assert!(said.contains("asked\n  evict: now 1, need 1\nanswered\n  answer: []\n"), "{said}");
        }
    }
}
