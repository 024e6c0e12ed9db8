//! `--once`: the overview as plain text, for scripts, tickets and people without a terminal.

use infer_api::admin::{PolicySlot, State};

use crate::text::clean;
use crate::view::format::{age, bytes, calls, count, microseconds, milliseconds, percent, rate};
use crate::view::tenants;

/// A label and its text.
type Row = (String, String);

/// Returns the overview, one `label text` line per fact.
#[must_use]
pub fn text(state: &State, address: &str) -> String {
    let mut rows = vec![host(state, address)];
    rows.extend(load(state));
    rows.extend(cache(state));
    rows.extend(tenants(state));
    rows.extend(state.policies.iter().flat_map(|slot| policy(state, slot)));
    // Cleaned, because a newline in a name or a message would forge a line.
    rows.iter().map(|(label, text)| format!("{:<13}{}\n", clean(label), clean(text))).collect()
}

fn row(label: &str, text: String) -> Row {
    (label.to_owned(), text)
}

fn host(state: &State, address: &str) -> Row {
    let host = &state.host;
    let draining = if state.draining { ", draining" } else { "" };
    row(
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
    )
}

/// Rates, latencies and requests.
fn load(state: &State) -> [Row; 5] {
    let (q, l, r, c) = (&state.queue, &state.latencies, &state.rates, &state.counters);
    let throughput = format!(
        "{} tok/s generated, {} tok/s prompt, {} requests/s, {} steps/s",
        rate(r.generated_tokens),
        rate(r.prompt_tokens),
        rate(r.requests),
        rate(r.steps)
    );
    let finished = count(c.finished.values().sum());
    let ended = format!(
        "{finished} finished, {} failed, {} refused, {} device faults",
        count(c.failed),
        refusals(state),
        count(c.device_faults)
    );
    [
        row("throughput", throughput),
        row("ttft", format!("p50 {}, p99 {}", milliseconds(l.ttft_p50_ms), milliseconds(l.ttft_p99_ms))),
        row("itl", format!("p50 {}, p99 {}", milliseconds(l.itl_p50_ms), milliseconds(l.itl_p99_ms))),
        row(
            "requests",
            format!(
                "{} running, {} waiting, {} held, {} preempted",
                count(q.running.into()),
                count(q.waiting.into()),
                count(q.held.into()),
                count(q.preempted.into())
            ),
        ),
        row("ended", ended),
    ]
}

/// How many requests were refused, by reason.
fn refusals(state: &State) -> String {
    let refused = &state.counters.refused;
    let reasons = refused.iter().filter(|(_, n)| **n > 0);
    let reasons: Vec<String> = reasons.map(|(reason, n)| format!("{reason} {}", count(*n))).collect();
    let total = count(refused.values().sum());
    if reasons.is_empty() { total } else { format!("{total} ({})", reasons.join(", ")) }
}

/// The prefix cache, the pool that holds it, what admission says of that, and how full the batch is.
fn cache(state: &State) -> [Row; 3] {
    let (m, c) = (&state.memory, &state.counters);
    let found = format!(
        "{} of {} prompt tokens cached ({}), {} blocks evicted",
        count(c.prefix_hits),
        count(c.prefix_queries),
        percent(c.prefix_hits, c.prefix_queries),
        count(c.evicted_blocks)
    );
    let part = |blocks: u32| format!("{} ({})", count(blocks.into()), percent(blocks.into(), m.total.into()));
    let mut pool = format!(
        "{} used + {} cached + {} free = {} blocks of {} tokens, {}",
        part(m.used),
        part(m.cached),
        part(m.free),
        count(m.total.into()),
        m.block_size,
        bytes(u64::from(m.total) * m.block_bytes)
    );
    if let Some(offload) = &state.offload {
        let (used, total) = (count(offload.used.into()), count(offload.total.into()));
        let back = count(offload.blocks_in);
        pool.push_str(&match offload.failed {
            true => "; its second level failed".to_owned(),
            false => format!("; {used} of {total} blocks offloaded, {back} came back"),
        });
    }
    let p = &state.pressure;
    let pressure = format!(
        "{:.2}{}, {} blocks available, {} reserved, accepts up to {} tokens, {} of {} batch slots taken",
        p.level,
        if p.backpressure { ", backpressure" } else { "" },
        count(p.available_blocks.into()),
        count(p.reserved_blocks.into()),
        count(p.max_sequence_tokens.into()),
        count(p.active_sequences.into()),
        count(p.max_sequences.into())
    );
    [row("prefix cache", found), row("kv pool", pool), row("pressure", pressure)]
}

/// The tenants, if there is more than one.
fn tenants(state: &State) -> Vec<Row> {
    if state.tenants.len() < 2 {
        return Vec::new();
    }
    let labels = ["tenants"].into_iter().chain(std::iter::repeat(""));
    labels.zip(tenants::text(state)).map(|(label, line)| row(label, line)).collect()
}

/// A slot, and its last fault if there was one.
fn policy(state: &State, slot: &PolicySlot) -> Vec<Row> {
    let health = format!(
        "{} {}, {}, {} calls, p50 {}, p99 {}, {} faults, {} fallbacks",
        slot.name,
        slot.version,
        slot.state,
        calls(slot),
        microseconds(slot.p50_us),
        microseconds(slot.p99_us),
        count(slot.faults),
        count(slot.fallbacks)
    );
    let mut rows = vec![row(&slot.kind, health)];
    if let Some(fault) = &slot.last_fault {
        let ago = age(state.uptime_ms.saturating_sub(fault.at_ms));
        let text = format!("{} {}, {ago} ago: {}", fault.policy, fault.reason, fault.message);
        rows.push(row("  last fault", text));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use infer_api::admin::{Counters, FaultInfo, Offload, TenantRow};

    #[test]
    fn tenants_are_listed_if_there_is_more_than_one() {
        let tenant = |name: &str| TenantRow { name: name.into(), ..TenantRow::default() };
        let lines = |names: &[&str]| {
            let tenants = names.iter().map(|name| tenant(name)).collect();
            let text = text(&State { tenants, ..State::default() }, "http://host:1");
            let table = text.lines().skip_while(|line| !line.starts_with("tenants "));
            table.take_while(|line| line.starts_with([' ', 't'])).count()
        };
        assert_eq!([lines(&[]), lines(&["default"]), lines(&["acme", "lab-7"])], [0, 0, 3]);
    }

    #[test]
    fn failures_are_counted() {
        let counters = Counters { failed: 1_007, device_faults: 2, ..Counters::default() };
        let text = text(&State { counters, ..State::default() }, "http://host:1");
        assert!(text.contains("0 finished, 1,007 failed, 0 refused, 2 device faults\n"), "{text}");
    }

    #[test]
    fn the_second_level_is_shown_if_there_is_one() {
        let line = |offload| {
            let text = text(&State { offload, ..State::default() }, "http://host:1");
            let pool = text.lines().find(|line| line.starts_with("kv pool")).expect("the pool has a line");
            pool.split_once("; ").map(|(_, after)| after.to_owned())
        };
        let offload = Offload { total: 1_000, used: 20, blocks_in: 3, ..Offload::default() };
        assert_eq!(line(None), None);
        assert_eq!(line(Some(offload)).as_deref(), Some("20 of 1,000 blocks offloaded, 3 came back"));
        let failed = Offload { failed: true, ..Offload::default() };
        assert_eq!(line(Some(failed)).as_deref(), Some("its second level failed"));
    }

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
