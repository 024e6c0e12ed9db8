//! Fairness: the difference in service between tenants.

use std::collections::BTreeMap;

use infer_core::TenantTerms;
use infer_core::ids::TenantId;

/// Maximum number of waiting tenants to compare; further ones are ignored. Each is compared with each, so time and
/// memory are quadratic.
const MOST: usize = 256;

/// Largest difference in service of two tenants while both have waiting requests, each by its tenant's weight. Cost
/// depends on the number of waiting tenants, not on the number of all tenants.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// Of tenants whose weight isn't 1.
    weights: BTreeMap<u32, f64>,
    tenants: BTreeMap<u32, Served>,
    /// For each waiting tenant and each other one: its lead in service at the time from which both have been waiting.
    since: BTreeMap<u32, BTreeMap<u32, f64>>,
    pub gap: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Served {
    waiting: i64,
    total: f64,
    /// Of the total, what was served before the beginning.
    before: f64,
}

impl Service {
    /// Of tenants with these terms, and of others with the weight 1.
    pub fn of(tenants: &[(TenantId, TenantTerms)]) -> Self {
        let weight = |terms: &TenantTerms| f64::from(terms.weight_permille.max(1)) / 1e3;
        let weights = tenants.iter().map(|(tenant, terms)| (tenant.0, weight(terms))).collect();
        Self { weights, ..Self::default() }
    }

    /// Forgets the gap so far: only what is served from now on counts.
    pub fn begin(&mut self) {
        self.gap = 0.0;
        self.tenants.values_mut().for_each(|served| served.before = served.total);
        for (tenant, others) in &mut self.since {
            let own = self.tenants[tenant].total;
            for (other, start) in others {
                *start = own - self.tenants[other].total;
            }
        }
    }

    /// What a tenant was served since the beginning, divided by its weight.
    pub fn of_tenant(&self, tenant: u32) -> f64 {
        self.tenants.get(&tenant).map_or(0.0, |served| served.total - served.before)
    }

    pub fn waits(&mut self, tenant: u32, change: i64) {
        let entry = self.tenants.entry(tenant).or_default();
        let before = entry.waiting > 0;
        entry.waiting += change;
        let (after, own) = (entry.waiting > 0, entry.total);
        if after && !before && self.since.len() < MOST {
            let mut ahead = BTreeMap::new();
            for (other, others) in &mut self.since {
                let difference = own - self.tenants[other].total;
                ahead.insert(*other, difference);
                others.insert(tenant, -difference);
            }
            self.since.insert(tenant, ahead);
        } else if before && !after && self.since.remove(&tenant).is_some() {
            self.since.values_mut().for_each(|others| _ = others.remove(&tenant));
        }
    }

    pub fn serve(&mut self, tenant: u32, amount: f64) {
        let weight = self.weights.get(&tenant).copied().unwrap_or(1.0);
        let entry = self.tenants.entry(tenant).or_default();
        entry.total += amount / weight;
        let own = entry.total;
        for (other, start) in self.since.get(&tenant).into_iter().flatten() {
            self.gap = self.gap.max((own - self.tenants[other].total - start).abs());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_gap_counts_only_while_both_tenants_wait() {
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

    #[test]
    fn tenant_of_three_times_the_weight_may_be_served_three_times_as_much() {
        let terms = |weight_permille| TenantTerms { weight_permille, ..TenantTerms::default() };
        let gap = |served: [f64; 2]| {
            let mut service = Service::of(&[(TenantId(4), terms(3_000))]);
            [4, 7].into_iter().for_each(|tenant| service.waits(tenant, 1));
            for _ in 0..10 {
                service.serve(4, served[0]);
                service.serve(7, served[1]);
            }
            service.gap
        };
        assert!((gap([30.0, 10.0]) - 10.0).abs() < 1e-9, "one turn");
        assert!((gap([10.0, 10.0]) - (100.0 - 100.0 / 3.0)).abs() < 1e-9, "equal shares aren't fair");
    }

    #[test]
    fn what_was_served_before_the_beginning_does_not_count() {
        let mut service = Service::default();
        [1, 2].into_iter().for_each(|tenant| service.waits(tenant, 1));
        service.serve(1, 900.0);
        service.begin();
        assert!(service.gap.abs() < 1e-9, "{}", service.gap);
        service.serve(2, 40.0);
        service.serve(1, 10.0);
        assert!((service.gap - 40.0).abs() < 1e-9, "{}", service.gap);
        assert_eq!([1, 2, 3].map(|tenant| service.of_tenant(tenant)), [10.0, 40.0, 0.0]);
    }

    #[test]
    fn only_waiting_tenants_are_compared() {
        let mut service = Service::default();
        for tenant in 0..5_000 {
            service.serve(tenant, f64::from(tenant));
        }
        for tenant in [7, 4_000, 90] {
            service.waits(tenant, 2);
        }
        service.serve(90, 10.0);
        service.waits(90, -2);
        for tenant in [7, 4_000, 90] {
            service.serve(tenant, 1.0);
        }
        assert!((service.gap - 10.0).abs() < 1e-9, "{}", service.gap);
        assert_eq!(
            service.since.values().map(BTreeMap::len).sum::<usize>(),
            2,
            "only waiting tenants are kept"
        );
    }

    #[test]
    fn number_of_compared_tenants_is_bounded() {
        let mut service = Service::default();
        let crowd = 2 * MOST as u32;
        (0..crowd).for_each(|tenant| service.waits(tenant, 1));
        let pairs = |service: &Service| service.since.values().map(BTreeMap::len).sum::<usize>();
        assert_eq!(pairs(&service), MOST * (MOST - 1));
        service.serve(crowd - 1, 70.0);
        assert!(service.gap < 0.1, "a tenant beyond the bound is ignored: {}", service.gap);
        service.waits(7, -1);
        service.waits(crowd - 1, -1);
        service.waits(crowd - 1, 1);
        service.serve(crowd - 1, 30.0);
        assert!((service.gap - 30.0).abs() < 1e-9, "{}", service.gap);
        (0..crowd).for_each(|tenant| service.waits(tenant, -1));
        assert_eq!(pairs(&service), 0);
    }
}
