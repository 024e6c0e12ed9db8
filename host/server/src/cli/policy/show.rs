//! The terminal output of `infer policy`.

use infer_api::admin::{
    AvailablePolicy, CallCost, CanaryInfo, GaugeInfo, HistoryEntry, Policies, PolicySlot, RestoredState,
    ShadowInfo, SwapAnswer,
};
use serde_json::Value;

use super::super::table;

/// The live policies and what was quarantined; with `all`, also what can be swapped in.
pub(super) fn list(policies: &Policies, all: bool) {
    println!("live:");
    for (slot, row) in policies.slots.iter().zip(table::aligned(policies.slots.iter().map(live))) {
        println!("  {row}");
        news(slot);
    }
    if all {
        println!("can be swapped in:");
        catalogue(&policies.available);
    }
    if let Some(why) = &policies.not_saved {
        println!("not saved, so a restart would undo what was changed: {why}");
    }
    for why in &policies.not_restored {
        println!("not restored: {}", first_line(why));
    }
    for RestoredState { kind, policy, age_s } in &policies.restored {
        println!(
            "restored: the {kind} policy `{policy}` went on with what it knew {age_s} s before the start"
        );
    }
    if !policies.quarantine.is_empty() {
        println!("quarantined, swapped in again only with --force:");
    }
    for entry in &policies.quarantine {
        println!(
            "  {:<13} {:<16} {:.12} {} {}",
            entry.kind,
            entry.name,
            entry.sha256,
            entry.config,
            first_line(&entry.reason)
        );
    }
    if !all {
        println!("`infer policy list --all` shows what can be swapped in");
    }
}

/// Policies with their descriptions, which are cut at the terminal's edge; `infer policy describe` shows all
/// of one.
pub(super) fn catalogue(policies: &[AvailablePolicy]) {
    let row = |policy: &AvailablePolicy| {
        let AvailablePolicy { kind, name, version, description, .. } = policy;
        [kind.clone(), format!("{name} {version}"), description.clone()]
    };
    let columns = table::terminal_columns();
    for line in table::aligned(policies.iter().map(row)) {
        println!("{}", table::cut(&format!("  {line}"), columns));
    }
}

fn live(slot: &PolicySlot) -> [String; 7] {
    let [calls, p50, p99] = cost(slot.calls, slot.p50_us, slot.p99_us, !slot.is_native());
    [
        slot.kind.clone(),
        format!("{} {}", slot.name, slot.version),
        slot.state.clone(),
        format!("{calls} calls"),
        format!("p50 {p50}"),
        format!("p99 {p99}"),
        if slot.faults == 0 { String::new() } else { format!("{} faults", slot.faults) },
    ]
}

/// How many calls there were, and their percentiles, as far as the calls are `counted` and there were any.
pub(super) fn cost(calls: u64, p50_us: f64, p99_us: f64, counted: bool) -> [String; 3] {
    let shown = |text: String, there: bool| if there { text } else { "-".to_owned() };
    let percentile = |us: f64| shown(format!("{us:.1} us"), counted && calls > 0);
    [shown(calls.to_string(), counted), percentile(p50_us), percentile(p99_us)]
}

/// What has happened in a slot, below its row.
fn news(slot: &PolicySlot) {
    if let Some(fault) = &slot.last_fault {
        println!(
            "    last fault: {} of {} at step {}: {}",
            fault.reason,
            fault.policy,
            fault.step,
            first_line(&fault.message)
        );
        if let Some(path) = &fault.artifact {
            println!("      infer policy replay {path}");
        }
    }
    if let Some(canary) = &slot.canary {
        trial(canary);
    }
    if let Some(shadow) = slot.shadow.as_ref().filter(|shadow| shadow.state == "watching") {
        println!("    shadow: {}", agreement(shadow));
    }
}

pub(super) fn slot(slot: &PolicySlot) {
    println!("{} {} ({}, {})", slot.name, slot.version, slot.kind, slot.state);
    println!("  {}", slot.description);
    if !slot.sha256.is_empty() {
        println!("  sha256   {}", slot.sha256);
    }
    if !slot.tag.is_empty() {
        println!("  tag      {}", slot.tag);
    }
    if let Some(canary) = &slot.canary {
        trial(canary);
    }
    let [calls, p50, p99] = cost(slot.calls, slot.p50_us, slot.p99_us, !slot.is_native());
    println!("  calls    {calls} (p50 {p50}, p99 {p99})");
    gauges(&slot.gauges, "  gauge    ");
    println!("  faults   {}", slot.faults);
    println!("  built-in made {} of the slot's decisions since start", slot.fallbacks);
    let configured = |digest: &str| match digest {
        "" => String::new(),
        digest => format!(" ({})", short(digest, "default")),
    };
    let previous = slot.previous.as_deref().unwrap_or("none");
    println!("  previous {previous}{}", configured(&slot.previous_config_sha256));
    println!("  config   {}{}", slot.config, configured(&slot.config_sha256));
    schema(&slot.config_schema);
}

