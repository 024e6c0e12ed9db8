//! How evenly tenants were treated, by Jain's index (Jain, Chiu and Hawe 1984).

use super::{Fairness, TenantOutcome, present};

/// Of the tenants with requests.
pub(super) fn fairness(tenants: &[TenantOutcome]) -> Fairness {
    let tenants = || tenants.iter().filter(|tenant| tenant.requests > 0);
    Fairness {
        service: jain(tenants().map(|tenant| tenant.service)),
        latency: jain(tenants().filter_map(|tenant| present(tenant.latency_ms.mean))),
        latency_per_token: jain(tenants().filter_map(|tenant| tenant.latency_per_token_ms)),
    }
}

/// The index of several values; `None` if all are zero.
fn jain(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut number, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        number += 1.0;
        sum += value;
        squares += value * value;
    }
    (number > 1.0 && squares > 0.0).then(|| sum * sum / (number * squares))
}
