//! Rows of tenants for consoles: the engine's counts joined with names, usage and latencies. A host may have thousands of
//! tenants and consoles ask several times a second, so names are copied and percentiles computed only for those shown.

use std::cmp::Reverse;

use infer_api::admin::{MAX_TENANT_ROWS, TenantRow};
use infer_core::snapshot::TenantSnapshot;

use crate::tenants::{Tenants, Usage};

/// Tenants that have sent a request: those with most live ones, then those that got most tokens; and how many there are.
pub fn rows(tenants: &Tenants, all: &[TenantSnapshot]) -> (Vec<TenantRow>, u32) {
    // The engine also has rows of others.
    let used = tenants.used(all.iter().map(|tenant| tenant.tenant));
    let has_sent = |tenant: &TenantSnapshot, used: bool| tenant.running + tenant.waiting > 0 || used;
    let sent = all.iter().zip(used).filter(|(tenant, used)| has_sent(tenant, *used));
    let mut sent: Vec<_> = sent.map(|(tenant, _)| tenant).collect();
    let total = sent.len() as u32;
    keep_busiest(&mut sent, MAX_TENANT_ROWS);
    let row = |tenant: &TenantSnapshot| {
        let (name, usage) = tenants.find(tenant.tenant)?;
        Some(tenant_row(tenant, name, &usage))
    };
    (sent.into_iter().filter_map(row).collect(), total)
}

/// Keeps so many, in the order in which they are shown. The others aren't sorted.
fn keep_busiest(tenants: &mut Vec<&TenantSnapshot>, most: usize) {
    let rank = |t: &&TenantSnapshot| (Reverse(t.running + t.waiting), Reverse(t.generated_tokens), t.tenant);
    if tenants.len() > most {
        tenants.select_nth_unstable_by_key(most, rank);
        tenants.truncate(most);
    }
    tenants.sort_unstable_by_key(rank);
}

fn tenant_row(tenant: &TenantSnapshot, name: String, usage: &Usage) -> TenantRow {
    let counts = usage.snapshot();
    let [generated_per_second] = usage.recent.rate.note([tenant.generated_tokens]);
    let (ttft_p50_ms, ttft_p99_ms) = usage.recent.ttft.p50_p99();
    let (queue_p50_ms, queue_p99_ms) = usage.recent.queue.p50_p99();
    TenantRow {
        id: tenant.tenant.0,
        name,
        weight: f64::from(tenant.weight_permille) / 1_000.0,
        running: tenant.running,
        waiting: tenant.waiting,
        held: tenant.held,
        requests: counts.requests,
        refused: counts.refused,
        failed: counts.failed,
        prompt_tokens: tenant.prompt_tokens,
        generated_tokens: tenant.generated_tokens,
        generated_per_second,
        ttft_p50_ms,
        ttft_p99_ms,
        queue_p50_ms,
        queue_p99_ms,
    }
}

#[cfg(test)]
mod tests {
    use infer_core::TenantId;

    use super::*;

    fn snapshot(id: u32, waiting: u32, generated_tokens: u64) -> TenantSnapshot {
        TenantSnapshot {
            tenant: TenantId(id),
            weight_permille: 1_000,
            running: 0,
            waiting,
            held: 0,
            prompt_tokens: 0,
            generated_tokens,
        }
    }

    #[test]
    fn the_busiest_are_kept_in_order() {
        // Of 200 in no order, some with requests, and all others with tokens.
        let all: Vec<_> =
            (0..200).map(|n| snapshot(n * 77 % 200, u32::from(n % 50 == 0), n.into())).collect();
        for most in [0, 1, 4, 64, 200, 1_000] {
            let mut sorted: Vec<_> = all.iter().collect();
            sorted.sort_by_key(|t| (Reverse(t.waiting), Reverse(t.generated_tokens), t.tenant));
            sorted.truncate(most);
            let mut kept: Vec<_> = all.iter().collect();
            keep_busiest(&mut kept, most);
            assert_eq!(kept, sorted, "{most}");
        }
    }

    #[test]
    fn tenants_that_have_sent_nothing_are_left_out_and_the_rest_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = crate::tenants::KeyDigest::of("k");
        let names = (1..100).map(|n| format!("[tenants.t{n}]\n"));
        let text = format!("{}keys = [\"{key}\"]\n", names.collect::<String>());
        std::fs::write(file.path(), text).unwrap();
        let tenants = Tenants::of_file(file.path()).unwrap();
        for id in 1..80 {
            tenants.find(TenantId(id)).unwrap().1.ended(1, 0, 1, false);
        }
        let all: Vec<_> = (0..100).map(|id| snapshot(id, u32::from(id == 90), id.into())).collect();
        let (rows, total) = rows(&tenants, &all);
        assert_eq!((rows.len(), total), (MAX_TENANT_ROWS, 80));
        let shown: Vec<_> = rows.iter().map(|row| (row.id, row.name.as_str(), row.requests)).collect();
        assert_eq!(shown[..3], [(90, "t90", 0), (79, "t79", 1), (78, "t78", 1)]);
        assert_eq!(shown[63], (17, "t17", 1));
    }
}