/// What a policy publishes about itself, a line each.
fn gauges(gauges: &[GaugeInfo], before: &str) {
    for GaugeInfo { policy, name, value } in gauges {
        println!("{before}{policy} {name} {value}");
    }
}

pub(super) fn available(policy: &AvailablePolicy) {
    println!("{} {} ({})", policy.name, policy.version, policy.kind);
    println!("  {}", policy.description);
    if !policy.sha256.is_empty() {
        println!("  sha256   {}", policy.sha256);
    }
    schema(&policy.config_schema);
}

/// A configuration schema, a key and a bound a line.
pub(super) fn schema(schema: &Value) {
    println!("  schema");
    for line in format!("{schema:#}").lines() {
        println!("    {line}");
    }
}

pub(super) fn swap(answer: SwapAnswer) {
    let made_of = made_of(&answer.sha256, &answer.config_sha256);
    if answer.unchanged {
        println!("{}: {} ({made_of}) is live already; nothing changed", answer.kind, answer.to);
        if let Some(why) = answer.not_saved {
            println!("not saved, so it may not outlive the host: {why}");
        }
        return;
    }
    let change = match answer.mode.as_str() {
        "shadow" => format!("{} in shadow beside {}", answer.to, answer.from),
        _ => format!("{} -> {}", answer.from, answer.to),
    };
    println!(
        "{}: {change} before step {}, {} state, engine paused for {:.1} us ({made_of})",
        answer.kind, answer.at_step, answer.state, answer.pause_us
    );
    if let Some(note) = answer.state_note {
        println!("its state is {}: {note}", answer.state);
    }
    if let Some(why) = answer.not_saved {
        println!("not saved, so a restart would undo it: {why}");
    }
    if let Some(canary) = answer.canary {
        let state = if canary.state == "watching" { "being watched" } else { &canary.state };
        println!("the canary is {state}: {}", canary.reason);
        if canary.state == "watching" {
            println!("it is watched for {}", span(&canary));
        }
        println!("`infer policy list` shows its progress");
    }
}

/// What a policy was made of, in short: its component, and its configuration unless that is the default.
pub(super) fn made_of(sha256: &str, config_sha256: &str) -> String {
    let component = short(sha256, "native");
    match config_sha256 {
        "" => component,
        config => format!("{component}, config {}", short(config, "default")),
    }
}

/// The beginning of a digest; of a list of policies, of each one's.
fn short(digests: &str, none: &str) -> String {
    let parts: Vec<&str> = digests.split('+').map(|digest| digest.get(..12).unwrap_or(none)).collect();
    parts.join("+")
}

fn agreement(shadow: &ShadowInfo) -> String {
    if shadow.questions == 0 {
        return format!("{} {}: no decision was compared yet", shadow.policy, shadow.version);
    }
    let share = shadow.agreements as f64 * 100.0 / shadow.questions as f64;
    format!("{} {} agrees in {share:.1}% of {} decisions", shadow.policy, shadow.version, shadow.questions)
}

pub(super) fn shadow(shadow: ShadowInfo) {
    println!("{} ({})", agreement(&shadow), shadow.state);
    if !shadow.reason.is_empty() {
        println!("  {}", shadow.reason);
    }
    if let Some(path) = shadow.fault.as_ref().and_then(|fault| fault.artifact.as_ref()) {
        println!("  infer policy replay {path}");
    }
    for (name, CallCost { calls, p50_us, p99_us }) in [("live", shadow.live_cost), ("shadow", shadow.cost)] {
        // Whether the live one is native is not in here, but a timed one that is compared has calls.
        let [calls, p50, p99] = cost(calls, p50_us, p99_us, calls > 0);
        println!("  {name:<7} p50 {p50}  p99 {p99}  {calls} calls");
    }
    gauges(&shadow.gauges, "  gauge   ");
    for (kind, count) in &shadow.divergences {
        println!("  differs in {kind}: {count}");
    }
    for example in &shadow.examples {
        println!("    step {:<8} live {}; shadow {}", example.step, example.live, example.shadow);
    }
}

/// The first line of a message: that of a guest's panic has several.
pub(super) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What a verdict compares, unlike the figures above it.
const LIKE_WITH_LIKE: &str = "      (of all loads together; a verdict compares like with like: tokens of steps with about \
                              as many sequences)";

fn trial(canary: &CanaryInfo) {
    trial_lines(canary).iter().for_each(|line| println!("{line}"));
}

fn trial_lines(canary: &CanaryInfo) -> Vec<String> {
    let mut lines = vec![format!(
        "    canary: {} instead of {}: {}, {}",
        canary.policy, canary.previous, canary.state, canary.reason
    )];
    if canary.state == "watching" {
        lines.push(format!("      {:.1} of {}", canary.watched_s, span(canary)));
    }
    let measured =
        [("before", canary.before), ("since", canary.after)].into_iter().filter(|(_, w)| w.busy_s > 0.0);
    for (name, window) in measured {
        lines.push(format!(
            "      {name:<7} ITL p50 {:.1} ms  p95 {:.1} ms  TTFT p50 {:.1} ms  {:.0} tokens/s  {:.1} requests/s",
            window.itl_p50_ms,
            window.itl_p95_ms,
            window.ttft_p50_ms,
            window.tokens_per_second,
            window.requests_per_second
        ));
    }
    if canary.before.busy_s > 0.0 && canary.after.busy_s > 0.0 {
        lines.push(LIKE_WITH_LIKE.to_owned());
    }
    lines
}

