//! `--once`: the overview as plain text, for scripts, tickets and people without a terminal.

use std::fmt::Write as _;

use infer_api::admin::State;

use crate::view::format::{age, bytes, clean, count, microseconds, milliseconds, percent, rate};

/// The overview.
#[must_use]
pub fn text(state: &State, address: &str) -> String {
    let mut out = String::new();
    let host = &state.host;
    let (m, q, l, r) = (&state.memory, &state.queue, &state.latencies, &state.rates);
    let draining = if state.draining { ", draining" } else { "" };
    let mut line = |label: &str, text: String| {
        // A newline in a name or a message would forge a line.
        writeln!(out, "{:<13}{}", clean(label), clean(&text)).expect("a string takes everything");
    };
    line(
        "host",
        format!(
            "infer {} at {address}, {} on {}, {} KV, up {}, step {}{draining}",
            host.version,
            host.model,
            host.device,
            host.kv_cache,
            age(state.uptime_ms),
            count(state.step)
        ),
    );
    line(
        "throughput",
        format!(
            "{} tok/s generated, {} tok/s prompt, {} requests/s, {} steps/s",
            rate(r.generated_tokens),
            rate(r.prompt_tokens),
            rate(r.requests),
            rate(r.steps)
        ),
    );
    line("ttft", format!("p50 {}, p99 {}", milliseconds(l.ttft_p50_ms), milliseconds(l.ttft_p99_ms)));
    line("itl", format!("p50 {}, p99 {}", milliseconds(l.itl_p50_ms), milliseconds(l.itl_p99_ms)));
    line(
        "requests",
        format!("{} running, {} waiting, {} held, {} preempted", q.running, q.waiting, q.held, q.preempted),
    );
    let c = &state.counters;
    let reasons: Vec<String> = c
        .refused
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(reason, n)| format!("{reason} {}", count(*n)))
        .collect();
    let refused = count(c.refused.values().sum());
    let refused = if reasons.is_empty() { refused } else { format!("{refused} ({})", reasons.join(", ")) };
    line(
        "ended",
        format!(
            "{} finished, {} failed, {refused} refused",
            count(c.finished.values().sum()),
            count(c.failed)
        ),
    );
    line(
        "prefix cache",
        format!(
            "{} of {} prompt tokens found ({}), {} blocks evicted",
            count(c.prefix_hits),
            count(c.prefix_queries),
            percent(c.prefix_hits, c.prefix_queries),
            count(c.evicted_blocks)
        ),
    );
    let part = |blocks: u32| format!("{} ({})", count(blocks.into()), percent(blocks.into(), m.total.into()));
    line(
        "kv pool",
        format!(
            "{} used + {} cached + {} free = {} blocks of {} tokens, {}",
            part(m.used),
            part(m.cached),
            part(m.free),
            count(m.total.into()),
            m.block_size,
            bytes(u64::from(m.total) * m.block_bytes)
        ),
    );
    let backpressure = if state.pressure.backpressure { ", backpressure" } else { "" };
    line("pressure", format!("{:.2}{backpressure}", state.pressure.level));
    for slot in &state.policies {
        line(
            &slot.kind,
            format!(
                "{} {}, {}, {} calls, p50 {}, p99 {}, {} faults, {} fallbacks",
                slot.name,
                slot.version,
                slot.state,
                count(slot.calls),
                microseconds(slot.p50_us),
                microseconds(slot.p99_us),
                count(slot.faults),
                count(slot.fallbacks)
            ),
        );
        if let Some(fault) = &slot.last_fault {
            let ago = age(state.uptime_ms.saturating_sub(fault.at_ms));
            line("  last fault", format!("{} {}, {ago} ago: {}", fault.policy, fault.reason, fault.message));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use infer_api::admin::{FaultInfo, PolicySlot};

    #[test]
    fn a_message_is_one_line_and_cannot_drive_the_terminal() {
        let message = "evil\npressure     0.00\u{1b}[2J\u{9b}31m\u{202e}";
        let fault = FaultInfo { message: message.into(), ..FaultInfo::default() };
        let slot = PolicySlot { last_fault: Some(fault), ..PolicySlot::default() };
        let text = text(&State { policies: vec![slot], ..State::default() }, "http://host:1");
        assert_eq!(text.lines().filter(|line| line.starts_with("pressure")).count(), 1, "{text}");
        assert!(
            text.contains("evil pressure") && !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text}"
        );
    }
}
