//! Fairness: how far apart the service of tenants gets.

use std::collections::BTreeMap;

/// How far apart the service of two tenants gets while both have something waiting.
#[derive(Debug, Default)]
pub(super) struct Service {
    tenants: BTreeMap<u32, Served>,
    pub gap: f64,
}

#[derive(Debug, Default)]
struct Served {
    waiting: i64,
    total: f64,
    /// Per other tenant: the difference of totals when both began to wait.
    since: BTreeMap<u32, f64>,
}

impl Service {
    pub fn waits(&mut self, tenant: u32, change: i64) {
        let entry = self.tenants.entry(tenant).or_default();
        let before = entry.waiting > 0;
        entry.waiting += change;
        let after = entry.waiting > 0;
        if before == after {
            return;
        }
        let own = entry.total;
        entry.since.clear();
        let others: Vec<(u32, f64)> = self
            .tenants
            .iter()
            .filter(|(id, o)| **id != tenant && o.waiting > 0)
            .map(|(id, o)| (*id, o.total))
            .collect();
        for (other, total) in others {
            let pair = (tenant.min(other), tenant.max(other));
            let difference = if pair.0 == tenant { own - total } else { total - own };
            let first = self.tenants.get_mut(&pair.0).expect("both are known");
            if after {
                first.since.insert(pair.1, difference);
            } else {
                first.since.remove(&pair.1);
            }
        }
    }

    pub fn serve(&mut self, tenant: u32, amount: f64) {
        self.tenants.entry(tenant).or_default().total += amount;
        if self.tenants.len() < 2 {
            return;
        }
        let totals: Vec<(u32, f64)> = self.tenants.iter().map(|(id, o)| (*id, o.total)).collect();
        let total_of =
            |id: u32| totals.iter().find(|(other, _)| *other == id).map_or(0.0, |(_, total)| *total);
        for (id, served) in &self.tenants {
            for (other, start) in &served.since {
                if *id == tenant || *other == tenant {
                    self.gap = self.gap.max((served.total - total_of(*other) - start).abs());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_gap_counts_only_while_both_wait() {
        let mut service = Service::default();
        service.serve(1, 500.0);
        service.waits(1, 1);
        service.serve(1, 500.0);
        service.waits(2, 1);
        assert!(service.gap < 0.1, "tenant 2 had nothing waiting: {}", service.gap);
        service.serve(1, 30.0);
        service.serve(2, 100.0);
        assert!((service.gap - 70.0).abs() < 1e-9, "{}", service.gap);
        service.waits(2, -1);
        service.serve(1, 5_000.0);
        assert!((service.gap - 70.0).abs() < 1e-9, "{}", service.gap);
    }
}
