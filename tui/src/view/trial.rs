//! Trials in a slot: a canary with its window and verdict, a shadow with its agreement.

use infer_api::admin::{PolicySlot, ShadowInfo, State, WindowInfo};
use ratatui::style::Style;

use super::Look;
use super::format::{age, count, microseconds, milliseconds, percent, rate};
use super::policies::Fact;

/// Divergences shown in full.
const EXAMPLES: usize = 3;

pub(super) fn canary(look: Look<'_>, state: &State, slot: &PolicySlot) -> Vec<Fact> {
    let Some(trial) = &slot.canary else { return Vec::new() };
    let theme = look.theme;
    let (text, style) = match trial.state.as_str() {
        "watching" => {
            let extended = trial.longest_s > trial.window_s && trial.watched_s >= trial.window_s;
            let (most, of) = if extended { ("at most ", trial.longest_s) } else { ("", trial.window_s) };
            let text = format!(
                "{} on trial, {:.0} of {most}{of:.0} s under load watched; on failure {} comes back; {}",
                trial.policy, trial.watched_s, trial.previous, trial.reason
            );
            (text, theme.warning)
        }
        verdict => {
            let ago = trial.ended_ms.map(|at| format!(", {} ago", age(state.uptime_ms.saturating_sub(at))));
            let style = if verdict == "promoted" { theme.good } else { theme.bad };
            let verdict = verdict.replace('_', " ");
            (format!("{} {verdict}{}: {}", trial.policy, ago.unwrap_or_default(), trial.reason), style)
        }
    };
    let mut facts = vec![("canary", text, style)];
    if trial.before.busy_s > 0.0 || trial.after.busy_s > 0.0 {
        facts.push(("  before", window(&trial.before), theme.label));
        facts.push(("  after", window(&trial.after), Style::new()));
    }
    facts
}

fn window(w: &WindowInfo) -> String {
    format!(
        "{} tok/s, ITL p50 {} p95 {}, TTFT p50 {}, {:.1}% refused, {} requests/s",
        rate(w.tokens_per_second),
        milliseconds(w.itl_p50_ms),
        milliseconds(w.itl_p95_ms),
        milliseconds(w.ttft_p50_ms),
        w.refused * 100.0,
        rate(w.requests_per_second)
    )
}

pub(super) fn shadow(look: Look<'_>, state: &State, slot: &PolicySlot) -> Vec<Fact> {
    let Some(shadow) = &slot.shadow else { return Vec::new() };
    let theme = look.theme;
    let agreement = format!(
        "agrees in {} of {} decisions ({})",
        count(shadow.agreements),
        count(shadow.questions),
        share(shadow.agreements, shadow.questions)
    );
    if shadow.state != "watching" {
        let ago = shadow.ended_ms.map(|at| format!(", {} ago", age(state.uptime_ms.saturating_sub(at))));
        // A promoted one needs no reason, and may have been replaced since.
        let reason = if shadow.state == "promoted" { String::new() } else { format!("; {}", shadow.reason) };
        let ago = ago.unwrap_or_default();
        let text = format!("{} {}{ago}; {agreement}{reason}", shadow.policy, shadow.state);
        return vec![("shadow", text, theme.label)];
    }
    let text = format!("{} {agreement}; p promotes it, x stops it", shadow.policy);
    let mut facts = vec![("shadow", text, theme.throughput), ("  cost", cost(shadow), Style::new())];
    if !shadow.gauges.is_empty() {
        facts.push(("  gauges", super::policies::gauges(&shadow.gauges), Style::new()));
    }
    if !shadow.divergences.is_empty() {
        let kinds: Vec<String> =
            shadow.divergences.iter().map(|(kind, n)| format!("{kind} {}", count(*n))).collect();
        facts.push(("  differs", format!("in {}", kinds.join(", ")), theme.warning));
    }
    for example in shadow.examples.iter().rev().take(EXAMPLES) {
        let text = format!(
            "step {}, {}: live {}; shadow {}",
            count(example.step),
            example.kind,
            example.live,
            example.shadow
        );
        facts.push(("", text, theme.label));
    }
    facts
}

/// Formats a share so that it is 100% only if nothing is missing.
fn share(part: u64, whole: u64) -> String {
    if part == whole {
        return percent(part, whole);
    }
    format!("{:.1}%", (part as f64 * 1_000.0 / whole.max(1) as f64).floor() / 10.0)
}

fn cost(shadow: &ShadowInfo) -> String {
    format!(
        "p50 {} p99 {}, live p50 {} p99 {}",
        microseconds(shadow.cost.p50_us),
        microseconds(shadow.cost.p99_us),
        microseconds(shadow.live_cost.p50_us),
        microseconds(shadow.live_cost.p99_us)
    )
}