/// How long a trial lasts.
fn span(canary: &CanaryInfo) -> String {
    let CanaryInfo { watched_s, window_s, longest_s, .. } = *canary;
    if longest_s <= window_s {
        return format!("{window_s:.1} s with work in them");
    }
    if watched_s < window_s {
        return format!(
            "{window_s:.1} s with work in them; up to {longest_s:.1} s if more is asked of the host than before"
        );
    }
    format!("at most {longest_s:.1} s with work in them, extended from {window_s:.1} s")
}

pub(super) fn history(entries: Vec<HistoryEntry>) {
    let mut earlier = entries.first().is_some_and(|entry| entry.before_restart);
    for entry in entries {
        if earlier && !entry.before_restart {
            println!("the host was restarted; times count from here");
            earlier = false;
        }
        let from = if entry.from.is_empty() { "-" } else { &entry.from };
        let seconds = entry.at_ms as f64 / 1e3;
        let reason = if entry.reason == entry.mode {
            String::new()
        } else {
            format!("  {}", first_line(&entry.reason))
        };
        let by = entry.by.as_ref().map(|by| format!("  by {by}")).unwrap_or_default();
        println!(
            "{}  {seconds:>10.3} s  step {:<8} {:<8} {from} -> {} ({}){by}{reason}",
            entry.at_utc,
            entry.step,
            entry.mode,
            entry.to,
            made_of(&entry.sha256, &entry.config_sha256)
        );
    }
}

#[cfg(test)]
mod tests {
    use infer_api::admin::WindowInfo;

    use super::*;

    #[test]
    fn calls_that_are_not_counted_or_did_not_happen_have_no_numbers() {
        let slot = |sha256: &str, calls, us| PolicySlot {
            sha256: sha256.into(),
            calls,
            p50_us: us,
            p99_us: us,
            ..PolicySlot::default()
        };
        for (slot, says) in [
            (slot("", 0, 0.0), ["- calls", "p50 -", "p99 -"]),
            (slot("+", 0, 0.0), ["- calls", "p50 -", "p99 -"]),
            (slot("5d+", 9, 1.25), ["9 calls", "p50 1.2 us", "p99 1.2 us"]),
            (slot("5d", 0, 0.0), ["0 calls", "p50 -", "p99 -"]),
        ] {
            assert_eq!(live(&slot)[3..6], says, "{}", slot.sha256);
        }
    }

    #[test]
    fn shadow_without_a_compared_decision_neither_agrees_nor_differs() {
        let shadow = |agreements, questions| {
            let (policy, version) = ("fair".to_owned(), "0.1.0".to_owned());
            agreement(&ShadowInfo { policy, version, agreements, questions, ..ShadowInfo::default() })
        };
        assert_eq!(shadow(0, 0), "fair 0.1.0: no decision was compared yet");
        assert_eq!(shadow(3, 4), "fair 0.1.0 agrees in 75.0% of 4 decisions");
    }

    #[test]
    fn figures_of_a_trial_are_told_from_those_of_its_verdict() {
        let window = |itl_p50_ms| WindowInfo { busy_s: 5.0, itl_p50_ms, ..WindowInfo::default() };
        let canary = |before| CanaryInfo {
            policy: "mine".to_owned(),
            previous: "fair".to_owned(),
            state: "rolled_back".to_owned(),
            reason: "ITL p50 is 11.8 ms".to_owned(),
            before,
            after: window(5.9),
            ..CanaryInfo::default()
        };
        let lines = trial_lines(&canary(window(5.8)));
        assert_eq!(lines[0], "    canary: mine instead of fair: rolled_back, ITL p50 is 11.8 ms");
        assert!(lines[1].starts_with("      before  ITL p50 5.8 ms"), "{lines:?}");
        assert!(lines[2].starts_with("      since   ITL p50 5.9 ms"), "{lines:?}");
        assert_eq!(lines[3..], [LIKE_WITH_LIKE]);
        // There is nothing to compare with.
        assert_eq!(trial_lines(&canary(WindowInfo::default())).len(), 2);
    }

    #[test]
    fn a_trial_says_how_long_it_may_last() {
        for (watched_s, longest_s, says) in [
            (1.0, 6.0, "6.0 s with work in them"),
            (1.0, 24.0, "6.0 s with work in them; up to 24.0 s if more is asked of the host than before"),
            (12.1, 24.0, "at most 24.0 s with work in them, extended from 6.0 s"),
        ] {
            let canary = CanaryInfo { watched_s, window_s: 6.0, longest_s, ..CanaryInfo::default() };
            assert_eq!(span(&canary), says);
        }
    }
}
